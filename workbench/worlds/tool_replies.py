"""Replies to an agent after a turn with tools: a message for each call, and words for what else was wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence

from workbench.tools.action_format import complaint_with_quote, refusal
from workbench.tools.base import ToolResult
from workbench.tools.turns import BadCall, ParsedTurn
from workbench.values import Message, Text, ToolCall


def replies_to(
    parsed: ParsedTurn,
    calls: Sequence[ToolCall],
    results: Sequence[ToolResult],
    *,
    turn: int,
    past: Sequence[str],
    example: str,
) -> tuple[Message, ...]:
    """One tool message for each call, in the order of the text; a user message for what else was wrong.

    `turn`: its number; `past`: earlier calls and results, where they are recalled; `example`: how a turn looks.
    """
    replies: dict[int, Message] = {}
    places = [index for index, _ in placed(parsed)]
    for index, call, result in zip(places, calls, results, strict=True):
        replies[index] = Message("tool", (Text(result.text),), call.name, call.call_id)
    for bad in parsed.bad_calls:
        replies[bad.index] = _reply_to_bad_call(bad, turn)
    messages = [replies[index] for index in sorted(replies)]
    if past:
        shown = (Text("Before this you called:\n", trusted=True), Text("\n".join(past)))
        messages.insert(0, Message("user", shown))
    if not replies:
        return (*messages, Message("user", tuple(refusal(parsed.complaint, parsed.quote, example))))
    if parsed.complaint and parsed.complaint not in {bad.complaint for bad in parsed.bad_calls}:
        words = complaint_with_quote(parsed.complaint, parsed.quote)
        messages.append(Message("user", tuple(words)))
    return tuple(messages)


def _reply_to_bad_call(bad: BadCall, turn: int) -> Message:
    """It names tags, which some tokenizers have tokens for, in the place of a tool's output: untrusted like it."""
    quote = f" It says: {bad.quote}" if bad.quote else ""
    return Message("tool", (Text(f"Error: {bad.complaint}{quote}"),), None, f"t{turn}c{bad.index}")


def remembered(calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> tuple[str, ...]:
    """Calls and their results in words, for histories that show the newest reply alone."""
    return tuple(
        f"{call.name} {json.dumps(call.arguments, ensure_ascii=False)}\n{result.text}"
        for call, result in zip(calls, results, strict=True)
    )


def placed(parsed: ParsedTurn) -> list[tuple[int, ToolCall]]:
    """The calls with their places among all calls of the turn, the bad ones counted."""
    bad = {call.index for call in parsed.bad_calls}
    places = [index for index in range(len(parsed.calls) + len(bad)) if index not in bad]
    return list(zip(places, parsed.calls, strict=True))
