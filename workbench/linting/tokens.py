"""Which tokens are trained, and of which turn each is (R5 R9).

Axis letters: N trajectories · P spans · T tokens · E sampled tokens of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from workbench.basics.findings import NOTE, Checked, Finding, NotChecked, Place
from workbench.linting.credit import severity_of_a_choice
from workbench.linting.evidence import Evidence
from workbench.linting.flat import ENV, POLICY, PROMPT, Flat
from workbench.linting.rule import Rule, RuleResult

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
    yield Checked(count, "how many tokens may be trained")
    if evidence.groups and len(evidence.trajectories) == count:
        yield from _silent_rows(evidence, eligible_N)
    elif not evidence.groups:
        yield NotChecked("trajectories", "turns without a token that counts")
    credit = evidence.credit
    if credit is None:
        yield NotChecked("the credit", "how many tokens of a trajectory have a weight")
        return
    if len(credit.weight_T) == len(row_T):
        yield from _weights(evidence, row_T, eligible_N)


def _row_T(batch: Batch) -> np.ndarray:
    """The trajectory of each token, by offsets."""
    return np.repeat(batch.trajectory_of_segment_S.numpy(), np.diff(batch.segment_offsets.numpy()))


def _silent_rows(evidence: Evidence, eligible_N: np.ndarray) -> Iterator[Finding]:
    for n, trajectory in enumerate(evidence.trajectories):
        declared = any(segment.untrained for segment in trajectory.segments)
        if trajectory.turns and not eligible_N[n] and not declared:
            yield Finding(
                f"{len(trajectory.turns)} turns and not one token that counts as sampled: nothing of this "
                "trajectory can be trained",
                evidence.place(n),
            )


class RowTokens(NamedTuple):
    """Counts of tokens, by trajectory of a batch."""

    may_N: np.ndarray  # that may be trained
    trained_N: np.ndarray  # that are
    scored_N: np.ndarray  # bool: whether it is scored


def _weights(evidence: Evidence, row_T: np.ndarray, eligible_N: np.ndarray) -> Iterator[Finding]:
    batch = evidence.batch
    credit = evidence.credit
    recipe = evidence.plain_recipe.recipe
    wide = credit.widened is not None if recipe is None else "loss_over" in recipe.widened
    count = len(eligible_N)
    rows = RowTokens(
        np.bincount(row_T[batch.response_T.numpy()], minlength=count) if wide else eligible_N,
        np.bincount(row_T[credit.weight_T.numpy() != 0], minlength=count),
        batch.scored_N.numpy(),
    )
    if not rows.trained_N.any():
        scored = int(rows.may_N[rows.scored_N].sum())
        if scored and not _leaves_out(evidence):
            yield Finding(
                f"not one of {len(row_T)} tokens has a weight, though {scored} sampled ones are scored",
                Place(step=evidence.step),
                severity_of_a_choice(evidence),
                len(row_T),
            )
        return
    yield from _wrong_rows(evidence, rows, "stand in its response" if wide else "were sampled")
    if not _leaves_out(evidence):
        yield from _too_few(evidence, rows, len(row_T))


def _wrong_rows(evidence: Evidence, rows: RowTokens, what: str) -> Iterator[Finding]:
    """Trajectories of which a part is trained, more than may be, or something though they are not scored."""
    may_N, trained_N, scored_N = rows
    for n in np.flatnonzero((trained_N > 0) & (trained_N < may_N)).tolist():
        yield Finding(
            f"{trained_N[n]} of {may_N[n]} tokens of this trajectory are trained: a row weighs as a whole",
            _place_of_row(evidence, n),
            severity_of_a_choice(evidence),
            int(may_N[n] - trained_N[n]),
        )
    for n in np.flatnonzero(trained_N > may_N).tolist():
        yield Finding(
            f"{trained_N[n]} tokens of this trajectory are trained, and only {may_N[n]} {what}",
            _place_of_row(evidence, n),
            count=int(trained_N[n] - may_N[n]),
        )
    for n in np.flatnonzero((trained_N > 0) & ~scored_N).tolist():
        yield Finding(
            f"{trained_N[n]} tokens of an unscored trajectory are trained",
            _place_of_row(evidence, n),
            count=int(trained_N[n]),
        )


def _too_few(evidence: Evidence, rows: RowTokens, num_tokens: int) -> Iterator[Finding]:
    silent = np.flatnonzero((rows.trained_N == 0) & (rows.may_N > 0) & rows.scored_N)
    if len(silent):
        yield Finding(
            f"{len(silent)} scored trajectories have sampled tokens and not one trained; this is the first",
            _place_of_row(evidence, int(silent[0])),
            severity_of_a_choice(evidence),
            len(silent),
        )
    total = rows.trained_N.sum()
    share = total / num_tokens
    if share < FEW:
        yield Finding(
            f"{total} of {num_tokens} tokens are trained ({share:.2%})",
            Place(step=evidence.step),
            NOTE,
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
    yield from _replies(flat, sampled)


def _replies(flat: Flat, sampled: np.ndarray) -> Iterator[Finding]:
    """What stands after a sampled turn, to the next one, belongs to it; a prompt belongs to turn 0."""
    if not len(sampled):
        return
    # The number of the last sampled span up to here.
    before = np.searchsorted(sampled, np.arange(len(flat.spans)), side="right") - 1
    last = sampled[np.maximum(before, 0)]
    follows = (before >= 0) & (flat.segment_P[last] == flat.segment_P) & ~flat.sampled_P
    wrong = follows & (flat.turn_P != flat.turn_P[last])
    wrong |= (flat.source_P == PROMPT) & (flat.turn_P != 0)
    wrong[_out_of_order(flat)] = True
    for p in np.flatnonzero(wrong & (flat.length_P > 0)).tolist():
        belongs = "an earlier turn"
        if follows[p]:
            belongs = f"turn {flat.turn_P[last[p]]}"
        elif flat.source_P[p] == PROMPT:
            belongs = "turn 0"
        yield Finding(
            f"these tokens have the turn id {flat.turn_P[p]} and stand where {belongs} belongs",
            flat.place_of_span(p),
            count=int(flat.length_P[p]),
        )


def _out_of_order(flat: Flat) -> list[int]:
    """Spans of the policy and replies that go back to an earlier turn, or name the turn that they are shown to."""
    # In what is shown of the past, the policy's turns and the replies never go back.
    spoken = np.flatnonzero(np.isin(flat.source_P, (POLICY, ENV)))
    back = (np.diff(flat.turn_P[spoken]) < 0) & (np.diff(flat.segment_P[spoken]) == 0)
    wrong = spoken[1:][back].tolist()
    # The newest reply that a turn is shown is the answer to the turn before.
    for p, q in pairwise(spoken.tolist()):
        is_answered = flat.sampled_P[q] and flat.source_P[p] == ENV
        same_segment = flat.segment_P[p] == flat.segment_P[q]
        if is_answered and same_segment and flat.turn_P[p] >= flat.turn_P[q]:
            wrong.append(p)
    return wrong


def _turns_of_batch(evidence: Evidence) -> Iterator[RuleResult]:
    """By the batch alone, the turns of a trajectory's sampled tokens (those with a logprob, whether they are trained or not)
    are 0, 1, 2 ... without a gap."""
    batch = evidence.batch
    row_T = _row_T(batch)
    if len(batch.turn_T) != len(row_T) or len(batch.eligible_T) != len(row_T):
        yield Finding(
            f"{len(batch.turn_T)} turn ids for {len(row_T)} tokens", Place(step=evidence.step)
        )
        return
    at_E = np.flatnonzero(~batch.rollout_logp_T.isnan().numpy())
    row_E = row_T[at_E]
    turn_E = batch.turn_T.numpy()[at_E]
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
        turn_ids = list(dict.fromkeys(turn_E[row_E == n].tolist()))
        yield Finding(
            f"the sampled tokens of this trajectory have the turn ids {turn_ids}; it has {turns_N[n]} turns, so "
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
