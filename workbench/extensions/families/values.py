"""Values of Python's and Gemma's kind, read strictly: no code is run, nothing is evaluated, depth and digits are bounded."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from workbench.tools.formats import after_space
from workbench.tools.strict_json import (
    MOST_CALL,
    MOST_DEPTH,
    MOST_DIGITS,
    QUOTE,
    CallError,
    check_characters,
)

WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
GEMMA_QUOTE = '<|"|>'
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[A-Za-z]+")
_KEY = re.compile(r"[^\s:{}\[\],<>\"']+")
_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "/": "/",
    "b": "\b",
    "f": "\f",
}
_PLAIN = re.compile(r"[^\\'\"\n]+")


def value_at(text: str, at: int, depth: int = 0) -> tuple[Any, int]:
    """The value that begins at `at`, and where it ends. Raises CallError, and nothing else."""
    at = after_space(text, at)
    if depth > MOST_DEPTH:
        raise CallError(f"The call is nested deeper than {MOST_DEPTH}.")
    if text.startswith((GEMMA_QUOTE, "'", '"'), at):
        return _text_at(text, at)
    if text.startswith("[", at):
        return _list_at(text, at + 1, depth)
    if text.startswith("{", at):
        return _mapping_at(text, at + 1, depth)
    if number := _NUMBER.match(text, at):
        return _number(number), number.end()
    word = _WORD.match(text, at)
    if word is None or word[0] not in WORDS:
        raise CallError(
            "A value is text in quotes, a number, true, false, null, a list or a mapping.",
            text[at : at + QUOTE + 1],
        )
    return WORDS[word[0]], word.end()


def mapping_at(text: str, at: int) -> tuple[dict[str, Any], int]:
    """The mapping whose opening brace ends at `at`, and where it ends."""
    return _mapping_at(text, at, 0)


def _list_at(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    values: list[Any] = []
    at = after_space(text, at)
    if text.startswith("]", at):
        return values, at + 1
    while True:
        value, at = value_at(text, at, depth + 1)
        values.append(value)
        at = after_space(text, at)
        if text.startswith("]", at):
            return values, at + 1
        at = _comma(text, at)


def _mapping_at(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    values: dict[str, Any] = {}
    at = after_space(text, at)
    if text.startswith("}", at):
        return values, at + 1
    while True:
        key, at = _key_at(text, after_space(text, at))
        at = after_space(text, at)
        if not text.startswith(":", at):
            raise CallError("A key is not followed by a colon.", text[at : at + QUOTE + 1])
        if key in values:
            raise CallError("A name stands twice in one mapping.", key)
        values[key], at = value_at(text, at + 1, depth + 1)
        at = after_space(text, at)
        if text.startswith("}", at):
            return values, at + 1
        at = _comma(text, at)


def _comma(text: str, at: int) -> int:
    if not text.startswith(",", at):
        raise CallError("Values are not separated by a comma.", text[at : at + QUOTE + 1])
    return at + 1


def _key_at(text: str, at: int) -> tuple[str, int]:
    if text.startswith((GEMMA_QUOTE, "'", '"'), at):
        return _text_at(text, at)
    match = _KEY.match(text, at)
    if match is None:
        raise CallError("A key is missing.", text[at : at + QUOTE + 1])
    return match[0], match.end()


def _text_at(text: str, at: int) -> tuple[str, int]:
    if text.startswith(GEMMA_QUOTE, at):
        start = at + len(GEMMA_QUOTE)
        end = text.find(GEMMA_QUOTE, start, start + MOST_CALL)
        if end < 0:
            raise CallError("A text is not closed by its quotation mark.", text[at : at + QUOTE])
        inside = text[start:end]
        check_characters(inside)
        return inside, end + len(GEMMA_QUOTE)
    return _quoted_at(text, at)


def _quoted_at(text: str, at: int) -> tuple[str, int]:
    """Text in single or double quotes, with the escapes that Python and JSON share."""
    quote = text[at]
    start = at
    at += 1
    pieces: list[str] = []
    while at < len(text) and at - start < MOST_CALL:
        if match := _PLAIN.match(text, at):
            pieces.append(match[0])
            at = match.end()
        elif text[at] == quote:
            inside = "".join(pieces)
            check_characters(inside)
            return inside, at + 1
        elif text[at] == "\\":
            piece, at = _escape_at(text, at + 1)
            pieces.append(piece)
        else:
            pieces.append(text[at])
            at += 1
    raise CallError("A text is not closed by its quotation mark.", text[start : start + QUOTE])


def _escape_at(text: str, at: int) -> tuple[str, int]:
    letter = text[at : at + 1]
    if letter in _ESCAPES:
        return _ESCAPES[letter], at + 1
    digits = text[at + 1 : at + 5]
    if letter == "u" and re.fullmatch("[0-9a-fA-F]{4}", digits):
        return chr(int(digits, 16)), at + 5
    raise CallError("A text holds an escape that is none.", text[at - 1 : at + QUOTE])


def _number(match: re.Match[str]) -> int | float:
    digits = match[0]
    if len(digits) > MOST_DIGITS:
        raise CallError(f"A number has more than {MOST_DIGITS} digits.", digits)
    if match[1] is None and match[2] is None:
        return int(digits)
    value = float(digits)
    if not math.isfinite(value):
        raise CallError("A number is too large.", digits)
    return value


def python_text(value: Any) -> str:
    """A value as LFM2's template writes it: text in single quotes, everything else as JSON."""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    inside = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{inside}'"


def gemma_text(value: Any) -> str:
    """A value as Gemma's template writes it: keys bare and in order, text in its own quotation marks."""
    if isinstance(value, str):
        return f"{GEMMA_QUOTE}{value}{GEMMA_QUOTE}"
    if isinstance(value, dict):
        items = [f"{key}:{gemma_text(item)}" for key, item in sorted(value.items())]
        return "{" + ",".join(items) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(gemma_text(item) for item in value) + "]"
    return json.dumps(value)
