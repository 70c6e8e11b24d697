"""Tokens: trained share, turn ids, noise (R5 R9 R22); prefixes, provenance, alignment (R1 R3 R4) in files of their own.

Axis letters: N trajectories · G in a group · P spans · T tokens.
"""
from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from workbench.linting.alignment import R4
from workbench.linting.credit import severity_of_a_choice
from workbench.linting.evidence import Evidence
from workbench.linting.flat import ENV, POLICY, PROMPT, Flat
from workbench.linting.prefixes import JOURNAL, R1, JournalEntry, journal_of
from workbench.linting.provenance import R3
from workbench.linting.rule import Rule, RuleResult
from workbench.types.findings import NOTE, Checked, Finding, NotChecked, Place

if TYPE_CHECKING:
    from workbench.learn.batch import Batch

# Two attempts that draw by themselves say the same by chance with probability exp(sum of logprobs). Over a run of a
# million steps, a false alarm of this bound is still a one-in-a-million event.
COINCIDENCE = 1e-12
FEW = 0.002  # of all tokens trained: less than this is worth a look (clean rollouts here: 1 to 60 %)


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
            yield Finding(f"{len(trajectory.turns)} turns and not one token that counts as sampled: nothing of this "
                          "trajectory can be trained", evidence.place(n))


def _weights(evidence: Evidence, row_T: np.ndarray, eligible_N: np.ndarray) -> Iterator[Finding]:
    batch, credit = evidence.batch, evidence.credit
    recipe = evidence.twin.recipe
    wide = credit.widened is not None if recipe is None else "loss_over" in recipe.widened
    may_N = eligible_N if not wide else np.bincount(row_T[batch.response_T.numpy()], minlength=len(eligible_N))
    trained_N = np.bincount(row_T[credit.weight_T.numpy() != 0], minlength=len(eligible_N))
    scored_N = batch.scored_N.numpy()
    everywhere = Place(step=evidence.step)
    chosen = severity_of_a_choice(evidence)
    if not trained_N.sum():
        if may_N[scored_N].sum() and not _leaves_out(evidence):
            yield Finding(f"not one of {len(row_T)} tokens has a weight, though {int(may_N[scored_N].sum())} sampled "
                          "ones are scored", everywhere, chosen, len(row_T))
        return
    partly = np.flatnonzero((trained_N > 0) & (trained_N < may_N))
    for n in partly.tolist():
        yield Finding(f"{trained_N[n]} of {may_N[n]} tokens of this trajectory are trained: a row weighs as a whole",
                      _place_of_row(evidence, n), chosen, int(may_N[n] - trained_N[n]))
    for n in np.flatnonzero(trained_N > may_N).tolist():
        yield Finding(f"{trained_N[n]} tokens of this trajectory are trained, and only {may_N[n]} "
                      f"{'stand in its response' if wide else 'were sampled'}", _place_of_row(evidence, n),
                      count=int(trained_N[n] - may_N[n]))
    for n in np.flatnonzero((trained_N > 0) & ~scored_N).tolist():
        yield Finding(f"{trained_N[n]} tokens of an unscored trajectory are trained", _place_of_row(evidence, n),
                      count=int(trained_N[n]))
    silent = np.flatnonzero((trained_N == 0) & (may_N > 0) & scored_N)
    if len(silent) and not _leaves_out(evidence):
        yield Finding(f"{len(silent)} scored trajectories have sampled tokens and not one trained; this is the first",
                      _place_of_row(evidence, int(silent[0])), chosen, len(silent))
    share = trained_N.sum() / len(row_T)
    if share < FEW and not _leaves_out(evidence):
        yield Finding(f"{trained_N.sum()} of {len(row_T)} tokens are trained ({share:.2%})", everywhere, NOTE)


def _leaves_out(evidence: Evidence) -> bool:
    """Whether a declared filter may leave whole trajectories out (or nothing is known of one)."""
    chosen = getattr(evidence.algorithm, "filter", None)
    return chosen is None or chosen.acts


def _place_of_row(evidence: Evidence, n: int) -> Place:
    return Place(evidence.batch.names_N[n], n, step=evidence.step)


R5 = Rule(
    "R5", "trained share",
    "Rows without a trainable token look like data and teach nothing; rows with more than was sampled teach what the "
    "environment said.",
    "Look at the mask where the rows are made: ids that were tokenized again no longer match it, a wrong offset or an "
    "empty span empties it.",
    ("batch",), check_share, threads=("ART#127", "rllm#352", "agent-lightning#74"))


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
            yield Finding(f"the turns are numbered {indices}, expected 0 to {len(indices) - 1}", evidence.place(n))
    sampled = np.flatnonzero(flat.sampled_P)
    # The k-th sampled span of a trajectory is its turn k.
    row = flat.trajectory_P[sampled]
    ordinal = np.arange(len(sampled)) - np.searchsorted(row, row)
    for q in np.flatnonzero(flat.turn_P[sampled] != ordinal).tolist():
        yield Finding(f"the span sampled as number {ordinal[q]} of its trajectory has the turn id "
                      f"{flat.turn_P[sampled[q]]}", flat.place_of_span(int(sampled[q])),
                      count=int(flat.length_P[sampled[q]]))
    yield from _replies(evidence, flat, sampled)


def _replies(evidence: Evidence, flat: Flat, sampled: np.ndarray) -> Iterator[Finding]:
    """What stands after a sampled turn, to the next one, belongs to it; a prompt belongs to turn 0."""
    if not len(sampled):
        return
    everywhere = np.arange(len(flat.spans))
    before = np.searchsorted(sampled, everywhere, side="right") - 1  # the last sampled span up to here
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
        if (flat.sampled_P[q] and flat.source_P[p] == ENV and flat.segment_P[p] == flat.segment_P[q]
                and flat.turn_P[p] >= flat.turn_P[q]):
            wrong[p] = True
    for p in np.flatnonzero(wrong & (flat.length_P > 0)).tolist():
        belongs = f"turn {flat.turn_P[last[p]]}" if follows[p] else "turn 0" if flat.source_P[p] == PROMPT else \
            "an earlier turn"
        yield Finding(f"these tokens have the turn id {flat.turn_P[p]} and stand where {belongs} belongs",
                      flat.place_of_span(p), count=int(flat.length_P[p]))


def _turns_of_batch(evidence: Evidence) -> Iterator[RuleResult]:
    """Of the batch alone: the turns of a trajectory's sampled tokens are 0, 1, 2 ... without a gap."""
    batch = evidence.batch
    row_T = _row_T(batch)
    if len(batch.turn_T) != len(row_T) or len(batch.eligible_T) != len(row_T):
        yield Finding(f"{len(batch.turn_T)} turn ids for {len(row_T)} tokens", Place(step=evidence.step))
        return
    at_E = np.flatnonzero(batch.eligible_T.numpy())
    row_E, turn_E = row_T[at_E], batch.turn_T.numpy()[at_E]
    yield Checked(len(at_E))
    starts_E = np.diff(row_E, prepend=-1) != 0
    step_E = np.diff(turn_E, prepend=0)
    wrong_E = np.where(starts_E, turn_E != 0, (step_E != 0) & (step_E != 1))
    turns_N = np.diff(batch.turn_offsets.numpy())
    last = np.flatnonzero(np.diff(row_E, append=-1) != 0)  # the last sampled token of each trajectory
    wrong_E[last] |= turn_E[last] + 1 != turns_N[row_E[last]]
    for n, first in zip(*np.unique(row_E[wrong_E], return_index=True), strict=True):
        at = int(at_E[np.flatnonzero(wrong_E)[first]])
        said = list(dict.fromkeys(turn_E[row_E == n].tolist()))
        yield Finding(f"the sampled tokens of this trajectory have the turn ids {said}; it has {turns_N[n]} turns, so "
                      f"0 to {turns_N[n] - 1} in order", evidence.place_of_token(at))


R9 = Rule(
    "R9", "turn ids",
    "Rewards by turn reach the tokens of another turn, or those of all: discounting and turn-level credit act on "
    "something else than what was done.",
    "Number the turns where they are sampled, by trajectory, and hand the number on with the span.",
    (), check_turns, threads=("AReaL#1666",))


# ------------------------------------------------------------------------------------------------ R22


def check_noise(evidence: Evidence) -> Iterator[RuleResult]:
    """No two requests share a seed; attempts at a task do not repeat each other against all odds."""
    if evidence.journal is not None:
        yield from _seeds(evidence)
    else:
        yield NotChecked(JOURNAL)
    flat = evidence.flat
    drawn_N = _drawn_N(flat)
    cost_T = np.concatenate([[0.0], -np.nan_to_num(flat.logp_T.astype(np.float64)).cumsum()])
    likest: list[Alike] = []
    for first, group in evidence.numbered_groups:
        likest += _likest(flat, [n for n in range(first, first + len(group)) if drawn_N[n]], cost_T)
    yield Checked(len(likest))
    yield from _repeats(evidence, flat, likest)


class Alike(NamedTuple):
    """Attempt `n` begins with the same `length` tokens as the earlier attempt `other`. By chance, an attempt is so like
    any of those before it with a probability of at most exp(-surprise)."""

    n: int
    other: int
    length: int
    surprise: float


def _repeats(evidence: Evidence, flat: Flat, likest: list[Alike]) -> Iterator[Finding]:
    """Attempts that draw by themselves have surprises that are exponentially distributed, or smaller; so one of them is
    judged by itself, and all of them by their sum (Chernoff's bound of a gamma distribution)."""
    count = len(likest)
    alone = [alike for alike in likest if alike.surprise > np.log(max(count, 1) / COINCIDENCE)]
    for n, other, length, surprise in alone:
        yield Finding(
            f"the first {length} tokens are those of attempt {evidence.trajectories[other].attempt}; two attempts that "
            f"draw by themselves agree on that with probability exp(-{surprise:.0f})",
            evidence.place(n, segment=0, position=_first_sampled(flat, n)), count=length)
    mean = sum(alike.surprise for alike in likest) / max(count, 1)
    if not alone and mean > 1 and count * (mean - 1 - np.log(mean)) > -np.log(COINCIDENCE):
        worst = max(likest, key=lambda alike: alike.surprise)
        yield Finding(
            f"{sum(alike.surprise > 3 for alike in likest)} of {count} attempts repeat an earlier one at their task "
            f"for longer than chance allows (this one for {worst.length} tokens); all of it together has the "
            f"probability exp(-{count * (mean - 1 - np.log(mean)):.0f})", evidence.place(worst.n, segment=0),
            count=worst.length)


def _seeds(evidence: Evidence) -> Iterator[RuleResult]:
    found = journal_of(evidence)
    yield Checked(len(found))
    known: dict[int, JournalEntry] = {}
    for entry in found:
        first = known.setdefault(entry.exchange.request.seed, entry)
        if first is not entry:
            yield Finding(f"this turn was sampled with the seed of turn {first.turn} of "
                          f"{evidence.flat.names_N[first.row]}: the two draw the same noise",
                          evidence.place(entry.row, segment=entry.segment, turn=entry.turn))


def _drawn_N(flat: Flat) -> np.ndarray:
    """bool [N]: whether chance had a part in it: sampled tokens, not greedy, not from a script."""
    sampled = np.flatnonzero(flat.sampled_P)
    settings = [flat.spans[p].sampling for p in sampled]
    by_chance = np.array([each is None or (each.temperature > 0 and each.engine != "scripted") for each in settings], bool)
    drawn_N = np.bincount(flat.trajectory_P[sampled], minlength=len(flat.names_N)) > 0
    drawn_N[flat.trajectory_P[sampled[~by_chance]]] = False
    return drawn_N


def _first_sampled(flat: Flat, n: int) -> int:
    """Where the first sampled token of a trajectory stands in its first segment."""
    return next((int(flat.start_P[p]) for p in flat.spans_of(flat.segments_of(n)[0]) if flat.sampled_P[p]), 0)


def _likest(flat: Flat, members: list[int], cost_T: np.ndarray) -> Iterator[Alike]:
    """Of each attempt but the first: the earlier one that it repeats for longest. `cost_T` [T + 1] sums -logprobs."""
    if len(members) < 2:
        return
    starts, ends = (flat.offset_S[flat.first_segment_N[np.array(members) + later]].tolist() for later in (0, 1))
    longest = max(end - start for start, end in zip(starts, ends, strict=True))
    ids_GL = np.full((len(members), longest), -1, np.int32)
    for g, (start, end) in enumerate(zip(starts, ends, strict=True)):
        ids_GL[g, : end - start] = flat.ids_T[start:end]
    for g in range(1, len(members)):
        differ_HL = ids_GL[:g] != ids_GL[g]
        shared_H = np.where(differ_HL.any(1), differ_HL.argmax(1), ends[g] - starts[g])
        cost_H = cost_T[starts[g] + shared_H] - cost_T[starts[g]]
        h = int(cost_H.argmax())
        # It could have repeated any of the g attempts before it.
        yield Alike(members[g], members[h], int(shared_H[h]), max(float(cost_H[h] - np.log(g)), 0.0))


R22 = Rule(
    "R22", "attempts draw their own noise",
    "Attempts at the same task are copies of each other: a group of 8 is worth one attempt, its spread is zero or "
    "false, and nothing is explored.",
    "Give every turn of every attempt a seed of its own, from run, step, task, attempt and turn.",
    ("groups",), check_noise)

RULES: tuple[Rule, ...] = (R1, R3, R4, R5, R9, R22)
