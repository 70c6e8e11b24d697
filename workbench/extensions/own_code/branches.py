"""Which branches of an author's own code are taken while it is played.

untaken, played = untaken_branches(family, plays)        plays: an iterator, each of whose steps plays something

A branch is the body of an `if` or its `else`, either side of a conditional expression, the body of a loop, a lambda, a function
that stands in a table, and what a comprehension makes. The interpreter tells each instruction that it runs and from which
columns of the source it was made (`code.co_positions`), so that two branches in one line are told apart.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from workbench.extensions.own_code.guards import tracing
from workbench.extensions.own_code.modules import own_files, source_of, tree_of

Position = tuple[int, int]  # line from 1, column in bytes from 0


class CodeBranch(NamedTuple):
    """A part of a function that runs on a condition. `function`: where its function begins and ends."""

    path: str
    start: Position
    end: Position
    function: tuple[Position, Position]
    condition: str  # in words, with the source of what decides

    @property
    def line(self) -> int:
        return self.start[0]

    def holds(self, place: tuple[Position, Position]) -> bool:
        return self.start <= place[0] and place[1] <= self.end


def untaken_branches(family: Any, plays: Iterator[Any]) -> tuple[list[CodeBranch], int] | None:
    """Branches in the author's own files, of functions that were entered, which none of `plays` took, and how many plays there
    were. None: there is no file beside the workbench's own in which something is decided."""
    own = own_files(family)
    branches = {path: branches_of(path) for path in own}
    if not any(branches.values()):
        return None
    taken = CodeTrace(own)
    with tracing(taken.watch):
        played = sum(1 for _ in plays)
    missed: list[CodeBranch] = []
    for path, some in branches.items():
        missed += untaken(some, taken.places(path))
    return missed, played


# ------------------------------------------------------------------------------------------------ what is there


def branches_of(path: str) -> list[CodeBranch]:
    tree = tree_of(path)
    if tree is None:
        return []
    collector = _Collector(path, _functions_in_tables(tree))
    collector.visit(tree)
    return collector.branches


def _functions_in_tables(tree: ast.Module) -> set[str]:
    """Names that are values of a dictionary: functions that are looked up."""
    values = [
        value for node in ast.walk(tree) if isinstance(node, ast.Dict) for value in node.values
    ]
    return {value.id for value in values if isinstance(value, ast.Name)}


class _Collector(ast.NodeVisitor):
    def __init__(self, path: str, in_tables: set[str]) -> None:
        self.path = path
        self.in_tables = in_tables
        self.functions: list[tuple[Position, Position]] = []
        self.branches: list[CodeBranch] = []

    def add(self, nodes: Sequence[ast.AST], condition: str) -> None:
        function = self.functions[-1] if self.functions else None
        if function is None or not nodes or _is_beside(nodes):
            return
        start, end = _span(nodes[0])[0], _span(nodes[-1])[1]
        self.branches.append(CodeBranch(self.path, start, end, function, condition))

    def visit_FunctionDef(self, node: Any) -> None:
        span = _span(node)
        body = [part for part in node.body if not _is_text(part)]
        if node.name in self.in_tables:
            self.functions.append(span)
            self.add(body, f"the function {node.name!r}, which stands in a table, is never called")
            self.functions.pop()
        self.functions.append((_span(body[0])[0], span[1]) if body else span)
        self.generic_visit(node)
        self.functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        whole = ((1, 0), (10**9, 0))  # it may stand in a table of the module
        self.functions.append(self.functions[-1] if self.functions else whole)
        self.add([node.body], f"{source_of(node)} is never called")
        self.functions.pop()
        self.functions.append(_span(node.body))
        self.generic_visit(node)
        self.functions.pop()

    def visit_keyword(self, node: ast.keyword) -> None:
        """What a dataclass makes where nobody says a value is made by the class, once, before it is watched."""
        if node.arg != "default_factory":
            self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self.add(node.body, f"'if {source_of(node.test)}' is never true")
        self.add(node.orelse, f"'if {source_of(node.test)}' is never false")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.add([node.body], f"'... if {source_of(node.test)}' is never true")
        self.add([node.orelse], f"'... if {source_of(node.test)}' is never false")
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self.add(node.body, f"'for ... in {source_of(node.iter)}' has nothing to go over")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self.add(node.body, f"'while {source_of(node.test)}' is never true")
        self.generic_visit(node)

    def visit_match_case(self, node: ast.match_case) -> None:
        self.add(node.body, f"'case {source_of(node.pattern)}' never matches")
        self.generic_visit(node)

    def visit_ListComp(self, node: Any) -> None:
        self.add([node.elt], f"'{source_of(node)}' never makes anything")
        self.generic_visit(node)

    visit_SetComp = visit_ListComp
    visit_GeneratorExp = visit_ListComp

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        """What handles an error is not looked at: an error need not come."""


def _is_beside(nodes: Sequence[ast.AST]) -> bool:
    """Whether it refuses, gives up or returns nothing: what need not come up, and says nothing where it does."""
    first = nodes[0]
    if isinstance(nodes[-1], ast.Return) and _is_refusal(nodes[-1].value):
        return True
    if isinstance(first, (ast.Raise, ast.Pass, ast.Continue, ast.Break, ast.Assert)):
        return True
    if isinstance(first, ast.Return):
        return first.value is None or _is_plain(first.value)
    return isinstance(first, ast.expr) and _is_plain(first)


def _is_refusal(node: ast.expr | None) -> bool:
    """A sentence, as a tool answers what it cannot do, or a result that pays zero."""
    if isinstance(node, ast.Call):
        paid = [part for part in node.args if isinstance(part, ast.Constant)]
        return any(part.value == 0 and part.value is not False for part in paid)
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _is_plain(node: ast.expr) -> bool:
    """A constant beside a number other than zero, a name, or an empty container."""
    if isinstance(node, ast.Constant):
        is_number = isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
        return not (is_number and node.value)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return all(map(_is_plain, node.elts))
    return isinstance(node, ast.Name) or isinstance(node, ast.Dict) and not node.keys


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _span(node: Any) -> tuple[Position, Position]:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


# ------------------------------------------------------------------------------------------------ what is taken


class CodeTrace:
    """The instructions that ran, of files that are watched."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = frozenset(paths)
        self.instructions: dict[CodeType, set[int]] = {}

    def watch(self, frame: FrameType, event: str, value: Any) -> Any:
        if frame.f_code.co_filename not in self.paths:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        ran = self.instructions.setdefault(frame.f_code, set())

        def each(frame: FrameType, event: str, value: Any) -> Any:
            if event == "opcode":
                ran.add(frame.f_lasti)
            return each

        return each

    def places(self, path: str) -> list[tuple[Position, Position]]:
        """Where in a file something was computed."""
        spans = set()
        for code, ran in self.instructions.items():
            if code.co_filename != path:
                continue
            positions = list(code.co_positions())
            for offset in ran:
                line, last_line, column, last_column = positions[offset // 2]
                if None not in (line, last_line, column, last_column):
                    spans.add(((line, column), (last_line, last_column)))
        return sorted(spans)


def untaken(
    branches: Sequence[CodeBranch], places: Sequence[tuple[Position, Position]]
) -> list[CodeBranch]:
    """Branches of functions that were entered that nothing ran in; of those inside each other the outermost."""
    missed: list[CodeBranch] = []
    for branch in sorted(branches, key=lambda one: (one.start, (-one.end[0], -one.end[1]))):
        entered = any(branch.function[0] <= start < branch.function[1] for start, _ in places)
        inside = any(one.start <= branch.start and branch.end <= one.end for one in missed)
        if entered and not inside and not any(map(branch.holds, places)):
            missed.append(branch)
    return missed
