"""The code of an environment: the modules that its author wrote, as far as they are imported.

modules = own_modules(family)       of the family, its environment, its reward and tools, and what lies beside them
paths = own_files(family)           files of what it is made of and of what that uses, without the workbench's own
"""

from __future__ import annotations

import ast
import inspect
import site
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from workbench.worlds.shared import made

PACKAGE = Path(__file__).resolve().parents[2]
MOST_SOURCE = 70  # characters of a piece of code in a message


def own_modules(family: Any) -> list[ModuleType]:
    """Modules that are neither Python's nor installed; of the workbench's own those alone that define the family or its
    environment."""
    named = _defining(family)
    modules = []
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not isinstance(module, ModuleType) or not path or not path.endswith(".py"):
            continue
        place = Path(path)
        if name in named and not _is_below(place, _pythons()):
            modules.append(module)
        elif not _is_below(place, (*_pythons(), str(PACKAGE))) and not name.startswith("tests."):
            modules.append(module)
    return modules


def own_files(family: Any) -> list[str]:
    """The files of the modules that define the family, its environment, its reward and tools, and of those whose names they
    use; the workbench's own left out. Whatever else is imported in this process is none of theirs."""
    known = {module.__name__: module for module in own_modules(family)}
    reached = [known[name] for name in sorted(_defining(family)) if name in known]
    for module in reached:  # it grows
        for value in list(vars(module).values()):
            used = known.get(_module_name(value))
            if used is not None and used not in reached:
                reached.append(used)
    paths = [str(module.__file__) for module in reached]
    return [path for path in paths if PACKAGE not in Path(path).resolve().parents]


def _defining(family: Any) -> set[str]:
    """The names of the modules of the classes and functions that an environment is made of."""
    env = made(family)
    named = {kind.__module__ for part in (family, env) for kind in type(part).__mro__}
    for part in _functions_of(family, env):
        named.add(getattr(inspect.unwrap(part), "__module__", "") or "")
    return named


def _module_name(value: Any) -> str:
    """The name of a module, or of the one that a value or its class is from."""
    if isinstance(value, ModuleType):
        return value.__name__
    try:
        name = getattr(value, "__module__", "")
    except Exception:  # anybody's class
        return ""
    return name if isinstance(name, str) else ""


def _functions_of(family: Any, env: Any) -> Iterator[Any]:
    """The reward function and the tools, where an environment has them."""
    reward = getattr(env, "reward", None)
    if callable(reward):
        yield reward
    tools = getattr(env, "tools", ())
    for tool in tools if isinstance(tools, (list, tuple)) else ():
        if callable(function := getattr(tool, "function", None)):
            yield function
    if callable(score := getattr(family, "score", None)):
        yield getattr(score, "__func__", score)


@cache  # asked for each module that is imported, at each play; sysconfig puts them together anew every time
def _pythons() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return (paths["stdlib"], paths["platstdlib"], paths["purelib"], *site.getsitepackages())


def _is_below(place: Path, folders: tuple[str, ...]) -> bool:
    return any(str(place).startswith(f"{folder}/") for folder in folders)


def source_of(node: ast.AST) -> str:
    """A piece of code in one line, cut."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= MOST_SOURCE else f"{text[: MOST_SOURCE - 3]}..."


def tree_of(path: str) -> ast.Module | None:
    """A source as a tree; None where it cannot be read."""
    try:
        return ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
