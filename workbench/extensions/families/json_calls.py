"""Forms of calls whose arguments are a JSON object."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.extensions.families.dialect import (
    Dialect,
    checked_name,
    expect,
    json_object,
    reader_of_many,
    reader_of_one,
    until,
)
from workbench.tools.action_format import shown
from workbench.tools.formats import after_space
from workbench.tools.strict_json import CallError, json_at
from workbench.tools.turns import CallReader
from workbench.values import ToolCall


def call_of(
    value: Any, name_key: str, arguments_key: str, others: tuple[str, ...] = ()
) -> ToolCall:
    """The call that a JSON object says, with these keys and no more than `others` beside them. Raises CallError."""
    if not isinstance(value, dict):
        raise CallError(
            f'A call is a JSON object with "{name_key}" and "{arguments_key}".', shown(value)
        )
    for key in (name_key, arguments_key):
        if key not in value:
            raise CallError(f'The call has no "{key}".')
    for key in value:
        if key not in (name_key, arguments_key, *others):
            raise CallError(f'A call has "{name_key}" and "{arguments_key}" and nothing else.', key)
    arguments = value[arguments_key]
    if not isinstance(arguments, dict):
        raise CallError(f'The "{arguments_key}" of a call are a JSON object.', shown(arguments))
    return ToolCall(checked_name(value[name_key]), arguments)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# ------------------------------------------------------------------------------------------------ Llama


@dataclass(frozen=True)
class LlamaJson(Dialect):
    """`{"name": "search", "parameters": {"query": "..."}}`, alone or behind `<|python_tag|>`; several with `;` between."""

    name: ClassVar[str] = "llama_json"
    form: ClassVar[str] = (
        'A call is one JSON object and nothing else: {"name": the tool, "parameters": {its arguments}}.'
    )

    def readers(self) -> Mapping[str, CallReader]:
        return {"<|python_tag|>": _llama_tagged, "{": _llama_call}

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        return _json({"name": name, "parameters": dict(arguments)})


def _llama_tagged(text: str, start: int) -> tuple[ToolCall | CallError, int]:
    at = after_space(text, start)
    if text.startswith("{", at):
        return _llama_call(text, at + 1)
    return CallError("Behind the python tag stands a JSON object.", text[at:]), len(text)


def _llama_call(text: str, start: int) -> tuple[ToolCall | CallError, int]:
    """`start`: behind the brace that opens the object."""
    try:
        value, end = json_at(text, start - 1, "}")
        if isinstance(value, dict) and value.get("type") == "function":
            value = {key: item for key, item in value.items() if key != "type"}
        call = call_of(value, "name", "parameters")
    except CallError as wrong:
        # Where no object can be read, nothing tells where the next call begins.
        return wrong, len(text)
    following = after_space(text, end)
    if text.startswith(";", following):
        next_call = after_space(text, following + 1)
        if text.startswith(("{", "<|python_tag|>"), next_call):
            return call, next_call
    return call, end


# ------------------------------------------------------------------------------------------------ lists


@dataclass(frozen=True)
class JsonList(Dialect):
    """A JSON list of calls between two marks: Mistral, Phi 4, Granite, Cohere, Nemotron 2.

    opening, closing   the marks; closing "" where the end of the turn is the end of the list
    keys               what name and arguments are called
    others             keys that may stand beside them, such as an id"""

    opening: ClassVar[str]
    closing: ClassVar[str]
    keys: ClassVar[tuple[str, str]] = ("name", "arguments")
    others: ClassVar[tuple[str, ...]] = ()

    def readers(self) -> Mapping[str, CallReader]:
        return {self.opening: self._read_list}

    def _one(self, text: str, at: int) -> tuple[ToolCall, int]:
        value, end = json_at(text, at, "]")
        return call_of(value, *self.keys, self.others), end

    def _read_list(self, text: str, start: int) -> tuple[list[ToolCall | CallError], int]:
        """The calls of the list that begins here; where one is wrong, the rest of the list is not read."""
        end = text.find(self.closing, start) if self.closing else -1
        behind = len(text) if end < 0 else end + len(self.closing)
        try:
            at = expect(text, start, "[", "Calls are a JSON list of objects")
        except CallError as wrong:
            return [wrong], behind
        calls, at = reader_of_many(self.opening, "]", self._one, ",")(text, at)
        if isinstance(calls[-1], CallError):
            return calls, max(at, behind)
        try:
            where = "There is something behind the list of calls"
            return calls, expect(text, at, self.closing, where)
        except CallError as wrong:
            return [*calls, wrong], max(at, behind)

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        name_key, arguments_key = self.keys
        call = _json([{name_key: name, arguments_key: dict(arguments)}])
        return f"{self.opening}{call}{self.closing}"


@dataclass(frozen=True)
class Mistral(JsonList):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}]`"""

    name: ClassVar[str] = "mistral"
    form: ClassVar[str] = (
        'Calls are a JSON list behind the mark of tool calls: [{"name": the tool, "arguments": {its arguments}}].'
    )
    opening: ClassVar[str] = "[TOOL_CALLS]"
    closing: ClassVar[str] = ""
    others: ClassVar[tuple[str, ...]] = ("id",)


@dataclass(frozen=True)
class Phi4(JsonList):
    """`<|tool_call|>[{"name": ..., "arguments": {...}}]<|/tool_call|>`"""

    name: ClassVar[str] = "phi4"
    form: ClassVar[str] = (
        'Calls are a JSON list between the marks of tool calls: [{"name": the tool, "arguments": {its arguments}}].'
    )
    opening: ClassVar[str] = "<|tool_call|>"
    closing: ClassVar[str] = "<|/tool_call|>"
    others: ClassVar[tuple[str, ...]] = ("type",)


@dataclass(frozen=True)
class Granite(JsonList):
    """`<|tool_call|>[{"name": ..., "arguments": {...}}]`"""

    name: ClassVar[str] = "granite"
    form: ClassVar[str] = Mistral.form
    opening: ClassVar[str] = "<|tool_call|>"
    closing: ClassVar[str] = ""


@dataclass(frozen=True)
class Cohere(JsonList):
    """`<|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}]<|END_ACTION|>`"""

    name: ClassVar[str] = "cohere"
    form: ClassVar[str] = (
        'Calls are a JSON list between the marks of an action: [{"tool_call_id": "0", "tool_name": the tool, '
        '"parameters": {its arguments}}].'
    )
    opening: ClassVar[str] = "<|START_ACTION|>"
    closing: ClassVar[str] = "<|END_ACTION|>"
    keys: ClassVar[tuple[str, str]] = ("tool_name", "parameters")
    others: ClassVar[tuple[str, ...]] = ("tool_call_id",)


@dataclass(frozen=True)
class Nemotron2(JsonList):
    """`<TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>`"""

    name: ClassVar[str] = "nemotron2"
    form: ClassVar[str] = (
        'Calls are a JSON list: <TOOLCALL>[{"name": the tool, "arguments": {its arguments}}]</TOOLCALL>.'
    )
    opening: ClassVar[str] = "<TOOLCALL>"
    closing: ClassVar[str] = "</TOOLCALL>"


# ------------------------------------------------------------------------------------------------ a name, then JSON

_ARGS = re.compile(r"([^\[\]{}\s]+)(?:\[CALL_ID\][A-Za-z0-9]{1,40})?\[ARGS\]")


@dataclass(frozen=True)
class MistralArgs(Dialect):
    """`[TOOL_CALLS]search[ARGS]{"query": "..."}`, as often as there are calls."""

    name: ClassVar[str] = "mistral_args"
    form: ClassVar[str] = (
        "A call is the mark of tool calls, the name of the tool, the mark of arguments, and a JSON object of them."
    )

    def readers(self) -> Mapping[str, CallReader]:
        return {"[TOOL_CALLS]": reader_of_one("[TOOL_CALLS]", "", _mistral_call)}

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"[TOOL_CALLS]{name}[ARGS]{_json(dict(arguments))}"


def _mistral_call(text: str, at: int) -> tuple[ToolCall, int]:
    match = _ARGS.match(text, at, at + 200)
    if match is None:
        raise CallError("The call does not begin with the name of a tool and [ARGS].", text[at:])
    name = checked_name(match[1])
    arguments, end = json_object(text, match.end(), "[")
    return ToolCall(name, arguments), end


@dataclass(frozen=True)
class KimiK2(Dialect):
    """Calls in a section, each with an id that names the tool: `functions.search:0`, then a JSON object."""

    name: ClassVar[str] = "kimi_k2"
    form: ClassVar[str] = (
        "Calls stand in a section of tool calls, each as functions.NAME:0, the mark of arguments, and a JSON object."
    )

    def readers(self) -> Mapping[str, CallReader]:
        opening = "<|tool_calls_section_begin|>"
        return {opening: reader_of_many(opening, "<|tool_calls_section_end|>", _kimi_call)}

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        call = (
            f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{_json(dict(arguments))}"
            "<|tool_call_end|>"
        )
        return f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|>"


_KIMI_ID = re.compile(r"\s*(?:functions\.)?([^\s:]+):\d{1,6}\s*")


def _kimi_call(text: str, at: int) -> tuple[ToolCall, int]:
    at = expect(
        text, at, "<|tool_call_begin|>", "A call in the section does not begin with its mark"
    )
    mark = "<|tool_call_argument_begin|>"
    named, at = until(text, at, mark, "The call has no mark of arguments")
    match = _KIMI_ID.fullmatch(named[:200])
    if match is None:
        raise CallError("The call is not named as functions.NAME:0.", named)
    arguments, at = json_object(text, at, "<")
    return ToolCall(checked_name(match[1]), arguments), expect(
        text, at, "<|tool_call_end|>", "There is something behind the arguments"
    )


_DEEPSEEK_OPEN = "<｜tool▁calls▁begin｜>"
_DEEPSEEK_CLOSE = "<｜tool▁calls▁end｜>"


@dataclass(frozen=True)
class DeepSeekV31(Dialect):
    """Calls in a section, each a name, a separator and a JSON object."""

    name: ClassVar[str] = "deepseek_v31"
    form: ClassVar[str] = (
        "Calls stand between the marks of tool calls, each as the name of the tool, the separator and a JSON object."
    )

    def readers(self) -> Mapping[str, CallReader]:
        return {_DEEPSEEK_OPEN: reader_of_many(_DEEPSEEK_OPEN, _DEEPSEEK_CLOSE, self.one)}

    def one(self, text: str, at: int) -> tuple[ToolCall, int]:
        """The call that begins here. Raises CallError."""
        at = expect(text, at, "<｜tool▁call▁begin｜>", "A call does not begin with its mark")
        name, at = until(text, at, "<｜tool▁sep｜>", "The call has no separator")
        call, at = self.rest(text, at, name)
        return call, expect(text, at, "<｜tool▁call▁end｜>", "There is something behind the call")

    def rest(self, text: str, at: int, before: str) -> tuple[ToolCall, int]:
        """The call of which `before` stands before the separator, which ends at `at`."""
        arguments, at = json_object(text, at, "<")
        return ToolCall(checked_name(before.strip()), arguments), at

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        inside = self.inside(name, _json(dict(arguments)))
        return f"{_DEEPSEEK_OPEN}<｜tool▁call▁begin｜>{inside}<｜tool▁call▁end｜>{_DEEPSEEK_CLOSE}"

    def inside(self, name: str, arguments: str) -> str:
        """What stands between the marks of one call."""
        return f"{name}<｜tool▁sep｜>{arguments}"


@dataclass(frozen=True)
class DeepSeekV3(DeepSeekV31):
    """As V3.1, but the word `function` stands before the separator, and the arguments in a fence of JSON."""

    name: ClassVar[str] = "deepseek_v3"
    form: ClassVar[str] = (
        "Calls stand between the marks of tool calls, each as function, the separator, the name of the tool, and "
        "below it a JSON object in a fence."
    )

    def rest(self, text: str, at: int, before: str) -> tuple[ToolCall, int]:
        if before.strip() != "function":
            raise CallError("Before the separator of a call stands the word function.", before)
        name, at = until(text, at, "\n", "The name of the tool has no line of its own")
        at = expect(text, at, "```json", "The arguments do not stand in a fence of JSON")
        arguments, at = json_object(text, at, "`")
        at = expect(text, at, "```", "The fence of the arguments is not closed")
        return ToolCall(checked_name(name.strip()), arguments), at

    def inside(self, name: str, arguments: str) -> str:
        return f"function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
