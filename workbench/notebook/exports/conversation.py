"""An attempt as chat messages, in the form that OpenAI's API and Hugging Face's templates share.

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

from workbench.envs.tools.formats import CALL, END_CALL
from workbench.envs.tools.turns import END_THINK
from workbench.types import Message, ToolCall, Trajectory, Turn

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


def opening(attempt: Trajectory) -> list[dict[str, Any]]:
    """What was said before the policy's first turn."""
    return [_said(message) for message in attempt.first_observation.messages]


def answers(attempt: Trajectory, *, text_arguments: bool) -> list[dict[str, Any]]:
    """The policy's turns and the replies to them. `text_arguments`: of calls as JSON text (OpenAI's form), else as an
    object (what chat templates expect)."""
    return [message for message, _ in _answers(attempt, text_arguments)]


def authored(attempt: Trajectory) -> list[tuple[dict[str, Any], bool]]:
    """Every message in OpenAI's form, and whether the policy wrote it. An assistant's message that stands in a prompt
    or a reply was written by somebody else."""
    return [(message, False) for message in opening(attempt)] + [
        *_answers(attempt, text_arguments=True)
    ]


def _answers(attempt: Trajectory, text_arguments: bool) -> Iterator[tuple[dict[str, Any], bool]]:
    for turn in attempt.turns:
        yield _written(turn, text_arguments), True
        for message in turn.reply:
            yield _said(message), False


def remarks_on(attempt: Trajectory) -> list[str]:
    """What a reader of the messages should know."""
    found = [REWRITTEN] if len(attempt.segments) > 1 else []
    if any(
        turn.tool_calls and text_without_calls(turn.text, turn.tool_calls) is None
        for turn in attempt.turns
    ):
        found.append(CALLS_AS_TEXT)
    said = [message.text for message in attempt.first_observation.messages]
    said += [
        text
        for turn in attempt.turns
        for text in (turn.text, *(message.text for message in turn.reply))
    ]
    return found + [LOOKS_LIKE_CONTROL] * any(CONTROL.search(text) for text in said)


def _said(message: Message) -> dict[str, Any]:
    names = {"name": message.name, "tool_call_id": message.tool_call_id}
    return {"role": message.role, "content": message.text} | {
        key: value for key, value in names.items() if value
    }


def _written(turn: Turn, text_arguments: bool) -> dict[str, Any]:
    text = text_without_calls(turn.text, turn.tool_calls) if turn.tool_calls else None
    if text is None:
        return {"role": "assistant", "content": turn.text}
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [
            {
                "id": call.call_id or f"t{turn.index}c{number}",
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments, ensure_ascii=False)
                    if text_arguments
                    else dict(call.arguments),
                },
            }
            for number, call in enumerate(turn.tool_calls)
        ],
    }


def text_without_calls(text: str, calls: Sequence[ToolCall]) -> str | None:
    """What a turn says beside its calls; None where not every call is found in it, in order, as it was read."""
    at = text.find(END_THINK) + len(END_THINK) if END_THINK in text else 0
    kept, waiting = [text[:at]], list(calls)
    tags = {CALL: END_CALL} | {f"<{call.name}>": f"</{call.name}>" for call in calls}
    while waiting:
        places = [(place, tag) for tag in tags if (place := text.find(tag, at)) >= 0]
        if not places:
            return None
        start, tag = min(places)
        inner, end = start + len(tag), text.find(tags[tag], start + len(tag))
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
