"""How calls and answers are written, and how each kind of call is read. `turns` reads the turn around them.

hermes   <tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>      as Qwen and Hermes write
tags     <search>...</search>                                        a tag per tool, its one argument inside
both     <answer>...</answer>, and <think>...</think> before it all
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from workbench.basics.extensions import provided
from workbench.basics.plugins import load_named
from workbench.tools.action_format import shown
from workbench.tools.base import NAME, Tool
from workbench.tools.strict_json import MOST_CALL, QUOTE, CallError, check_characters, json_at
from workbench.tools.turns import (
    ANSWER,
    END_ANSWER,
    END_THINK,
    THINK,
    CallReader,
    ParsedTurn,
    read_turn,
)
from workbench.values import ToolCall
from workbench.values.errors import ToolError

CALL = "<tool_call>"
END_CALL = "</tool_call>"
_SPACE = re.compile(r"\s*")


class CallFormat(Protocol):
    """A way of writing calls; a frozen dataclass."""

    name: str
    think: bool

    def parse(self, text: str) -> ParsedTurn:
        """Read a turn. Never raises."""

    def write_call(self, name: str, arguments: Mapping[str, Any], thought: str = "") -> str:
        """The text that parses back into this call."""

    def write_answer(self, text: str, thought: str = "") -> str:
        """The text that parses back into this answer."""


def after_space(text: str, at: int) -> int:
    """Where the white space that stands here ends."""
    return _SPACE.match(text, at).end()


def _thought(think: bool, thought: str) -> str:
    return f"{THINK}{thought}{END_THINK}" if think or thought else ""


# ------------------------------------------------------------------------------------------------ hermes


@dataclass(frozen=True)
class Hermes:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as often as there are calls.

    think    a turn begins with <think>...</think>; without it, such a block may stand there and need not"""

    think: bool = False
    name: ClassVar[str] = "hermes"

    def parse(self, text: str) -> ParsedTurn:
        return read_turn(text, self.think, {CALL: _hermes_call})

    def write_call(self, name: str, arguments: Mapping[str, Any], thought: str = "") -> str:
        call = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
        return f"{_thought(self.think, thought)}{CALL}\n{call}\n{END_CALL}"

    def write_answer(self, text: str, thought: str = "") -> str:
        return f"{_thought(self.think, thought)}{ANSWER}{text}{END_ANSWER}"


def _hermes_call(text: str, start: int) -> tuple[ToolCall | CallError, int]:
    """The call whose opening tag ends at `start`, and where reading goes on."""
    try:
        value, end = json_at(text, after_space(text, start), END_CALL)
        end = after_space(text, end)
        if text.startswith(END_CALL, end):
            return _as_call(value), end + len(END_CALL)
        refused = CallError(
            "There is something behind the JSON object of the call.", text[end : end + QUOTE + 1]
        )
    except CallError as wrong:
        refused = wrong
    return given_up(text, start, refused, CALL, END_CALL)


def given_up(
    text: str, start: int, refused: CallError, opening: str, closing: str
) -> tuple[CallError, int]:
    """What is wrong with the call, and where reading goes on: behind its closing tag, if it has one of its own."""
    end = text.find(closing, start)
    following = text.find(opening, start)
    if end < 0 or 0 <= following < end:
        quote = text[after_space(text, start) :][: QUOTE + 1]
        unclosed = CallError(f"The tag {opening} is not closed by {closing}.", quote)
        return unclosed, following if following >= 0 else len(text)
    return refused, end + len(closing)


def _as_call(value: Any) -> ToolCall:
    if isinstance(value, str):
        raise CallError(
            "A call is a JSON object, but it is written as text; leave out the quotes around it.",
            value,
        )
    if not isinstance(value, dict):
        raise CallError('A call is a JSON object with "name" and "arguments".', shown(value))
    missing = [key for key in ("name", "arguments") if key not in value]
    if missing:
        raise CallError(
            f'The call has no "{missing[0]}"; it is a JSON object with "name" and "arguments".'
        )
    extra = [key for key in value if key not in ("name", "arguments")]
    if extra:
        raise CallError('A call has "name" and "arguments" and nothing else.', extra[0])
    name = value["name"]
    arguments = value["arguments"]
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise CallError('The "name" of a call is the name of a tool.', shown(name))
    if isinstance(arguments, str):
        raise CallError(
            'The "arguments" are a JSON object, but they are written as text; leave out the quotes around '
            "it.",
            arguments,
        )
    if not isinstance(arguments, dict):
        raise CallError('The "arguments" of a call are a JSON object.', shown(arguments))
    return ToolCall(name, arguments)


# ------------------------------------------------------------------------------------------------ tags


@dataclass(frozen=True)
class Tags:
    """`<search>the words</search>`: a tag per tool.

    think       as in Hermes
    arguments   (tool, argument) pairs: the argument that the text between the tags is; "" where a tool has not exactly
                one text argument, and then a JSON object of its arguments stands there"""

    think: bool = False
    arguments: tuple[tuple[str, str], ...] = ()
    name: ClassVar[str] = "tags"

    def __post_init__(self) -> None:
        for tool, _ in self.arguments:
            if tool in ("answer", "think"):
                raise ToolError(
                    f"a tool cannot be called {tool!r} where calls are written as tags: <{tool}> means "
                    "something else; use another name, or calls.format='hermes'"
                )

    def parse(self, text: str) -> ParsedTurn:
        readers = {f"<{tool}>": _tag_reader(tool, argument) for tool, argument in self.arguments}
        return read_turn(text, self.think, readers)

    def write_call(self, name: str, arguments: Mapping[str, Any], thought: str = "") -> str:
        argument = dict(self.arguments).get(name, "")
        if argument:
            inside = str(arguments[argument])
        else:
            inside = json.dumps(dict(arguments), ensure_ascii=False)
        text = f"{_thought(self.think, thought)}<{name}>{inside}</{name}>"
        if self.parse(text).calls != (ToolCall(name, dict(arguments)),):
            raise ToolError(
                f"the call {name}({shown(inside)}) cannot be written as tags: its own tags, outer spaces "
                "or nothing at all stand between them"
            )
        return text

    def write_answer(self, text: str, thought: str = "") -> str:
        return f"{_thought(self.think, thought)}{ANSWER}{text}{END_ANSWER}"


def _tag_reader(tool: str, argument: str) -> CallReader:
    opening = f"<{tool}>"
    closing = f"</{tool}>"

    def read(text: str, start: int) -> tuple[ToolCall | CallError, int]:
        end = text.find(closing, start)
        following = text.find(opening, start)
        if end < 0 or 0 <= following < end:
            return given_up(text, start, CallError(""), opening, closing)
        again = text.rfind(closing, end + 1, following if following >= 0 else len(text))
        if again >= 0:
            twice = CallError(
                f"The tag {closing} stands there more than once for one {opening}, so that it is not clear where the "
                "call ends.",
                text[end:],
            )
            return twice, again + len(closing)
        inside = text[start:end].strip()
        end += len(closing)
        try:
            if argument:
                return ToolCall(tool, {argument: _argument_text(inside)}), end
            return ToolCall(tool, _arguments(inside)), end
        except CallError as refused:
            return refused, end

    return read


def _argument_text(inside: str) -> str:
    if not inside:
        raise CallError("There is nothing between the tags of the call.")
    if len(inside) > MOST_CALL:
        raise CallError(f"The call is longer than {MOST_CALL} characters.")
    check_characters(inside)
    return inside


def _arguments(inside: str) -> dict[str, Any]:
    value, end = json_at(inside, 0, END_CALL)
    if inside[end:].strip():
        raise CallError(
            "There is something behind the JSON object of the arguments.", inside[end:].strip()
        )
    if not isinstance(value, dict):
        raise CallError("The arguments between the tags are a JSON object.", shown(value))
    return value


# ------------------------------------------------------------------------------------------------ by name

FORMATS: Mapping[str, type] = {"hermes": Hermes, "tags": Tags}
# The form that the policy's own chat template asks for: known when a session opens; where there is no policy, hermes.
TEMPLATE = "template"


def format_names() -> tuple[str, ...]:
    """The names of all forms: ours, and those that extensions add."""
    return (*FORMATS, TEMPLATE, *sorted(provided("call_formats")))


def format_for(name: str, tools: Sequence[Tool] = (), *, think: bool = False) -> CallFormat:
    """The format of this name for these tools. Raises ToolError for an unknown one."""
    if name in ("hermes", TEMPLATE):
        return Hermes(think)
    if name == "tags":
        return Tags(think, tuple((tool.name, text_argument(tool)) for tool in tools))
    added = provided("call_formats")
    if name not in added:
        raise ToolError(f"calls are written as {' or '.join(format_names())}, got {name!r}")
    return load_named(added[name], f"the form of calls {name!r}")(tools, think)


def text_argument(tool: Tool) -> str:
    """The name of a tool's only argument if it is text, else ""."""
    properties = tool.parameters.get("properties", {})
    if len(properties) != 1:
        return ""
    [(name, entry)] = properties.items()
    is_text = isinstance(entry, Mapping) and entry.get("type") == "string"
    return name if is_text else ""
