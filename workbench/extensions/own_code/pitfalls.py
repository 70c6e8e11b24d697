"""Expressions in an author's own code that rarely do what they look like: a general linter sees some of them, and none of those
that are of rewards and draws.

pitfalls = pitfalls_of(family)      in the author's files beside the workbench's own, in their order
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from workbench.extensions.own_code.modules import own_files, source_of, tree_of

TEXT_METHODS = frozenset(
    "strip lstrip rstrip lower upper casefold title capitalize replace removeprefix removesuffix".split()
)
STRIPS = frozenset(("strip", "lstrip", "rstrip"))
AGGREGATES = frozenset(("all", "any", "sum"))
# Of a function that is true where something went wrong.
ASKS_FOR_FAULTS = re.compile(
    r"fail|err|invalid|wrong|bad|broken|missing|raise|ended|closed|gone|lost|dead|stop",
    re.IGNORECASE,
)
Functions = (ast.FunctionDef, ast.AsyncFunctionDef)


class CodeNote(NamedTuple):
    """`what`: in words, with the source."""

    path: str
    line: int
    what: str


def pitfalls_of(family: Any) -> list[CodeNote] | None:
    """None where the author has no file of their own."""
    own = own_files(family)
    notes: list[CodeNote] = []
    for path in own:
        tree = tree_of(path)
        for function in ast.walk(tree) if tree is not None else ():
            if isinstance(function, Functions):
                notes += (CodeNote(path, line, what) for line, what in _in_function(function))
    return sorted(set(notes)) if own else None


def _in_function(function: Any) -> Iterator[tuple[int, str]]:
    for node in ast.walk(function):
        for look in LOOKS:
            what = look(node, function)
            if what:
                yield node.lineno, what


# ------------------------------------------------------------------------------------------------ comparing


def _zip_ends_early(node: ast.AST, function: Any) -> str | None:
    """Two sequences compared pair by pair, and their lengths nowhere."""
    if not isinstance(node, ast.Call) or _name(node.func) not in AGGREGATES or not node.args:
        return None
    made = node.args[0]
    if not isinstance(made, (ast.GeneratorExp, ast.ListComp)) or len(made.generators) != 1:
        return None
    pairs = made.generators[0].iter
    if not isinstance(pairs, ast.Call) or _name(pairs.func) != "zip" or len(pairs.args) < 2:
        return None
    compared = any(isinstance(part, ast.Compare) for part in ast.walk(made.elt))
    strict = any(keyword.arg == "strict" for keyword in pairs.keywords)
    neighbours = any(isinstance(one, ast.Subscript) for one in pairs.args)  # zip(xs, xs[1:])
    if not compared or strict or neighbours or _compares_lengths(function):
        return None
    return (
        f"{source_of(node)} ends with the shorter of the two: an empty or a cut answer is equal "
        f"to everything (zip(..., strict=True), or compare the lengths)"
    )


def _compares_lengths(function: Any) -> bool:
    calls = [part for part in ast.walk(function) if isinstance(part, ast.Call)]
    return any(_name(call.func) == "len" for call in calls)


def _relative_to_a_sign(node: ast.AST, function: Any) -> str | None:
    """abs(a - b) / b <= tolerance: below zero, everything is near."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.Lt, ast.LtE)):
        return None
    left = node.left
    if not isinstance(left, ast.BinOp) or not isinstance(left.op, ast.Div):
        return None
    apart = left.left
    if not isinstance(apart, ast.Call) or _name(apart.func) != "abs" or not apart.args:
        return None
    inner = apart.args[0]
    if not isinstance(inner, ast.BinOp) or not isinstance(inner.op, ast.Sub):
        return None
    if ast.unparse(left.right) not in (ast.unparse(inner.left), ast.unparse(inner.right)):
        return None
    return (
        f"{source_of(node)} holds for every answer where {source_of(left.right)} is below zero "
        f"(divide by its abs())"
    )


# ------------------------------------------------------------------------------------------------ drawing


def _last_is_never_drawn(node: ast.AST, function: Any) -> str | None:
    """integers(0, len(x) - 1), randrange(len(x) - 1): the upper bound is left out."""
    if not isinstance(node, ast.Call) or _name(node.func) not in ("integers", "randrange"):
        return None
    if any(keyword.arg == "endpoint" for keyword in node.keywords) or not node.args:
        return None
    high = node.args[min(len(node.args), 2) - 1]
    shorter = isinstance(high, ast.BinOp) and isinstance(high.op, ast.Sub)
    if not shorter or not isinstance(high.left, ast.Call) or _name(high.left.func) != "len":
        return None
    if not isinstance(high.right, ast.Constant) or high.right.value != 1:
        return None
    return f"{source_of(node)} never draws the last one: the upper bound is left out"


# ------------------------------------------------------------------------------------------------ others


def _part_of_one_side(node: ast.AST, function: Any) -> str | None:
    """`a if c else b - cost`: what is added or taken off belongs to one side alone."""
    if not isinstance(node, ast.IfExp):
        return None
    other = node.orelse
    added = isinstance(other, ast.BinOp) and isinstance(other.op, (ast.Add, ast.Sub))
    if not isinstance(node.body, ast.Constant) or not added:
        return None
    # `0.0 - cost` is written by nobody who does not mean `(1.0 if won else 0.0) - cost`.
    nothing = other.left
    if not isinstance(nothing, ast.Constant) or nothing.value != 0 or nothing.value is False:
        return None
    sign = "+" if isinstance(other.op, ast.Add) else "-"
    return (
        f"in {source_of(node)} the part behind {sign} belongs to the else side alone (put the "
        f"condition into brackets)"
    )


def _thrown_away(node: ast.AST, function: Any) -> str | None:
    """`text.strip()` as a statement: texts do not change."""
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return None
    called = node.value.func
    if not isinstance(called, ast.Attribute) or called.attr not in TEXT_METHODS:
        return None
    # A path is replaced by one argument, and a table with inplace=True.
    if node.value.keywords or called.attr == "replace" and len(node.value.args) < 2:
        return None
    return f"{source_of(node)} makes a new text and throws it away: texts do not change"


def _strips_letters(node: ast.AST, function: Any) -> str | None:
    """strip("answer:") takes off any of these letters."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr not in STRIPS or len(node.args) != 1:
        return None
    chars = node.args[0]
    if not isinstance(chars, ast.Constant) or not isinstance(chars.value, str):
        return None
    letters = [sign for sign in chars.value if sign.isalpha()]
    if len(letters) < 3 or len(set(chars.value)) > 20:  # a word; an alphabet is meant as one
        return None
    return (
        f"{source_of(node)} takes off any of these letters, also from inside a word "
        f"(removeprefix, removesuffix)"
    )


def _passes_where_it_raises(node: ast.AST, function: Any) -> str | None:
    """A handler that says that all is well."""
    if not isinstance(node, ast.ExceptHandler) or ASKS_FOR_FAULTS.search(function.name):
        return None
    last = node.body[-1]
    value = last.value if isinstance(last, (ast.Return, ast.Assign)) else None
    if not isinstance(value, ast.Constant) or value.value not in (True, 1, 1.0):
        return None
    return f"'except' in {function.name!r} ends with {source_of(last)}: what raises counts as right"


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


LOOKS = (
    _zip_ends_early,
    _relative_to_a_sign,
    _last_is_never_drawn,
    _part_of_one_side,
    _thrown_away,
    _strips_letters,
    _passes_where_it_raises,
)
