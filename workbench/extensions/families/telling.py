"""Which form of calls and thoughts a chat template asks for: by showing it a call and a thought, and reading them back.

A conversation with a call of known name and arguments is rendered; what stands behind the generation prompt is what the
policy would have to write, and the form that reads exactly this call from it is the template's. Its thought and what ends
its turns are found in the same way. A template's or model's name is never asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

from workbench.chat.manner import Manner
from workbench.chat.skeleton import Template
from workbench.extensions.families.dialect import Dialect
from workbench.extensions.families.table import ROWS, FormRow
from workbench.extensions.families.thoughts import Channelled, Tagged
from workbench.tools.formats import CallFormat, Hermes
from workbench.tools.turns import END_THINK, THINK

NAME = "probe_tool"
ARGUMENTS: Mapping[str, Any] = {
    "probe_word": "quick fox",
    "probe_count": 37,
    "probe_more": {"probe_list": [True, "hen"]},
}
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "A tool.",
        "parameters": {
            "type": "object",
            "properties": {
                "probe_word": {"type": "string", "description": "text"},
                "probe_count": {"type": "integer", "description": "number"},
                "probe_more": {"type": "object", "description": "object"},
            },
            "required": ["probe_word"],
        },
    },
}
TYPES = (
    (NAME, "probe_word", "string"),
    (NAME, "probe_count", "integer"),
    (NAME, "probe_more", "object"),
)
ASKED = "probe question"
SAID = "probe answer"
THOUGHT = "probe thought"
REPLY = "probe reply"
LONGEST_SHOWN = 90  # characters of a template's own writing in a note


@dataclass(frozen=True)
class WrittenCall:
    """A call as a template writes it.

    turn     what the policy would write: behind the generation prompt, without what ends the turn
    ended    what the template writes behind it where nothing follows
    replied  what it writes behind it where the tool's reply follows; "" where it takes none"""

    turn: str
    ended: str
    replied: str


class TemplateProbe:
    """One template, to be asked. `controls`: the tokenizer's control tokens, as text."""

    def __init__(self, template: Template, controls: Sequence[str]) -> None:
        self._tokenizer = template.tokenizer
        self._flags = template.flags
        self.source = template.source
        names = [re.escape(name) for name in sorted(controls, key=len, reverse=True)]
        self._control = re.compile("|".join(names)) if names else None

    def render(self, messages: list[dict], *, tools: bool, prompt: bool = False) -> str | None:
        """The template's text; None where it refuses the conversation."""
        try:
            return self._tokenizer.apply_chat_template(
                messages,
                tools=[TOOL] if tools else None,
                tokenize=False,
                add_generation_prompt=prompt,
                **self._flags,
            )
        except Exception:  # a template may raise anything at all
            return None

    def prompt(self, *, tools: bool) -> str | None:
        """The prompt of a turn; it ends in the generation prompt."""
        return self.render([_user()], tools=tools, prompt=True)

    def turn(self, message: dict, *, tools: bool) -> str | None:
        """What stands behind the generation prompt where the policy said this message."""
        prompt = self.prompt(tools=tools)
        whole = self.render([_user(), message], tools=tools)
        if prompt is None or whole is None or ASKED not in prompt or ASKED not in whole:
            return None
        # A prompt that opens a thought may differ from the past behind it; a mark is never cut in two.
        same = commonprefix([prompt, whole])
        for opening, closing in ("<>", "[]"):
            if same.rfind(opening) > same.rfind(closing):
                same = same[: same.rfind(opening)]
        return whole[len(same) :] if len(same) > prompt.rfind(ASKED) else None

    def controls_in(self, text: str) -> list[str]:
        """The control tokens in a text, in order."""
        return self._control.findall(text) if self._control else []

    def leading_control(self, text: str) -> str:
        """The control token that a text begins with, white space aside; "" for none."""
        match = self._control.match(text.lstrip()) if self._control else None
        return match[0] if match else ""


def template_manner(template: Template, controls: Sequence[str]) -> Manner:
    """How a template has its model write (the service `template_manner`)."""
    asked = TemplateProbe(template, controls)
    prompt = asked.prompt(tools=False)
    if prompt is None:
        return Manner()
    row, call = _calls(asked)
    thought, inside = _thought(asked, prompt, call)
    ends, instead = _ends(asked, row, call, inside)
    return Manner(
        calls=_name(row, call),
        opens=isinstance(thought, Tagged) and thought.opens,
        ends=ends,
        instead=instead,
        inside=tuple(inside),
        plain=thought.plain if thought else Manner().plain,
        notes=tuple(_notes(row, call)),
    )


def _ends(
    asked: TemplateProbe,
    row: FormRow | CallFormat | None,
    call: WrittenCall | None,
    inside: Sequence[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(control tokens that end a turn, those of them in the place of the template's end of a past turn)."""
    answer = asked.turn(_assistant(SAID), tools=False)
    closers = [asked.leading_control(_behind(answer, SAID))]
    openers: tuple[str, ...] = ()
    ends = []
    if call is not None and row is not None:
        closers.append(asked.leading_control(call.ended))
        ends.append(asked.leading_control(call.replied))
    if isinstance(row, FormRow):
        closers += row.ends
        openers = row.openers
    ends = [end for end in dict.fromkeys([*closers, *ends]) if end and end not in inside]
    instead = [end for end in ends if end in closers and end not in openers]
    return tuple(ends), tuple(instead)


# ------------------------------------------------------------------------------------------------ calls


def _calls(asked: TemplateProbe) -> tuple[FormRow | CallFormat | None, WrittenCall | None]:
    """(the form of calls, a call as the template writes it); None, None where it writes none, None and the call where
    nobody reads it."""
    unread: WrittenCall | None = None
    for written_call in _written(asked):
        for row, form in _forms():
            turn = form.parse(written_call.turn)
            if turn.valid and [(call.name, call.arguments) for call in turn.calls] == [
                (NAME, ARGUMENTS)
            ]:
                return row or form, written_call
        unread = unread or written_call
    if unread is None:
        signed = [row for row in ROWS if any(sign in asked.source for sign in row.signs)]
        return (signed[0] if signed else None), None
    return None, unread


def _forms() -> Iterator[tuple[FormRow | None, CallFormat]]:
    yield None, Hermes()
    for row in ROWS:
        form: Dialect = row.form(types=TYPES)
        yield row, form


def _written(asked: TemplateProbe) -> Iterator[WrittenCall]:
    """Calls as the template writes them: its arguments given as values, then as text; each with what may end a turn, and
    without."""
    for arguments in (dict(ARGUMENTS), json.dumps(ARGUMENTS)):
        for content in ("", None):
            function = {"name": NAME, "arguments": arguments}
            call = {"id": "call00001", "type": "function", "function": function}
            message = {"role": "assistant", "content": content, "tool_calls": [call]}
            written = asked.turn(message, tools=True)
            if written is None or NAME not in written or "probe_word" not in written:
                continue
            reply = {"role": "tool", "content": REPLY, "name": NAME, "tool_call_id": "call00001"}
            replied = asked.render([_user(), message, reply], tools=True, prompt=True) or ""
            for turn in reversed(list(_cut(asked, written.rstrip()))):
                ended = written[len(turn) :]
                yield WrittenCall(turn, ended, _behind(replied, turn))


def _cut(asked: TemplateProbe, written: str) -> Iterator[str]:
    """What is written, whole, and without each control token at its end."""
    yield written
    while True:
        controls = asked.controls_in(written)
        if not controls or not written.endswith(controls[-1]):
            return
        written = written[: -len(controls[-1])].rstrip()
        yield written


def _name(row: FormRow | CallFormat | None, written_call: WrittenCall | None) -> str | None:
    if isinstance(row, FormRow):
        return row.form.name
    if row is not None:
        return row.name
    return None if written_call is not None else ""


def _notes(row: FormRow | CallFormat | None, written_call: WrittenCall | None) -> Iterator[str]:
    if isinstance(row, FormRow):
        yield (
            f"the template has calls written in the form {row.form.name!r} ({row.families}); env.calls.format = "
            "'template' reads them"
        )
    elif row is None and written_call is not None:
        yield f"the template has calls written in a form that nobody here reads: {written_call.turn.strip()[:LONGEST_SHOWN]!r}"


# ------------------------------------------------------------------------------------------------ thoughts


def _thought(
    asked: TemplateProbe, prompt: str, written_call: WrittenCall | None
) -> tuple[Tagged | Channelled | None, list[str]]:
    """(what reads a thought, control tokens that stand inside a turn)."""
    tail = prompt[prompt.rfind(ASKED) + len(ASKED) :]
    for opening, between, closing in _shown_thoughts(asked, written_call):
        inside = [
            token for token in asked.controls_in(between) if token not in asked.controls_in(closing)
        ]
        start = _last_message(asked, tail)
        if start and start in between:
            end, _, answer = between.partition(start)
            message = (asked.controls_in(opening) or [""])[-1]
            if message and opening.endswith(message) and answer.endswith(message):
                return Channelled(start, end, opening, answer, message), inside
        opening = opening.strip()
        if opening and between.strip():
            return Tagged(opening, between.strip(), tail.rstrip().endswith(opening)), inside
    if tail.rstrip().endswith(THINK):
        return Tagged(THINK, END_THINK, opens=True), []
    return None, []


def _shown_thoughts(
    asked: TemplateProbe, written_call: WrittenCall | None
) -> Iterator[tuple[str, str, str]]:
    """(what stands before a thought, between it and what is said or called, behind that), as the template writes it."""
    thoughts = dict.fromkeys(("reasoning_content", "thinking", "reasoning"), THOUGHT)
    function = {"name": NAME, "arguments": dict(ARGUMENTS)}
    call = {"id": "call00001", "type": "function", "function": function}
    messages = [(_assistant(SAID), SAID, False)]
    if written_call is not None:
        messages.append((_assistant("") | {"tool_calls": [call]}, written_call.turn.strip(), True))
    for message, spoken, tools in messages:
        message |= thoughts
        written = asked.turn(message, tools=tools)
        if written is None or THOUGHT not in written or spoken not in written:
            continue
        before, _, after = written.partition(THOUGHT)
        between, _, closing = after.partition(spoken)
        if not before.strip():  # the prompt holds the mark
            shown = _behind(asked.render([_user(), message], tools=tools), ASKED)
            before = _last_mark(shown.partition(THOUGHT)[0])
        yield before, between, closing


def _last_message(asked: TemplateProbe, tail: str) -> str:
    """The end of a prompt from its last control token on."""
    controls = asked.controls_in(tail)
    return tail[tail.rfind(controls[-1]) :] if controls else ""


def _last_mark(text: str) -> str:
    """The mark that a text ends in, white space aside: `<think>`, `[THINK]`; "" for none."""
    marks = re.findall(r"<[^<>]+>$|\[[^\[\]]+\]$", text.rstrip())
    return marks[0] if marks else ""


# ------------------------------------------------------------------------------------------------ small parts


def _user() -> dict:
    return {"role": "user", "content": ASKED}


def _assistant(content: Any) -> dict:
    return {"role": "assistant", "content": content}


def _behind(text: str | None, mark: str) -> str:
    """What stands behind the last `mark`; "" where it is not there."""
    _, there, after = (text or "").rpartition(mark)
    return after if there else ""
