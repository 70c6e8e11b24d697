"""Reads a policy's turn: its thought, its calls and its answer, by a reader that is strict, total and linear.

What can be read is read, and what is wrong is said: a turn is `valid` only where all of it is in order, with nothing
but white space outside the tags, yet one bad call does not take the others with it. A call that was begun and not ended
is a bad call, not the absence of one. What stands in a thought is no call. Calls and an answer in the same turn
contradict each other (an answer that does not wait for its calls), so then nothing of it is done.

Nothing here raises (invariant 10), whatever the text; sizes are bounded before they cost anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from workbench.tools.action_format import shown, thought_is_open
from workbench.tools.strict_json import QUOTE, CallError
from workbench.values import ToolCall

THINK = "<think>"
END_THINK = "</think>"
ANSWER = "<answer>"
END_ANSWER = "</answer>"

MOST_TEXT = 100_000  # characters of a turn
MOST_CALLS = 16  # of one turn are read


@dataclass(frozen=True)
class BadCall:
    """A call that was begun and cannot be made. `index`: its place among all calls of the turn, from 0. `complaint` is
    in our words only; `quote` is the policy's, short and printable, and stays untrusted."""

    index: int
    complaint: str
    quote: str = ""


@dataclass(frozen=True)
class ParsedTurn:
    """A turn as it was read.

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


@dataclass
class _Reading:
    """The parts of a turn that were read so far."""

    attempts: list[ToolCall | CallError] = field(default_factory=list)
    answers: list[str | None] = field(default_factory=list)  # None: begun, but empty or not closed
    complaints: list[tuple[str, str]] = field(default_factory=list)

    def attempt(self, attempts: list[ToolCall | CallError]) -> None:
        self.attempts += attempts
        for wrong in attempts:
            if isinstance(wrong, CallError):
                self.complain(wrong.complaint, wrong.quote)

    def complain(self, complaint: str, quote: str = "") -> None:
        self.complaints.append((complaint, shown(quote, QUOTE)))


# (text, where the opening tag ends) -> (the call, or a list of those that the tag opens; where reading goes on)
CallReader = Callable[[str, int], "tuple[ToolCall | CallError | list[ToolCall | CallError], int]"]


def read_turn(text: str, think: bool, readers: Mapping[str, CallReader]) -> ParsedTurn:
    """`think`: it has to begin with a thought. `readers`: what reads a call, by the tag that opens it."""
    if len(text) > MOST_TEXT:
        return ParsedTurn(
            valid=False,
            complaint=f"The turn is longer than {MOST_TEXT} characters; nothing was read.",
        )
    reading = _Reading()
    thought, start = _read_thought(text, think, reading)
    if start is not None:
        _read_body(text, start, readers, reading)
    return _turn(thought, reading)


def _read_thought(text: str, think: bool, reading: _Reading) -> tuple[str, int | None]:
    """The thought and where the rest begins; None where nothing but an unfinished thought is there."""
    opening = text.find(THINK)
    closing = text.find(END_THINK)
    leads = opening >= 0 and not text[:opening].strip()
    if leads and closing < 0:
        reading.complain(f"The tag {THINK} is not closed by {END_THINK}.")
        return text[opening + len(THINK) :], None
    if leads and closing > opening:
        return text[opening + len(THINK) : closing], closing + len(END_THINK)
    if thought_is_open(text):
        return text[:closing], closing + len(END_THINK)
    if think:
        reading.complain(f"The turn does not begin with {THINK}...{END_THINK}.")
    return "", 0


def _read_body(text: str, at: int, readers: Mapping[str, CallReader], reading: _Reading) -> None:
    for start, tag in _openings(text, at, (*readers, ANSWER)):
        if start < at:  # inside of what was read
            continue
        _outside(text[at:start], reading)
        inner = start + len(tag)
        if tag == ANSWER and reading.answers:
            reading.answers.append(None)
            return
        if tag == ANSWER:
            at = _read_answer(text, inner, reading)
        elif len(reading.attempts) >= MOST_CALLS:
            return reading.complain(
                f"There are more than {MOST_CALLS} calls in one turn; the rest was not read."
            )
        else:
            attempts, at = readers[tag](text, inner)
            reading.attempt(attempts if isinstance(attempts, list) else [attempts])
    _outside(text[at:], reading)


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


def _read_answer(text: str, start: int, reading: _Reading) -> int:
    end = text.find(END_ANSWER, start)
    following = text.find(ANSWER, start)
    closed = end >= 0 and not 0 <= following < end
    answer = text[start:end].strip() if closed else ""
    reading.answers.append(answer or None)
    if not closed:
        reading.complain(f"The tag {ANSWER} is not closed by {END_ANSWER}.")
        return following if following >= 0 else len(text)
    if not answer:
        reading.complain("The answer is empty.")
    return end + len(END_ANSWER)


def _outside(text: str, reading: _Reading) -> None:
    if outside := text.strip():
        reading.complain("There is text outside the tags.", outside)


def _turn(thought: str, reading: _Reading) -> ParsedTurn:
    if len(reading.answers) > 1:
        return ParsedTurn(thought, valid=False, complaint="There is more than one answer.")
    if reading.answers and reading.attempts:
        return ParsedTurn(
            thought,
            valid=False,
            complaint="There are calls and an answer in one turn; call first, and "
            "answer when the results are there.",
        )
    if not reading.attempts and not reading.answers and not reading.complaints:
        reading.complain("There is neither a call nor an answer.")
    calls = tuple(attempt for attempt in reading.attempts if isinstance(attempt, ToolCall))
    bad = tuple(
        BadCall(index, attempt.complaint, attempt.quote)
        for index, attempt in enumerate(reading.attempts)
        if isinstance(attempt, CallError)
    )
    complaint, quote = reading.complaints[0] if reading.complaints else ("", "")
    answer = reading.answers[0] if reading.answers else None
    return ParsedTurn(thought, calls, bad, answer, not complaint, complaint, quote)
