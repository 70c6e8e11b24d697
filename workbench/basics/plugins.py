"""Code of the user's own by name: `package.module:Name` wherever a kind is named (invariant 17), and where it came from.

    Guess = load_named("my_env:Guess", "env.kind")
    origin_of(Guess)                                     Origin("my_env:Guess", "", "9f2c...")

The package's own names stand in tables; only a name with a colon in it imports code.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workbench.basics.beside import give
from workbench.values.errors import ConfigError, MissingPackageError, did_you_mean, own_line

NAMED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
# Names of this package that a stored run may hold from before the modules moved -> where they are now.
MOVED: Mapping[str, str] = {
    "workbench.engines.encoder:encoder": "workbench.extensions.servers.encoder:encoder",
    "workbench.envs.tools.calculator:calculator": "workbench.tools.calculator:calculator",
}
# Packages of earlier versions, which code of the user's own may import -> where their names are now.
MOVED_PACKAGES: Mapping[str, str] = {
    "workbench.types": "workbench.values and workbench.basics",
    "workbench.envs": "workbench.worlds and workbench.tools",
    "workbench.views": "workbench.look",
    "workbench.notebook": "workbench.look.cells",
}
HERE = "__main__"  # the module of a notebook's cells, or of the script that was started
TWICE = "__mp_main__"  # what multiprocessing calls the same script


@dataclass(frozen=True)
class Origin:
    """Where code came from.

    name     "module:Qualname"
    version  of the installed distribution that the module belongs to; "" where it is a file by itself
    source   sha256 of the module's source file; "" where it has none (a notebook)
    """

    name: str
    version: str
    source: str


def is_named(kind: object) -> bool:
    """Whether this is a name of the form `package.module:Name`, not one of a table."""
    return isinstance(kind, str) and ":" in kind


def load_named(reference: str, what: str) -> Any:
    """Import what "package.module:Name" names (the name may have dots).

    `what`: the setting that names it, such as "env.kind"; errors begin with it. Raises ConfigError for another form, a
    module that is not found or fails while it is imported, and a name that it does not have, each with what to do.
    """
    if not is_named(reference) or not NAMED.fullmatch(reference):
        raise ConfigError(
            f"{what} is package.module:Name, such as my_module:MyClass; got {reference!r}"
        )
    module, _, attribute = MOVED.get(reference, reference).partition(":")
    give(module)
    try:
        return functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except MissingPackageError:
        raise
    except ModuleNotFoundError as error:
        reason = _why_missing(module, error.name)
        cause: BaseException = error
    except AttributeError as error:
        if module not in sys.modules:  # its own code raised it
            reason = _fails(module, error)
        else:
            reason = _lacks(sys.modules[module], attribute)
        cause = error
    except (Exception, SystemExit) as error:
        reason = _fails(module, error)
        cause = error
    raise ConfigError(f"{what} {reference!r} cannot be imported: {reason}") from cause


def load_called(reference: str, what: str) -> Any:
    """Import what "package.module:Name" names; for "package.module:Name(a text)" call it with the text.

    For code that has a setting of its own and that the caller does not import. Raises ConfigError."""
    name, given, argument = reference.partition("(")
    if given and not argument.endswith(")"):
        raise ConfigError(
            f"{what} is package.module:Name or package.module:Name(argument); got {reference!r}"
        )
    value = load_named(name, what)
    return value(argument[:-1]) if given else value


class NameTable(Mapping[str, Any]):
    """Short name -> what "package.module:Name" names, imported when it is asked for.

    own    the table of the core
    added  gives the names that extensions add; asked on first use
    """

    def __init__(
        self, own: Mapping[str, str], added: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self._own = dict(own)
        self._added = added

    @functools.cached_property
    def names(self) -> Mapping[str, str]:
        """The table as it is, extensions included. Imports none of them."""
        return MappingProxyType({**self._own, **self._added()})

    def __getitem__(self, name: str) -> Any:
        return load_named(self.names[name], repr(name))

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def name_for(self, value: Any) -> str | None:
        """The short name of a class of the table, or of a value's class; None of any other. Imports nothing."""
        wanted = name_of(value)
        return next((short for short, name in self.names.items() if name == wanted), None)


def name_of(value: Any) -> str:
    """ "module:Qualname" of a class or function, or of the class of a value."""
    # A generator has a name and no module.
    is_named = hasattr(value, "__qualname__") and hasattr(value, "__module__")
    named = value if is_named else type(value)
    return f"{named.__module__}:{named.__qualname__}"


def held_by_modules(home: str = "") -> Iterator[tuple[str, Any]]:
    """("module:name", value) of everything that a loaded module holds under a name: those of `home` first, a notebook's own
    last, since other processes do not find them."""
    for module in sorted(sys.modules, key=lambda name: (name == HERE, name != home, name)):
        if module != TWICE:
            held = dict(getattr(sys.modules[module], "__dict__", {}))
            yield from ((f"{module}:{name}", value) for name, value in held.items())


def reference_to(value: Any) -> str:
    """ "module:name" by which `load_named` gives this very value; "" where it stands under none. Imports nothing."""
    if not hasattr(value, "__dict__"):  # a number or a text, which many names hold
        return ""
    home = getattr(getattr(value, "function", value), "__module__", "")
    references = (name for name, held in held_by_modules(home) if held is value)
    return next(references, "")


def origin_of(value: Any, name: str = "") -> Origin:
    """Where a class, a function, or the class of a value came from. `name`: the name that it is loaded by, where there is
    only that, or a value that does not know its module. Nothing is imported but the packages that a module is in."""
    name = name or name_of(value)
    module = name.partition(":")[0]
    give(module)
    return Origin(name, _version_of(module), _checksum(module))


def not_importable(name: str) -> str:
    """In words, why another process could not import "module:Qualname", and what to do; "" where it could."""
    module, _, attribute = name.partition(":")
    if module != HERE and "<" not in attribute:
        return ""
    home = "a notebook or script" if module == HERE else f"a function of {module}"
    return (
        f"{attribute} is defined inside {home}: other processes cannot import it. Move it to a file of its own (in a "
        f"notebook: a cell that begins with %%writefile my_code.py, then `from my_code import {attribute.rsplit('.')[-1]}`)"
    )


def _fails(module: str, error: BaseException) -> str:
    line = own_line(error)
    where = f" ({line.filename}, line {line.lineno})" if line else ""
    return f"{module} fails while it is imported: {type(error).__name__}: {error}{where}"


def _why_missing(module: str, missing: str | None) -> str:
    """Why `module` could not be imported: it, or the module `missing` that it imports, is not there."""
    if missing in MOVED_PACKAGES:
        return (
            f"{module} imports {missing!r} of an earlier version of the workbench; its names are in "
            f"{MOVED_PACKAGES[missing]} now (docs/extend/index.md)"
        )
    if missing is not None and not f"{module}.".startswith(f"{missing}."):
        return f"{module} imports {missing!r}, which is not installed here"
    return f"there is no module {missing!r}. {_how_to_find(module)}"


def _how_to_find(module: str) -> str:
    if module == HERE:
        return not_importable(f"{HERE}:it")
    path = "/".join(module.split("."))
    return (
        f"Start in the folder that has {path}.py (this is {os.getcwd()}), set PYTHONPATH to that folder, or install the "
        "package that it is in"
    )


def _lacks(module: Any, attribute: str) -> str:
    if module.__name__ == HERE:
        return (
            f"{attribute} was defined in a notebook or script, and is not in this one. Run the cell that defines it first, or "
            f"move it to a file of its own (a cell that begins with %%writefile my_code.py) and name it my_code:{attribute}"
        )
    file = getattr(module, "__file__", "no file")
    public = [name for name in vars(module) if not name.startswith("_")]
    hint = did_you_mean(attribute, public)
    lacks = f"{module.__name__} ({file}) has no {attribute!r}"
    return f"{lacks}; {hint}" if hint else lacks


def _checksum(module: str) -> str:
    try:
        source = sys.modules[module] if module in sys.modules else find_spec(module)
        file = getattr(source, "__file__", None) or getattr(source, "origin", None)
        if file is None or module == HERE:
            return ""
        return sha256(Path(file).read_bytes()).hexdigest()
    except (OSError, ImportError, ValueError):  # not there, built in, or out of an archive
        return ""


def _version_of(module: str) -> str:
    """The version of the distribution that a module was installed with."""
    from importlib import metadata  # slow to import, and seldom needed

    top = module.partition(".")[0]
    for name in (top, *_distributions().get(top, ())):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """Top-level module -> the distributions that bring it. Reads the list of files of each: once a process."""
    from importlib import metadata

    return metadata.packages_distributions()
