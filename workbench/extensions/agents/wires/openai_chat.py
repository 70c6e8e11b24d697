"""OpenAI's chat completions, with and without a stream. A stream is made of an answer that is complete: everything was
sampled and stored before its first piece is sent, so nothing can be lost on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from workbench.extensions.agents.messages import (
    AskedCall,
    GivenAnswer,
    RefusedCall,
    SampledText,
    WireCall,
    WireMessage,
)
from workbench.extensions.agents.wires.fields import (
    FieldRules,
    RequestFields,
    body_of,
    list_of,
    loose_tools,
    text_of,
)

PATH = "/chat/completions"
FINISH = {"stop": "stop", "length": "length", "calls": "tool_calls"}
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
# Fields of which one value asks for what is done anyway.
ACCEPTED = {
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
    "top_logprobs": 0,
    "modalities": ["text"],
}
PIECE = 24  # characters of a text in one piece of a stream
# They name the caller, the price or the store, and change nothing of what is sampled.
HARMLESS = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
)


def read(value: Any, rules: FieldRules) -> AskedCall:
    """A request. Raises RefusedCall."""
    fields = RequestFields(body_of(value), rules)
    model = fields.take("model", "")
    messages = _messages(fields.take("messages"))
    offered = fields.take("tools", [])
    tools = loose_tools(fields, offered, tools_of(offered))
    options = fields.take("stream_options", {})
    limits = ("max_tokens", "max_completion_tokens")
    most = [fields.number(name, whole=True, least=1) for name in limits]
    asked = [number for number in most if number is not None]
    temperature = fields.sampling("temperature")
    top_p = fields.sampling("top_p")
    stops = fields.stops("stop")
    choices = fields.choices("n")
    logprobs = fields.flag("logprobs")
    reads_calls = fields.reads_calls("tool_choice", "auto", "none")
    for name, value in ACCEPTED.items():
        fields.only(name, value)
    fields.harmless(*HARMLESS)
    stream = fields.flag("stream")
    fields.finish()
    return AskedCall(
        messages=messages,
        tools=tools,
        most_tokens=min(asked, default=None),
        temperature=temperature,
        top_p=top_p,
        stops=stops,
        choices=choices,
        reads_calls=reads_calls,
        logprobs=logprobs,
        stream=stream,
        wants_usage=isinstance(options, Mapping) and bool(options.get("include_usage")),
        model=str(model),
        noted=fields.noted,
    )


def _messages(value: Any) -> tuple[WireMessage, ...]:
    if not isinstance(value, list) or not value:
        raise RefusedCall(
            400, "invalid_value", "'messages' is a list of at least one message", "messages"
        )
    return tuple(_message(entry, f"messages[{index}]") for index, entry in enumerate(value))


def _message(entry: Any, where: str) -> WireMessage:
    role = entry.get("role") if isinstance(entry, dict) else None
    if not isinstance(role, str) or role not in ROLES:
        raise RefusedCall(
            400,
            "invalid_value",
            f"{where} has the role {role!r:.40}; it is one of {', '.join(ROLES)}",
            "messages",
        )
    text = text_of(entry.get("content"), where, "" if role == "assistant" else "\n")
    calls = entry.get("tool_calls") if role == "assistant" else None
    mark = entry.get("id")
    thought = entry.get("reasoning_content")
    call_id = entry.get("tool_call_id") if role == "tool" else None
    return WireMessage(
        ROLES[role],
        text,
        tuple(_call(call, where) for call in list_of(calls, "tool_calls")),
        call_id if isinstance(call_id, str) else None,
        mark if isinstance(mark, str) else None,
        thought if isinstance(thought, str) else None,
    )


def _call(call: Any, where: str) -> WireCall:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise RefusedCall(
            400, "invalid_value", f"{where} holds a tool call without a function's name", "messages"
        )
    arguments = function.get("arguments")
    if not isinstance(arguments, str):  # some programs send them parsed
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return WireCall(str(call.get("id") or ""), name, arguments)


def tools_of(value: Any) -> tuple[Mapping[str, Any], ...]:
    tools = value if isinstance(value, list) else [value]
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RefusedCall(
                400,
                "invalid_value",
                f"a tool is a function with a name, got {tool!r:.80}",
                "tools",
            )
    return tuple(tools)


# ------------------------------------------------------------------------------------------------ answers


def answer(given: GivenAnswer, asked: AskedCall) -> dict[str, Any]:
    """The body of an answer."""
    choices = [_choice(index, choice) for index, choice in enumerate(given.choices)]
    head = _head(given, asked, "chat.completion")
    return {**head, "choices": choices, "usage": _usage(given)}


def _choice(index: int, given: GivenAnswer) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": given.text,
        "refusal": None,
        "id": given.mark,
    }
    if given.thought:
        message["reasoning_content"] = given.thought
    if given.calls:
        message["tool_calls"] = [_wire_call(call) for call in given.calls]
    return {
        "index": index,
        "message": message,
        "logprobs": _logprobs(given),
        "finish_reason": FINISH[given.finish],
    }


def chunks(given: GivenAnswer, asked: AskedCall) -> Iterator[str]:
    """The same as server-sent events, one choice after the other."""
    head = _head(given, asked, "chat.completion.chunk")
    for index, choice in enumerate(given.choices):
        for delta, finish in _deltas(choice):
            piece = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
            if finish is not None:  # all of them with the last piece: tokens are no pieces of ours
                piece["logprobs"] = _logprobs(choice)
            yield _event({**head, "choices": [piece]})
    if asked.wants_usage:
        yield _event({**head, "choices": [], "usage": _usage(given)})
    yield "data: [DONE]\n\n"


def _deltas(given: GivenAnswer) -> Iterator[tuple[dict[str, Any], str | None]]:
    """(what a piece adds, why the answer ended: None before its end)"""
    yield {"role": "assistant", "content": "", "id": given.mark}, None
    if given.thought:
        yield {"reasoning_content": given.thought}, None
    for start in range(0, len(given.text), PIECE):
        yield {"content": given.text[start : start + PIECE]}, None
    for index, call in enumerate(given.calls):
        for piece in _call_pieces(index, call):
            yield {"tool_calls": [piece]}, None
    yield {}, FINISH[given.finish]


def _logprobs(given: GivenAnswer) -> dict[str, Any] | None:
    if given.logprobs is None:
        return None
    return {"content": [token_entry(token) for token in given.logprobs], "refusal": None}


def token_entry(token: SampledText) -> dict[str, Any]:
    """A sampled token as OpenAI's forms write it."""
    as_bytes = None if token.bytes is None else list(token.bytes)
    return {
        "token": token.text,
        "logprob": token.logprob,
        "bytes": as_bytes,
        "top_logprobs": [],
    }


def _call_pieces(index: int, call: WireCall) -> Iterator[dict[str, Any]]:
    function = {"name": call.name, "arguments": ""}
    yield {"index": index, "id": call.id, "type": "function", "function": function}
    for start in range(0, len(call.arguments), PIECE):
        piece = call.arguments[start : start + PIECE]
        yield {"index": index, "function": {"arguments": piece}}


def error(refused: RefusedCall) -> dict[str, Any]:
    """The body of an error, as clients of this form read it."""
    kind = "invalid_request_error" if refused.status < 500 else "server_error"
    return {
        "error": {
            "message": str(refused),
            "type": kind,
            "param": refused.field,
            "code": refused.code,
        }
    }


def _event(value: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


def _head(given: GivenAnswer, asked: AskedCall, kind: str) -> dict[str, Any]:
    # No clock: an answer is a function of the call.
    return {"id": f"chatcmpl-{given.mark}", "object": kind, "created": 0, "model": asked.model}


def _wire_call(call: WireCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _usage(given: GivenAnswer) -> dict[str, int]:
    sampled = sum(choice.sampled_tokens for choice in given.choices)
    return {
        "prompt_tokens": given.prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": given.prompt_tokens + sampled,
    }
