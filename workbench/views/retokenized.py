"""What becomes of sampled tokens when their text is tokenized once more: the bug that law 2 forbids, on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.types import View
from workbench.views import doc, words
from workbench.views.html import shown
from workbench.views.looks import INK, MUTED, Look
from workbench.views.tokens import TokenTexts

EDGE = f"1px solid {MUTED}"
SAME = Look("#eef2f5", INK, right=EDGE)
OTHER = Look("#fde3c3", "#583200", right=EDGE)  # tokens that are not the same on both sides
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


def show_retokenized(
    turns: Sequence[TurnTwice],
    damage: MaskDamage,
    token_texts: TokenTexts,
    *,
    title: str,
    max_turns: int = 4,
) -> View:
    """How many turns come back with other ids, and the first of them, both ways, token by token (`▏` between tokens).

    You will see the counts, what the recorded mask now marks, and per turn the logprob that was recorded beside the one
    of the ids that a trainer would be given: it would take their ratio for a change of the policy.
    """
    other = [turn for turn in turns if turn.differs]
    facts = [
        f"{len(other):,} of {words.count(len(turns), 'turn')} come back with other ids",
        f"{sum(len(t.sampled) for t in turns):,} tokens were sampled, {sum(len(t.encoded) for t in turns):,} come "
        "back",
    ]
    mask = (
        (
            f"the mask recorded at sampling now marks {damage.right:,} tokens of the policy, {damage.others:,} of "
            f"somebody else, and misses {damage.missed:,} of the policy's"
        )
        if other
        else "the recorded mask still fits"
    )
    parts: list[doc.Part] = []
    for turn in other[:max_turns]:
        again = (
            "—"
            if turn.logp_again is None or not np.isfinite(turn.logp_again)
            else f"{turn.logp_again:.2f}"
        )
        parts.append(
            doc.Note(
                f"attempt {turn.attempt}, turn {turn.turn}: {len(turn.sampled)} tokens, {len(turn.encoded)} again; "
                f"logprob {turn.logp:.2f} when it was sampled, {again} for what came back"
            )
        )
        same_head, same_tail = _common(turn.sampled, turn.encoded)
        for name, ids in (("sampled", turn.sampled), ("once more", turn.encoded)):
            texts = token_texts(ids)
            parts.append(_tokens(f"  {name:<9}  ", texts, same_head, len(texts) - same_tail))
    if len(other) > max_turns:
        parts.append(doc.Note(f"first {max_turns} shown, {len(other) - max_turns} more differ"))
    head = doc.WarningLine(mask, mark="") if other else doc.Note(mask)
    return shown(doc.ViewDocument((doc.Heading(title), doc.Note(" · ".join(facts)), head, *parts)))


def _common(a: Sequence[int], b: Sequence[int]) -> tuple[int, int]:
    """How many tokens are the same from the front, and of the rest from the back."""
    head = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    rest = min(len(a), len(b)) - head
    tail = next((i for i in range(rest) if a[len(a) - 1 - i] != b[len(b) - 1 - i]), rest)
    return head, tail


def _tokens(label: str, texts: Sequence[str], begin: int, end: int) -> doc.TokenLine:
    """Tokens with a border each, those in begin..end marked."""
    drawn = tuple(
        doc.Styled(text, OTHER if begin <= i < end else SAME)
        for i, text in enumerate(texts[:LONGEST])
    )
    return doc.TokenLine(label, drawn, hidden=max(0, len(texts) - LONGEST))
