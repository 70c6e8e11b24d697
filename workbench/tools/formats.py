"""How calls and answers stand in the policy's text, and a reader that is strict, total and linear.

    hermes   <tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>      as Qwen and Hermes write
    tags     <search>...</search>                                        a tag per tool, its one argument inside
    both     <answer>...</answer>, and <think>...</think> before it all

What can be read is read, and what is wrong is said: a turn is `valid` only where all of it is in order, with nothing
but white space outside the tags, yet one bad call does not take the others with it. A call that was begun and not ended
is a bad call, not the absence of one. What stands in a thought is no call. Calls and an answer in the same turn
contradict each other (an answer that does not wait for its calls), so then nothing of it is done.

JSON is read as the standard has it and no further: no key twice, no NaN, no number beyond float, nothing repaired,
nothing decoded twice. Nothing here raises (law 10), whatever the text; sizes are bounded before they cost anything.
"""
from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from workbench.errors import ToolError
from workbench.tools.base import NAME, Tool
from workbench.tools.schema import shown
from workbench.types import ToolCall

THINK, END_THINK = "<think>", "</think>"
ANSWER, END_ANSWER = "<answer>", "</answer>"
CALL, END_CALL = "<tool_call>", "</tool_call>"

MOST_TEXT = 100_000     # characters of a turn
MOST_CALL = 32_000      # characters of one call
MOST_CALLS = 16         # of one turn are read
MOST_DEPTH = 16         # of lists and objects in one another
MOST_DIGITS = 400       # of a whole number
QUOTE = 20              # characters of the policy's text in a complaint
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class BadCall:
    """A call that was begun and cannot be made. `index`: its place among all calls of the turn, from 0. `complaint` is
    in our words only; `quote` is the policy's, short and printable, and stays untrusted."""

    index: int
    complaint: str
    quote: str = ""


@dataclass(frozen=True)
class ParsedTurn:
    """What a turn says.

    `calls` that can be made and `bad_calls` that cannot, together in the order of the text (`BadCall.index`). `answer`:
    the text of the one answer, else None. `valid`: all of it is in order. `complaint` ("" where valid): the first thing
    that is wrong, in our words; `quote` as in BadCall.
    """

    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    bad_calls: tuple[BadCall, ...] = ()
    answer: str | None = None
    valid: bool = True
    complaint: str = ""
    quote: str = ""


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


class _Refused(Exception):
    """What is wrong with a call: a complaint in our words, and a quote."""

    def __init__(self, complaint: str, quote: str = "") -> None:
        super().__init__(complaint)
        self.complaint, self.quote = complaint, shown(quote, QUOTE)


@dataclass
class _Found:
    """What the reader has come across so far."""

    attempts: list[ToolCall | _Refused] = field(default_factory=list)
    answers: list[str | None] = field(default_factory=list)  # None: begun, but empty or not closed
    complaints: list[tuple[str, str]] = field(default_factory=list)

    def complain(self, complaint: str, quote: str = "") -> None:
        self.complaints.append((complaint, shown(quote, QUOTE)))


_Reader = Callable[[str, int], "tuple[ToolCall | _Refused, int]"]  # text, where the opening tag ends


def _after_space(text: str, at: int) -> int:
    return _SPACE.match(text, at).end()


# ------------------------------------------------------------------------------------------------ hermes


@dataclass(frozen=True)
class Hermes:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as often as there are calls.

    think    a turn begins with <think>...</think>; without it, such a block may stand there and need not"""

    think: bool = False
    name: ClassVar[str] = "hermes"

    def parse(self, text: str) -> ParsedTurn:
        return _parse(text, self.think, {CALL: _hermes_call})

    def write_call(self, name: str, arguments: Mapping[str, Any], thought: str = "") -> str:
        call = json.dumps({"name": name, "arguments": dict(arguments)}, ensure_ascii=False)
        return f"{_thought(self.think, thought)}{CALL}\n{call}\n{END_CALL}"

    def write_answer(self, text: str, thought: str = "") -> str:
        return f"{_thought(self.think, thought)}{ANSWER}{text}{END_ANSWER}"


def _hermes_call(text: str, start: int) -> tuple[ToolCall | _Refused, int]:
    """The call whose opening tag ends at `start`, and where reading goes on."""
    try:
        value, end = _json_at(text, _after_space(text, start))
        end = _after_space(text, end)
        if text.startswith(END_CALL, end):
            return _as_call(value), end + len(END_CALL)
        refused = _Refused("There is something behind the JSON object of the call.", text[end:end + QUOTE + 1])
    except _Refused as wrong:
        refused = wrong
    return _given_up(text, start, refused, CALL, END_CALL)


def _given_up(text: str, start: int, refused: _Refused, opening: str, closing: str) -> tuple[_Refused, int]:
    """What is wrong with the call, and where reading goes on: behind its closing tag, if it has one of its own."""
    end, following = text.find(closing, start), text.find(opening, start)
    if end < 0 or 0 <= following < end:
        quote = text[_after_space(text, start):][:QUOTE + 1]
        return _Refused(f"The tag {opening} is not closed by {closing}.", quote), \
            following if following >= 0 else len(text)
    return refused, end + len(closing)


def _as_call(value: Any) -> ToolCall:
    if isinstance(value, str):
        raise _Refused("A call is a JSON object, but it is written as text; leave out the quotes around it.", value)
    if not isinstance(value, dict):
        raise _Refused('A call is a JSON object with "name" and "arguments".', shown(value))
    missing = [key for key in ("name", "arguments") if key not in value]
    if missing:
        raise _Refused(f'The call has no "{missing[0]}"; it is a JSON object with "name" and "arguments".')
    extra = [key for key in value if key not in ("name", "arguments")]
    if extra:
        raise _Refused('A call has "name" and "arguments" and nothing else.', extra[0])
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise _Refused('The "name" of a call is the name of a tool.', shown(name))
    if isinstance(arguments, str):
        raise _Refused('The "arguments" are a JSON object, but they are written as text; leave out the quotes around '
                       "it.", arguments)
    if not isinstance(arguments, dict):
        raise _Refused('The "arguments" of a call are a JSON object.', shown(arguments))
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
                raise ToolError(f"a tool cannot be called {tool!r} where calls are written as tags: <{tool}> means "
                                "something else; use another name, or calls.format='hermes'")

    def parse(self, text: str) -> ParsedTurn:
        readers = {f"<{tool}>": _tag_reader(tool, argument) for tool, argument in self.arguments}
        return _parse(text, self.think, readers)

    def write_call(self, name: str, arguments: Mapping[str, Any], thought: str = "") -> str:
        argument = dict(self.arguments).get(name, "")
        inside = str(arguments[argument]) if argument else json.dumps(dict(arguments), ensure_ascii=False)
        text = f"{_thought(self.think, thought)}<{name}>{inside}</{name}>"
        if self.parse(text).calls != (ToolCall(name, dict(arguments)),):
            raise ToolError(f"the call {name}({shown(inside)}) cannot be written as tags: its own tags, outer spaces "
                            "or nothing at all stand between them")
        return text

    def write_answer(self, text: str, thought: str = "") -> str:
        return f"{_thought(self.think, thought)}{ANSWER}{text}{END_ANSWER}"


def _tag_reader(tool: str, argument: str) -> _Reader:
    opening, closing = f"<{tool}>", f"</{tool}>"

    def read(text: str, start: int) -> tuple[ToolCall | _Refused, int]:
        end, following = text.find(closing, start), text.find(opening, start)
        if end < 0 or 0 <= following < end:
            return _given_up(text, start, _Refused(""), opening, closing)
        inside, end = text[start:end].strip(), end + len(closing)
        try:
            return ToolCall(tool, {argument: _argument_text(inside)} if argument else _arguments(inside)), end
        except _Refused as refused:
            return refused, end

    return read


def _argument_text(inside: str) -> str:
    if not inside:
        raise _Refused("There is nothing between the tags of the call.")
    if len(inside) > MOST_CALL:
        raise _Refused(f"The call is longer than {MOST_CALL} characters.")
    _check_characters(inside)
    return inside


def _arguments(inside: str) -> dict[str, Any]:
    value, end = _json_at(inside, 0)
    if inside[end:].strip():
        raise _Refused("There is something behind the JSON object of the arguments.", inside[end:].strip())
    if not isinstance(value, dict):
        raise _Refused("The arguments between the tags are a JSON object.", shown(value))
    return value


# ------------------------------------------------------------------------------------------------ by name

FORMATS: Mapping[str, type] = {"hermes": Hermes, "tags": Tags}


def format_for(name: str, tools: Sequence[Tool] = (), *, think: bool = False) -> CallFormat:
    """The format of this name for these tools. Raises ToolError for an unknown one."""
    if name not in FORMATS:
        raise ToolError(f"calls are written as {' or '.join(FORMATS)}, got {name!r}")
    if name == "hermes":
        return Hermes(think)
    return Tags(think, tuple((tool.name, text_argument(tool)) for tool in tools))


def text_argument(tool: Tool) -> str:
    """The name of a tool's only argument if it is text, else ""."""
    properties = tool.parameters.get("properties", {})
    return next((name for name, entry in properties.items()
                 if len(properties) == 1 and isinstance(entry, Mapping) and entry.get("type") == "string"), "")


# ------------------------------------------------------------------------------------------------ a turn


def _thought(think: bool, thought: str) -> str:
    return f"{THINK}{thought}{END_THINK}" if think or thought else ""


def _parse(text: str, think: bool, readers: Mapping[str, _Reader]) -> ParsedTurn:
    if len(text) > MOST_TEXT:
        return ParsedTurn(valid=False, complaint=f"The turn is longer than {MOST_TEXT} characters; nothing was read.")
    found = _Found()
    thought, start = _read_thought(text, think, found)
    if start is not None:
        _read_body(text, start, readers, found)
    return _turn(thought, found)


def _read_thought(text: str, think: bool, found: _Found) -> tuple[str, int | None]:
    """The thought and where the rest begins; None where nothing but an unfinished thought is there."""
    opening, closing = text.find(THINK), text.find(END_THINK)
    leads = opening >= 0 and not text[:opening].strip()
    if leads and closing < 0:
        found.complain(f"The tag {THINK} is not closed by {END_THINK}.")
        return text[opening + len(THINK):], None
    if leads and closing > opening:
        return text[opening + len(THINK):closing], closing + len(END_THINK)
    if closing >= 0 and not 0 <= opening < closing:  # opened by the template, at the end of the prompt
        return text[:closing], closing + len(END_THINK)
    if think:
        found.complain(f"The turn does not begin with {THINK}...{END_THINK}.")
    return "", 0


def _read_body(text: str, at: int, readers: Mapping[str, _Reader], found: _Found) -> None:
    for start, tag in _openings(text, at, (*readers, ANSWER)):
        if start < at:  # inside of what was read
            continue
        _outside(text[at:start], found)
        inner = start + len(tag)
        if tag == ANSWER and found.answers:
            found.answers.append(None)
            return
        if tag == ANSWER:
            at = _read_answer(text, inner, found)
        elif len(found.attempts) == MOST_CALLS:
            return found.complain(f"There are more than {MOST_CALLS} calls in one turn; the rest was not read.")
        else:
            attempt, at = readers[tag](text, inner)
            found.attempts.append(attempt)
            if isinstance(attempt, _Refused):
                found.complain(attempt.complaint, attempt.quote)
    _outside(text[at:], found)


def _openings(text: str, at: int, tags: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Every place where one of the tags stands, in order."""
    nearest = {tag: text.find(tag, at) for tag in tags}
    while True:
        there = [(place, tag) for tag, place in nearest.items() if place >= 0]
        if not there:
            return
        place, tag = min(there)
        yield place, tag
        nearest[tag] = text.find(tag, place + len(tag))


def _read_answer(text: str, start: int, found: _Found) -> int:
    end, following = text.find(END_ANSWER, start), text.find(ANSWER, start)
    closed = end >= 0 and not 0 <= following < end
    answer = text[start:end].strip() if closed else ""
    found.answers.append(answer or None)
    if not closed:
        found.complain(f"The tag {ANSWER} is not closed by {END_ANSWER}.")
        return following if following >= 0 else len(text)
    if not answer:
        found.complain("The answer is empty.")
    return end + len(END_ANSWER)


def _outside(text: str, found: _Found) -> None:
    if outside := text.strip():
        found.complain("There is text outside the tags.", outside)


def _turn(thought: str, found: _Found) -> ParsedTurn:
    if len(found.answers) > 1:
        return ParsedTurn(thought, valid=False, complaint="There is more than one answer.")
    if found.answers and found.attempts:
        return ParsedTurn(thought, valid=False, complaint="There are calls and an answer in one turn; call first, and "
                          "answer when the results are there.")
    if not found.attempts and not found.answers and not found.complaints:
        found.complain("There is neither a call nor an answer.")
    calls = tuple(attempt for attempt in found.attempts if isinstance(attempt, ToolCall))
    bad = tuple(BadCall(index, attempt.complaint, attempt.quote) for index, attempt in enumerate(found.attempts)
                if isinstance(attempt, _Refused))
    complaint, quote = found.complaints[0] if found.complaints else ("", "")
    return ParsedTurn(thought, calls, bad, found.answers[0] if found.answers else None, not complaint, complaint, quote)


# ------------------------------------------------------------------------------------------------ JSON


def _json_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at `start`, and where it ends. Raises _Refused, and nothing else."""
    window = text[start:start + MOST_CALL]
    _check_depth(window)
    try:
        value, end = _DECODER.raw_decode(window)
    except json.JSONDecodeError as error:
        if len(window) == MOST_CALL and ("Unterminated" in error.msg or error.pos > MOST_CALL - 10):
            raise _Refused(f"The call is longer than {MOST_CALL} characters.") from None
        raise _Refused(f"The call is no JSON: {error.msg}, at character {error.pos + 1}.",
                       window[error.pos:error.pos + QUOTE + len(END_CALL)].split(END_CALL)[0]) from None
    if "\\u" in window:
        _check_characters(json.dumps(value, ensure_ascii=False))
    return value, start + end


def _check_characters(text: str) -> None:
    """Half a surrogate pair is valid JSON and no character: neither a tokenizer nor a file takes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Refused("A text holds half of a surrogate pair, which is no character.") from None


def _check_depth(window: str) -> None:
    if window.count("[") + window.count("{") <= MOST_DEPTH:
        return
    depth, quoted, escaped = 0, False, False
    for character in window:
        if quoted:
            quoted, escaped = escaped or character != '"', character == "\\" and not escaped
        elif character == '"':
            quoted = True
        elif character in "[{":
            depth += 1
            if depth > MOST_DEPTH:
                raise _Refused(f"The call is nested deeper than {MOST_DEPTH}.")
        elif character in "]}":
            depth -= 1
            if depth <= 0:
                return


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Refused("A name stands twice in one JSON object.", next(name for name in names if names.count(name) > 1))
    return value


def _constant(name: str) -> float:
    raise _Refused("NaN and Infinity are no JSON; write a number or null.", name)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _Refused("A number is too large.", digits)
    return value


def _int(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise _Refused(f"A whole number has more than {MOST_DIGITS} digits.", digits)
    return int(digits)


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_float, parse_int=_int)
