"""What a client of POST /v1/chat/completions asks for, checked field by field.

    asked = read_request(body, models=("first",))

A setting that this server could not honour is refused in OpenAI's form, never passed over. Source of the form:
platform.openai.com/docs/api-reference/chat.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.basics.regular_files import parse_json
from workbench.extensions.servers.bounded_server import json_of
from workbench.values.errors import EngineError

MOST_CHOICES = 16  # of one request
MOST_TOP_LOGPROBS = 20
MOST_STOPS = 16
LONGEST_STOP = 1_000  # characters: the end of a reply is held against each of them at every token
MOST_MESSAGES = 2_000
MOST_TOOLS = 128
ROLES = {"developer": "system", "system": "system", "user": "user", "tool": "tool"}
# Of no effect on what is sampled here: taken and left at that.
HARMLESS = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
)
# Taken only with the value that changes nothing.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "logit_bias": (None, {}),
    "response_format": (None, {"type": "text"}),
    "parallel_tool_calls": (None, True),
    "functions": (None,),
    "function_call": (None,),
    "audio": (None,),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "reasoning_effort": (None,),
    "verbosity": (None,),
    "web_search_options": (None,),
}


class RequestError(EngineError):
    """A request that is refused: HTTP status, words, and OpenAI's name of the parameter and of the kind of error."""

    def __init__(
        self,
        status: int,
        words: str,
        *,
        parameter: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(words)
        self.status = status
        self.parameter = parameter
        self.code = code

    def as_dict(self) -> dict[str, Any]:
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "invalid_request_error")
        if self.status >= 500:
            kind = "server_error"
        error = {
            "message": str(self),
            "type": kind,
            "param": self.parameter,
            "code": self.code,
        }
        return {"error": error}


@dataclass(frozen=True)
class PastCall:
    """A call in an assistant message of the history."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class PastMessage:
    """A message of the history. `role`: system, user, assistant or tool; `calls`: of an assistant's."""

    role: str
    text: str
    calls: tuple[PastCall, ...] = ()
    name: str | None = None
    call_id: str | None = None


@dataclass(frozen=True)
class ChatRequest:
    """A request that can be served. None: the server's own default.

    stops           texts that end a reply; they are not part of it
    reads_calls     whether calls are read out of the reply (tool_choice "auto"); with "none" tools are shown all the same
    top_logprobs    None: no logprobs are asked for; 0 to 20 alternatives of each token
    usage_at_end    a stream ends with the counts of tokens
    """

    model: str
    messages: tuple[PastMessage, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    reads_calls: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stops: tuple[str, ...] = ()
    seed: int | None = None
    n: int = 1
    top_logprobs: int | None = None
    stream: bool = False
    usage_at_end: bool = False

    @property
    def characters(self) -> int:
        """Of all that the template shows, tools and calls as JSON."""
        shown = [message.text for message in self.messages]
        for message in self.messages:
            shown += [json.dumps(call.arguments) for call in message.calls]
        return sum(map(len, [*shown, json.dumps(self.tools)]))


def read_request(body: bytes, *, models: Sequence[str]) -> ChatRequest:
    """The request in a body. Raises RequestError, which names the parameter and says what was expected and what came."""
    try:
        asked = json_of(body)
    except ValueError as error:
        raise RequestError(400, f"expected a body of JSON, got {_short(error)}") from error
    if not isinstance(asked, dict):
        raise RequestError(400, f"expected a JSON object, got {_short(asked)}")
    fields = _Fields(asked)
    fields.check_others()
    model = fields.text("model")
    if model not in models:
        raise RequestError(
            404,
            f"no model {_short(model)} here; served: {', '.join(models)}",
            parameter="model",
            code="model_not_found",
        )
    tools = tuple(
        _tool(tool, number) for number, tool in enumerate(fields.rows("tools", MOST_TOOLS))
    )
    return ChatRequest(
        model,
        _messages(fields),
        tools,
        _reads_calls(asked.get("tool_choice"), bool(tools)),
        fields.max_tokens(),
        fields.number("temperature", 0.0, 2.0),
        fields.number("top_p", 0.0, 1.0, above_lowest=True),
        fields.stops(),
        fields.whole("seed", -(2**63), 2**63 - 1),
        fields.whole("n", 1, MOST_CHOICES) or 1,
        fields.top_logprobs(),
        fields.flag("stream"),
        fields.usage_at_end(),
    )


class _Fields:
    """The fields of a request, each checked as it is taken."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self._asked = asked
        self._known = {
            "model",
            "messages",
            "tools",
            "tool_choice",
            "max_tokens",
            "max_completion_tokens",
            "temperature",
            "top_p",
            "stop",
            "seed",
            "n",
            "logprobs",
            "top_logprobs",
            "stream",
            "stream_options",
        }

    def check_others(self) -> None:
        """Refuse what is not known, and what would have an effect that is not to be had."""
        for name, value in self._asked.items():
            if name in self._known or name in HARMLESS:
                continue
            if name not in NEUTRAL:
                raise RequestError(400, f"unknown parameter {_short(name)}", parameter=name[:80])
            if value not in NEUTRAL[name]:
                raise RequestError(
                    400,
                    f"{name} = {_short(value)} is not to be had from the embedded engine; leave it out",
                    parameter=name,
                    code="unsupported_parameter",
                )

    def wrong(self, name: str, expected: str) -> RequestError:
        words = f"{name}: expected {expected}, got {_short(self._asked.get(name))}"
        return RequestError(400, words, parameter=name)

    def text(self, name: str) -> str:
        value = self._asked.get(name)
        if not isinstance(value, str) or not value:
            raise self.wrong(name, "a text")
        return value

    def flag(self, name: str) -> bool:
        value = self._asked.get(name)
        if not isinstance(value, bool | None):
            raise self.wrong(name, "true or false")
        return bool(value)

    def rows(self, name: str, most: int) -> list[Any]:
        value = self._asked.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > most:
            raise self.wrong(name, f"a list of at most {most}")
        return value

    def number(
        self, name: str, lowest: float, highest: float, *, above_lowest: bool = False
    ) -> float | None:
        value = self._asked.get(name)
        if value is None:
            return None
        words = f"a number from {lowest:g} to {highest:g}"
        if above_lowest:
            words = f"a number above {lowest:g}, at most {highest:g}"
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not lowest <= value <= highest or (above_lowest and value == lowest):
            raise self.wrong(name, words)
        return float(value)

    def whole(self, name: str, lowest: int, highest: int) -> int | None:
        value = self._asked.get(name)
        if value is None:
            return None
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not lowest <= value <= highest:
            raise self.wrong(name, f"a whole number from {lowest} to {highest}")
        return value

    def max_tokens(self) -> int | None:
        newer = self.whole("max_completion_tokens", 1, 2**31)
        return newer if newer is not None else self.whole("max_tokens", 1, 2**31)

    def stops(self) -> tuple[str, ...]:
        value = self._asked.get("stop")
        if value is None:
            return ()
        stops = [value] if isinstance(value, str) else value
        is_right = isinstance(stops, list) and len(stops) <= MOST_STOPS
        if not is_right or not all(map(_is_stop, stops)):
            words = (
                f"a text of at most {LONGEST_STOP:,} characters, or at most {MOST_STOPS} of them"
            )
            raise self.wrong("stop", words)
        return tuple(stops)

    def top_logprobs(self) -> int | None:
        top = self.whole("top_logprobs", 0, MOST_TOP_LOGPROBS)
        if self.flag("logprobs"):
            return top or 0
        if top:
            raise self.wrong("logprobs", "true where top_logprobs is given")
        return None

    def usage_at_end(self) -> bool:
        options = self._asked.get("stream_options")
        if options is None:
            return False
        if not isinstance(options, dict) or set(options) - {"include_usage", "include_obfuscation"}:
            raise self.wrong("stream_options", '{"include_usage": true}')
        return options.get("include_usage") is True

    @property
    def messages(self) -> list[Any]:
        value = self._asked.get("messages")
        if not isinstance(value, list) or not 0 < len(value) <= MOST_MESSAGES:
            raise self.wrong("messages", f"a list of 1 to {MOST_MESSAGES} messages")
        return value


def _is_stop(stop: Any) -> bool:
    return isinstance(stop, str) and 0 < len(stop) <= LONGEST_STOP


# ------------------------------------------------------------------------------------------------ tools


def _reads_calls(choice: Any, has_tools: bool) -> bool:
    if choice not in (None, "auto", "none"):
        raise RequestError(
            400,
            f"tool_choice: expected 'auto' or 'none', got {_short(choice)}; to force a call the decoding would have to "
            "be constrained, which the embedded engine cannot",
            parameter="tool_choice",
            code="unsupported_parameter",
        )
    if choice == "auto" and not has_tools:
        raise RequestError(400, "tool_choice is given and tools are not", parameter="tool_choice")
    return has_tools and choice != "none"


def _tool(tool: Any, number: int) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    is_right = (
        isinstance(function, dict)
        and tool.get("type") == "function"
        and isinstance(function.get("name"), str)
        and isinstance(function.get("description", ""), str | None)
        and isinstance(function.get("parameters", {}), dict | None)
    )
    if not is_right:
        raise RequestError(
            400,
            f'tools[{number}]: expected {{"type": "function", "function": {{"name": ..., "description": ..., '
            f'"parameters": {{...}}}}}}, got {_short(tool)}',
            parameter=f"tools[{number}]",
        )
    return {
        "type": "function",
        "function": {
            "name": function["name"],
            "description": function.get("description") or "",
            "parameters": function.get("parameters") or {"type": "object", "properties": {}},
        },
    }


# ------------------------------------------------------------------------------------------------ messages


def _messages(fields: _Fields) -> tuple[PastMessage, ...]:
    messages = tuple(
        _message(message, f"messages[{number}]") for number, message in enumerate(fields.messages)
    )
    roles = [message.role for message in messages]
    if roles[0] == "assistant":
        raise RequestError(
            400,
            "the first message is the assistant's; a conversation begins with a user or system message",
            parameter="messages",
        )
    if roles[-1] in ("assistant", "system") and roles != ["system"]:
        raise RequestError(
            400,
            f"the last message is the {roles[-1]}'s; a reply follows a user's or a tool's",
            parameter="messages",
        )
    for number, pair in enumerate(zip(roles, roles[1:])):
        if pair == ("assistant", "assistant"):
            raise RequestError(
                400,
                f"messages[{number}] and the next are both the assistant's; something must stand between two replies",
                parameter="messages",
            )
    return messages


def _message(message: Any, where: str) -> PastMessage:
    if not isinstance(message, dict):
        raise RequestError(
            400, f"{where}: expected an object, got {_short(message)}", parameter=where
        )
    role = message.get("role")
    if role == "assistant":
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            raise _wrong(where, "tool_calls", "a list", calls)
        return PastMessage(
            "assistant",
            _text(message.get("content"), f"{where}.content", may_miss=True),
            tuple(_past_call(call, where) for call in calls),
        )
    if not isinstance(role, str) or role not in ROLES:
        raise _wrong(where, "role", f"{', '.join(ROLES)} or assistant", role)
    name = message.get("name")
    call_id = message.get("tool_call_id")
    for field, value in (("name", name), ("tool_call_id", call_id)):
        if not isinstance(value, str | None):
            raise _wrong(where, field, "a text", value)
    text = _text(message.get("content"), f"{where}.content")
    return PastMessage(ROLES[role], text, (), name, call_id)


def _past_call(call: Any, where: str) -> PastCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _wrong(where, "tool_calls", '{"function": {"name": ..., "arguments": ...}}', call)
    try:
        arguments = parse_json(function.get("arguments") or "{}")
    except (ValueError, TypeError):
        arguments = None
    if not isinstance(arguments, dict):
        raise _wrong(where, "arguments", "a JSON object, as text", function.get("arguments"))
    return PastCall(str(call.get("id", "")), function["name"], arguments)


def _text(content: Any, where: str, *, may_miss: bool = False) -> str:
    """A content as one text: a text, or parts of text."""
    if content is None and may_miss:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    texts = [
        part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        for part in parts
    ]
    if not all(isinstance(text, str) for text in texts):
        raise RequestError(
            400,
            f"{where}: expected text, or parts of type text, got {_short(content)}",
            parameter=where,
        )
    return "".join(texts)


def _wrong(where: str, field: str, expected: str, value: Any) -> RequestError:
    words = f"{where}.{field}: expected {expected}, got {_short(value)}"
    return RequestError(400, words, parameter=f"{where}.{field}")


# Never the whole of it: a value may have megabytes.
_IN_SHORT = reprlib.Repr()
_IN_SHORT.maxstring = _IN_SHORT.maxother = _IN_SHORT.maxlong = 120


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, Exception) else _IN_SHORT.repr(value)
    text = " ".join(text.split())
    return text if len(text) <= 120 else f"{text[:120]}..."
