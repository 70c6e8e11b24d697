"""How a talk between a person, a policy and its tools looks.

The terminal writes each event as it comes (`TalkLines`), the notebook draws all of them again (`talk_view`): both say
what `in_words` makes of an event, and both show every character as text (`escape`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import singledispatch

from workbench.extensions.talk.events import (
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
from workbench.look import doc, words
from workbench.look.escape import capped, visible
from workbench.look.html import view_from
from workbench.look.looks import BLUE, BOLD, GREEN, INK, ORANGE, RED, Look
from workbench.look.trajectory import written
from workbench.values import Trajectory, View
from workbench.values.view import HasView

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
    """One question and all that came of it; shows itself. `trajectory` is for `show_tokens`, `trajectory_view` ..."""

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
        return talk_view([self])


@dataclass(frozen=True)
class _Worded:
    """An event in words.

    first  begins its line in a terminal
    text   what stands behind it
    kind   decides the colour in a terminal
    parts  how a page shows it
    bars   whether its lines stand behind a bar in a terminal
    """

    first: str
    text: str
    kind: str
    parts: tuple[doc.Part, ...]
    bars: bool = True


@singledispatch
def in_words(event: TalkEvent) -> _Worded | None:
    """What there is to read of an event; None for a question (it was typed) and for what the policy writes."""
    return None


@in_words.register
def _moves(event: MovesEvent) -> _Worded:
    badges = tuple(doc.Badge(words.name_of(move), "#e6eaee", INK) for move in event.moves[:40])
    return _Worded("  moves    ", ", ".join(event.moves), "calls", (doc.Note(badges),))


@in_words.register
def _tool_call(event: ToolCallEvent) -> _Worded:
    call = words.call(event.name, event.arguments)
    line = (doc.Badge("calls", ORANGE), doc.Styled(call, Look(mono=True, foreground=INK)))
    section = doc.Section((doc.Note(line),), inset=True)
    return _Worded("  calls    ", call, "calls", (section,), bars=False)


@in_words.register
def _tool_result(event: ToolResultEvent) -> _Worded:
    name = words.name_of(event.name)
    first = f"  {visible(name)[:20]:<9}"
    if event.error:
        badge = doc.Badge(f"{name}: {event.error}", RED)
        return _Worded(first, event.text, "wrong", _inset(badge, event.text))
    return _Worded(first, event.text, "told", _inset(doc.Badge(name), event.text))


@in_words.register
def _message(event: MessageEvent) -> _Worded:
    badge = doc.Badge("environment", title=words.name_of(event.role))
    return _Worded("  env      ", event.text, "told", _inset(badge, event.text))


@in_words.register
def _format_error(event: FormatErrorEvent) -> _Worded:
    warning = doc.WarningLine(capped(event.text, LONGEST))
    return _Worded("  ! ", event.text, "wrong", (warning,))


@in_words.register
def _answer(event: AnswerEvent) -> _Worded:
    line = (doc.Badge("answer", GREEN), doc.Styled(capped(event.text, LONGEST), BOLD))
    return _Worded("  answer   ", event.text, "answer", (doc.Block(line),), bars=False)


@in_words.register
def _end(event: EndEvent) -> _Worded:
    text = _end_words(event)
    if event.error:
        return _Worded("  ", f"({text})", "wrong", (doc.WarningLine(text),), bars=False)
    return _Worded("  ", f"({text})", "end", (doc.Note(text),), bars=False)


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
        shown = self._shown
        self._shown = None
        cut = "  (cut: it reached its token limit)" if event.finish == "length" else ""
        first = "policy  " if shown is None else ""
        rest = event.text[len(shown or "") :]
        if shown is not None and not event.text.startswith(
            shown
        ):  # decoded otherwise once it was whole
            first = "\npolicy  "
            rest = event.text
        return first + self._in(visible(rest, newline="\n        "), "policy") + cut + "\n"

    def _lines(self, event: TalkEvent) -> list[str]:
        worded = in_words(event)
        if worded is None:
            return []
        text = visible(worded.text if isinstance(event, EndEvent) else capped(worded.text, LONGEST))
        line = words.quoted(text, worded.first) if worded.bars else f"{worded.first}{text}"
        return self._in(line, worded.kind).split("\n")

    def _in(self, text: str, kind: str) -> str:
        """Each line coloured by itself, so that no colour outlives its line."""
        if not self.colour:
            return text
        return "\n".join(
            f"\x1b[{COLOURS[kind]}m{line}\x1b[0m" if line else line for line in text.split("\n")
        )


# ------------------------------------------------------------------------------------------------ in a notebook


def talk_view(exchanges: Sequence[TalkExchange], *, title: str = "", remark: str = "") -> View:
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
    return view_from(
        *parts,
    )


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
            yield from in_words(event).parts
    if writing:
        yield _policy(writing + " ▍")


def _policy(text: str) -> doc.Block:
    return doc.Block((doc.Badge("policy", BLUE), *written(text)))
