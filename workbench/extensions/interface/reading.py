"""Answers in other words than the format has them, read where they have one meaning and only there.

A lenient reader gives the text back as the strict format writes it, with a list of what was forgiven; a text that it
cannot read, or that says two different things, comes back as it is. It raises nothing, whatever the text, and its time
is bounded: texts beyond MOST_TEXT characters, and more tags than MOST_TAGS, are not looked at.

Only what the environment is handed changes: what was sampled, stored and trained is the policy's own text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from workbench.tools.action_format import ANSWER_TAGS, THINK_TAGS, format_action, parse_answer

MOST_TEXT = 10_000  # characters of a text that is looked at
MOST_TAGS = 16  # of a kind in one text
PROSE = "text around the answer"
NO_TAGS = "no answer tags"
NOT_CLOSED = "a tag that is not closed"
NO_THOUGHT = "no thought"
OTHER_WORDS = "the answer in other words"
REPEATED = "the same answer more than once"
TWO_ANSWERS = "two different answers"


@dataclass(frozen=True)
class Reading:
    """A text as a lenient reader has it.

    text       in the strict format; the policy's own where it was not read
    forgiven   what the strict format would have refused, in our words; () where nothing was, or nothing was read
    doubt      why a text that says something was not read: it has two meanings; else ""
    """

    text: str
    forgiven: tuple[str, ...] = ()
    doubt: str = ""


@dataclass(frozen=True)
class Parts:
    """A text, taken apart: the thought, what stands outside of it, and what is wrong with its tags."""

    thought: str
    body: str
    faults: tuple[str, ...]


def taken_apart(text: str, think: bool) -> Parts:
    """The thought and the rest. A thought that was opened in the prompt ends at its closing tag; one that is not closed
    ends where the answer begins."""
    opening, closing = THINK_TAGS
    thoughts: list[str] = []
    faults: list[str] = []
    body: list[str] = []
    at = 0
    end = text.find(closing)
    start = text.find(opening)
    if end >= 0 and not 0 <= start < end:
        thoughts.append(text[:end])
        at = end + len(closing)
        start = text.find(opening, at)
    while start >= 0:
        body.append(text[at:start])
        end = text.find(closing, start)
        if end < 0:
            at = text.find(ANSWER_TAGS[0], start)
            at = len(text) if at < 0 else at
            thoughts.append(text[start + len(opening) : at])
            faults.append(NOT_CLOSED)
            break
        thoughts.append(text[start + len(opening) : end])
        at = end + len(closing)
        start = text.find(opening, at)
    body.append(text[at:])
    if think and not thoughts:
        faults.append(NO_THOUGHT)
    return Parts("\n".join(thoughts).strip(), "\n".join(body).strip(), tuple(faults))


def tagged(body: str) -> tuple[list[str], str, bool] | None:
    """(texts between answer tags, what stands outside of them, whether all are closed); None for too many tags."""
    opening, closing = ANSWER_TAGS
    pieces = body.split(opening)
    if len(pieces) > MOST_TAGS:
        return None
    inside: list[str] = []
    outside = [pieces[0]]
    all_closed = True
    for piece in pieces[1:]:
        inner, is_closed, rest = piece.partition(closing)
        all_closed = all_closed and bool(is_closed)
        inside.append(inner.strip())
        outside.append(rest)
    return inside, "\n".join(outside).replace(closing, " ").strip(), all_closed


def read_answer(
    text: str,
    think: bool,
    strict: Callable[[str], str],
    claims: Callable[[str, bool], Iterable[str]],
) -> Reading:
    """Read a text whose answer is one value.

    `strict(answer)`: the answer as it is written where the strict format takes it, else "". `claims(text, inside)`: the
    answers that a text names, written so; `inside`: the text stands between the tags.
    """
    whole = parse_answer(text, think=think)
    if len(text) > MOST_TEXT or (whole.valid and strict(whole.moves[0])):
        return Reading(text)
    parts = taken_apart(text, think)
    split = tagged(parts.body)
    if split is None:
        return Reading(text)
    inside, outside, all_closed = split
    forgiven = list(parts.faults)
    named: list[str] = []
    for inner in inside:
        answer = strict(inner)
        read = [answer] if answer else [claim for claim in claims(inner, True) if claim]
        if not read:
            return Reading(text)
        forgiven += [] if answer else [OTHER_WORDS]
        named += read
    if inside:
        forgiven += [PROSE] if outside else []
        forgiven += [] if all_closed else [NOT_CLOSED]
        forgiven += [REPEATED] if len(inside) > 1 else []
    else:
        forgiven.append(NO_TAGS)
        named += claims(parts.body, False)
    different = list(dict.fromkeys(named))
    if len(different) != 1:
        return Reading(text, doubt=TWO_ANSWERS if different else "")
    return written(text, different[0], parts.thought, think, forgiven)


def written(text: str, answer: str, thought: str, think: bool, forgiven: Iterable[str]) -> Reading:
    """The answer in the strict format, where it can be written in it."""
    tags = (*THINK_TAGS, *ANSWER_TAGS)
    kept = "" if any(tag in thought for tag in tags) else thought
    strict = format_action([answer], think=think, thought=kept)
    if not parse_answer(strict, think=think).valid:
        return Reading(text)
    return Reading(strict, tuple(dict.fromkeys(forgiven)) or (PROSE,))
