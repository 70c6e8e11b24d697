"""Anthropic's messages, with and without a stream: blocks in place of texts and calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from workbench.extensions.agents.messages import (
    AskedCall,
    GivenAnswer,
    RefusedCall,
    WireCall,
    WireMessage,
)
from workbench.extensions.agents.wires.fields import (
    FieldRules,
    RequestFields,
    body_of,
    function_tool,
    list_of,
    loose_tools,
    text_of,
)

PATH = "/messages"
FINISH = {"stop": "end_turn", "length": "max_tokens", "calls": "tool_use"}
ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    410: "not_found_error",
    413: "request_too_large",
}
PIECE = 24  # characters of a text in one piece of a stream


def read(value: Any, rules: FieldRules) -> AskedCall:
    """A request. Raises RefusedCall."""
    fields = RequestFields(body_of(value), rules)
    model = fields.take("model", "")
    system = text_of(fields.take("system"), "system", "\n")
    messages = [WireMessage("system", system)] if system else []
    messages += _all_messages(fields.take("messages"))
    offered = list_of(fields.take("tools"), "tools")
    tools = loose_tools(fields, offered, tuple(_tool(tool) for tool in offered))
    most = fields.number("max_tokens", whole=True, least=1)
    if most is None and "max_tokens" not in rules.not_followed:
        raise RefusedCall(
            400, "invalid_value", "'max_tokens' is a number, at least 1", "max_tokens"
        )
    temperature = fields.sampling("temperature")
    top_p = fields.sampling("top_p")
    reads_calls = fields.reads_calls("tool_choice", {"type": "auto"}, {"type": "none"})
    stops = fields.stops("stop_sequences")
    fields.only("thinking", {"type": "disabled"})
    fields.harmless("metadata", "service_tier", "cache_control")
    stream = fields.flag("stream")
    fields.finish()
    return AskedCall(
        messages=tuple(messages),
        tools=tools,
        most_tokens=most,
        temperature=temperature,
        top_p=top_p,
        stops=stops,
        reads_calls=reads_calls,
        stream=stream,
        model=str(model),
        noted=fields.noted,
    )


def _all_messages(entries: Any) -> list[WireMessage]:
    if not isinstance(entries, list) or not entries:
        raise RefusedCall(
            400, "invalid_value", "'messages' is a list of at least one message", "messages"
        )
    messages: list[WireMessage] = []
    for index, entry in enumerate(entries):
        messages += _messages(entry, f"messages[{index}]")
    return messages


def _messages(entry: Any, where: str) -> list[WireMessage]:
    """A message of theirs: results of tools are messages of their own here."""
    role = entry.get("role") if isinstance(entry, Mapping) else None
    if role not in ("user", "assistant", "system"):
        raise RefusedCall(
            400,
            "invalid_value",
            f"{where} has the role {role!r:.40}; user or assistant",
            "messages",
        )
    content = entry.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        raise RefusedCall(
            400, "invalid_type", f"the content of {where} is a text or a list of blocks", "messages"
        )
    kinds = ("tool_use", "tool_result", "thinking", "redacted_thinking")
    words = [block for block in blocks if block.get("type") not in kinds]
    text = text_of(words, where, "" if role == "assistant" else "\n")
    if role == "assistant":
        calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
        return [WireMessage(role, text, tuple(calls))]
    results = [_result(block, where) for block in blocks if block.get("type") == "tool_result"]
    return results + ([WireMessage(role, text)] if words or not results else [])


def _call(block: Mapping[str, Any]) -> WireCall:
    arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
    return WireCall(str(block.get("id") or ""), str(block.get("name") or ""), arguments)


def _result(block: Mapping[str, Any], where: str) -> WireMessage:
    text = text_of(block.get("content"), where, "\n")
    return WireMessage("tool", text, call_id=str(block.get("tool_use_id") or ""))


def _tool(tool: Any) -> Mapping[str, Any]:
    """A tool in the form of chat completions, which templates know."""
    if not isinstance(tool, Mapping) or not isinstance(tool.get("name"), str):
        raise RefusedCall(400, "invalid_value", f"a tool has a name, got {tool!r:.80}", "tools")
    if tool.get("type") not in (None, "custom"):
        raise RefusedCall(
            400, "unsupported_field", f"a tool of type {tool['type']!r} is not run here", "tools"
        )
    return function_tool(tool, "input_schema")


# ------------------------------------------------------------------------------------------------ answers


def answer(given: GivenAnswer, asked: AskedCall) -> dict[str, Any]:
    """The body of an answer."""
    return {
        "id": given.mark,
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": _blocks(given),
        **_ending(given),
        "usage": {"input_tokens": given.prompt_tokens, "output_tokens": given.sampled_tokens},
    }


def chunks(given: GivenAnswer, asked: AskedCall) -> Iterator[str]:
    """The same as server-sent events."""
    begun = answer(given, asked) | {"content": [], "stop_reason": None, "stop_sequence": None}
    yield _event("message_start", {"message": begun})
    for index, block in enumerate(_blocks(given)):
        is_text = block["type"] == "text"
        text = block["text"] if is_text else json.dumps(block["input"], ensure_ascii=False)
        opened = block | ({"text": ""} if is_text else {"input": {}})
        yield _event("content_block_start", {"index": index, "content_block": opened})
        for start in range(0, len(text), PIECE):
            piece = text[start : start + PIECE]
            delta = {"type": "input_json_delta", "partial_json": piece}
            if is_text:
                delta = {"type": "text_delta", "text": piece}
            yield _event("content_block_delta", {"index": index, "delta": delta})
        yield _event("content_block_stop", {"index": index})
    yield _event(
        "message_delta", {"delta": _ending(given), "usage": {"output_tokens": given.sampled_tokens}}
    )
    yield _event("message_stop", {})


def _ending(given: GivenAnswer) -> dict[str, Any]:
    """Why it ended, in their words."""
    reason = "stop_sequence" if given.stopped and not given.calls else FINISH[given.finish]
    return {"stop_reason": reason, "stop_sequence": given.stopped or None}


def error(refused: RefusedCall) -> dict[str, Any]:
    """The body of an error, as clients of this form read it."""
    kind = "api_error" if refused.status >= 500 else "invalid_request_error"
    kind = ERRORS.get(refused.status, kind)
    return {"type": "error", "error": {"type": kind, "message": f"{refused.code}: {refused}"}}


def _blocks(given: GivenAnswer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if given.with_thought:
        blocks.append({"type": "text", "text": given.with_thought})
    for call in given.calls:
        arguments = json.loads(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments})
    return blocks


def _event(kind: str, facts: Mapping[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **facts}, ensure_ascii=False)}\n\n"
