"""From whatever a tool gives back to a `ToolResult`: bounded in bytes, cut where a character ends, never raising.

A text is bounded while it is read: a tool may give back an iterator of pieces, of which no more is taken than fits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from workbench.basics.canonical_json import json_bytes, plain
from workbench.tools.base import ERRORS, ToolResult
from workbench.values.errors import StoreError, where_raised

MARK_BYTES = 80  # that the mark of a cut text has room for
SPARE = 4096  # bytes of a result's names
MOST_VALUE_BYTES = 100_000  # of `ToolResult.value`, as JSON: it is stored with every turn


def cut_text(text: str, most_bytes: int) -> tuple[str, int]:
    """At most the first `most_bytes` bytes (UTF-8) of a text, up to the end of a character, with a mark that says so;
    and how many bytes were left out. The mark comes on top. Lone surrogates, which are no characters and which a
    tokenizer refuses, become question marks."""
    data = text.encode("utf-8", "replace")
    if len(data) <= most_bytes:
        return data.decode(), 0
    # What is ignored is the first part of a character.
    kept = data[:most_bytes].decode("utf-8", "ignore")
    size = len(kept.encode())
    return kept + cut_mark(size, len(data)), len(data) - size


def cut_mark(kept: int, total: int | None) -> str:
    """`total` None: there may be more without end."""
    of_all = "many more" if total is None else f"{total:,}"
    return f"\n[cut: {kept:,} of {of_all} bytes]"


def as_result(value: Any, most_bytes: int) -> ToolResult:
    """Bound what a tool gave back. Raises TypeError for what is neither text nor JSON, saying what to give back."""
    if isinstance(value, ToolResult):
        return _checked(value, most_bytes)
    if isinstance(value, str):
        text, cut = cut_text(str.__str__(value), most_bytes)
        return ToolResult(text, cut_bytes=cut)
    if isinstance(value, Iterator):
        return _gathered(value, most_bytes)
    text, cut = cut_text(json.dumps(_json_value(value), ensure_ascii=False), most_bytes)
    return ToolResult(text, cut_bytes=cut)


def _gathered(pieces: Iterator, most_bytes: int) -> ToolResult:
    """The first bytes of what comes piece by piece, however much there would be."""
    kept = []
    size = 0
    for piece in pieces:
        if not isinstance(piece, str):
            raise TypeError(
                f"a tool that gives back pieces gives pieces of text, not {type(piece).__name__}"
            )
        kept.append(piece.encode("utf-8", "replace"))
        size += len(kept[-1])
        if size > most_bytes:
            head = b"".join(kept)[:most_bytes].decode("utf-8", "ignore")
            taken = len(head.encode())
            return ToolResult(head + cut_mark(taken, None), cut_bytes=size - taken)
    return ToolResult(b"".join(kept).decode())


def _checked(result: ToolResult, most_bytes: int) -> ToolResult:
    if not isinstance(result.text, str) or not isinstance(result.error, str):
        raise TypeError(
            f"text and error of a ToolResult are strings, got {type(result.text).__name__} and "
            f"{type(result.error).__name__}"
        )
    if result.error and result.error not in ERRORS:
        raise TypeError(f"the error of a ToolResult is one of {', '.join(ERRORS)}, or empty")
    reward = result.reward
    is_number = isinstance(reward, (int, float)) and not isinstance(reward, bool)
    if reward is not None and not (is_number and math.isfinite(reward)):
        raise TypeError(
            f"the reward of a ToolResult is None or a finite number, got {type(reward).__name__}"
        )
    value = _json_value(result.value)
    if value is not None and (size := len(json.dumps(value))) > MOST_VALUE_BYTES:
        raise TypeError(
            f"the value of a ToolResult takes {size:,} bytes; at most {MOST_VALUE_BYTES:,} are kept"
        )
    text, cut = cut_text(result.text, most_bytes)
    return replace(
        result,
        text=text,
        value=value,
        reward=None if reward is None else float(reward),
        cut_bytes=cut + int(result.cut_bytes),
    )


def _json_value(value: Any) -> Any:
    try:
        return plain(value, "what the tool gave back")
    except StoreError as error:
        raise TypeError(f"a tool gives back text, a ToolResult or a JSON value: {error}") from error


def raised(name: str, error: BaseException, most_bytes: int) -> ToolResult:
    """A tool's own exception as text for the agent, and in `value`, for people, where it was raised. Nothing of the
    exception can raise again."""
    try:
        words = f"{type(error).__name__}: {error}"
    except BaseException:  # the exception is the tool's, and so is what its __str__ raises
        words = f"{type(error).__name__}, whose text cannot be read"
    where = where_raised(error)
    value = {"raised_at": where} if where else None
    text, cut = cut_text(f"Error: {name} raised {words}" if name else words, most_bytes)
    return ToolResult(text, value, error="raised", cut_bytes=cut)


# ------------------------------------------------------------------------------------------------ from a worker


def result_json(result: ToolResult) -> bytes:
    return json_bytes(asdict(result), "what the tool gave back")


def most_content(most_bytes: int) -> int:
    """How long `result_json` of a bounded result can be: a byte of text takes six at most where JSON escapes it."""
    return 6 * (most_bytes + MARK_BYTES) + MOST_VALUE_BYTES + SPARE


def from_json(content: bytes, most_bytes: int) -> ToolResult:
    """Read what `result_json` wrote. Raises ValueError for anything else (a tool may write where it should not)."""
    try:
        held = json.loads(content)
        result = as_result(ToolResult(**held), most_bytes + MARK_BYTES)
        if type(held["cut_bytes"]) is not int:
            raise TypeError("cut_bytes is no whole number")
        return result
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"no answer of this program: {type(error).__name__}: {error}") from error
