"""Forms of calls with a tag for each argument. Values stand there as plain text; the tool's schema says what they are.

A closing tag inside a value would end it early. So behind the closing tag of a value has to come what the form has there;
where something else stands, the call is refused: an argument is never cut.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.extensions.families.dialect import (
    Dialect,
    as_text,
    checked_name,
    expect,
    reader_of_many,
    reader_of_one,
    until,
)
from workbench.tools.formats import CALL, END_CALL, after_space, given_up
from workbench.tools.strict_json import CallError
from workbench.tools.turns import CallReader
from workbench.values import ToolCall

_KEY = re.compile(r"[^\s<>\"]{1,200}")


def _add(arguments: dict[str, Any], key: str, value: Any) -> None:
    if not _KEY.fullmatch(key):
        raise CallError("An argument has no name.", key)
    if key in arguments:
        raise CallError("An argument stands twice in one call.", key)
    arguments[key] = value


def _value(text: str, at: int, closing: str, opening: str) -> tuple[str, int]:
    """(the value that `closing` ends, where reading goes on). Raises CallError where it is not ended before `opening`,
    which begins the next argument."""
    value, end = until(text, at, closing, f"An argument is not closed by {closing}")
    if opening in value:
        raise CallError(f"An argument is not closed by {closing}.", value[value.find(opening) :])
    return value, end


def _without_line(value: str) -> str:
    """A value that stands on lines of its own, without the line breaks that put it there."""
    value = value.removeprefix("\n")
    return value.removesuffix("\n")


# ------------------------------------------------------------------------------------------------ Qwen


@dataclass(frozen=True)
class QwenXml(Dialect):
    """`<tool_call><function=search><parameter=query>...</parameter></function></tool_call>`: Qwen Coder, Qwen 3.5 and
    later, Nemotron 3."""

    name: ClassVar[str] = "qwen_xml"
    form: ClassVar[str] = (
        "A call is written like this: <tool_call>\n<function=NAME>\n<parameter=ARGUMENT>\nvalue\n</parameter>\n"
        "</function>\n</tool_call>"
    )

    def readers(self) -> Mapping[str, CallReader]:
        return {CALL: reader_of_one(CALL, END_CALL, self._one)}

    def _one(self, text: str, at: int) -> tuple[ToolCall, int]:
        at = expect(text, at, "<function=", "The call does not begin with <function=NAME>")
        name, at = until(text, at, ">", "The tag <function=NAME> is not closed")
        name = checked_name(name)
        arguments: dict[str, Any] = {}
        while True:
            at = after_space(text, at)
            if not text.startswith("<parameter=", at):
                end = "Behind an argument stands neither <parameter=ARGUMENT> nor </function>"
                return ToolCall(name, arguments), expect(text, at, "</function>", end)
            key, at = until(
                text, at + len("<parameter="), ">", "A tag of an argument is not closed"
            )
            value, at = _value(text, at, "</parameter>", "<parameter=")
            _add(arguments, key, self.value(name, key, _without_line(value)))

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        lines = [f"{CALL}\n<function={name}>"]
        for key, value in arguments.items():
            lines.append(f"<parameter={key}>\n{as_text(value)}\n</parameter>")
        return "\n".join([*lines, f"</function>\n{END_CALL}"])


# ------------------------------------------------------------------------------------------------ GLM

_GLM_NAME = re.compile(r"\s*([^\s<]+)\s*")


@dataclass(frozen=True)
class Glm(Dialect):
    """`<tool_call>search<arg_key>query</arg_key><arg_value>...</arg_value></tool_call>`"""

    name: ClassVar[str] = "glm"
    form: ClassVar[str] = (
        "A call is written like this: <tool_call>NAME\n<arg_key>ARGUMENT</arg_key>\n<arg_value>value</arg_value>\n"
        "</tool_call>"
    )

    def readers(self) -> Mapping[str, CallReader]:
        return {CALL: reader_of_one(CALL, END_CALL, self._one)}

    def _one(self, text: str, at: int) -> tuple[ToolCall, int]:
        match = _GLM_NAME.match(text, at)
        if match is None:
            raise CallError("The call does not begin with the name of a tool.", text[at : at + 30])
        name = checked_name(match[1])
        at = match.end()
        arguments: dict[str, Any] = {}
        while text.startswith("<arg_key>", at):
            key, at = until(text, at + len("<arg_key>"), "</arg_key>", "A key is not closed")
            at = expect(text, at, "<arg_value>", "A key has no <arg_value>")
            value, at = _value(text, at, "</arg_value>", "<arg_key>")
            _add(arguments, key.strip(), self.value(name, key.strip(), value))
            at = after_space(text, at)
        return ToolCall(name, arguments), at

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        lines = [f"{CALL}{name}"]
        for key, value in arguments.items():
            lines.append(f"<arg_key>{key}</arg_key>\n<arg_value>{as_text(value)}</arg_value>")
        return "\n".join([*lines, END_CALL])


# ------------------------------------------------------------------------------------------------ invoke


@dataclass(frozen=True)
class Invoke(Dialect):
    """`<invoke name="search"><parameter name="query">...</parameter></invoke>` between two marks.

    around   name of the tag around the calls
    prefix   of the tags within"""

    around: ClassVar[str]
    prefix: ClassVar[str] = ""

    def readers(self) -> Mapping[str, CallReader]:
        opening = f"<{self.around}>"
        return {opening: reader_of_many(opening, f"</{self.around}>", self._one)}

    def _one(self, text: str, at: int) -> tuple[ToolCall, int]:
        start = f'<{self.prefix}invoke name="'
        at = expect(text, at, start, f"A call does not begin with {start}")
        name, at = until(text, at, '">', "The tag of a call is not closed")
        name = checked_name(name)
        arguments: dict[str, Any] = {}
        tag = f'<{self.prefix}parameter name="'
        close = f"</{self.prefix}parameter>"
        end = f"</{self.prefix}invoke>"
        while True:
            at = after_space(text, at)
            if not text.startswith(tag, at):
                wrong = f"Behind an argument stands neither {tag} nor {end}"
                return ToolCall(name, arguments), expect(text, at, end, wrong)
            key, at = until(text, at + len(tag), ">", "A tag of an argument is not closed")
            value, at = _value(text, at, close, tag)
            key, typed = self._typed(name, key, value)
            _add(arguments, key, typed)

    def _typed(self, tool: str, key: str, value: str) -> tuple[str, Any]:
        """(name, value) of an argument. `key`: what stands behind name=" in its tag."""
        if not key.endswith('"'):
            raise CallError("The name of an argument stands in quotes.", key)
        return key[:-1], self.value(tool, key[:-1], value)

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        lines = [f"<{self.around}>", f'<{self.prefix}invoke name="{name}">']
        lines += [self.argument_text(key, value) for key, value in arguments.items()]
        return "\n".join([*lines, f"</{self.prefix}invoke>", f"</{self.around}>"])

    def argument_text(self, key: str, value: Any) -> str:
        """An argument in its tags."""
        return f'<{self.prefix}parameter name="{key}">{as_text(value)}</{self.prefix}parameter>'


@dataclass(frozen=True)
class MiniMax(Invoke):
    """`<minimax:tool_call>` around calls by `<invoke>`."""

    name: ClassVar[str] = "minimax"
    form: ClassVar[str] = (
        'Calls are written like this: <minimax:tool_call>\n<invoke name="NAME">\n<parameter name="ARGUMENT">value'
        "</parameter>\n</invoke>\n</minimax:tool_call>"
    )
    around: ClassVar[str] = "minimax:tool_call"


@dataclass(frozen=True)
class DeepSeekV32(Invoke):
    """`<｜DSML｜invoke name="search"><｜DSML｜parameter name="query" string="true">`: each argument says whether it is text."""

    name: ClassVar[str] = "deepseek_v32"
    form: ClassVar[str] = (
        'Calls stand between DSML marks of function_calls, each as invoke name="NAME" with parameter name="ARGUMENT" '
        'string="true" for text, string="false" for JSON.'
    )
    around: ClassVar[str] = "｜DSML｜function_calls"
    prefix: ClassVar[str] = "｜DSML｜"

    def _typed(self, tool: str, key: str, value: str) -> tuple[str, Any]:
        name, quote, kind = key.partition('" string="')
        if not quote or kind not in ('true"', 'false"'):
            raise CallError('An argument does not say string="true" or string="false".', key)
        by_kind = "string" if kind == 'true"' else "object"
        return name, type(self)(types=((tool, name, by_kind),)).value(tool, name, value)

    def argument_text(self, key: str, value: Any) -> str:
        kind = "true" if isinstance(value, str) else "false"
        start = f'<{self.prefix}parameter name="{key}" string="{kind}">'
        return f"{start}{as_text(value)}</{self.prefix}parameter>"


_ADDRESS = re.compile(r"[^\s<]{1,200}<\|message\|>")


@dataclass(frozen=True)
class Muse(Invoke):
    """Calls by `<atem:invoke>`, in a message that is addressed to the tool: `to=search<|message|>`."""

    name: ClassVar[str] = "muse"
    form: ClassVar[str] = (
        'A call is a message to the tool: <atem:function_calls>\n<atem:invoke name="NAME">\n<atem:parameter '
        'name="ARGUMENT">value</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
    )
    around: ClassVar[str] = "atem:function_calls"
    prefix: ClassVar[str] = "atem:"

    def readers(self) -> Mapping[str, CallReader]:
        [(opening, many)] = super().readers().items()

        def addressed(text: str, start: int) -> tuple[Any, int]:
            match = _ADDRESS.match(text, start)
            if match is None or not text.startswith(opening, match.end()):
                wrong = CallError("A message to a tool does not hold calls.", text[start:])
                return given_up(text, start, wrong, "to=", f"</{self.around}>")
            return many(text, match.end() + len(opening))

        return {"to=": addressed}

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f" to={name}<|message|>{super().call_text(name, arguments)}"
