"""What the policy wrote in a turn, as a client is given it: text, and calls with ids.

Everything is given. A call that was read becomes a call; all else stays in the text, calls that could not be read among
it, so that a program sees what its model did wrong. Calls are read only where the program offered tools.

Our own forms (hermes, tags) are cut by their tags; a form with `readers` (extension `families`) is cut where its readers
say that a call begins and ends. Of a form that has neither, nothing is cut: the calls stand in the text as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from workbench.extensions.agents.messages import END_THINK, WireCall
from workbench.tools.formats import CALL, END_CALL, CallFormat, format_for
from workbench.tools.turns import BadCall, CallReader
from workbench.values import ToolCall
from workbench.values.errors import ToolError


def form_for(format: CallFormat, tools: Sequence[Mapping[str, Any]]) -> CallFormat:
    """The form of calls of these tools: where values are written as plain text, a tool's schema says what they are, and a
    program may offer tools of its own."""
    if not hasattr(format, "readers"):
        return format
    functions = [tool["function"] for tool in tools]
    offered = [
        SimpleNamespace(name=function["name"], parameters=function.get("parameters") or {})
        for function in functions
    ]
    try:
        return format_for(format.name, offered, think=format.think)
    except ToolError:  # a form that no table has
        return format


def read_action(
    text: str, format: CallFormat, id_of: Callable[[int], str]
) -> tuple[str, tuple[WireCall, ...], Sequence[BadCall]]:
    """(text, calls, calls that could not be read) of a turn. `id_of`: the id of the call at this place."""
    parsed = format.parse(text)
    if not parsed.calls:
        return text, (), parsed.bad_calls
    if hasattr(format, "readers"):
        rest, calls = _cut_by_readers(format.plain(text), format.readers())
    else:
        rest, calls = _cut(text, format, parsed.calls)
    if calls != list(parsed.calls):  # a form whose blocks are not known here: nothing is cut out
        rest = text
        calls = list(parsed.calls)
    wire = tuple(
        WireCall(id_of(index), call.name, json.dumps(dict(call.arguments), ensure_ascii=False))
        for index, call in enumerate(calls)
    )
    return rest, wire, parsed.bad_calls


def _cut_by_readers(text: str, readers: Mapping[str, CallReader]) -> tuple[str, list[ToolCall]]:
    """The text without the blocks in which every call could be read, and the calls. A block with a bad one stays."""
    at = _behind_thought(text)
    kept = [text[:at]]
    taken: list[ToolCall] = []
    while (place := _first(text, at, readers)) is not None:
        start, tag = place
        inner = start + len(tag)
        made, end = readers[tag](text, inner)
        attempts = made if isinstance(made, list) else [made]
        calls = [attempt for attempt in attempts if isinstance(attempt, ToolCall)]
        taken += calls
        kept.append(text[at:start])
        end = max(end, inner)
        if len(calls) < len(attempts):
            kept.append(text[start:end])
        at = end
    kept.append(text[at:])
    return "".join(kept).strip(), taken


def _first(text: str, at: int, tags: Sequence[str] | Mapping[str, Any]) -> tuple[int, str] | None:
    """(where the first of these tags stands from here on, the tag); None: none does."""
    begins = [(text.find(tag, at), tag) for tag in tags]
    there = [place for place in begins if place[0] >= 0]
    return min(there) if there else None


def _behind_thought(text: str) -> int:
    return text.find(END_THINK) + len(END_THINK) if END_THINK in text else 0


def _cut(text: str, format: CallFormat, calls: Sequence[ToolCall]) -> tuple[str, list[ToolCall]]:
    """The text without the blocks of its calls, and the calls of these blocks, in order."""
    tags = _tags(format, calls)
    taken: list[ToolCall] = []
    at = _behind_thought(text)
    kept = [text[:at]]
    while (place := _first(text, at, tags)) is not None:
        start, opening = place
        kept.append(text[at:start])
        end, call = _block(text, start, tags[opening], format)
        if call is None:
            kept.append(text[start:end])
        else:
            taken.append(call)
        at = end
    kept.append(text[at:])
    return "".join(kept).strip(), taken


def _tags(format: CallFormat, calls: Sequence[ToolCall]) -> Mapping[str, str]:
    """Opening tag -> closing tag."""
    if format.name == "tags":
        return {f"<{call.name}>": f"</{call.name}>" for call in calls}
    return {CALL: END_CALL}


def _block(text: str, start: int, closing: str, format: CallFormat) -> tuple[int, ToolCall | None]:
    """(where the block that begins at `start` ends, its call or None). A closing tag may stand within an argument."""
    first = end = text.find(closing, start)
    while end >= 0:
        parsed = format.parse(text[start : end + len(closing)])
        if len(parsed.calls) == 1 and not parsed.bad_calls:
            return end + len(closing), parsed.calls[0]
        end = text.find(closing, end + 1)
    return (len(text) if first < 0 else first + len(closing)), None
