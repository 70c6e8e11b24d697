"""Forms of calls whose arguments are values of Python's or Gemma's kind."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.extensions.families.dialect import (
    Dialect,
    checked_name,
    expect,
    reader_of_many,
    reader_of_one,
)
from workbench.extensions.families.values import gemma_text, mapping_at, python_text, value_at
from workbench.tools.formats import after_space
from workbench.tools.strict_json import QUOTE, CallError
from workbench.tools.turns import CallReader
from workbench.values import ToolCall

_CALL_OF = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)\s*\(")
_ARGUMENT = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=")


@dataclass(frozen=True)
class Lfm2(Dialect):
    """`<|tool_call_start|>[search(query='...')]<|tool_call_end|>`"""

    name: ClassVar[str] = "lfm2"
    form: ClassVar[str] = (
        "Calls are a list between the marks of tool calls, each as in Python: [NAME(argument='text', other=3)]."
    )

    def readers(self) -> Mapping[str, CallReader]:
        opening = "<|tool_call_start|>"
        many = reader_of_many(opening, "]<|tool_call_end|>", _python_call, ",")

        def reader(text: str, start: int) -> tuple[Any, int]:
            at = after_space(text, start)
            # Without the bracket `many` finds no call here, and says so.
            return many(text, at + text.startswith("[", at))

        return {opening: reader}

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        inside = ", ".join(f"{key}={python_text(value)}" for key, value in arguments.items())
        return f"<|tool_call_start|>[{name}({inside})]<|tool_call_end|>"


def _python_call(text: str, at: int) -> tuple[ToolCall, int]:
    match = _CALL_OF.match(text, at)
    if match is None:
        raise CallError(
            "A call does not look like NAME(argument=value).", text[at : at + QUOTE + 1]
        )
    name = checked_name(match[1])
    at = after_space(text, match.end())
    arguments: dict[str, Any] = {}
    while not text.startswith(")", at):
        key = _ARGUMENT.match(text, at)
        if key is None:
            raise CallError("An argument has no name.", text[at : at + QUOTE + 1])
        if key[1] in arguments:
            raise CallError("An argument stands twice in one call.", key[1])
        arguments[key[1]], at = value_at(text, key.end())
        at = after_space(text, at)
        if not text.startswith(")", at):
            at = after_space(text, expect(text, at, ",", "Arguments are not separated by a comma"))
    return ToolCall(name, arguments), at + 1


_GEMMA_CALL = re.compile(r"\s*call:([^\s{]{1,200})\{")


@dataclass(frozen=True)
class Gemma4(Dialect):
    """`<|tool_call>call:search{query:<|"|>...<|"|>}<tool_call|>`"""

    name: ClassVar[str] = "gemma4"
    form: ClassVar[str] = (
        "A call stands between the marks of a tool call, as call:NAME{argument:value}, with text in the quotation "
        "marks of this model."
    )

    def readers(self) -> Mapping[str, CallReader]:
        return {"<|tool_call>": reader_of_one("<|tool_call>", "<tool_call|>", _gemma_call)}

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"<|tool_call>call:{name}{gemma_text(dict(arguments))}<tool_call|>"


def _gemma_call(text: str, at: int) -> tuple[ToolCall, int]:
    match = _GEMMA_CALL.match(text, at)
    if match is None:
        raise CallError("The call does not begin with call:NAME{.", text[at : at + QUOTE + 1])
    arguments, end = mapping_at(text, match.end())
    return ToolCall(checked_name(match[1]), arguments), end
