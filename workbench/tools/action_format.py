"""The text format of an action: `<think>why</think><answer>Right || Down</answer>`, or the answer alone.

One strict rule, so that it can be a format reward: every tag of the format stands in the text exactly once, in order,
with nothing but white space outside the two blocks. Everything else is invalid, with one plain sentence saying why.
A malformed text is data (invariant 10): nothing here raises, and the time is linear in the length of the text (plain string
searches, no backtracking), so a megabyte of garbage costs milliseconds.

Only the text that the policy sampled is read, as it is: nothing is repaired, and nothing is written back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.values import Message, Observation, Text

SEPARATOR = "||"
THINK_TAGS = ("<think>", "</think>")
ANSWER_TAGS = ("<answer>", "</answer>")
_LONGEST_QUOTE = 20
LONGEST_SHOWN = 80  # characters of a value in a complaint


@dataclass(frozen=True)
class ParsedAction:
    """An action text as it was read.

    `moves`: canonical names, in order; empty where the text is invalid (all or nothing).
    `complaint`: "" where valid, else one sentence saying what was wrong, in the environment author's words only.
    `quote`: the policy's own words that the complaint is about ("" if none): untrusted, shortened, printable.
    `thought`: what stood between the think tags, where the format has them and the tags are in order.
    """

    moves: tuple[str, ...]
    valid: bool
    complaint: str = ""
    quote: str = ""
    thought: str = ""


def format_action(moves: Sequence[str], *, think: bool, thought: str = "") -> str:
    """The action text that parses back into `moves`: what solvers, random policies and demonstrations write."""
    inside = f" {SEPARATOR} ".join(moves)
    answer = f"{ANSWER_TAGS[0]}{inside}{ANSWER_TAGS[1]}"
    return f"{THINK_TAGS[0]}{thought}{THINK_TAGS[1]}{answer}" if think else answer


def parse_action(text: str, moves: Sequence[str], *, think: bool) -> ParsedAction:
    """Read an action text. `moves` are the names on offer, compared without regard to case or surrounding space.

    Never raises. An unknown or empty move makes the whole action invalid: what the policy meant is not guessed at.
    Parts are counted in full; limits on how many of them are carried out are the environment's business.
    """
    read = parse_answer(text, think=think)
    return _read_moves(read.moves[0], moves, read.thought) if read.valid else read


def parse_answer(text: str, *, think: bool) -> ParsedAction:
    """Read an answer that is free text: `moves` holds it alone, as it was written. Never raises.

    A thought that the prompt opened (`thought_is_open`) is read whether or not the format asks for one. Templates end one
    by a line break before its closing tag or behind it; a tag between words is a slip."""
    if thought_is_open(text) and _ends_at_a_line(text):
        read = parse_answer(THINK_TAGS[0] + text, think=True)
        return replace(read, thought=read.thought.strip())
    tags = (THINK_TAGS if think else ()) + ANSWER_TAGS
    for tag in tags:
        count = text.count(tag)
        if count != 1:
            fault = "is missing" if count == 0 else "stands there more than once"
            return ParsedAction((), False, f"The tag {tag} {fault}.")
    places = [text.index(tag) for tag in tags]
    if places != sorted(places):
        return ParsedAction((), False, "The tags are in the wrong order.")
    blocks, outside = _split(text, tags, places)
    thought = blocks[0] if think else ""
    if any(part.strip() for part in outside):
        return ParsedAction((), False, "There is text outside the tags.", thought=thought)
    return ParsedAction((blocks[-1],), True, thought=thought)


def thought_is_open(text: str) -> bool:
    """Whether a thought is closed that the text does not open: the template opened it, at the end of the prompt."""
    before, closing, _ = text.partition(THINK_TAGS[1])
    return bool(closing) and THINK_TAGS[0] not in before


def _ends_at_a_line(text: str) -> bool:
    before, _, after = text.partition(THINK_TAGS[1])
    return before.rstrip(" \t").endswith("\n") or after.lstrip(" \t").startswith("\n")


def refusal(complaint: str, quote: str, example: str) -> list[Text]:
    """The reply to a text that could not be read. The policy's own words, quoted, stay untrusted (invariant 9)."""
    advice = f"\nNothing was done. Answer like this: {example}\n"
    return [*complaint_with_quote(complaint, quote), Text(advice, trusted=True)]


def complaint_with_quote(complaint: str, quote: str) -> list[Text]:
    words = [Text(complaint, trusted=True)]
    if quote:
        words += [Text(" It says: ", trusted=True), Text(quote)]
    return words


def limit_notice(done: int, asked: int) -> list[Text]:
    """The reply to more moves than one answer may hold; empty where there were no more."""
    if asked <= done:
        return []
    notice = f"Only {done} of {asked} moves were done; the limit is {done} per answer.\n"
    return [Text(notice, trusted=True)]


def user_message(*parts: Text) -> Observation:
    """An observation of one message."""
    return Observation((Message("user", parts),))


def _split(text: str, tags: Sequence[str], places: Sequence[int]) -> tuple[list[str], list[str]]:
    """The texts inside the tag pairs, and the texts outside of them."""
    blocks = []
    outside = []
    end = 0
    for opening in range(0, len(tags), 2):
        outside.append(text[end : places[opening]])
        blocks.append(text[places[opening] + len(tags[opening]) : places[opening + 1]])
        end = places[opening + 1] + len(tags[opening + 1])
    return blocks, [*outside, text[end:]]


def _read_moves(answer: str, moves: Sequence[str], thought: str) -> ParsedAction:
    if not answer.strip():
        return ParsedAction((), False, "The answer is empty.", thought=thought)
    canonical = {move.lower(): move for move in moves}
    known = []
    for part in answer.split(SEPARATOR):
        move = canonical.get(part.strip().lower())
        if move is None:
            quote = shown(part.strip(), _LONGEST_QUOTE)
            complaint = "The answer holds something that is not on offer."
            return ParsedAction((), False, complaint, quote, thought)
        known.append(move)
    return ParsedAction(tuple(known), True, thought=thought)


def shown(value: Any, longest: int = LONGEST_SHOWN) -> str:
    """A value as JSON (text as it is), short and printable."""
    if isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, default=str)
        except (ValueError, RecursionError):
            text = f"a {type(value).__name__}"
    text = "".join(c if c.isprintable() else " " for c in text[: longest + 1])
    return text if len(text) <= longest else text[:longest] + "..."
