"""One JSON value out of a policy's text, read as the standard has it and no further.

No key twice, no NaN, no number beyond float, nothing repaired, nothing decoded twice. What is wrong is a `CallError`
with a complaint, and nothing else is raised (invariant 10), whatever the text; sizes are bounded before they cost anything.
"""

from __future__ import annotations

import json
import math
from typing import Any

from workbench.tools.action_format import shown

MOST_CALL = 32_000  # characters of one call
MOST_DEPTH = 16  # of lists and objects in one another
MOST_DIGITS = 400  # of a whole number
QUOTE = 20  # characters of the policy's text in a complaint


class CallError(Exception):
    """What is wrong with a call: a complaint in our words, and a quote."""

    def __init__(self, complaint: str, quote: str = "") -> None:
        super().__init__(complaint)
        self.complaint = complaint
        self.quote = shown(quote, QUOTE)


def json_at(text: str, start: int, closing: str) -> tuple[Any, int]:
    """The JSON value that begins at `start`, and where it ends. `closing` ends the call that it stands in. Raises
    CallError, and nothing else."""
    window = text[start : start + MOST_CALL]
    _check_depth(window)
    try:
        value, end = _DECODER.raw_decode(window)
    except json.JSONDecodeError as error:
        if len(window) == MOST_CALL and ("Unterminated" in error.msg or error.pos > MOST_CALL - 10):
            raise CallError(f"The call is longer than {MOST_CALL} characters.") from None
        raise CallError(
            f"The call is no JSON: {error.msg}, at character {error.pos + 1}.",
            window[error.pos : error.pos + QUOTE + len(closing)].split(closing)[0],
        ) from None
    if "\\u" in window:
        check_characters(json.dumps(value, ensure_ascii=False))
    return value, start + end


def check_characters(text: str) -> None:
    """Half a surrogate pair is valid JSON and no character: neither a tokenizer nor a file takes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CallError("A text holds half of a surrogate pair, which is no character.") from None


def _check_depth(window: str) -> None:
    if window.count("[") + window.count("{") <= MOST_DEPTH:
        return
    depth = 0
    quoted = False
    escaped = False
    for character in window:
        if quoted:
            quoted = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            quoted = True
        elif character in "[{":
            depth += 1
            if depth > MOST_DEPTH:
                raise CallError(f"The call is nested deeper than {MOST_DEPTH}.")
        elif character in "]}":
            depth -= 1
            if depth <= 0:
                return


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise CallError("A name stands twice in one JSON object.", twice)
    return value


def _constant(name: str) -> float:
    raise CallError("NaN and Infinity are no JSON; write a number or null.", name)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise CallError("A number is too large.", digits)
    return value


def _int(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise CallError(f"A whole number has more than {MOST_DIGITS} digits.", digits)
    return int(digits)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float, parse_int=_int
)
