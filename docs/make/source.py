"""What stands in the package, read from its text: modules, public classes and functions, signatures, docstrings.

Nothing is imported, so the reference is the same whatever is installed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class SourceModule:
    """A module of the package: its dotted name and its syntax tree."""

    name: str
    tree: ast.Module

    @property
    def docstring(self) -> str | None:
        return ast.get_docstring(self.tree)

    def public(self) -> Iterator[Definition]:
        """Classes and functions that do not begin with an underscore, in the order of the file."""
        for node in self.tree.body:
            if isinstance(node, Definition) and not node.name.startswith("_"):
                yield node


@cache
def modules(package: Path) -> dict[str, SourceModule]:
    """Every module below `package` (a folder), by dotted name, in the order of the files."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = SourceModule(name, ast.parse(path.read_text(encoding="utf-8")))
    return found


def room_of(module: str) -> str:
    """The package that a module belongs to: the second part of its name ("" for the whole); of an extension two parts."""
    parts = module.split(".")
    if parts[1:2] == ["extensions"] and len(parts) > 2:
        return ".".join(parts[1:3])
    return parts[1] if len(parts) > 1 else ""


def signature(node: Definition) -> str:
    """Name, arguments and result as they are written; of a class: the arguments of its `__init__`, or its fields."""
    if isinstance(node, ast.ClassDef):
        made = next(
            (
                part
                for part in node.body
                if isinstance(part, ast.FunctionDef) and part.name == "__init__"
            ),
            None,
        )
        return (
            f"{node.name}({_arguments(made.args, skip=1)})"
            if made
            else f"{node.name}({', '.join(_fields(node))})"
        )
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({_arguments(node.args)}){result}"


def _arguments(arguments: ast.arguments, skip: int = 0) -> str:
    cut = ast.arguments(**{field: getattr(arguments, field) for field in arguments._fields})
    cut.args = arguments.args[skip:]
    return ast.unparse(cut)


def _fields(node: ast.ClassDef) -> list[str]:
    """The fields of a dataclass or a protocol, with their defaults; nothing for classes without annotations."""
    return [
        ast.unparse(part.target) + (f"={ast.unparse(part.value)}" if part.value else "")
        for part in node.body
        if isinstance(part, ast.AnnAssign) and "ClassVar" not in ast.unparse(part.annotation)
    ]


def methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    """Public methods with a docstring of their own."""
    for part in node.body:
        if (
            isinstance(part, ast.FunctionDef)
            and not part.name.startswith("_")
            and ast.get_docstring(part)
        ):
            yield part


def resolve(package: Path, module: str, name: str) -> tuple[SourceModule, Definition] | None:
    """Where `module:name` is defined, followed through re-exports (lazy ones too); None where it is no
    class or function."""
    found = modules(package).get(module)
    if found is None:
        return None
    for node in ast.walk(found.tree):
        if isinstance(node, Definition) and node.name == name and node in found.tree.body:
            return found, node
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) == name and node.module != module:
                    return resolve(package, node.module, alias.name)
    below = [
        (inside, node)
        for inside in modules(package).values()
        if inside.name.startswith(f"{module}.")
        for node in inside.public()
        if node.name == name
    ]
    return below[0] if len(below) == 1 else None
