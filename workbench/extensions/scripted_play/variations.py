"""Harmless variations of an answer: what a policy writes that means the same as the solver's words.

    variations_of(family)        those to be tried: declared by the world, else spaces and line breaks, and a full stop
                                 behind an answer without tags

A family says by `may_vary` which of these its worlds accept, as a tuple of their names, () for none:

    spaces        around the answer, and inside its tags
    line breaks   before and after it, and inside its tags
    full stop     at its end, inside its tags
    case          its words in capitals
    prose         a sentence before it and one behind it
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

INNERMOST = re.compile(r"<(\w+)>([^<>]*)</\1>")


class TextEdit(NamedTuple):
    """One way to write an answer otherwise. `kind`: what a world declares. `of`: text -> text."""

    kind: str
    what: str  # in words
    of: Callable[[str], str]


def _inside(vary: Callable[[str], str]) -> Callable[[str], str]:
    """Vary what stands inside the last pair of tags; all of a text without tags."""

    def varied(text: str) -> str:
        pairs = list(INNERMOST.finditer(text))
        if not pairs:
            return vary(text)
        start, end = pairs[-1].span(2)
        return text[:start] + vary(text[start:end]) + text[end:]

    return varied


def _capitals(text: str) -> str:
    return text if text.lstrip().startswith("{") else text.upper()


def _full_stop(text: str) -> str:
    """Behind words or a number; a call in JSON is no sentence, and what ends by a sign has its end."""
    return f"{text}." if text[-1:].isalnum() else text


VARIATIONS = (
    TextEdit("spaces", "spaces around the answer", lambda text: f" {text} "),
    TextEdit("spaces", "spaces inside the tags", _inside(lambda text: f" {text} ")),
    TextEdit("line breaks", "a line break before the answer", lambda text: f"\n{text}"),
    TextEdit("line breaks", "a line break after the answer", lambda text: f"{text}\n"),
    TextEdit("line breaks", "line breaks inside the tags", _inside(lambda text: f"\n{text}\n")),
    TextEdit("full stop", "a full stop at the end of the answer", _inside(_full_stop)),
    TextEdit("case", "the answer in capitals", _inside(_capitals)),
    TextEdit("prose", "a sentence before the answer", lambda text: f"This is what I do: {text}"),
    TextEdit("prose", "a sentence after the answer", lambda text: f"{text}\nI am done."),
)
KINDS = tuple(dict.fromkeys(variation.kind for variation in VARIATIONS))
# Where a world declares nothing: white space carries no meaning. A full stop may, so that it is asked of sentences and
# numbers in free text and no more: inside tags, and behind a command, nobody writes one.
EXPECTED = ("spaces", "line breaks")


def _free_full_stop(text: str) -> str:
    is_sentence = text[-1:].isdigit() or " " in text.strip()
    return _full_stop(text) if is_sentence and INNERMOST.search(text) is None else text


FREE_FULL_STOP = TextEdit("full stop", "a full stop at the end of the answer", _free_full_stop)


def declared(family: Any) -> tuple[str, ...] | None:
    """What the family says may vary; None: it says nothing."""
    kinds = getattr(family, "may_vary", None)
    return None if kinds is None else tuple(kinds)


def variations_of(family: Any) -> tuple[list[TextEdit], list[TextEdit]]:
    """(those that must be paid, those of which only the outcome is said)."""
    own = declared(family)
    must = EXPECTED if own is None else own
    paid = [variation for variation in VARIATIONS if variation.kind in must]
    return paid, [FREE_FULL_STOP] if own is None else []
