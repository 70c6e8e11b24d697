"""Arithmetic as a tool, without `eval`: an expression is parsed, every part is on a list, and every result is bounded
before it is computed.

What makes a calculator hang is never one operation on what is written, but one on what was just computed: `9**9**9`,
`1 << 10**9`, `round(7, -10**9)`. So the bits that an operation would give are worked out from the bits of its operands,
and one that would exceed `MOST_BITS` is refused, not run. Floats bound themselves: an overflow, a domain error or a
division by zero becomes a message. What `^` means (a power, exclusive or) is not guessed.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Sequence

from workbench.tools.action_format import shown
from workbench.tools.base import ToolResult, tool

LONGEST = 500  # characters of an expression
MOST_PARTS = 200  # nodes of its syntax tree
MOST_BITS = 4_000  # of a whole number: about 1,200 digits
MOST_FACTORIAL = 400
MOST_ROUNDED = 400  # digits that round() is asked for

Number = int | float


class _Refused(Exception):
    """Why an expression has no value here, in words for its author."""


@tool(trusted=True)
def calculator(expression: str) -> ToolResult:
    """Compute an arithmetic expression.

    expression: such as (3 + 4) * 2 ** 5 / sqrt(2)
    """
    try:
        value = evaluate(expression)
    except ValueError as error:
        return ToolResult(f"Error: {error}.", error="bad_arguments")
    return ToolResult(str(value) if isinstance(value, int) else f"{value:.15g}", value)


def evaluate(expression: str) -> Number:
    """The value of an expression, a finite number. Raises ValueError, saying what is wrong, and nothing else; never
    slow."""
    if len(expression) > LONGEST:
        raise ValueError(
            f"the expression has {len(expression)} characters; at most {LONGEST} are computed"
        )
    try:
        return _value(_tree(expression))
    except _Refused as refused:
        raise ValueError(str(refused)) from None
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("a result is too large") from None
    except (ArithmeticError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"it cannot be computed: {shown(str(error))}") from None


# ------------------------------------------------------------------------------------------------ reading


# A number stands alone (1if and 0x1f are no numbers here); nothing of Python but these signs comes through.
_TOKENS = re.compile(
    r"(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])|[A-Za-z_]\w*|\*\*|//|<<|>>|[-+*/%(),&|~]|[ \t\n])*",
    re.ASCII,
)


def _tree(expression: str) -> ast.expr:
    text = " ".join(expression.split())
    read = _TOKENS.match(text).end()
    if read < len(text):
        hint = "; write ** for a power" if text[read] == "^" else ""
        raise _Refused(f"{shown(text[read:], 20)!r} cannot stand in an arithmetic expression{hint}")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise _Refused(
            f"{shown(text)!r} is no arithmetic expression; write one such as (1 + 2) * 3"
        ) from None
    if sum(1 for _ in ast.walk(tree)) > MOST_PARTS:
        raise _Refused(f"the expression has more than {MOST_PARTS} parts")
    return tree.body


# ------------------------------------------------------------------------------------------------ computing


def _value(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant):
        return _number(node.value)
    if isinstance(node, ast.Name):
        if node.id not in CONSTANTS:
            raise _Refused(
                f"there is no {shown(node.id)!r}; there are {', '.join(CONSTANTS)} and {_functions()}"
            )
        return CONSTANTS[node.id]
    if isinstance(node, ast.UnaryOp) and type(node.op) in UNARY:
        return _number(UNARY[type(node.op)](_value(node.operand)))
    if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
        return _number(BINARY[type(node.op)](_value(node.left), _value(node.right)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _called(node.func.id, [_value(argument) for argument in node.args])
    if isinstance(node, ast.Tuple):
        raise _Refused(
            "a comma stands between the arguments of a function only; write 1000 for 1,000"
        )
    raise _Refused(
        f"only numbers, + - * / // % ** << >> & |, parentheses and these are computed: {_functions()}"
    )


def _called(name: str, arguments: Sequence[Number]) -> Number:
    if name not in FUNCTIONS:
        raise _Refused(f"there is no function {shown(name)!r}; there are {_functions()}")
    function, least, most = FUNCTIONS[name]
    if not least <= len(arguments) <= most:
        takes = f"{least} or {most}"
        if least == most:
            takes = f"{least}"
        elif most > 2:
            takes = f"{least} or more"
        raise _Refused(f"{name} takes {takes} numbers, got {len(arguments)}")
    return _number(function(*arguments))


def _number(value: object) -> Number:
    """A finite real number of bounded size."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Refused("a result is no real number")
    if isinstance(value, int):
        _room(value.bit_length())
    elif not math.isfinite(value):
        raise _Refused("a result is too large, or no number")
    return value


def _room(bits: int) -> None:
    if bits > MOST_BITS:
        raise _Refused(f"a result would be too large: more than {MOST_BITS} bits")


def _bits(value: Number) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _multiply(a: Number, b: Number) -> Number:
    _room(_bits(a) + _bits(b) - 1)
    return a * b


def _power(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int) and b > 0 and abs(a) > 1:
        _room((_bits(a) - 1) * b)  # the fewest bits it can have
    return a**b


def _shift_left(a: Number, b: Number) -> Number:
    if isinstance(b, int) and b > 0:
        _room(_bits(a) + b if a else 0)
        return a << min(b, MOST_BITS)  # where a is 0, b may be anything
    return a << b


def _round(value: Number, digits: Number = 0) -> Number:
    if not isinstance(digits, int) or abs(digits) > MOST_ROUNDED:
        raise _Refused(f"round takes a whole number of digits, at most {MOST_ROUNDED}")
    return round(value, digits) if digits else round(value)


def _factorial(value: Number) -> int:
    if not isinstance(value, int) or not 0 <= value <= MOST_FACTORIAL:
        raise _Refused(f"factorial takes a whole number from 0 to {MOST_FACTORIAL}")
    return math.factorial(value)


CONSTANTS: dict[str, float] = {"pi": math.pi, "e": math.e}
UNARY: dict[type, Callable] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}
BINARY: dict[type, Callable] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: _multiply,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.LShift: _shift_left,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
# name: (function, fewest arguments, most)
FUNCTIONS: dict[str, tuple[Callable, int, int]] = {
    "abs": (abs, 1, 1),
    "round": (_round, 1, 2),
    "min": (min, 2, MOST_PARTS),
    "max": (max, 2, MOST_PARTS),
    "floor": (math.floor, 1, 1),
    "ceil": (math.ceil, 1, 1),
    "sqrt": (math.sqrt, 1, 1),
    "exp": (math.exp, 1, 1),
    "log": (math.log, 1, 2),
    "log2": (math.log2, 1, 1),
    "log10": (math.log10, 1, 1),
    "sin": (math.sin, 1, 1),
    "cos": (math.cos, 1, 1),
    "tan": (math.tan, 1, 1),
    "asin": (math.asin, 1, 1),
    "acos": (math.acos, 1, 1),
    "atan": (math.atan, 1, 1),
    "pow": (_power, 2, 2),
    "gcd": (math.gcd, 2, 2),
    "factorial": (_factorial, 1, 1),
}


def _functions() -> str:
    return " ".join(FUNCTIONS)
