"""What the policy wrote in a turn, as a client is given it: text, and calls with ids.

Everything is given. A call that was read becomes a call; all else stays in the text, calls that could not be read among
it, so that a program sees what its model did wrong. Calls are read only where the program offered tools.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from workbench.extensions.agents.messages import END_THINK, WireCall
from workbench.tools.formats import CALL, END_CALL, CallFormat
from workbench.values import ToolCall


def read_action(
    text: str, format: CallFormat, id_of: Callable[[int], str]
) -> tuple[str, tuple[WireCall, ...]]:
    """(text, calls) of a turn. `id_of`: the id of the call at this place."""
    parsed = format.parse(text)
    if not parsed.calls:
        return text, ()
    rest, calls = _cut(text, format, parsed.calls)
    if calls != list(parsed.calls):  # a form whose blocks are not known here: nothing is cut out
        rest = text
        calls = list(parsed.calls)
    wire = tuple(
        WireCall(id_of(index), call.name, json.dumps(dict(call.arguments), ensure_ascii=False))
        for index, call in enumerate(calls)
    )
    return rest, wire


def _cut(text: str, format: CallFormat, calls: Sequence[ToolCall]) -> tuple[str, list[ToolCall]]:
    """The text without the blocks of its calls, and the calls of these blocks, in order."""
    tags = _tags(format, calls)
    kept: list[str] = []
    taken: list[ToolCall] = []
    at = text.find(END_THINK) + len(END_THINK) if END_THINK in text else 0
    kept.append(text[:at])
    while at < len(text):
        begins = [(text.find(opening, at), opening) for opening in tags]
        there = [place for place in begins if place[0] >= 0]
        if not there:
            break
        start, opening = min(there)
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
