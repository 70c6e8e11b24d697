"""Which tokens are trained, and of which turn each is (R5 R9).

Axis letters: N trajectories · P spans · T tokens · E sampled tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from workbench.linting.credit import severity_of_a_choice
from workbench.linting.evidence import Evidence
from workbench.linting.flat import ENV, POLICY, PROMPT, Flat
from workbench.linting.rule import Rule, RuleResult
from workbench.types.findings import NOTE, Checked, Finding, NotChecked, Place

if TYPE_CHECKING:
    from workbench.learn.batch import Batch

FEW = (
    0.002  # of all tokens trained: less than this is worth a look (clean rollouts here: 1 to 60 %)
)


# ------------------------------------------------------------------------------------------------ R5


def check_share(evidence: Evidence) -> Iterator[RuleResult]:
    """How many tokens are trained, by trajectory: all that were sampled, of those that count; never everything."""
    batch = evidence.batch
    row_T = _row_T(batch)
    if len(row_T) != len(batch.eligible_T):
        return  # R4 says so
    count = batch.num_trajectories
    eligible_N = np.bincount(row_T[batch.eligible_T.numpy()], minlength=count)
    yield Checked(count)
    if evidence.groups and len(evidence.trajectories) == count:
        yield from _silent_rows(evidence, eligible_N)
    elif not evidence.groups:
        yield NotChecked("trajectories (how many turns each has)")
    credit = evidence.credit
    if credit is None:
        yield NotChecked("the credit")
        return
    if len(credit.weight_T) == len(row_T):
        yield from _weights(evidence, row_T, eligible_N)


def _row_T(batch: Batch) -> np.ndarray:
    """The trajectory of each token, by offsets."""
    return np.repeat(batch.trajectory_of_segment_S.numpy(), np.diff(batch.segment_offsets.numpy()))


def _silent_rows(evidence: Evidence, eligible_N: np.ndarray) -> Iterator[Finding]:
    for n, trajectory in enumerate(evidence.trajectories):
        if trajectory.turns and not eligible_N[n]:
            yield Finding(
                f"{len(trajectory.turns)} turns and not one token that counts as sampled: nothing of this "
                "trajectory can be trained",
                evidence.place(n),
            )


def _weights(evidence: Evidence, row_T: np.ndarray, eligible_N: np.ndarray) -> Iterator[Finding]:
    batch, credit = evidence.batch, evidence.credit
    recipe = evidence.twin.recipe
    wide = credit.widened is not None if recipe is None else "loss_over" in recipe.widened
    may_N = (
        eligible_N
        if not wide
        else np.bincount(row_T[batch.response_T.numpy()], minlength=len(eligible_N))
    )
    trained_N = np.bincount(row_T[credit.weight_T.numpy() != 0], minlength=len(eligible_N))
    scored_N = batch.scored_N.numpy()
    everywhere = Place(step=evidence.step)
    chosen = severity_of_a_choice(evidence)
    if not trained_N.sum():
        if may_N[scored_N].sum() and not _leaves_out(evidence):
            yield Finding(
                f"not one of {len(row_T)} tokens has a weight, though {int(may_N[scored_N].sum())} sampled "
                "ones are scored",
                everywhere,
                chosen,
                len(row_T),
            )
        return
    partly = np.flatnonzero((trained_N > 0) & (trained_N < may_N))
    for n in partly.tolist():
        yield Finding(
            f"{trained_N[n]} of {may_N[n]} tokens of this trajectory are trained: a row weighs as a whole",
            _place_of_row(evidence, n),
            chosen,
            int(may_N[n] - trained_N[n]),
        )
    for n in np.flatnonzero(trained_N > may_N).tolist():
        yield Finding(
            f"{trained_N[n]} tokens of this trajectory are trained, and only {may_N[n]} "
            f"{'stand in its response' if wide else 'were sampled'}",
            _place_of_row(evidence, n),
            count=int(trained_N[n] - may_N[n]),
        )
    for n in np.flatnonzero((trained_N > 0) & ~scored_N).tolist():
        yield Finding(
            f"{trained_N[n]} tokens of an unscored trajectory are trained",
            _place_of_row(evidence, n),
            count=int(trained_N[n]),
        )
    silent = np.flatnonzero((trained_N == 0) & (may_N > 0) & scored_N)
    if len(silent) and not _leaves_out(evidence):
        yield Finding(
            f"{len(silent)} scored trajectories have sampled tokens and not one trained; this is the first",
            _place_of_row(evidence, int(silent[0])),
            chosen,
            len(silent),
        )
    share = trained_N.sum() / len(row_T)
    if share < FEW and not _leaves_out(evidence):
        yield Finding(
            f"{trained_N.sum()} of {len(row_T)} tokens are trained ({share:.2%})", everywhere, NOTE
        )


def _leaves_out(evidence: Evidence) -> bool:
    """Whether a declared filter may leave whole trajectories out (or nothing is known of one)."""
    chosen = getattr(evidence.algorithm, "filter", None)
    return chosen is None or chosen.acts


def _place_of_row(evidence: Evidence, n: int) -> Place:
    return Place(evidence.batch.names_N[n], n, step=evidence.step)


R5 = Rule(
    "R5",
    "trained share",
    "Rows without a trainable token look like data and teach nothing; rows with more than was sampled teach what the "
    "environment said.",
    "Look at the mask where the rows are made: ids that were tokenized again no longer match it, a wrong offset or an "
    "empty span empties it.",
    ("batch",),
    check_share,
    threads=("ART#127", "rllm#352", "agent-lightning#74"),
)


# ------------------------------------------------------------------------------------------------ R9


def check_turns(evidence: Evidence) -> Iterator[RuleResult]:
    """Turn ids are there, grow, and name the exchange that a token belongs to."""
    if not evidence.groups and evidence.batch is None:
        yield NotChecked("trajectories")
    if evidence.groups:
        yield from _turns_of_spans(evidence, evidence.flat)
    if evidence.batch is not None:
        yield from _turns_of_batch(evidence)


def _turns_of_spans(evidence: Evidence, flat: Flat) -> Iterator[RuleResult]:
    yield Checked(len(flat.spans))
    for n, trajectory in enumerate(evidence.trajectories):
        indices = [turn.index for turn in trajectory.turns]
        if indices != list(range(len(indices))):
            yield Finding(
                f"the turns are numbered {indices}, expected 0 to {len(indices) - 1}",
                evidence.place(n),
            )
    sampled = np.flatnonzero(flat.sampled_P)
    # The k-th sampled span of a trajectory is its turn k.
    row = flat.trajectory_P[sampled]
    ordinal = np.arange(len(sampled)) - np.searchsorted(row, row)
    for q in np.flatnonzero(flat.turn_P[sampled] != ordinal).tolist():
        yield Finding(
            f"the span sampled as number {ordinal[q]} of its trajectory has the turn id "
            f"{flat.turn_P[sampled[q]]}",
            flat.place_of_span(int(sampled[q])),
            count=int(flat.length_P[sampled[q]]),
        )
    yield from _replies(evidence, flat, sampled)


def _replies(evidence: Evidence, flat: Flat, sampled: np.ndarray) -> Iterator[Finding]:
    """What stands after a sampled turn, to the next one, belongs to it; a prompt belongs to turn 0."""
    if not len(sampled):
        return
    everywhere = np.arange(len(flat.spans))
    before = (
        np.searchsorted(sampled, everywhere, side="right") - 1
    )  # the last sampled span up to here
    last = sampled[np.maximum(before, 0)]
    follows = (before >= 0) & (flat.segment_P[last] == flat.segment_P) & ~flat.sampled_P
    wrong = follows & (flat.turn_P != flat.turn_P[last])
    wrong |= (flat.source_P == PROMPT) & (flat.turn_P != 0)
    # In what is shown of the past, the policy's turns and the replies never go back.
    spoken = np.flatnonzero(np.isin(flat.source_P, (POLICY, ENV)))
    back = spoken[1:][(np.diff(flat.turn_P[spoken]) < 0) & (np.diff(flat.segment_P[spoken]) == 0)]
    wrong[back] = True
    # The newest reply that a turn is shown is the answer to the turn before.
    for p, q in pairwise(spoken.tolist()):
        if (
            flat.sampled_P[q]
            and flat.source_P[p] == ENV
            and flat.segment_P[p] == flat.segment_P[q]
            and flat.turn_P[p] >= flat.turn_P[q]
        ):
            wrong[p] = True
    for p in np.flatnonzero(wrong & (flat.length_P > 0)).tolist():
        belongs = (
            f"turn {flat.turn_P[last[p]]}"
            if follows[p]
            else "turn 0"
            if flat.source_P[p] == PROMPT
            else "an earlier turn"
        )
        yield Finding(
            f"these tokens have the turn id {flat.turn_P[p]} and stand where {belongs} belongs",
            flat.place_of_span(p),
            count=int(flat.length_P[p]),
        )


def _turns_of_batch(evidence: Evidence) -> Iterator[RuleResult]:
    """Of the batch alone: the turns of a trajectory's sampled tokens are 0, 1, 2 ... without a gap."""
    batch = evidence.batch
    row_T = _row_T(batch)
    if len(batch.turn_T) != len(row_T) or len(batch.eligible_T) != len(row_T):
        yield Finding(
            f"{len(batch.turn_T)} turn ids for {len(row_T)} tokens", Place(step=evidence.step)
        )
        return
    at_E = np.flatnonzero(batch.eligible_T.numpy())
    row_E, turn_E = row_T[at_E], batch.turn_T.numpy()[at_E]
    yield Checked(len(at_E))
    starts_E = np.diff(row_E, prepend=-1) != 0
    step_E = np.diff(turn_E, prepend=0)
    wrong_E = np.where(starts_E, turn_E != 0, (step_E != 0) & (step_E != 1))
    turns_N = np.diff(batch.turn_offsets.numpy())
    last = np.flatnonzero(
        np.diff(row_E, append=-1) != 0
    )  # the last sampled token of each trajectory
    wrong_E[last] |= turn_E[last] + 1 != turns_N[row_E[last]]
    for n, first in zip(*np.unique(row_E[wrong_E], return_index=True), strict=True):
        at = int(at_E[np.flatnonzero(wrong_E)[first]])
        said = list(dict.fromkeys(turn_E[row_E == n].tolist()))
        yield Finding(
            f"the sampled tokens of this trajectory have the turn ids {said}; it has {turns_N[n]} turns, so "
            f"0 to {turns_N[n] - 1} in order",
            evidence.place_of_token(at),
        )


R9 = Rule(
    "R9",
    "turn ids",
    "Rewards by turn reach the tokens of another turn, or those of all: discounting and turn-level credit act on "
    "something else than what was done.",
    "Number the turns where they are sampled, by trajectory, and hand the number on with the span.",
    (),
    check_turns,
    threads=("AReaL#1666",),
)

RULES: tuple[Rule, ...] = (R5, R9)
