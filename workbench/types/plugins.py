"""Code of the user's own by name: `package.module:Name` wherever a kind is named (law 17), and where it came from.

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workbench.types.errors import ConfigError, did_you_mean

NAMED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
HERE = "__main__"  # the module of a notebook's cells, or of the script that was started


@dataclass(frozen=True)
class Origin:
    """Where code came from. `name`: "module:Qualname"; `version`: of the installed distribution that the module belongs
    to, "" where it is a file by itself; `source`: sha256 of the module's source file, "" where it has none (a notebook)."""

    name: str
    version: str
    source: str


def is_named(kind: object) -> bool:
    """Whether this is a name of the form `package.module:Name`, not one of a table."""
    return isinstance(kind, str) and ":" in kind


def load_named(reference: str, what: str) -> Any:
    """What "package.module:Name" names (the name may have dots); the module is imported.

    `what`: who asks, such as "env.kind"; errors begin with it. Raises ConfigError for another form, a module that is not
    found or fails while it is imported, and a name that it does not have, each with what to do.
    """
    if not is_named(reference) or not NAMED.fullmatch(reference):
        raise ConfigError(
            f"{what} is package.module:Name, such as my_module:MyClass; got {reference!r}"
        )
    module, _, attribute = reference.partition(":")
    try:
        return functools.reduce(getattr, attribute.split("."), importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module}.".startswith(f"{error.name}."):
            reason = f"{module} imports {error.name!r}, which is not installed here"
        else:
            reason = f"there is no module {error.name!r}. {_how_to_find(module)}"
        cause: BaseException = error
    except AttributeError as error:
        if module not in sys.modules:  # its own code raised it
            reason = f"{module} fails while it is imported: AttributeError: {error}"
        else:
            reason = _lacks(sys.modules[module], attribute)
        cause = error
    except (Exception, SystemExit) as error:
        reason, cause = (
            f"{module} fails while it is imported: {type(error).__name__}: {error}",
            error,
        )
    raise ConfigError(f"{what} {reference!r} cannot be imported: {reason}") from cause


def load_called(reference: str, what: str) -> Any:
    """What "package.module:Name" names, or what that gives when it is called with a text: "package.module:Name(a text)".

    For what has a setting of its own and lives in a room that the one who asks does without. Raises ConfigError."""
    name, given, argument = reference.partition("(")
    if given and not argument.endswith(")"):
        raise ConfigError(
            f"{what} is package.module:Name or package.module:Name(argument); got {reference!r}"
        )
    found = load_named(name, what)
    return found(argument[:-1]) if given else found


class NameTable(Mapping[str, Any]):
    """Short name -> what "package.module:Name" names, imported when it is asked for. `names`: the table as it is."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = MappingProxyType(dict(names))

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
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}:{named.__qualname__}"


def origin_of(value: Any, name: str = "") -> Origin:
    """Where a class, a function, or the class of a value came from. `name`: the name that it is loaded by, where there is
    only that, or a value that does not know its module. Nothing is imported but the packages that a module is in."""
    name = name or name_of(value)
    module = name.partition(":")[0]
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
    hint = did_you_mean(attribute, [each for each in vars(module) if not each.startswith("_")])
    return f"{module.__name__} ({getattr(module, '__file__', 'no file')}) has no {attribute!r}" + (
        f"; {hint}" if hint else ""
    )


def _checksum(module: str) -> str:
    try:
        found = sys.modules[module] if module in sys.modules else find_spec(module)
        file = getattr(found, "__file__", None) or getattr(found, "origin", None)
        return "" if file is None or module == HERE else sha256(Path(file).read_bytes()).hexdigest()
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
