"""Questions whose answer follows from the prompt's words alone: a sum, letters of a word, a list in order. None where it is
none of these, or where more words could change what is asked."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from fractions import Fraction

OPERATION = r"[-+*/×·÷]"
TERMS = rf"((?:\(*-?\d+\)*\s*{OPERATION}\s*)+\(*-?\d+\)*)"
SUM = re.compile(
    rf"\b(?:what is|calculate|compute|evaluate|work out|value of|solve)\b[:\s]*{TERMS}\s*(?:[=?.]|$)|(?:^|[:\n])[ \t]*{TERMS}[ \t]*=[ \t]*\?",
    re.IGNORECASE | re.MULTILINE,
)
A_DATE = re.compile(r"\d{4}-\d|\d-\d{4}|\d+/\d+/\d+")
OTHERWISE = re.compile(
    r"\b(?:left to right|modulo|mod|remainder|round\w*|integer division|whole[- ]number division|floor|digits?|instead|means|stands for|base|binary|hexadecimal|"
    r"reverse[ds]? polish|without|ignor\w+|except|whole part|quotient|truncat\w*|nearest)\b",
    re.IGNORECASE,
)
QUOTED = r"['\"“‘`]?([A-Za-z]{2,30})['\"”’`]?"
COUNT = re.compile(
    rf"\bhow (?:many|often)\b[^.?\n]{{0,30}}?\b(?:letter |times? (?:does |is )?(?:the letter )?)?['\"“‘`]?\b([A-Za-z])\b['\"”’`]?(?:'?s)?\b[^.?\n]{{0,40}}?\bin (?:the )?(?:word )?{QUOTED}\s*\?",
    re.IGNORECASE,
)
BACKWARDS = re.compile(
    rf"\b(?:reverse|backwards?|spell)\b[^.:\n]{{0,40}}?\b(?:word|letters of|text|string)\b[^.:\n\w]{{0,4}}{QUOTED}(?:\s+backwards?)?\s*[.?:]?\s*$",
    re.IGNORECASE | re.MULTILINE,
)
NUMBERS = r"((?:-?\d+(?:\.\d+)?\s*,\s*)+(?:and\s+)?-?\d+(?:\.\d+)?)"
SORTED = re.compile(
    rf"\b(?:sort|order|arrange)\b[^.\n]{{0,60}}?\b(ascending|increasing|smallest (?:to|first)|lowest (?:to|first)|descending|decreasing|largest (?:to|first)|highest (?:to|first))\b[^\d\n-]{{0,40}}{NUMBERS}"
    rf"|\b(?:sort|order|arrange)\b[^.\d\n]{{0,40}}?{NUMBERS}[^\n]{{0,30}}?\b(ascending|increasing|smallest (?:to|first)|lowest (?:to|first)|descending|decreasing|largest (?:to|first)|highest (?:to|first))\b",
    re.IGNORECASE,
)
EXTREME = re.compile(
    rf"\b(largest|biggest|greatest|highest|maximum|smallest|lowest|least|minimum|sum|total) (?:number )?(?:of|in|among)\b[^\d\n-]{{0,40}}{NUMBERS}",
    re.IGNORECASE,
)
UP = ("asc", "inc", "sma", "low")


def worked_out(prompt: str) -> str | None:
    """The answer, as text."""
    if OTHERWISE.search(prompt):
        return None
    answers = {answer for know in KNOWN if (answer := know(prompt)) is not None}
    return answers.pop() if len(answers) == 1 else None


def _sum(prompt: str) -> str | None:
    matches = {match[1] or match[2] for match in SUM.finditer(prompt)}
    if len(matches) != 1 or A_DATE.search("".join(matches)):
        return None
    expression = matches.pop().replace("×", "*").replace("·", "*").replace("÷", "/")
    try:
        return str(_value(ast.parse(expression.strip(), mode="eval").body))
    except (SyntaxError, ZeroDivisionError, TypeError):
        return None


def _value(node: ast.expr) -> Fraction:
    """Raises TypeError for what is no sum of whole numbers."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp):
        left = _value(node.left)
        right = _value(node.right)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            return left / right
    raise TypeError(ast.dump(node))


def _count(prompt: str) -> str | None:
    match = COUNT.search(prompt)
    return str(match[2].casefold().count(match[1].casefold())) if match else None


def _backwards(prompt: str) -> str | None:
    match = BACKWARDS.search(prompt)
    return match[1][::-1] if match else None


def _numbers(listed: str) -> list[str]:
    return re.findall(r"-?\d+(?:\.\d+)?", listed)


def _sorted(prompt: str) -> str | None:
    match = SORTED.search(prompt)
    if match is None:
        return None
    order, listed = (match[1], match[2]) if match[1] else (match[4], match[3])
    down = not order.lower().startswith(UP)
    return ", ".join(sorted(_numbers(listed), key=float, reverse=down))


def _extreme(prompt: str) -> str | None:
    match = EXTREME.search(prompt)
    if match is None:
        return None
    numbers = list(map(Fraction, _numbers(match[2])))
    what = match[1].lower()
    if what in ("sum", "total"):
        return str(sum(numbers))
    return str(min(numbers) if what in ("smallest", "lowest", "least", "minimum") else max(numbers))


KNOWN: tuple[Callable[[str], str | None], ...] = (_sum, _count, _backwards, _sorted, _extreme)
