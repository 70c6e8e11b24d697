"""A trajectory as chat messages, in the form that OpenAI's API and Hugging Face's templates share.

    {"role": "system" | "user" | "assistant" | "tool", "content": text,
     "name": of the tool, "tool_call_id": ..., "tool_calls": [{"id", "type": "function", "function": {"name", "arguments"}}]}

A call that the policy wrote as text (`<tool_call>{...}</tool_call>`, `<search>...</search>`) stands in `tool_calls` and is
cut out of the text. Where the text cannot be told from the call, the turn stays text and has no `tool_calls`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from workbench.tools.formats import CALL, END_CALL
from workbench.tools.turns import END_THINK
from workbench.values import Message, ToolCall, Trajectory, Turn

# What tokenizers commonly have a control token for. Text stays text here; a reader's tokenizer may see it otherwise.
CONTROL = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|</?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>|\[/?INST\]"
)

REWRITTEN = "the policy saw a rewritten history (several sequences); the messages are the whole conversation"
CALLS_AS_TEXT = "calls stay in the text: it cannot be told from them"
LOOKS_LIKE_CONTROL = (
    "text looks like control tokens; it is written as text, and most tokenizers will read tokens (only "
    "trl-sft-tokens keeps the ids)"
)


def opening(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The messages before the policy's first turn."""
    return [_message(message) for message in trajectory.first_observation.messages]


def answers(trajectory: Trajectory, *, text_arguments: bool) -> list[dict[str, Any]]:
    """The policy's turns and the replies to them. `text_arguments`: of calls as JSON text (OpenAI's form), else as an
    object (what chat templates expect)."""
    return [message for message, _ in _answers(trajectory, text_arguments)]


def authored(trajectory: Trajectory) -> list[tuple[dict[str, Any], bool]]:
    """Every message in OpenAI's form, and whether the policy wrote it. An assistant's message that stands in a prompt
    or a reply was written by somebody else."""
    before = [(message, False) for message in opening(trajectory)]
    return [*before, *_answers(trajectory, text_arguments=True)]


def _answers(trajectory: Trajectory, text_arguments: bool) -> Iterator[tuple[dict[str, Any], bool]]:
    for turn in trajectory.turns:
        yield _turn_message(turn, text_arguments), True
        for message in turn.reply:
            yield _message(message), False


def remarks_on(trajectory: Trajectory) -> list[str]:
    """What a reader of the messages should know."""
    texts = [message.text for message in trajectory.first_observation.messages]
    calls_stay = False
    for turn in trajectory.turns:
        texts += [turn.text, *(message.text for message in turn.reply)]
        if turn.tool_calls and text_without_calls(turn.text, turn.tool_calls) is None:
            calls_stay = True
    remarks = []
    if len(trajectory.segments) > 1:
        remarks.append(REWRITTEN)
    if calls_stay:
        remarks.append(CALLS_AS_TEXT)
    if any(CONTROL.search(text) for text in texts):
        remarks.append(LOOKS_LIKE_CONTROL)
    return remarks


def _message(message: Message) -> dict[str, Any]:
    fields = {"role": message.role, "content": message.text}
    if message.name:
        fields["name"] = message.name
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def _turn_message(turn: Turn, text_arguments: bool) -> dict[str, Any]:
    text = text_without_calls(turn.text, turn.tool_calls) if turn.tool_calls else None
    if text is None:
        return {"role": "assistant", "content": turn.text}
    calls = []
    for number, call in enumerate(turn.tool_calls):
        arguments: Any = dict(call.arguments)
        if text_arguments:
            arguments = json.dumps(call.arguments, ensure_ascii=False)
        function = {"name": call.name, "arguments": arguments}
        call_id = call.call_id or f"t{turn.index}c{number}"
        calls.append({"id": call_id, "type": "function", "function": function})
    return {"role": "assistant", "content": text, "tool_calls": calls}


def text_without_calls(text: str, calls: Sequence[ToolCall]) -> str | None:
    """What a turn says beside its calls; None where not every call is found in it, in order, as it was read."""
    at = text.find(END_THINK) + len(END_THINK) if END_THINK in text else 0
    kept = [text[:at]]
    waiting = list(calls)
    tags = {CALL: END_CALL} | {f"<{call.name}>": f"</{call.name}>" for call in calls}
    while waiting:
        places = {tag: text.find(tag, at) for tag in tags}
        present = [(place, tag) for tag, place in places.items() if place >= 0]
        if not present:
            return None
        start, tag = min(present)
        inner = start + len(tag)
        end = text.find(tags[tag], inner)
        if end < 0:
            return None
        whole = end + len(tags[tag])
        if _says(text[inner:end].strip(), waiting[0], named=tag == CALL):
            kept.append(text[at:start])
            del waiting[0]
        else:
            kept.append(text[at:whole])
        at = whole
    return "".join([*kept, text[at:]]).strip()


def _says(inside: str, call: ToolCall, *, named: bool) -> bool:
    """Whether what stands between the tags is this call."""
    arguments = dict(call.arguments)
    if not named and list(arguments.values()) == [inside]:
        return True
    try:
        value = json.loads(inside)
    except (ValueError, RecursionError):
        return False
    return value == ({"name": call.name, "arguments": arguments} if named else arguments)
