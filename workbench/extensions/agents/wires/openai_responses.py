"""OpenAI's responses, with and without a stream: items in place of messages. Nothing is remembered from one call to the
next: a program sends its items with every call."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from workbench.extensions.agents.messages import (
    AskedCall,
    GivenAnswer,
    RefusedCall,
    WireCall,
    WireMessage,
)
from workbench.extensions.agents.wires import openai_chat
from workbench.extensions.agents.wires.fields import (
    FieldRules,
    RequestFields,
    body_of,
    function_tool,
    list_of,
    loose_tools,
    text_of,
)

PATH = "/responses"
PIECE = 24  # characters of a text in one piece of a stream
# Fields of which these values ask for what is done anyway.
ACCEPTED: Mapping[str, tuple[Any, ...]] = {
    "parallel_tool_calls": (True,),
    "text": ({"format": {"type": "text"}}, {}),
    "reasoning": ({},),
    "truncation": ("disabled",),
    "top_logprobs": (0,),
    "background": (False,),
}
HARMLESS = (*openai_chat.HARMLESS, "stream_options")
LOGPROBS = "message.output_text.logprobs"  # what `include` asks for; its other values name what no answer here has
error = openai_chat.error


def read(value: Any, rules: FieldRules) -> AskedCall:
    """A request. Raises RefusedCall."""
    fields = RequestFields(body_of(value), rules)
    model = fields.take("model", "")
    instructions = text_of(fields.take("instructions"), "instructions", "\n")
    messages = [WireMessage("system", instructions)] if instructions else []
    messages += _messages(fields.take("input"))
    offered = list_of(fields.take("tools"), "tools")
    tools = loose_tools(fields, offered, tuple(_tool(tool) for tool in offered))
    most = fields.number("max_output_tokens", whole=True, least=1)
    temperature = fields.sampling("temperature")
    top_p = fields.sampling("top_p")
    reads_calls = fields.reads_calls("tool_choice", "auto", "none")
    included = fields.followed("include")
    logprobs = isinstance(included, list) and LOGPROBS in included
    for name, values in ACCEPTED.items():
        fields.only(name, *values)
    fields.harmless(*HARMLESS)
    stream = fields.flag("stream")
    fields.finish()
    return AskedCall(
        messages=tuple(messages),
        tools=tools,
        most_tokens=most,
        temperature=temperature,
        top_p=top_p,
        reads_calls=reads_calls,
        logprobs=logprobs,
        stream=stream,
        model=str(model),
        noted=fields.noted,
    )


def _messages(items: Any) -> list[WireMessage]:
    """Items as messages: what an assistant said and the calls behind it are one turn."""
    if isinstance(items, str):
        return [WireMessage("user", items)]
    if not isinstance(items, list) or not items:
        raise RefusedCall(400, "invalid_value", "'input' is a text or a list of items", "input")
    messages: list[WireMessage] = []
    for index, item in enumerate(items):
        where = f"input[{index}]"
        kind = item.get("type", "message") if isinstance(item, Mapping) else None
        last = messages[-1] if messages and messages[-1].role == "assistant" else None
        if kind == "function_call":
            call = WireCall(
                str(item.get("call_id") or ""),
                str(item.get("name") or ""),
                str(item.get("arguments") or ""),
            )
            if last is None:
                messages.append(WireMessage("assistant", "", (call,)))
            else:
                messages[-1] = replace(last, calls=(*last.calls, call))
        elif kind == "function_call_output":
            text = text_of(item.get("output"), where, "\n")
            messages.append(WireMessage("tool", text, call_id=str(item.get("call_id") or "")))
        elif kind == "message" and item.get("role") in tuple(openai_chat.ROLES):
            messages.append(_message(item, where))
        elif kind != "reasoning":  # of somebody else: no thought of ours is sent as such an item
            raise RefusedCall(
                400, "unsupported_content", f"{where} is an item of type {kind!r:.40}", "input"
            )
    return messages


def _message(item: Mapping[str, Any], where: str) -> WireMessage:
    role = openai_chat.ROLES[item["role"]]
    text = text_of(item.get("content"), where, "" if role == "assistant" else "\n")
    mark = item.get("id")
    return WireMessage(role, text, mark=mark if isinstance(mark, str) else None)


def _tool(tool: Any) -> Mapping[str, Any]:
    """A tool in the form of chat completions, which templates know."""
    is_function = isinstance(tool, Mapping) and tool.get("type") == "function"
    if not is_function or not isinstance(tool.get("name"), str):
        raise RefusedCall(
            400, "unsupported_field", f"a tool is a function with a name, got {tool!r:.80}", "tools"
        )
    return function_tool(tool, "parameters")


# ------------------------------------------------------------------------------------------------ answers


def answer(given: GivenAnswer, asked: AskedCall) -> dict[str, Any]:
    """The body of an answer."""
    cut = given.finish == "length"
    return {
        "id": f"resp_{given.mark.removeprefix('msg_')}",
        "object": "response",
        "created_at": 0,  # no clock: an answer is a function of the call
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": None,
        "metadata": {},
        "model": asked.model,
        "output": _items(given),
        "parallel_tool_calls": True,
        "temperature": asked.temperature,
        "tool_choice": "auto",
        "tools": [],
        "top_p": asked.top_p,
        "usage": {
            "input_tokens": given.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": given.sampled_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": given.prompt_tokens + given.sampled_tokens,
        },
    }


def _items(given: GivenAnswer) -> list[dict[str, Any]]:
    text = given.with_thought
    items: list[dict[str, Any]] = []
    if text or not given.calls:
        tokens = [openai_chat.token_entry(token) for token in given.logprobs or ()]
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": tokens}
        items.append(
            {
                "id": given.mark,
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [part],
            }
        )
    for call in given.calls:
        items.append(
            {
                "id": f"fc_{call.id.removeprefix('call_')}",
                "type": "function_call",
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
                "status": "completed",
            }
        )
    return items


def chunks(given: GivenAnswer, asked: AskedCall) -> Iterator[str]:
    """The same as server-sent events."""
    whole = answer(given, asked)
    begun = whole | {"status": "in_progress", "output": [], "usage": None}
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for index, item in enumerate(whole["output"]):
        events += _item_events(index, item)
    ended = "response.incomplete" if given.finish == "length" else "response.completed"
    events.append((ended, {"response": whole}))
    for number, (kind, facts) in enumerate(events):
        event = {"type": kind, "sequence_number": number, **facts}
        yield f"event: {kind}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"


def _item_events(index: int, item: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    where = {"output_index": index, "item_id": item["id"]}
    is_text = item["type"] == "message"
    opened = {"content": []} if is_text else {"arguments": ""}
    begun = {**item, **opened, "status": "in_progress"}
    yield "response.output_item.added", {"output_index": index, "item": begun}
    if is_text:
        part = item["content"][0]
        place = {**where, "content_index": 0}
        yield "response.content_part.added", {**place, "part": {**part, "text": ""}}
        for piece in _pieces(part["text"]):
            yield "response.output_text.delta", {**place, "delta": piece, "logprobs": []}
        done = {**place, "text": part["text"], "logprobs": part["logprobs"]}
        yield "response.output_text.done", done
        yield "response.content_part.done", {**place, "part": part}
    else:
        for piece in _pieces(item["arguments"]):
            yield "response.function_call_arguments.delta", {**where, "delta": piece}
        done = {**where, "name": item["name"], "arguments": item["arguments"]}
        yield "response.function_call_arguments.done", done
    yield "response.output_item.done", {"output_index": index, "item": dict(item)}


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]
