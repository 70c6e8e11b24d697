"""How a chat template has its model write: calls, thoughts, and what ends a turn.

Told from the template by an extension that provides `template_manner`; without one, nothing of it is known, and turns
are read as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workbench.basics.extensions import has_service, service
from workbench.chat.skeleton import Template


def _as_it_is(text: str) -> str:
    return text


@dataclass(frozen=True)
class Manner:
    """How turns are written where this template is used.

    calls    name of the form of calls that the template writes; "": it writes none; None: one that nobody here reads
    opens    the prompt ends in a thought that it has opened
    ends     control tokens that end a turn, as text, beside the template's end of turn and the tokenizer's
    instead  those of `ends` that stand in the place of the template's end of turn: none is supplied after them
    inside   control tokens that stand inside a turn, as text: they end none
    plain    text of a turn -> what environments read: its thought, in whatever marks, is closed by </think>
    notes    what should be known of it, in words
    """

    calls: str | None = ""
    opens: bool = False
    ends: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    plain: Callable[[str], str] = _as_it_is
    notes: tuple[str, ...] = ()


def manner_of(template: Template, controls: tuple[str, ...]) -> Manner:
    """The manner of a template. `controls`: the tokenizer's control tokens, as text."""
    name = "template_manner"
    if not has_service(name):
        return Manner()
    return service(name, "reading turns as the chat template asks for them")(template, controls)
