"""How a talk between a person, a policy and its tools looks.

The terminal writes each event as it comes (`TalkLines`), the notebook draws all of them again (`show_talk`): both say
what `said` makes of an event, and both show every character as text (`escape`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workbench.types import Trajectory, View
from workbench.types.view import HasView
from workbench.views import doc, words
from workbench.views.escape import capped, visible
from workbench.views.html import shown
from workbench.views.looks import BLUE, BOLD, GREEN, INK, ORANGE, RED, Look
from workbench.views.talk_events import (
    AnswerEvent,
    EndEvent,
    FormatErrorEvent,
    MessageEvent,
    MovesEvent,
    QuestionEvent,
    TalkEvent,
    TextEvent,
    ToolCallEvent,
    ToolResultEvent,
    TurnEvent,
)
from workbench.views.trajectory import written

LONGEST = 4000  # characters of one text that are shown
MOST_SHOWN = 30  # questions
COLOURS = {
    "you": "1",
    "policy": "36",
    "calls": "33",
    "told": "2",
    "answer": "1;32",
    "wrong": "31",
    "end": "2",
}


@dataclass(frozen=True, eq=False, repr=False)
class TalkExchange(HasView):
    """One question and all that came of it; shows itself. `trajectory` is for `show_tokens`, `show_trajectory` ..."""

    events: tuple[TalkEvent, ...]

    @property
    def question(self) -> str:
        return next(
            (event.question for event in self.events if isinstance(event, QuestionEvent)), ""
        )

    @property
    def answer(self) -> str | None:
        """None where the policy gave none."""
        return next((event.text for event in self.events if isinstance(event, AnswerEvent)), None)

    @property
    def trajectory(self) -> Trajectory | None:
        return next(
            (event.trajectory for event in self.events if isinstance(event, EndEvent)), None
        )

    @property
    def reason(self) -> str:
        """Why it ended; "" while it goes on."""
        return next((event.reason for event in self.events if isinstance(event, EndEvent)), "")

    def view(self) -> View:
        return show_talk([self])


@dataclass(frozen=True)
class _Said:
    """An event in words. `first` begins its line in a terminal; `bars`: its lines stand behind a bar there. `parts`:
    how a page shows it."""

    first: str
    text: str
    kind: str
    parts: tuple[doc.Part, ...]
    bars: bool = True


def said(event: TalkEvent) -> _Said | None:
    """What there is to read of an event; None for a question (it was typed) and for what the policy writes."""
    if isinstance(event, MovesEvent):
        badges = tuple(doc.Badge(words.name_of(move), "#e6eaee", INK) for move in event.moves[:40])
        return _Said("  moves    ", ", ".join(event.moves), "calls", (doc.Note(badges),))
    if isinstance(event, ToolCallEvent):
        call = words.call(event.name, event.arguments)
        line = (doc.Badge("calls", ORANGE), doc.Styled(call, Look(mono=True, foreground=INK)))
        return _Said(
            "  calls    ", call, "calls", (doc.Section((doc.Note(line),), inset=True),), bars=False
        )
    if isinstance(event, ToolResultEvent):
        name = words.name_of(event.name)
        badge = doc.Badge(f"{name}: {event.error}", RED) if event.error else doc.Badge(name)
        return _Said(
            f"  {visible(name)[:20]:<9}",
            event.text,
            "wrong" if event.error else "told",
            _inset(badge, event.text),
        )
    if isinstance(event, MessageEvent):
        return _Said(
            "  told     ",
            event.text,
            "told",
            _inset(doc.Badge("told", title=words.name_of(event.role)), event.text),
        )
    if isinstance(event, FormatErrorEvent):
        return _Said("  ! ", event.text, "wrong", (doc.WarningLine(capped(event.text, LONGEST)),))
    if isinstance(event, AnswerEvent):
        line = (doc.Badge("answer", GREEN), doc.Styled(capped(event.text, LONGEST), BOLD))
        return _Said("  answer   ", event.text, "answer", (doc.Block(line),), bars=False)
    if isinstance(event, EndEvent):
        text = _end_words(event)
        part = doc.WarningLine(text) if event.error else doc.Note(text)
        return _Said("  ", f"({text})", "wrong" if event.error else "end", (part,), bars=False)
    return None


def _inset(badge: doc.Badge, text: str) -> tuple[doc.Part, ...]:
    return (doc.Section((doc.Note((badge,)), doc.Block(capped(text, LONGEST))), inset=True),)


def _end_words(event: EndEvent) -> str:
    facts = [event.words]
    if event.trajectory is not None:
        facts.append(words.count(len(event.trajectory.turns), "turn"))
        if event.trajectory.success is not None:
            facts.append(words.success_words(event.trajectory))
        if event.trajectory.outcome is not None and event.trajectory.reward is not None:
            facts.append(f"reward {event.trajectory.reward:g}")
    if event.tokens is not None:
        facts.append(words.count(event.tokens, "token"))
    if event.error:
        facts.append(capped(event.error, LONGEST))
    return ", ".join(facts)


# ------------------------------------------------------------------------------------------------ in a terminal


class TalkLines:
    """The words for each event as it comes, to be written one after the other. Colours stand beside words, never for
    them; nothing that policy, tools or environment wrote can act in the terminal."""

    def __init__(self, colour: bool = False) -> None:
        self.colour = colour
        self._shown: str | None = None  # of the turn that is being written; None between turns

    def of(self, event: TalkEvent) -> str:
        if isinstance(event, TextEvent):
            begins = self._shown is None
            self._shown = (self._shown or "") + event.text
            return ("policy  " if begins else "") + self._in(
                visible(event.text, newline="\n        "), "policy"
            )
        if isinstance(event, TurnEvent):
            return self._rest(event)
        left = "" if self._shown is None else "  (unfinished)\n"  # stopped in the middle of a turn
        self._shown = None
        return left + "".join(f"{line}\n" for line in self._lines(event))

    def _rest(self, event: TurnEvent) -> str:
        """What has not been shown yet, and the end of the line."""
        shown, self._shown = self._shown, None
        cut = "  (cut: it reached its token limit)" if event.finish == "length" else ""
        first = "policy  " if shown is None else ""
        rest = event.text[len(shown or "") :]
        if shown is not None and not event.text.startswith(
            shown
        ):  # decoded otherwise once it was whole
            first, rest = "\npolicy  ", event.text
        return first + self._in(visible(rest, newline="\n        "), "policy") + cut + "\n"

    def _lines(self, event: TalkEvent) -> list[str]:
        found = said(event)
        if found is None:
            return []
        text = visible(found.text if isinstance(event, EndEvent) else capped(found.text, LONGEST))
        line = words.quoted(text, found.first) if found.bars else f"{found.first}{text}"
        return self._in(line, found.kind).split("\n")

    def _in(self, text: str, kind: str) -> str:
        """Each line coloured by itself, so that no colour outlives its line."""
        if not self.colour:
            return text
        return "\n".join(
            f"\x1b[{COLOURS[kind]}m{line}\x1b[0m" if line else line for line in text.split("\n")
        )


# ------------------------------------------------------------------------------------------------ in a notebook


def show_talk(exchanges: Sequence[TalkExchange], *, title: str = "", remark: str = "") -> View:
    """A talk as far as it has come.

    You will see, for each question, what the policy wrote turn by turn (thought dimmed, answer in a box), below it each
    tool call with its result, complaints where something could not be read, and why it ended. `remark` stands above.
    """
    parts: list[doc.Part | None] = [
        doc.Heading(title) if title else None,
        doc.Note(remark) if remark else None,
    ]
    hidden = len(exchanges) - MOST_SHOWN
    if hidden > 0:
        parts.append(doc.Note(f"… {words.count(hidden, 'question')} before are not shown …"))
    for exchange in exchanges[-MOST_SHOWN:]:
        asked = capped(exchange.question, LONGEST)
        lines = "".join(map(TalkLines().of, exchange.events)).rstrip("\n")
        parts += [
            doc.TextPart(f"you     {visible(asked, newline=chr(10) + ' ' * 8)}\n{lines}"),
            doc.PagePart((doc.Section(tuple(_parts(exchange))),)),
        ]
    if not exchanges:
        parts.append(doc.Note("nothing has been asked yet"))
    return shown(doc.ViewDocument(tuple(parts)))


def _parts(exchange: TalkExchange) -> Iterator[doc.Part]:
    """The same events on a page."""
    writing = ""
    for event in exchange.events:
        if isinstance(event, TextEvent):
            writing += event.text
            continue
        if not isinstance(event, TurnEvent) and writing:  # stopped in the middle of a turn
            yield _policy(writing + " …")
        writing = ""
        if isinstance(event, QuestionEvent):
            yield doc.Block(
                (doc.Badge("you", INK), doc.Styled(capped(event.question, LONGEST), BOLD))
            )
        elif isinstance(event, TurnEvent):
            yield _policy(event.text)
            if event.finish == "length":
                yield doc.WarningLine("cut: it reached its token limit")
        else:
            yield from said(event).parts
    if writing:
        yield _policy(writing + " ▍")


def _policy(text: str) -> doc.Block:
    return doc.Block((doc.Badge("policy", BLUE), *written(text)))
