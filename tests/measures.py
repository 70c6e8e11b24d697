"""Measures of the package: how large, how dense and how tangled it is.

    python -m tests.measures                 the numbers as they are
    python -m tests.measures --what NAME     one of them, with what it counts

Size is counted in tokens of Python (comments, line breaks and indentation are none), which no layout can change. Size
never stands alone, since it could be met by denser code: beside it stand the density of statements, nested
comprehensions and conditional expressions, generic names, long functions and circles. The limits, and a reason for each
that rose, stand in docs/design/measures.md.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.test_layers import Import, read_package

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "workbench"

NO_TOKENS = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
F_STARTS, F_ENDS = (getattr(tokenize, f"FSTRING_{edge}", None) for edge in ("START", "END"))
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
COMPOUND = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.With,
    ast.AsyncWith,
    ast.Try,
    ast.TryStar,
    ast.Match,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
GENERIC = ("found", "each", "said", "told")
LONG_FUNCTION = 300  # tokens, its docstring included


# ------------------------------------------------------------------------------------------------ reading


@cache
def sources(package: Path = PACKAGE) -> dict[str, str]:
    """Path below the package -> text, of every Python file."""
    return {
        path.relative_to(package).as_posix(): path.read_text()
        for path in sorted(package.rglob("*.py"))
        if "__pycache__" not in path.parts
    }


@cache
def trees(package: Path = PACKAGE) -> dict[str, ast.Module]:
    return {name: ast.parse(text) for name, text in sources(package).items()}


@cache
def tokens_of(package: Path = PACKAGE) -> dict[str, list[tuple[int, int]]]:
    """Path below the package -> (line, column) of each token of the file."""
    return {name: positions(text) for name, text in sources(package).items()}


def positions(text: str) -> list[tuple[int, int]]:
    """(line, column) of each token that counts."""
    inside = 0  # f-strings that are open: since Python 3.12 what is in one are tokens, before it was one token
    places = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if not inside and token.type not in NO_TOKENS:
            places.append(token.start)
        inside += (token.type == F_STARTS) - (token.type == F_ENDS)
    return places


@cache
def imports() -> tuple[list[Import], frozenset[str]]:
    return read_package(PACKAGE)


def nodes(*kinds: type) -> Iterator[tuple[str, ast.AST]]:
    """(file, node) of every node of these kinds."""
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                yield name, node


def place(name: str, node: ast.AST) -> str:
    return f"{name}:{node.lineno}"


# ------------------------------------------------------------------------------------------------ size


def tokens_below(*prefixes: str) -> int:
    return sum(
        len(tokens) for name, tokens in tokens_of().items() if name.startswith(prefixes or ("",))
    )


def package_sizes() -> dict[str, int]:
    """Package or extension -> tokens."""
    sizes: Counter[str] = Counter()
    for name, tokens in tokens_of().items():
        parts = name.split("/")[:-1]
        owner = "/".join(parts[:2] if parts[:1] == ["extensions"] else parts[:1])
        sizes[owner or "the package itself"] += len(tokens)
    return dict(sizes)


def is_extension(owner: str) -> bool:
    return owner.startswith("extensions/")


def length_in_tokens(starts: list[tuple[int, int]], node: ast.AST) -> int:
    """Tokens of a node, decorators included."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    begin = (first, 0 if decorators else node.col_offset)
    return sum(begin <= start < (node.end_lineno, node.end_col_offset) for start in starts)


def long_functions() -> list[str]:
    lengthy = []
    for name, tree in trees().items():
        starts = tokens_of()[name]
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS):
                length = length_in_tokens(starts, node)
                if length > LONG_FUNCTION:
                    lengthy.append(f"{place(name, node)} {node.name}: {length} tokens")
    return lengthy


# ------------------------------------------------------------------------------------------------ density


def statement_lengths() -> list[int]:
    """Tokens of every statement that holds no other: no `if`, loop, `with`, `try`, function or class; no docstring."""
    lengths = []
    for name, tree in trees().items():
        per_line: defaultdict[int, list[int]] = defaultdict(list)
        for line, column in tokens_of()[name]:
            per_line[line].append(column)
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt) and not isinstance(node, COMPOUND):
                if not _is_text(node):
                    lengths.append(_tokens_between(per_line, node))
    return lengths


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _tokens_between(per_line: dict[int, list[int]], node: ast.stmt) -> int:
    count = 0
    for line in range(node.lineno, node.end_lineno + 1):
        for column in per_line.get(line, ()):
            after_start = line > node.lineno or column >= node.col_offset
            before_end = line < node.end_lineno or column < node.end_col_offset
            count += after_start and before_end
    return count


def percentile(values: list[int], share: float) -> int:
    return sorted(values)[int(share * (len(values) - 1))]


def nested_comprehensions() -> list[str]:
    """Comprehensions with two loops, and those that stand inside another."""
    dense = []
    for name, node in nodes(*COMPREHENSIONS):
        inside = any(
            isinstance(child, COMPREHENSIONS) for child in ast.walk(node) if child is not node
        )
        if inside or len(node.generators) > 1:
            dense.append(place(name, node))
    return dense


def nested_conditionals() -> list[str]:
    """Conditional expressions with another one inside."""
    return [
        place(name, node)
        for name, node in nodes(ast.IfExp)
        if any(isinstance(child, ast.IfExp) for child in ast.walk(node) if child is not node)
    ]


def tuple_assignments() -> list[str]:
    """`a, b = c, d`: two statements in one. An exchange of the same names is none."""
    dense = []
    for name, node in nodes(ast.Assign):
        target = node.targets[0]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            if sorted(map(ast.unparse, target.elts)) != sorted(map(ast.unparse, node.value.elts)):
                dense.append(place(name, node))
    return dense


def generic_names() -> list[str]:
    return [
        f"{place(name, node)} {node.id}"
        for name, node in nodes(ast.Name)
        if isinstance(node.ctx, ast.Store) and node.id in GENERIC
    ]


# ------------------------------------------------------------------------------------------------ borders


def circles() -> list[str]:
    """Groups of files that import each other, directly or round about; imports for type checkers count."""
    all_imports, modules = imports()
    below: defaultdict[str, set[str]] = defaultdict(set)
    for each in all_imports:
        if each.target in modules and each.target != each.importer:
            below[each.importer].add(each.target)
    return [" <-> ".join(sorted(group)) for group in components(below) if len(group) > 1]


def components(below: dict[str, set[str]]) -> Iterator[list[str]]:
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


def modules_in_strings() -> list[str]:
    """`import_module("workbench...")` outside the public table: an import that the layers do not see."""
    named = []
    for name, node in nodes(ast.Call):
        function = node.func.id if isinstance(node.func, ast.Name) else ""
        first = node.args[0] if node.args else None
        is_ours = isinstance(first, ast.Constant) and str(first.value).startswith("workbench")
        if function == "import_module" and is_ours and name != "__init__.py":
            named.append(f"{place(name, node)} {first.value}")
    return named


def private_names() -> list[str]:
    """`from workbench.x import _y`, and `module._y` where `module` is one of ours."""
    crossing = []
    for name, tree in trees().items():
        ours = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("workbench"):
                names = [alias.name for alias in node.names]
                crossing += [f"{place(name, node)} {each}" for each in names if _is_private(each)]
                ours |= {alias.asname or alias.name for alias in node.names}
        for node in ast.walk(tree):
            is_ours = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            if is_ours and node.value.id in ours and _is_private(node.attr):
                crossing.append(f"{place(name, node)} {node.value.id}.{node.attr}")
    return crossing


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def repeated_class_names() -> list[str]:
    named: Counter[str] = Counter()
    for tree in trees().values():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named[node.name] += 1
    return [f"{name}: {count} times" for name, count in named.items() if count > 1]


def show_functions() -> list[str]:
    """Public functions `show_...`."""
    return [
        f"{place(name, node)} {node.name}"
        for name, tree in trees().items()
        for node in tree.body
        if isinstance(node, FUNCTIONS) and node.name.startswith("show_")
    ]


# ------------------------------------------------------------------------------------------------ all of them


@cache
def measured() -> dict[str, tuple[float, list[str]]]:
    """Measure -> its number, and what it counts where that can be listed."""
    sizes = package_sizes()
    extensions = {owner: size for owner, size in sizes.items() if is_extension(owner)}
    core = {owner: size for owner, size in sizes.items() if owner not in extensions}
    lengths = statement_lengths()
    per_thousand = 1000 / sum(1 for _ in nodes(ast.stmt))
    numbers: dict[str, tuple[float, list[str]]] = {
        "packages of the core": (
            len([owner for owner in core if owner not in ("extensions", "the package itself")]),
            sorted(core),
        ),
        "tokens of the core": (
            sum(core.values()),
            [f"{size:8,} {owner}" for owner, size in core.items()],
        ),
        "tokens of all extensions": (
            sum(extensions.values()),
            [f"{size:8,} {owner}" for owner, size in extensions.items()],
        ),
        "tokens of the largest extension": (max(extensions.values(), default=0), []),
        "tokens of a simple statement, 90th percentile": (percentile(lengths, 0.9), []),
    }
    comprehensions, assignments = nested_comprehensions(), tuple_assignments()
    numbers["nested or double comprehensions per 1,000 statements"] = (
        round(len(comprehensions) * per_thousand, 1),
        comprehensions,
    )
    numbers["tuple assignments per 1,000 statements"] = (
        round(len(assignments) * per_thousand, 1),
        assignments,
    )
    listed = {
        "nested conditional expressions": nested_conditionals(),
        "functions over 300 tokens": long_functions(),
        "circles of files, imports for type checkers included": circles(),
        "modules named in strings": modules_in_strings(),
        "generic local names": generic_names(),
        "public show_ functions": show_functions(),
        "private names of another module": private_names(),
        "public class names that occur twice": repeated_class_names(),
    }
    return numbers | {name: (len(places), places) for name, places in listed.items()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.measures", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--what", help="only measures whose name holds this, with what they count")
    options = parser.parse_args(arguments)
    for name, (number, places) in measured().items():
        if options.what is None or options.what in name:
            print(f"{number:>10,} {name}")
            for line in places if options.what else ():
                print(f"           {line}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
