"""What becomes of sampled tokens when their text is tokenized once more: the bug that law 2 forbids, on purpose."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.types import View
from workbench.views import markup as m
from workbench.views import words
from workbench.views.escape import visible
from workbench.views.markup import Html, tag

TokenTexts = Callable[[Sequence[int]], list[str]]
OTHER = ("#fde3c3", "#583200")  # tokens that are not the same on both sides
LONGEST = 60  # tokens of a turn that are drawn


@dataclass(frozen=True)
class TurnTwice:
    """A turn as it was sampled, and as its text is tokenized. `logp`: what the sampled ids had, as recorded;
    `logp_again` what the policy gives to the other ids in the same place, None where they are the same."""

    attempt: int
    turn: int
    sampled: tuple[int, ...]
    encoded: tuple[int, ...]
    logp: float
    logp_again: float | None = None

    @property
    def differs(self) -> bool:
        return self.sampled != self.encoded


@dataclass(frozen=True)
class MaskDamage:
    """What the mask that was recorded at sampling marks in the re-tokenized sequences, by position: tokens of the
    policy that it marks, tokens of others that it marks, tokens of the policy that it misses."""

    right: int
    others: int
    missed: int


def show_retokenized(turns: Sequence[TurnTwice], damage: MaskDamage, token_texts: TokenTexts, *, title: str,
                     max_turns: int = 4) -> View:
    """How many turns come back with other ids, and the first of them, both ways, token by token (`▏` between tokens).

    You will see the counts, what the recorded mask now marks, and per turn the logprob that was recorded beside the one
    of the ids that a trainer would be given: it would take their ratio for a change of the policy.
    """
    other = [turn for turn in turns if turn.differs]
    facts = [f"{len(other):,} of {words.count(len(turns), 'turn')} come back with other ids",
             f"{sum(len(t.sampled) for t in turns):,} tokens were sampled, {sum(len(t.encoded) for t in turns):,} come "
             "back"]
    mask = (f"the mask recorded at sampling now marks {damage.right:,} tokens of the policy, {damage.others:,} of "
            f"somebody else, and misses {damage.missed:,} of the policy's") if other else "the recorded mask still fits"
    text, html = [visible(title), " · ".join(facts), mask], []
    for turn in other[:max_turns]:
        line = (f"attempt {turn.attempt}, turn {turn.turn}: {len(turn.sampled)} tokens, {len(turn.encoded)} again; "
                f"logprob {turn.logp:.2f} when it was sampled, {_logp(turn.logp_again)} for what came back")
        sampled, encoded = token_texts(turn.sampled), token_texts(turn.encoded)
        text += [line, f"  sampled    {visible('▏'.join(sampled[:LONGEST]), newline='⏎')}",
                 f"  once more  {visible('▏'.join(encoded[:LONGEST]), newline='⏎')}"]
        same_head, same_tail = _common(turn.sampled, turn.encoded)
        rows = [[m.cell(name, align="right", foreground=m.MUTED), _tokens(texts, same_head, len(texts) - same_tail)]
                for name, texts in (("sampled", sampled), ("once more", encoded))]
        html += [m.note(line), m.table(rows)]
    if len(other) > max_turns:
        notice = f"first {max_turns} shown, {len(other) - max_turns} more differ"
        text.append(notice)
        html.append(m.note(notice))
    head = m.warning(mask) if other else m.note(mask)
    return m.finished(m.card(m.heading(title), m.note(" · ".join(facts)), head, *html), "\n".join(text))


def _logp(value: float | None) -> str:
    return "—" if value is None or not np.isfinite(value) else f"{value:.2f}"


def _common(a: Sequence[int], b: Sequence[int]) -> tuple[int, int]:
    """How many tokens are the same from the front, and of the rest from the back."""
    head = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    rest = min(len(a), len(b)) - head
    tail = next((i for i in range(rest) if a[len(a) - 1 - i] != b[len(b) - 1 - i]), rest)
    return head, tail


def _tokens(texts: Sequence[str], begin: int, end: int) -> Html:
    """Tokens with a border each, those in begin..end marked."""
    drawn = []
    for i, text in enumerate(texts[:LONGEST]):
        background, ink = OTHER if begin <= i < end else ("#eef2f5", m.INK)
        drawn.append(tag("span", text.replace("\n", "⏎"), style=(
            f"background-color:{background};color:{ink};border-right:1px solid {m.MUTED};padding:1px 1px")))
    if len(texts) > LONGEST:
        drawn.append(tag("span", f" … {len(texts) - LONGEST} more"))
    return m.cell(*drawn, style=f"font-family:{m.MONO};white-space:pre-wrap;line-height:1.75")
