"""Tokenize sampled text once more, on purpose, and count what breaks. Nothing else in this package does it (law 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from workbench.learn.batch import Batch
from workbench.types import Group, Segment, Source, Span, View, trajectories_of
from workbench.types.view import HasView
from workbench.views.retokenized import MaskDamage, TurnTwice, show_retokenized
from workbench.views.tokens import TokenTexts

if TYPE_CHECKING:
    from workbench.training.session import Session


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
        """Turns that come back with other ids."""
        return sum(turn.differs for turn in self.turns)

    def view(self, max_turns: int = 4) -> View:
        title = f"decoded and encoded again: {len(trajectories_of(self.groups))} attempts"
        return show_retokenized(
            self.turns, self.damage, self.token_texts, title=title, max_turns=max_turns
        )


def retokenize(session: Session, groups: Sequence[Group]) -> Retokenized:
    """What a trainer would be handed that stores text and tokenizes it again, as many do.

    Each turn is decoded, control tokens included, and encoded by the same tokenizer. The logprobs of ids that changed
    are those of the session's learner, in the same place.
    """
    made = tuple(
        Group(
            tuple(
                replace(t, segments=tuple(_again(session, s) for s in t.segments)) for t in group
            ),
            group.greedy,
        )
        for group in groups
    )
    pairs = [
        (n, before, after)
        for n, (t, u) in enumerate(zip(trajectories_of(groups), trajectories_of(made)))
        for s, r in zip(t.segments, u.segments)
        for before, after in zip(s.spans, r.spans)
        if before.sampled
    ]
    logps = _logprobs(session, made) if any(_ids(b) != _ids(a) for _, b, a in pairs) else None
    turns, at = [], 0
    for n, before, after in pairs:
        logp_again = (
            None
            if logps is None or _ids(before) == _ids(after)
            else float(logps[at : at + len(after)].sum())
        )
        at += len(after)
        logp = (
            before.logprobs if before.plain_logprobs is None else before.plain_logprobs
        )  # comparable: not bent
        turns.append(
            TurnTwice(n, before.turn, _ids(before), _ids(after), float(logp.sum()), logp_again)
        )
    return Retokenized(tuple(turns), _damage(groups, made), made, session.chat.token_texts)


def _ids(span: Span) -> tuple[int, ...]:
    return tuple(int(token) for token in span.token_ids)


def _again(session: Session, segment: Segment) -> Segment:
    """The segment with the text of its sampled spans encoded anew. Their logprobs are not known: zeros stand there."""
    backend, spans = session.chat.encoder.backend, []
    for span in segment.spans:
        if span.sampled:
            text = backend.decode(_ids(span), skip_special_tokens=False)
            ids = backend.encode(text, add_special_tokens=False).ids
            if tuple(ids) != _ids(span):
                span = replace(
                    span, token_ids=ids, logprobs=np.zeros(len(ids)), plain_logprobs=None
                )
        spans.append(span)
    return Segment(tuple(spans))


def _logprobs(session: Session, groups: Sequence[Group]) -> np.ndarray:
    """The policy's logprobs of all sampled tokens, in order."""
    batch = Batch.from_groups(groups)
    return session.learner.logprobs(batch, batch.eligible_T)[batch.eligible_T].numpy()


def _damage(groups: Sequence[Group], made: Sequence[Group]) -> MaskDamage:
    right = others = missed = 0
    for t, u in zip(trajectories_of(groups), trajectories_of(made)):
        for recorded, again in zip(t.segments, u.segments):
            length = len(again)
            marked = np.zeros(length, bool)
            mask = recorded.eligible[:length]
            marked[: len(mask)] = mask
            policy = (again.sources == Source.POLICY) & again.eligible
            right += int((marked & policy).sum())
            others += int((marked & ~policy).sum())
            missed += int((policy & ~marked).sum())
    return MaskDamage(right, others, missed)
