"""A turn of an environment with tools, read leniently: calls and answers that stand in prose, in code blocks, half tagged.

What is tried, in this order: the format's own strict reading; its calls without the text around them, whatever the
format; calls as JSON, in `<tool_call>` tags, code blocks or bare; one answer in tags; one answer without. A turn with
calls and an answer, or with two answers, says two things and is left as it is, and so is one in which a call that was
begun cannot be made out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from workbench.extensions.interface.answers import short_answers
from workbench.extensions.interface.reading import (
    MOST_TEXT,
    NO_TAGS,
    NOT_CLOSED,
    PROSE,
    REPEATED,
    TWO_ANSWERS,
    Reading,
    tagged,
    taken_apart,
)
from workbench.tools.base import NAME, Tool
from workbench.tools.formats import CALL, END_CALL, CallFormat, text_argument
from workbench.tools.strict_json import CallError, json_at
from workbench.tools.turns import MOST_CALLS, ParsedTurn
from workbench.values import ToolCall
from workbench.values.errors import ToolError

NO_CALL_TAGS = "a call without its tags"
OTHER_KEYS = "other keys of a call"
AS_TEXT = "arguments as text"
CODE_BLOCK = "an answer as a code block"
BOTH = "calls and an answer in one turn"
MOST_WORDS = 4  # of an answer that stands alone in a turn, without any tag
_NAMES = ("name", "tool", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
MOST_PROSE = 40  # lines behind a program that is not in a code block
_PROGRAM = re.compile(r"(?:def|class|import|from|@\w+)\b")
_BLOCK = re.compile(r"```[a-zA-Z_]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_OPENED = re.compile(r"<tool_call>|```[a-zA-Z_]*|\{")


def read_turn(
    text: str, form: CallFormat, tools: Sequence[Tool], *, programs: bool = False
) -> Reading:
    """`form`: how calls are written; `tools`: what may be called; `programs`: an answer is a program, which may stand in
    a code block."""
    if len(text) > MOST_TEXT:
        return Reading(text)
    parsed = form.parse(text)
    if parsed.valid:
        return Reading(text)
    parts = taken_apart(text, form.think)
    split = tagged(parts.body)
    if split is None:
        return Reading(text)
    inside = list(dict.fromkeys(filter(None, split[0])))
    forgiven = list(parts.faults)
    try:
        calls = _calls(parsed, split[1] if inside else parts.body, tools, forgiven)
    except CallError:
        return Reading(text)
    if calls and inside:
        return Reading(text, doubt=BOTH)
    if calls:
        return _with_calls(text, form, calls, parts.thought, forgiven)
    if parsed.bad_calls:
        return Reading(text)
    if inside:
        forgiven += [PROSE] if split[1] else []
        forgiven += [] if split[2] else [NOT_CLOSED]
        forgiven += [REPEATED] if not forgiven else []
    else:
        inside = _untagged(parts.body, tools, programs, forgiven)
    if len(inside) != 1:
        return Reading(text, doubt=TWO_ANSWERS if inside else "")
    return _checked(text, form, lambda: form.write_answer(inside[0], parts.thought), forgiven)


def _calls(
    parsed: ParsedTurn, body: str, tools: Sequence[Tool], forgiven: list[str]
) -> list[ToolCall]:
    """Those that the format itself reads, else those that stand there as JSON. Raises CallError."""
    if parsed.calls and not parsed.bad_calls:
        return list(parsed.calls)
    return list(_calls_in(body, tools, forgiven))


def _with_calls(
    text: str, form: CallFormat, calls: Sequence[ToolCall], thought: str, forgiven: list[str]
) -> Reading:
    forgiven += [] if forgiven else [PROSE]

    def write() -> str:
        first, *others = calls
        texts = [form.write_call(first.name, first.arguments, thought)]
        for call in others:
            written = form.write_call(call.name, call.arguments)
            texts.append(written.removeprefix("<think></think>"))
        return "\n".join(texts)

    reading = _checked(text, form, write, forgiven)
    was_kept = form.parse(reading.text).calls == tuple(calls)
    return reading if was_kept else Reading(text)


def _checked(
    text: str, form: CallFormat, write: Callable[[], str], forgiven: Sequence[str]
) -> Reading:
    """What was read as the strict format writes it, if the strict format then takes it."""
    try:
        strict = write()
    except ToolError:
        return Reading(text)
    if not form.parse(strict).valid:
        return Reading(text)
    return Reading(strict, tuple(dict.fromkeys(forgiven)))


# ------------------------------------------------------------------------------------------------ calls as JSON


def _calls_in(body: str, tools: Sequence[Tool], forgiven: list[str]) -> Iterator[ToolCall]:
    """The calls that stand in a text as JSON, in its order. Raises CallError for one in tags that cannot be read, and
    for more of them than a turn may have."""
    known = {tool.name: tool for tool in tools}
    at = 0
    count = 0
    for _ in range(2 * MOST_CALLS):
        match = _OPENED.search(body, at)
        if match is None:
            return
        in_tags = match[0] == CALL
        at = match.start() if match[0] == "{" else match.end()
        place = re.compile(r"(?:\s|```[a-zA-Z_]*)*").match(body, at).end()
        try:
            value, end = json_at(body, place, END_CALL)
            call = _call_of(value, known if not in_tags else {}, known, forgiven)
        except CallError:
            if in_tags:
                raise
            at = max(place, at + 1)
            continue
        at = end
        if call is None:
            continue
        closes = re.compile(r"(?:\s|```)*</tool_call>").match(body, end)
        if not in_tags:
            forgiven.append(NO_CALL_TAGS)
        elif closes is None:
            forgiven.append(NOT_CLOSED)
        at = closes.end() if closes else end
        count += 1
        if count > MOST_CALLS:
            raise CallError("There are more calls than a turn may have.")
        yield call


def _call_of(
    value: Any, only: Mapping[str, Tool], tools: Mapping[str, Tool], forgiven: list[str]
) -> ToolCall | None:
    """A JSON value as a call; None for one that is none. `only`: where there are some, names of other tools make none.
    Raises CallError for half a call."""
    if not isinstance(value, dict):
        return None
    inner = value.get("function")
    if isinstance(inner, dict):
        forgiven.append(OTHER_KEYS)
        value = inner
    names = [key for key in _NAMES if key in value]
    keys = [key for key in _ARGUMENTS if key in value]
    if len(names) != 1 or len(keys) != 1:
        if only:
            return None
        raise CallError("A call has one name and one object of arguments.")
    name = value[names[0]]
    if "description" in value or "properties" in _mapping(value[keys[0]]):
        raise CallError("This is the schema of a tool and no call.")
    if not isinstance(name, str) or not NAME.fullmatch(name) or (only and name not in only):
        raise CallError("The name of a call is the name of a tool.")
    if (names[0], keys[0]) != ("name", "arguments") or len(value) > 2:
        forgiven.append(OTHER_KEYS)
    return ToolCall(name, _arguments(value[keys[0]], tools.get(name), forgiven))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _arguments(value: Any, tool: Tool | None, forgiven: list[str]) -> dict[str, Any]:
    """The arguments of a call; of a text the JSON in it, or the one argument of a tool that has one."""
    if isinstance(value, dict):
        return value
    argument = text_argument(tool) if tool is not None else ""
    if isinstance(value, str) and value.strip():
        forgiven.append(AS_TEXT)
        stripped = value.strip()
        if stripped.startswith("{"):
            read, end = json_at(stripped, 0, END_CALL)
            if isinstance(read, dict) and not stripped[end:].strip():
                return read
        elif argument:
            return {argument: stripped}
    raise CallError("The arguments of a call are a JSON object.")


# ------------------------------------------------------------------------------------------------ answers without tags


def bare_program(text: str) -> list[str]:
    """The program that stands in a text without a code block around it: from the first line that begins one, to the mark that
    closes a block or to the last line with which it is Python still. One that is no Python, for it was cut, goes to the
    end."""
    lines = text.partition("\n```")[0].splitlines()
    starts = [number for number, line in enumerate(lines) if _PROGRAM.match(line)]
    if not starts:
        return []
    first = starts[0]
    while first and lines[first - 1].startswith("#"):
        first -= 1
    program = lines[first:]
    for end in range(len(program), max(len(program) - MOST_PROSE, 0), -1):
        kept = "\n".join(program[:end]).rstrip()
        if "def " in kept and _is_python(kept):
            return [kept]
    return ["\n".join(program)]


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def _untagged(body: str, tools: Sequence[Tool], programs: bool, forgiven: list[str]) -> list[str]:
    """The answers that a turn names without tags; none where a tool is spoken of."""
    if programs:
        forgiven.append(CODE_BLOCK)
        blocks = [block.strip("\n") for block in _BLOCK.findall(body)]
        blocks = [block for block in blocks if "def " in block] or bare_program(body)
        return list(dict.fromkeys(block for block in blocks if "def " in block))
    forgiven.append(NO_TAGS)
    words = set(re.findall(r"\w+", body.lower()))
    if "{" in body or not words.isdisjoint(tool.name.lower() for tool in tools):
        return []
    return list(dict.fromkeys(short_answers(body, MOST_WORDS)))
