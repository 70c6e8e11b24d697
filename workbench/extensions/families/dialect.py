"""What all forms of calls share: the turn around the calls, values by their declared types, complaints that teach the form.

A form is a frozen dataclass that is a `CallFormat` (workbench/tools/formats.py). Its parser is total, strict and linear:
whatever the text, nothing is raised, nothing is repaired, and a call that cannot be read in full is no call.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from workbench.tools.action_format import shown
from workbench.tools.base import NAME, Tool
from workbench.tools.formats import after_space, given_up
from workbench.tools.strict_json import MOST_CALL, QUOTE, CallError, check_characters, json_at
from workbench.tools.turns import (
    ANSWER,
    END_ANSWER,
    END_THINK,
    MOST_CALLS,
    THINK,
    CallReader,
    ParsedTurn,
    read_turn,
)
from workbench.values import ToolCall
from workbench.values.errors import ToolError

# Words of Python that templates write for values which are no text.
PYTHON_WORDS: Mapping[str, Any] = {"True": True, "False": False, "None": None}

Types = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Dialect(ABC):
    """A form of calls.

    think    a turn begins with a thought
    types    (tool, argument, its JSON type) of the tools on offer, "" where the schema does not say; it decides what a
             value means in forms that write all values as plain text"""

    think: bool = False
    types: Types = ()
    name: ClassVar[str]
    form: ClassVar[str]  # how a call is written, in words that no tokenizer has a control token for

    @abstractmethod
    def readers(self) -> Mapping[str, CallReader]:
        """What reads a call, by the tag that opens it."""

    @abstractmethod
    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The call as the template writes it."""

    def plain(self, text: str) -> str:
        """The turn with nothing but thought, calls and answer in it."""
        return text

    def parse(self, text: str) -> ParsedTurn:
        return _taught(read_turn(self.plain(text), self.think, self.readers()), self.form)

    def write_call(self, name: str, arguments: Mapping[str, Any], thought: str = "") -> str:
        """Raises ToolError for a call that cannot be written so that it is read as it was meant."""
        text = _thought(self.think, thought) + self.call_text(name, arguments)
        if self.parse(text).calls != (ToolCall(name, dict(arguments)),):
            raise ToolError(
                f"the call {name}({shown(dict(arguments))}) cannot be written in the form {self.name!r}: marks of the "
                "form stand in it, or its values are not of the types that the tool declares"
            )
        return text

    def write_answer(self, text: str, thought: str = "") -> str:
        return f"{_thought(self.think, thought)}{ANSWER}{text}{END_ANSWER}"

    def value(self, tool: str, argument: str, text: str) -> Any:
        """A value that was written as plain text, by the type that the tool declares for it. Raises CallError."""
        declared = {(owner, name): kind for owner, name, kind in self.types}
        kind = declared.get((tool, argument), "")
        check_characters(text)
        if kind == "string":
            return text
        words = text.strip()
        if words in PYTHON_WORDS:
            return PYTHON_WORDS[words]
        try:
            value, end = json_at(words, 0, "<")
            if end == len(words):
                return value
        except CallError as wrong:
            if kind:
                raise CallError(
                    f"The argument {argument} is JSON. {wrong.complaint}", text
                ) from None
            return text
        if kind:
            raise CallError(f"There is something behind the value of {argument}.", words[end:])
        return text


def types_of(tools: Sequence[Tool]) -> Types:
    """(tool, argument, type) of all arguments; of several types "string" where it is among them, for any text is one."""
    types: list[tuple[str, str, str]] = []
    for tool in tools:
        for argument, entry in tool.parameters.get("properties", {}).items():
            types.append((tool.name, argument, _type(entry)))
    return tuple(types)


def _type(entry: Any) -> str:
    if not isinstance(entry, Mapping):
        return ""
    kinds = entry.get("type", "")
    options = entry.get("anyOf") or entry.get("oneOf") or ()
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    kinds += [_type(option) for option in options]
    if "string" in kinds:
        return "string"
    return next((kind for kind in kinds if kind), "")


def as_text(value: Any) -> str:
    """A value as templates write it between tags: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def checked_name(name: Any) -> str:
    """The name of a tool. Raises CallError where it is none."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise CallError("The name of a call is the name of a tool.", shown(name))
    return name


def expect(text: str, at: int, mark: str, where: str) -> int:
    """Where reading goes on behind `mark`, which has to stand here, white space aside. Raises CallError."""
    at = after_space(text, at)
    if not text.startswith(mark, at):
        raise CallError(f"{where}.", text[at : at + QUOTE + 1])
    return at + len(mark)


def until(text: str, at: int, mark: str, where: str) -> tuple[str, int]:
    """(what stands before the next `mark`, where reading goes on behind it). Raises CallError where there is none."""
    end = text.find(mark, at, at + MOST_CALL)
    if end < 0:
        raise CallError(f"{where}.", text[at : at + QUOTE + 1])
    return text[at:end], end + len(mark)


def json_object(text: str, at: int, closing: str) -> tuple[dict[str, Any], int]:
    """The JSON object of arguments that stands here, and where it ends. Raises CallError."""
    value, end = json_at(text, after_space(text, at), closing)
    if not isinstance(value, dict):
        raise CallError("The arguments of a call are a JSON object.", shown(value))
    return value, end


def reader_of_one(
    opening: str, closing: str, read: Callable[[str, int], tuple[ToolCall, int]]
) -> CallReader:
    """The reader of a call between `opening` and `closing`. `read` raises CallError."""

    def reader(text: str, start: int) -> tuple[ToolCall | CallError, int]:
        try:
            call, at = read(text, start)
            return call, expect(text, at, closing, "There is something behind the call")
        except CallError as wrong:
            return given_up(text, start, wrong, opening, closing)

    return reader


def reader_of_many(
    opening: str,
    closing: str,
    read: Callable[[str, int], tuple[ToolCall, int]],
    separator: str = "",
) -> CallReader:
    """The reader of calls in a row between `opening` and `closing`. What was read whole before a bad one is kept."""

    def reader(text: str, start: int) -> tuple[list[ToolCall | CallError], int]:
        calls: list[ToolCall | CallError] = []
        at = start
        try:
            while True:
                call, at = read(text, after_space(text, at))
                calls.append(call)
                at = after_space(text, at)
                if text.startswith(closing, at):
                    return calls, at + len(closing)
                at = expect(text, at, separator, "There is something behind the call")
                if len(calls) == MOST_CALLS:
                    raise CallError(f"There are more than {MOST_CALLS} calls in one turn.")
        except CallError as wrong:
            bad, at = given_up(text, start, wrong, opening, closing)
            return [*calls, bad], at

    return reader


def _thought(think: bool, thought: str) -> str:
    return f"{THINK}{thought}{END_THINK}" if think or thought else ""


def _taught(turn: ParsedTurn, form: str) -> ParsedTurn:
    """The turn; where a call is wrong or missing, its complaint says how one is written."""
    if turn.valid or turn.answer is not None or turn.calls and not turn.bad_calls:
        return turn
    taught = [replace(bad, complaint=f"{bad.complaint} {form}") for bad in turn.bad_calls]
    first = turn.bad_calls[0].complaint if turn.bad_calls else turn.complaint
    complaint = f"{turn.complaint} {form}" if turn.complaint == first else turn.complaint
    return replace(turn, bad_calls=tuple(taught), complaint=complaint)
