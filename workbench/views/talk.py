"""A talk between a person, a policy and its tools: what happens in it, and how it looks.

What happens are events, frozen values in the order in which they happen. The terminal writes each as it comes
(`TalkLines`), the notebook draws all of them again (`show_talk`); both show every character as text (`escape`).

    Asked · Piece Piece ... · Wrote · Called Returned ... · Answered · Ended
"""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.types import Trajectory, View
from workbench.views import markup as m
from workbench.views import words
from workbench.views.escape import capped, visible
from workbench.views.markup import Html, tag
from workbench.views.trajectory import pieces

LONGEST = 4000   # characters of one text that are shown
MOST_SHOWN = 30  # questions
STOPPED = "stopped"  # as a reason to end: a person asked for it

# ------------------------------------------------------------------------------------------------ what happens


@dataclass(frozen=True)
class Asked:
    """A question was put to the policy. `goes_on`: behind what was said before, not in a conversation of its own."""

    question: str
    goes_on: bool = False


@dataclass(frozen=True)
class Piece:
    """The policy wrote a little more. The pieces of a turn, end to end, are the beginning of what `Wrote` says."""

    turn: int
    text: str


@dataclass(frozen=True)
class Wrote:
    """A whole turn. `finish`: "stop", or "length" where it was cut."""

    turn: int
    text: str
    finish: str


@dataclass(frozen=True)
class Moved:
    """The moves that were read in the turn, in an environment that has moves."""

    turn: int
    moves: tuple[str, ...]


@dataclass(frozen=True)
class Called:
    """A tool call that was read in the turn."""

    turn: int
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Returned:
    """What came of a call, as the policy is told it. `error`: the kind of the error, "" where there was none."""

    turn: int
    name: str
    text: str
    error: str = ""


@dataclass(frozen=True)
class Told:
    """Whatever else the environment says to the policy."""

    turn: int
    role: str
    text: str


@dataclass(frozen=True)
class Complained:
    """The turn, or a part of it, could not be read."""

    turn: int
    text: str


@dataclass(frozen=True)
class Answered:
    """The policy's answer."""

    turn: int
    text: str


@dataclass(frozen=True, eq=False)
class Ended:
    """It is over. `reason`: a stop reason, or "stopped" by the person; `words` say it. `trajectory`: the attempt so far
    (None where it was stopped in the middle of it). `tokens`: of the sequence that the policy saw."""

    reason: str
    words: str
    trajectory: Trajectory | None = None
    tokens: int | None = None
    error: str | None = None


Event = Asked | Piece | Wrote | Moved | Called | Returned | Told | Complained | Answered | Ended


@dataclass(frozen=True, eq=False)
class Exchange:
    """One question and all that came of it; shows itself. `trajectory` is for `show_tokens`, `show_trajectory` ..."""

    events: tuple[Event, ...]

    @property
    def question(self) -> str:
        return next((event.question for event in self.events if isinstance(event, Asked)), "")

    @property
    def answer(self) -> str | None:
        """None where the policy gave none."""
        return next((event.text for event in self.events if isinstance(event, Answered)), None)

    @property
    def trajectory(self) -> Trajectory | None:
        return next((event.trajectory for event in self.events if isinstance(event, Ended)), None)

    @property
    def reason(self) -> str:
        """Why it ended; "" while it goes on."""
        return next((event.reason for event in self.events if isinstance(event, Ended)), "")

    def view(self) -> View:
        return show_talk([self])

    def _repr_mimebundle_(self, include=None, exclude=None):
        return self.view()._repr_mimebundle_()

    def __str__(self) -> str:
        return self.view().text

    __repr__ = __str__


# ------------------------------------------------------------------------------------------------ in a terminal

COLOURS = {"you": "1", "policy": "36", "calls": "33", "told": "2", "answer": "1;32", "wrong": "31", "end": "2"}


class TalkLines:
    """The words for each event as it comes, to be written one after the other. Colours stand beside words, never for
    them; nothing that policy, tools or environment wrote can act in the terminal."""

    def __init__(self, colour: bool = False) -> None:
        self.colour = colour
        self._shown: str | None = None  # of the turn that is being written; None between turns

    def of(self, event: Event) -> str:
        if isinstance(event, Piece):
            begins = self._shown is None
            self._shown = (self._shown or "") + event.text
            return ("policy  " if begins else "") + self._in(visible(event.text, newline="\n        "), "policy")
        if isinstance(event, Wrote):
            return self._rest(event)
        left = "" if self._shown is None else "  (unfinished)\n"  # stopped in the middle of a turn
        self._shown = None
        return left + "".join(f"{line}\n" for line in self._lines(event))

    def _rest(self, event: Wrote) -> str:
        """What no piece has shown yet, and the end of the line."""
        shown, self._shown = self._shown, None
        cut = "  (cut: it reached its token limit)" if event.finish == "length" else ""
        first = "policy  " if shown is None else ""
        rest = event.text[len(shown or ""):]
        if shown is not None and not event.text.startswith(shown):  # decoded otherwise once it was whole
            first, rest = "\npolicy  ", event.text
        return first + self._in(visible(rest, newline="\n        "), "policy") + cut + "\n"

    def _lines(self, event: Event) -> list[str]:
        def lines(first: str, text: str, kind: str) -> list[str]:
            return self._in(words.quoted(visible(capped(text, LONGEST)), first), kind).split("\n")

        if isinstance(event, Asked):
            return []  # it has just been typed
        if isinstance(event, Moved):
            return lines("  moves    ", ", ".join(event.moves), "calls")
        if isinstance(event, Called):
            return [self._in(f"  calls    {visible(_call(event))}", "calls")]
        if isinstance(event, Returned):
            first = f"  {visible(words.name_of(event.name))[:20]:<9}"
            return lines(first, event.text, "wrong" if event.error else "told")
        if isinstance(event, Told):
            return lines("  told     ", event.text, "told")
        if isinstance(event, Complained):
            return lines("  ! ", event.text, "wrong")
        if isinstance(event, Answered):
            return [self._in(f"  answer   {visible(capped(event.text, LONGEST))}", "answer")]
        return [self._in(f"  ({visible(_end_words(event))})", "wrong" if event.error else "end")]

    def _in(self, text: str, kind: str) -> str:
        """Each line coloured by itself, so that no colour outlives its line."""
        if not self.colour:
            return text
        return "\n".join(f"\x1b[{COLOURS[kind]}m{line}\x1b[0m" if line else line for line in text.split("\n"))


def _call(event: Called) -> str:
    arguments = capped(json.dumps(dict(event.arguments), ensure_ascii=False, default=str), 1000)
    return f"{words.name_of(event.name)}({arguments})"


def _end_words(event: Ended) -> str:
    facts = [event.words]
    if event.trajectory is not None:
        facts.append(words.count(len(event.trajectory.turns), "turn"))
        if event.trajectory.success is not None:
            facts.append(words.success_words(event.trajectory))
    if event.tokens is not None:
        facts.append(words.count(event.tokens, "token"))
    if event.error:
        facts.append(capped(event.error, LONGEST))
    return ", ".join(facts)


# ------------------------------------------------------------------------------------------------ in a notebook


def show_talk(exchanges: Sequence[Exchange], *, title: str = "", remark: str = "") -> View:
    """A talk as far as it has come.

    You will see, for each question, what the policy wrote turn by turn (thought dimmed, answer in a box), below it each
    tool call with its result, complaints where something could not be read, and why it ended. `remark` stands above.
    """
    lines, blocks = [], []
    hidden = len(exchanges) - MOST_SHOWN
    if hidden > 0:
        lines.append(f"… {words.count(hidden, 'question')} before are not shown …")
        blocks.append(m.note(lines[0]))
    for exchange in exchanges[-MOST_SHOWN:]:
        writer = TalkLines()
        lines.append(f"you     {visible(capped(exchange.question, LONGEST), newline=chr(10) + ' ' * 8)}")
        lines.append("".join(map(writer.of, exchange.events)).rstrip("\n"))
        blocks.append(_exchange_html(exchange))
    if not exchanges:
        blocks.append(m.note("nothing has been asked yet"))
    html = m.card(m.heading(title) if title else None, m.note(remark) if remark else None, *blocks)
    head = [line for line in (title, visible(remark)) if line]
    return m.finished(html, "\n".join([*head, *(lines or ["nothing has been asked yet"])]))


def _exchange_html(exchange: Exchange) -> Html:
    rows, writing = [], ""
    for event in exchange.events:
        if isinstance(event, Piece):
            writing += event.text
            continue
        if not isinstance(event, Wrote) and writing:  # stopped in the middle of a turn
            rows.append(_written(writing + " …"))
        writing = ""
        rows.append(_event_html(event))
    if writing:
        rows.append(_written(writing + " ▍"))
    return tag("div", *rows, style=f"border-top:1px solid {m.LINE};padding:6px 0 2px 0;margin-top:4px")


def _event_html(event: Event) -> Html:
    if isinstance(event, Asked):
        return tag("div", m.badge("you", m.INK), tag("span", capped(event.question, LONGEST), style="font-weight:600"),
                   style="margin:2px 0 6px 0;white-space:pre-wrap")
    if isinstance(event, Wrote):
        cut = m.warning("cut: it reached its token limit") if event.finish == "length" else None
        return tag("div", _written(event.text), cut)
    if isinstance(event, Moved):
        return tag("div", *(m.badge(words.name_of(move), "#e6eaee", m.INK) for move in event.moves[:40]))
    if isinstance(event, Called):
        call = tag("span", _call(event), style=f"font-family:{m.MONO};font-size:12px")
        return tag("div", m.badge("calls", m.ORANGE), call, style="margin:4px 0 2px 16px")
    if isinstance(event, Returned):
        mark = m.badge(f"{words.name_of(event.name)}: {event.error}" if event.error else words.name_of(event.name),
                       "#a01626" if event.error else m.GREY)
        return tag("div", mark, m.block(capped(event.text, LONGEST)), style="margin:2px 0 6px 16px")
    if isinstance(event, Told):
        mark = m.badge("told", m.GREY, title=words.name_of(event.role))
        return tag("div", mark, m.block(capped(event.text, LONGEST)), style="margin:2px 0 6px 16px")
    if isinstance(event, Complained):
        return m.warning(capped(event.text, LONGEST))
    if isinstance(event, Answered):
        return tag("div", m.badge("answer", m.GREEN), tag("span", capped(event.text, LONGEST), style="font-weight:600"),
                   style="margin:6px 0")
    return m.warning(_end_words(event)) if event.error else m.note(_end_words(event))


def _written(text: str) -> Html:
    styles = {"think": f"color:{m.MUTED};font-style:italic",
              "answer": f"background-color:#d6e9f8;color:#06324f;border-left:3px solid {m.BLUE};padding:1px 4px",
              "plain": f"color:{m.INK}"}
    spans = [tag("span", part, style=styles[kind]) for kind, part in pieces(capped(text, LONGEST))]
    return tag("div", m.badge("policy", m.BLUE), m.block(m.join(spans) if spans else tag("span", "(nothing)")),
               style="margin:4px 0")
