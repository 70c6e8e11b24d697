"""Tokenize sampled text re-encoded, on purpose, and count what breaks: the bug that invariant 2 forbids. Nothing else in this
package does it.

    wb.retokenize(session, groups)       how many turns come back with different ids, and what the recorded mask marks then
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from workbench.basics.annotated import checked_methods
from workbench.learn.batch import Batch
from workbench.look import doc, words
from workbench.look.html import view_from
from workbench.look.looks import INK, MUTED, Look
from workbench.look.tokens import TokenTexts
from workbench.values import Group, Segment, Source, Span, Trajectory, View, trajectories_of
from workbench.values.view import HasView

if TYPE_CHECKING:
    from workbench.training.session import Session

EDGE = f"1px solid {MUTED}"
SAME = Look("#eef2f5", INK, right=EDGE)
OTHER = Look("#fde3c3", "#583200", right=EDGE)  # tokens that are not the same on both sides
LONGEST = 60  # tokens of a turn that are drawn


@dataclass(frozen=True)
class TurnTwice:
    """A turn as it was sampled, and as its text is tokenized.

    attempt     number over all groups
    turn        index in the trajectory
    sampled     the ids that were sampled
    encoded     the ids that its text gives
    logp        of the sampled ids, as recorded
    logp_again  what the policy gives to the other ids in the same place; None where they are the same
    """

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
    """What the mask that was recorded at sampling marks in the re-tokenized sequences, by position.

    right   tokens of the policy that it marks
    others  tokens of others that it marks
    missed  tokens of the policy that it misses
    """

    right: int
    others: int
    missed: int


@checked_methods
@dataclass(frozen=True, eq=False, repr=False)
class Retokenized(HasView):
    """Every sampled turn beside the ids that its text gives, what the recorded mask would mark in the result, and the
    groups with the new ids in the place of the sampled ones (`groups`: not for training). Shows itself."""

    turns: tuple[TurnTwice, ...]
    damage: MaskDamage
    groups: tuple[Group, ...]
    token_texts: TokenTexts

    @property
    def changed(self) -> int:
        """Turns that come back with different ids."""
        return sum(turn.differs for turn in self.turns)

    def view(self, max_turns: int = 4) -> View:
        title = f"decoded and encoded again: {len(trajectories_of(self.groups))} trajectories"
        return retokenized_view(
            self.turns, self.damage, self.token_texts, title=title, max_turns=max_turns
        )


def retokenize(session: Session, groups: Sequence[Group]) -> Retokenized:
    """What a trainer would be handed that stores text and tokenizes it again, as many do.

    Each turn is decoded, control tokens included, and encoded by the same tokenizer. The logprobs of ids that changed
    are those of the session's learner, in the same place.
    """
    encoded = tuple(_encoded_group(session, group) for group in groups)
    pairs = list(_sampled_spans(groups, encoded))
    any_differs = any(_ids(before) != _ids(after) for _, before, after in pairs)
    logps = _logprobs(session, encoded) if any_differs else None
    turns = []
    start = 0
    for number, before, after in pairs:
        logp_again = None
        if logps is not None and _ids(before) != _ids(after):
            logp_again = float(logps[start : start + len(after)].sum())
        start += len(after)
        # Comparable: of the distribution that neither temperature nor top-p has changed.
        logp = before.logprobs if before.plain_logprobs is None else before.plain_logprobs
        ids = (_ids(before), _ids(after))
        turns.append(TurnTwice(number, before.turn, *ids, float(logp.sum()), logp_again))
    return Retokenized(tuple(turns), _damage(groups, encoded), encoded, session.chat.token_texts)


def _encoded_group(session: Session, group: Group) -> Group:
    members = []
    for trajectory in group:
        segments = tuple(_again(session, segment) for segment in trajectory.segments)
        members.append(replace(trajectory, segments=segments))
    return Group(tuple(members), group.greedy)


def _again(session: Session, segment: Segment) -> Segment:
    """The segment with the text of its sampled spans encoded anew. Their logprobs are not known: zeros stand there."""
    backend = session.chat.encoder.backend
    spans = []
    for span in segment.spans:
        if span.sampled:
            text = backend.decode(_ids(span), skip_special_tokens=False)
            ids = backend.encode(text, add_special_tokens=False).ids
            if tuple(ids) != _ids(span):
                zeros = np.zeros(len(ids))
                span = replace(span, token_ids=ids, logprobs=zeros, plain_logprobs=None)
        spans.append(span)
    return replace(segment, spans=tuple(spans))


def _both(
    groups: Sequence[Group], encoded: Sequence[Group]
) -> Iterator[tuple[int, Segment, Segment]]:
    """(number of the trajectory, segment as it was sampled, segment with the new ids), in order."""
    trajectories: list[tuple[Trajectory, Trajectory]] = list(
        zip(trajectories_of(groups), trajectories_of(encoded))
    )
    for number, (before, after) in enumerate(trajectories):
        for segments in zip(before.segments, after.segments):
            yield number, *segments


def _sampled_spans(
    groups: Sequence[Group], encoded: Sequence[Group]
) -> Iterator[tuple[int, Span, Span]]:
    """(number of the trajectory, span as it was sampled, span with the new ids), in order."""
    for number, before, after in _both(groups, encoded):
        for spans in zip(before.spans, after.spans):
            if spans[0].sampled:
                yield number, *spans


def _ids(span: Span) -> tuple[int, ...]:
    return tuple(int(token) for token in span.token_ids)


def _logprobs(session: Session, groups: Sequence[Group]) -> np.ndarray:
    """The policy's logprobs of all sampled tokens, in order."""
    batch = Batch.from_groups(groups)
    return session.learner.logprobs(batch, batch.eligible_T)[batch.eligible_T].numpy()


def _damage(groups: Sequence[Group], encoded: Sequence[Group]) -> MaskDamage:
    right = others = missed = 0
    for _, recorded, again in _both(groups, encoded):
        marked = np.zeros(len(again), bool)
        mask = recorded.eligible[: len(again)]
        marked[: len(mask)] = mask
        policy = (again.sources == Source.POLICY) & again.eligible
        right += int((marked & policy).sum())
        others += int((marked & ~policy).sum())
        missed += int((policy & ~marked).sum())
    return MaskDamage(right, others, missed)


# ------------------------------------------------------------------------------------------------ the view


def retokenized_view(
    turns: Sequence[TurnTwice],
    damage: MaskDamage,
    token_texts: TokenTexts,
    *,
    title: str,
    max_turns: int = 4,
) -> View:
    """How many turns come back with different ids, and the first of them, both ways, token by token (`▏` between tokens).

    You will see the counts, what the recorded mask now marks, and per turn the logprob that was recorded beside the one
    of the ids that a trainer would be given: it would take their ratio for a change of the policy.
    """
    other = [turn for turn in turns if turn.differs]
    sampled = sum(len(turn.sampled) for turn in turns)
    encoded = sum(len(turn.encoded) for turn in turns)
    facts = (
        f"{len(other):,} of {words.count(len(turns), 'turn')} have different ids after re-encoding"
        f" · {sampled:,} tokens sampled, {encoded:,} re-encoded"
    )
    mask: doc.Part = doc.Note("the recorded mask still fits")
    if other:
        mask = doc.WarningLine(
            f"the mask recorded at sampling now marks {damage.right:,} tokens of the policy, {damage.others:,} of "
            f"other authors, and misses {damage.missed:,} of the policy's",
            mark="",
        )
    parts: list[doc.Part] = []
    for turn in other[:max_turns]:
        parts += _turn_parts(turn, token_texts)
    if len(other) > max_turns:
        parts.append(doc.Note(f"first {max_turns} shown, {len(other) - max_turns} more differ"))
    return view_from(doc.Heading(title), doc.Note(facts), mask, *parts)


def _turn_parts(turn: TurnTwice, token_texts: TokenTexts) -> Iterator[doc.Part]:
    known = turn.logp_again is not None and np.isfinite(turn.logp_again)
    again = f"{turn.logp_again:.2f}" if known else "—"
    yield doc.Note(
        f"attempt {turn.attempt}, turn {turn.turn}: {len(turn.sampled)} tokens sampled, {len(turn.encoded)} re-encoded; "
        f"logprob {turn.logp:.2f} when sampled, {again} re-encoded"
    )
    same_head, same_tail = _common(turn.sampled, turn.encoded)
    for name, ids in (("sampled", turn.sampled), ("re-encoded", turn.encoded)):
        texts = token_texts(ids)
        yield _token_line(f"  {name:<10}  ", texts, same_head, len(texts) - same_tail)


def _common(a: Sequence[int], b: Sequence[int]) -> tuple[int, int]:
    """How many tokens are the same from the front, and of the rest from the back."""
    shorter = min(len(a), len(b))
    head = 0
    while head < shorter and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < shorter - head and a[len(a) - 1 - tail] == b[len(b) - 1 - tail]:
        tail += 1
    return head, tail


def _token_line(label: str, texts: Sequence[str], begin: int, end: int) -> doc.TokenLine:
    """Tokens with a border each, those in begin..end marked."""
    tokens = []
    for place, text in enumerate(texts[:LONGEST]):
        tokens.append(doc.Styled(text, OTHER if begin <= place < end else SAME))
    return doc.TokenLine(label, tuple(tokens), hidden=max(0, len(texts) - LONGEST))
