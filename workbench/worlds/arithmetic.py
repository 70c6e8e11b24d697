"""Expressions of given whole numbers: their values, exactly and without `eval`; which targets can be reached, and how."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import permutations

import numpy as np

from workbench.tools.action_format import shown

Value = int | Fraction

LONGEST = 100  # characters of an expression; four numbers with all their parentheses need 30
_SIGNS = re.compile(r"[-+*/()0-9\s]*")
_OPERATIONS: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def judged(
    expression: str, numbers: Sequence[int], operations: str
) -> tuple[str, str, Value | None]:
    """(complaint, quote, value) of an expression. The complaint is "" where it uses each number exactly once and
    nothing but `operations`; the value is None where there is none (a complaint, a division by zero)."""
    quote = shown(expression.strip(), 20)
    if len(expression) > LONGEST:
        return f"An expression has at most {LONGEST} characters.", "", None
    if not _SIGNS.fullmatch(expression):
        return "Only whole numbers, operations and parentheses stand in an expression.", quote, None
    try:
        tree = ast.parse(" ".join(expression.split()), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return "The answer is no expression.", quote, None
    used: list[int] = []
    try:
        value = _value(tree, operations, used)
    except ZeroDivisionError:
        value = None
    except ValueError as error:
        return str(error), quote, None
    if sorted(used) != sorted(numbers):
        return "The expression does not use each number exactly once.", quote, None
    return "", "", value


def _value(node: ast.expr, operations: str, used: list[int]) -> Value:
    """The exact value; the numbers met are added to `used`, also where a division by zero lies behind them."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used.append(node.value)
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, operations, used)
    operation = _OPERATIONS.get(type(node.op)) if isinstance(node, ast.BinOp) else None
    if operation is None or operation not in operations:
        raise ValueError(f"Numbers are joined by {' '.join(operations)} and nothing else.")
    try:
        left: Value | None = _value(node.left, operations, used)
    except ZeroDivisionError:
        left = None
    right = _value(node.right, operations, used)
    if left is None:
        raise ZeroDivisionError
    return _APPLY[operation](left, right)


def _divided(left: Value, right: Value) -> Value:
    if type(left) is type(right) is int and right and not left % right:
        return left // right  # whole numbers are an order of magnitude faster
    quotient = Fraction(left) / right
    return quotient.numerator if quotient.denominator == 1 else quotient


def _quotients(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return np.divide(
        left,
        right,
        out=np.full(np.broadcast_shapes(left.shape, right.shape), np.nan),
        where=right != 0,
    )


_JOIN = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": _quotients}
_APPLY: dict[str, Callable[[Value, Value], Value]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _divided,
}


def joined(left: str, operation: str, right: str) -> str:
    """Parentheses around whatever is no single number."""
    return f"{_in_parentheses(left)} {operation} {_in_parentheses(right)}"


def _in_parentheses(side: str) -> str:
    return side if side.isdecimal() else f"({side})"


def reachable(numbers: Sequence[int], largest: int, operations: str) -> np.ndarray:
    """The targets from 1 to `largest` that expressions of exactly `numbers` have, in order.

    Values of all subsets, in floats: of four numbers up to 100 a value that is no whole number is at least 1e-6 away
    from one, and rounding moves none by more than 1e-8.
    """
    values = {1 << at: np.array([float(number)]) for at, number in enumerate(numbers)}
    whole = (1 << len(numbers)) - 1
    for subset in range(1, whole + 1):
        if subset in values:
            continue
        results = []
        for part in range(1, subset):
            if part & subset == part:  # both orders of two halves are met
                left = values[part][:, None]
                right = values[subset ^ part][None, :]
                results += [_JOIN[operation](left, right).ravel() for operation in operations]
        distinct = np.unique(np.concatenate(results))
        values[subset] = distinct[np.isfinite(distinct)]
    nearest = np.rint(values[whole])
    targets = np.unique(nearest[np.abs(values[whole] - nearest) < 1e-7])
    return targets[(targets >= 1) & (targets <= largest)]


@lru_cache(maxsize=4096)
def solve(numbers: tuple[int, ...], target: int, operations: str) -> str:
    """An expression of exactly `numbers` with the value `target`; "" where there is none. All are tried: two of the
    values are joined, then two of what is left."""
    return _search(tuple((number, str(number)) for number in numbers), target, operations)


def _search(parts: tuple[tuple[Value, str], ...], target: int, operations: str) -> str:
    for one, other in permutations(range(len(parts)), 2):
        left, left_text = parts[one]
        right, right_text = parts[other]
        rest = tuple(part for at, part in enumerate(parts) if at not in (one, other))
        for operation in operations:
            if operation in "+*" and one > other or operation == "/" and not right:
                continue
            value = _APPLY[operation](left, right)
            if not rest:
                if value == target:
                    return joined(left_text, operation, right_text)
                continue
            part = (value, joined(left_text, operation, right_text))
            expression = _search((*rest, part), target, operations)
            if expression:
                return expression
    return ""
