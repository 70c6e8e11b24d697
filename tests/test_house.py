"""Ratchets: how large and how tangled the package may be. A number here may fall, never rise.

Whoever makes something smaller lowers the number in the same commit; a test says so when a number could be lower. Shorter
is not simpler: no line is joined, no name cut, no reason dropped to meet one of these. Lines of the package, the lint and
a step rose once, when anybody's own environments, tools and data came in (docs/design/departures.md).
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_layers import LAYERS, Import, read_package, room_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "workbench"

MOST = {
    "rooms": 18,
    "lines of the package": 74_488,
    "lines of the lint": 8_712,
    "lines of plain/": 1_200,
    "files of plain/": 8,
    "lines of the README": 250,
    "files over 300 lines": 3,
    "classes over 150 lines": 5,
    "functions over 40 lines": 1,
    "circles of files": 0,
    "private names of another module": 0,
    "public class names that occur twice": 0,
}
# Of one FrozenLake GRPO step without instruments (tests/traced_step.py).
# What must be read to know how a rollout beside a server comes about: requests, a sync at both ends, when it may begin.
PATH_OF_A_SERVER = (
    "engines/server/core.py",
    "engines/server/client.py",
    "engines/server/transfer.py",
    "engines/server/ways.py",
    "engines/vllm_transfer.py",
    "training/ahead.py",
)
MOST_OF_A_STEP = {"files": 43, "lines": 2_777, "frames": 12}
LONG_FILE, LONG_CLASS, LONG_FUNCTION = 300, 150, 40  # lines


@cache
def sources() -> dict[str, str]:
    """Path below the package -> text, of every Python file."""
    return {
        path.relative_to(PACKAGE).as_posix(): path.read_text()
        for path in sorted(PACKAGE.rglob("*.py"))
        if "__pycache__" not in path.parts
    }


@cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(text) for name, text in sources().items()}


def lines(prefix: str = "") -> int:
    return sum(text.count("\n") for name, text in sources().items() if name.startswith(prefix))


def long_files() -> list[str]:
    return [
        f"{name}: {text.count(chr(10))} lines"
        for name, text in sources().items()
        if text.count("\n") > LONG_FILE
    ]


def long_definitions(kinds: tuple[type, ...], limit: int) -> list[str]:
    """Definitions longer than `limit` lines; a function's docstring does not count."""
    found = []
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                length = node.end_lineno - node.lineno + 1 - docstring_lines(node)
                if length > limit:
                    found.append(f"{name}:{node.lineno} {node.name}: {length} lines")
    return found


def docstring_lines(node: ast.AST) -> int:
    first = node.body[0]
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        return first.end_lineno - first.lineno + 1
    return 0


@cache
def imports() -> tuple[list[Import], frozenset[str]]:
    return read_package(PACKAGE)


def circles() -> list[list[str]]:
    """Groups of files that import each other, directly or round about. Imports for type checkers only do not count."""
    found, modules = imports()
    below = defaultdict(set)
    for each in found:
        if each.target in modules and not each.typing_only and each.target != each.importer:
            below[each.importer].add(each.target)
    return [sorted(group) for group in _components(below) if len(group) > 1]


def _components(below: dict[str, set[str]]) -> Iterator[list[str]]:
    """Strongly connected components (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(node: str) -> Iterator[list[str]]:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(below.get(node, ())):
            if other not in index:
                yield from visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            yield group

    for node in sorted(below):
        if node not in index:
            yield from visit(node)


def private_names() -> list[str]:
    """`from workbench.x import _y`, and `module._y` where `module` is one of ours."""
    found = []
    for name, tree in trees().items():
        ours = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("workbench"):
                found += [
                    f"{name}:{node.lineno} {alias.name}"
                    for alias in node.names
                    if _is_private(alias.name)
                ]
                ours |= {alias.asname or alias.name for alias in node.names}
        found += [
            f"{name}:{node.lineno} {node.value.id}.{node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ours
            and _is_private(node.attr)
        ]
    return found


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def repeated_class_names() -> list[str]:
    named = Counter(
        node.name
        for tree in trees().values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return [f"{name}: {count} times" for name, count in named.items() if count > 1]


@cache
def measured() -> dict[str, tuple[int, list[str]]]:
    """Every number, with what it counts."""
    listed = {
        "rooms": sorted({room_of(module) for module in imports()[1]} - {""}),
        "files of plain/": [
            name for name in sources() if name.startswith("plain/") and name != "plain/__init__.py"
        ],
        "files over 300 lines": long_files(),
        "classes over 150 lines": long_definitions((ast.ClassDef,), LONG_CLASS),
        "functions over 40 lines": long_definitions(
            (ast.FunctionDef, ast.AsyncFunctionDef), LONG_FUNCTION
        ),
        "circles of files": [" <-> ".join(group) for group in circles()],
        "private names of another module": private_names(),
        "public class names that occur twice": repeated_class_names(),
    }
    counted = {
        "lines of the package": lines(),
        "lines of the lint": lines("linting/"),
        "lines of plain/": lines("plain/"),
        "lines of the README": (ROOT / "README.md").read_text().count("\n"),
    }
    return {name: (len(found), found) for name, found in listed.items()} | {
        name: (number, []) for name, number in counted.items()
    }


@pytest.mark.parametrize("what", MOST)
def test_no_number_rises(what):
    number, found = measured()[what]
    assert number <= MOST[what], f"{what}: {number}, at most {MOST[what]}\n" + "\n".join(found)


def test_a_training_step_enters_no_more_code():
    from tests.traced_step import traced_step

    found = traced_step()
    assert all(found.numbers[what] <= most for what, most in MOST_OF_A_STEP.items()), (
        found.numbers,
        found.lines,
    )


def test_layers_are_whole_numbers_and_name_only_rooms_that_exist():
    rooms = {room_of(module) for module in imports()[1]}
    assert all(type(layer) is int for layer in LAYERS.values())
    assert set(LAYERS) - {"plain"} == rooms - {"plain"}, (
        "LAYERS of tests/test_layers.py names other rooms than there are"
    )


def test_negative_control_a_circle_is_found():
    assert sorted(map(sorted, _components({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}))) == [
        ["a", "b", "c"],
        ["d"],
    ]


if __name__ == "__main__":  # python -m tests.test_house: the numbers as they are
    for what, (number, found) in measured().items():
        print(f"{what}: {number} (at most {MOST[what]})")
        for line in found:
            print(f"    {line}")


def test_the_path_of_a_server_is_short():
    """Six files, 900 lines (docs/guides/vllm.md names them)."""
    assert len(PATH_OF_A_SERVER) == 6
    assert sum(len((PACKAGE / name).read_text().splitlines()) for name in PATH_OF_A_SERVER) <= 900
