"""Foreign values made into arrays and short names, or refused with the reason: a file says anything it likes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from workbench.basics.regular_files import parse_json
from workbench.extensions.interop.dumps import RawSequence
from workbench.look.escape import visible

LONGEST_NAME = 48
LARGEST_ID = 2**31 - 1
LONGEST_LINE = 64 * 2**20  # bytes; a rollout of a million tokens with logprobs takes about 30 MB


Row = dict[str, Any]


@dataclass(frozen=True)
class Reader:
    """How the rows of one framework are recognised and read.

    sequences_of(row, where): its sequences.
    missing(sequences, first rows): what its files do not hold, in words.
    version(first rows, file): of the framework, where something says it.
    unit: what a row is called.
    is_file(file), rows(file): of files that are no lines of JSON: whether a file is one of these, and its rows, or why one
        cannot be read.
    """

    framework: str
    is_row: Callable[[Row], bool]
    sequences_of: Callable[[Row, str], list[RawSequence]]
    missing: Callable[[Sequence[RawSequence], Sequence[Row]], list[str]]
    version: Callable[[Sequence[Row], Path], str | None] = lambda rows, file: None
    unit: str = "line"
    is_file: Callable[[Path], bool] = lambda file: False
    rows: Callable[[Path], Iterator[Row | Damaged]] | None = None


def has_columns(*columns: str) -> Callable[[Row], bool]:
    """How a row is recognised by what is in it."""
    return lambda row: row.keys() >= set(columns)


def has_ids(sequences: Sequence[RawSequence]) -> bool:
    return any(sequence.completion_ids is not None for sequence in sequences)


class Damaged(Exception):
    """A row cannot be read; the message says why. Caught where rows are read, and counted there."""


def ids(value: Any, what: str) -> np.ndarray | None:
    """Token ids, int32; None where there are none. Text is taken for a JSON list, as some frameworks write it."""
    values = _list(value, what)
    if values is None:
        return None
    for number in values:
        if type(number) is not int or abs(number) > LARGEST_ID:
            raise Damaged(f"{what} holds {_short(number)}, which is no token id")
    return np.array(values, np.int32)


def numbers(value: Any, what: str) -> np.ndarray | None:
    """Floats, also of a mask (0, 1, True, or whatever stands there); NaN where the file has null; None where there are
    none."""
    values = _list(value, what)
    if values is None:
        return None
    for number in values:
        if number is not None and not isinstance(number, (int, float)):
            raise Damaged(f"{what} holds {_short(number)}, which is no number")
    floats = [math.nan if number is None else _float(number, what) for number in values]
    return np.array(floats, np.float64)


def arrays_of(
    row: Mapping[str, Any], columns: Mapping[str, Sequence[str]]
) -> dict[str, np.ndarray | None]:
    """Arrays of a `RawSequence` by field, each from the first of its `columns` that the row has."""
    arrays = {}
    for field, names in columns.items():
        column = next((name for name in names if row.get(name) is not None), "")
        read = ids if field.endswith("_ids") else numbers
        arrays[field] = read(row.get(column), column)
    return arrays


def number(value: Any, what: str) -> float | None:
    """One number, or None."""
    if value is None:
        return None
    if not isinstance(value, (int, float)):
        raise Damaged(f"{what} is {_short(value)}, which is no number")
    return _float(value, what)


def _float(value: float, what: str) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        raise Damaged(f"{what} is {_short(value)}, which is larger than any float") from None


def mapping(value: Any, what: str) -> dict[str, Any]:
    """A JSON object; an absent one is empty."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Damaged(f"{what} is {_short(value)}, expected an object")
    return value


def rows_of(value: Any, what: str) -> list[Any]:
    """A JSON list; an absent one is empty."""
    return _list(value, what) or []


def name(value: Any, longest: int = LONGEST_NAME) -> str:
    """Foreign text that goes into names and messages: one line, no character that acts, not long."""
    text = visible(value, newline="⏎")
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def prompt_name(text: str) -> str:
    """A short name for a group made up from equal prompts: the same for the same text, and hardly for another."""
    return f"prompt {blake2b(text.encode('utf-8', 'replace'), digest_size=4).hexdigest()}"


def text_of(content: Any) -> str:
    """The text of a prompt or completion: a string, a list of chat messages, or the parts of one message's content."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        if "role" not in content:
            return content["text"] if isinstance(content.get("text"), str) else ""
        parts = [text_of(content.get("reasoning_content")), text_of(content.get("content"))]
        calls = content.get("tool_calls")
        if isinstance(calls, list):
            parts += [json.dumps(call, ensure_ascii=False, default=str) for call in calls]
        return f"{content['role']}: " + "\n".join(filter(None, parts))
    if isinstance(content, (list, tuple, np.ndarray)):
        return "\n".join(filter(None, map(text_of, content)))
    return str(content)


def _list(value: Any, what: str) -> list[Any] | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError as error:
            raise Damaged(f"{what} is the text {_short(value)}, not a list") from error
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list):
        raise Damaged(f"{what} is {_short(value)}, expected a list")
    return value


def _short(value: Any) -> str:
    return name(repr(value)[:200], 40)
