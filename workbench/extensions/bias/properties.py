"""What holds of any estimator, whoever wrote it and whether or not it brings a reference implementation (R47).

    flat      a group whose trajectories earn the same teaches nothing, where trajectories are compared with their group
    shift     what is added to all rewards of a task has no effect, where the estimator says ignores_shifts
    others    what another task earned has no effect, where trajectories are compared with their group and nothing is whitened
    turn      a turn that is paid more is credited otherwise, and its trajectory not with less
    best      the best of a group is credited above zero, or nobody above the mean below it
    later     of a reward at the end, tokens near it do not get less than those far from it, in every trajectory
    length    two of a group that earned the same are credited alike, however long they are
    below     who earned less than the others of a group is credited below zero, if anybody is credited above it
    order     of trajectories of a group that earned more and more, each is credited with more
    whole     where a trajectory is worth the same throughout, each of its tokens is
    lengths   how long the others of a group are says nothing about what one of them is worth
    again     the same trajectories are credited alike when they are asked for again

Asked of made-up trajectories: 8 tasks, 5 trajectories each, of one to three turns. Credit of the algorithm as it is set is
computed some dozens of times; no model is asked.

Axis letters: N trajectories · K turns (flat) · T tokens of the batch (flat).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from workbench.basics.findings import NOTE, Checked, Finding, RuleResult
from workbench.basics.tensors import Tensor, torch
from workbench.extensions.bias.fairness import fair
from workbench.extensions.bias.further import (
    left_out,
    past_turns,
    says_group,
    scale_claimed,
    unscored,
    worst_of_group,
)
from workbench.extensions.bias.pulls import objective_properties
from workbench.extensions.bias.scales import reach_of_rewards, scale_of_rewards, scale_of_targets
from workbench.learn.algorithms import ALGORITHMS
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.batch import Batch
from workbench.linting.evidence import Evidence
from workbench.linting.expected import declares
from workbench.linting.made_up import made_up
from workbench.linting.rule import Rule

TOKENS = 40  # different ones
NEAR = 1e-6  # relative to the largest credit
FLAT = 2  # the group that is made flat
SHIFT = 1.0
LATER = 4  # trajectories that are paid more at their end
MEANS = "Tokens are pushed by what no reward says: a task on which nobody was better teaches, or a turn's own reward does not."


def properties_of(algorithm: Algorithm) -> Iterator[RuleResult]:
    """Ask an algorithm, as it is set. Raises whatever its estimator raises."""
    batch = made_up(np.arange(TOKENS), algorithm=algorithm)
    plain = _credit(algorithm, batch)
    near = NEAR * max(float(plain.abs().max()), 1.0)
    compares = _compares(algorithm) or says_group(algorithm)
    own_task_alone = compares and algorithm.estimator.per == "attempt"
    if own_task_alone:
        yield from _flat(algorithm, batch, near)
        yield from unscored(algorithm, batch, partial(_credit, algorithm))
        yield from worst_of_group(algorithm, batch, plain)
        yield from _others(algorithm, batch, plain, near)
        yield from _best(algorithm, batch, plain, near)
    if compares and not algorithm.estimator.says("whitens"):
        yield from fair(algorithm, batch, partial(_credit, algorithm))
    if algorithm.estimator.says("ignores_shifts"):
        yield from _shift(algorithm, batch, plain, near)
    yield from _turns(algorithm, batch, plain, near)
    if not algorithm.estimator.says("whitens"):
        yield from _later(algorithm, batch, plain, near)
        credit = partial(_credit, algorithm)
        yield from left_out(algorithm, batch, plain, credit)
        yield from scale_claimed(algorithm, batch, plain, credit)
        yield from scale_of_rewards(algorithm, batch, plain, credit)
        yield from reach_of_rewards(algorithm, batch, plain, credit)
        if algorithm.estimator.per != "attempt" and not algorithm.estimator.critic:
            yield from past_turns(algorithm, batch, plain, credit)
    yield from scale_of_targets(algorithm, batch)
    yield from _again(algorithm, batch, plain, near)


def _again(algorithm: Algorithm, batch: Batch, plain: Tensor, near: float) -> Iterator[RuleResult]:
    """Asked last, after other rewards."""
    moved = float((_credit(algorithm, batch) - plain).abs().max())
    yield Checked(1, "the same trajectories again")
    if moved > near:
        yield Finding(
            f"the same trajectories with the same rewards are credited otherwise when they are asked for again, by up to {moved:.4g}; "
            f"expected the same: something outlives a call of {algorithm.name}'s estimator (a global, an attribute, a default argument), or "
            "it draws by chance. A run that is resumed or replayed gets other numbers. Compute all of it from what the call is given"
        )


def _compares(algorithm: Algorithm) -> bool:
    estimator = algorithm.estimator
    return estimator.says("compares") and not estimator.says("whitens")


def _credit(algorithm: Algorithm, batch: Batch) -> Tensor:
    """[T]: advantage times weight."""
    credit = algorithm.credit(batch)
    return credit.advantage_T * credit.weight_T


def _with_rewards(batch: Batch, reward_K: Tensor) -> Batch:
    """The same trajectories, paid otherwise by turn."""
    totals = [
        float(reward_K[batch.turn_offsets[n] : batch.turn_offsets[n + 1]].sum())
        for n in range(batch.num_trajectories)
    ]
    total_N = torch.tensor(totals, dtype=torch.float64) + batch.outcome_N.nan_to_num(0.0)
    return replace(batch, turn_reward_K=reward_K, reward_N=total_N)


def _members(batch: Batch, group: int) -> list[int]:
    return (batch.group_of_trajectory_N == group).nonzero()[:, 0].tolist()


def _of_group(batch: Batch, group: int) -> Tensor:
    """bool [T]: tokens of its trajectories."""
    return batch.group_of_trajectory_N[batch.trajectory_of_token_T] == group


def _last_turns(batch: Batch, trajectories: list[int]) -> Tensor:
    return batch.turn_offsets[torch.tensor(trajectories) + 1] - 1


def _flat(algorithm: Algorithm, batch: Batch, near: float) -> Iterator[RuleResult]:
    paid_K = batch.turn_reward_K.clone()
    for n in _members(batch, FLAT):
        paid_K[batch.turn_offsets[n] : batch.turn_offsets[n + 1]] = 0.0
    paid_K[_last_turns(batch, _members(batch, FLAT))] = 0.5
    credit_T = _credit(algorithm, _with_rewards(batch, paid_K))
    worst = float((credit_T * _of_group(batch, FLAT)).abs().max())
    yield Checked(1, "a flat group")
    if worst > near:
        yield Finding(
            f"a group of which every trajectory earned 0.5 is credited with up to {worst:.4g}; expected 0, since the "
            f"estimator of {algorithm.name} says that trajectories are compared with their group (compares): subtract what "
            "the same task's trajectories earned, and guard the division by their spread"
        )


def _shift(algorithm: Algorithm, batch: Batch, plain: Tensor, near: float) -> Iterator[RuleResult]:
    paid_K = batch.turn_reward_K.clone()
    paid_K[_last_turns(batch, _members(batch, FLAT))] += SHIFT
    shifted = _with_rewards(batch, paid_K)
    if batch.greedy_N is not None:  # the greedy trajectory of the task earns more, too
        of_task_N = batch.group_of_trajectory_N == FLAT
        shifted = replace(shifted, greedy_N=batch.greedy_N + SHIFT * of_task_N)
    moved = float((_credit(algorithm, shifted) - plain).abs().max())
    yield Checked(1, "a shift")
    if moved > near:
        yield Finding(
            f"{SHIFT:g} more for every trajectory of a task moves its credit by up to {moved:.4g}; expected 0, since the "
            f"estimator of {algorithm.name} says ignores_shifts. Compare rewards with what others of the task earned, or do "
            "not say so"
        )


def _others(algorithm: Algorithm, batch: Batch, plain: Tensor, near: float) -> Iterator[RuleResult]:
    paid_K = batch.turn_reward_K.clone()
    first, *_ = _members(batch, FLAT)
    paid_K[_last_turns(batch, [first])] += 3 * SHIFT
    elsewhere_T = ~_of_group(batch, FLAT)
    before = plain[elsewhere_T]
    after = _credit(algorithm, _with_rewards(batch, paid_K))[elsewhere_T]
    moved = float((after - before).abs().max())
    yield Checked(1, "another task's rewards")
    if moved <= near:
        return
    if _differ_by_a_factor(before, after):
        yield Finding(
            f"{3 * SHIFT:g} more for one trajectory of one task makes the credit of all other tasks smaller or larger by one factor, by up to "
            f"{moved:.4g}: the scale is that of the batch. Say whitens in the estimator of {algorithm.name}, so that who reads its credit knows",
            severity=NOTE,
        )
        return
    yield Finding(
        f"{3 * SHIFT:g} more for one trajectory of one task moves the credit of other tasks by up to {moved:.4g}; "
        f"expected 0, since the estimator of {algorithm.name} compares within a group. Take mean and spread by "
        "inputs.group_N, or say whitens where statistics of the whole batch are meant"
    )


def _differ_by_a_factor(before: Tensor, after: Tensor) -> bool:
    """A positive one: then no token is pushed another way than before."""
    factor = float((before * after).sum() / (before * before).sum().clamp(min=1e-12))
    rest = float((after - factor * before).abs().max())
    return factor > 0 and rest <= 1e-4 * max(float(after.abs().max()), 1e-12)


def _tokens_of(batch: Batch, n: int, turn: int) -> Tensor:
    """bool [T]: what the policy said in one turn of a trajectory."""
    return (batch.trajectory_of_token_T == n) & (batch.turn_T == turn) & batch.eligible_T


def _runs_against(algorithm: Algorithm, moved: float) -> bool:
    return moved < 0 and not declares(algorithm, "against_rewards")


def _middle(batch: Batch, members: list[int], lengths: list[int]) -> int | None:
    """A trajectory of several turns that is neither the worst nor the best of its group, by `members`, ordered."""
    return next((n for n in members[1:-1] if lengths[n] > 1), None)


def _turns(algorithm: Algorithm, batch: Batch, plain: Tensor, near: float) -> Iterator[RuleResult]:
    """A turn of a trajectory in the middle of its group: the first one of several, then the last."""
    lengths = (batch.turn_offsets[1:] - batch.turn_offsets[:-1]).tolist()
    asked = 0
    for group in range(3, int(batch.group_of_trajectory_N.max()) + 1):
        members = sorted(_members(batch, group), key=lambda n: float(batch.reward_N[n]))
        n = _middle(batch, members, lengths)
        if n is None:
            continue
        # It becomes the best of its group, so that a rank moves as well.
        more = float(batch.reward_N[members[-1]] - batch.reward_N[n]) + SHIFT
        for turn in (0, lengths[n] - 1):
            paid_K = batch.turn_reward_K.clone()
            paid_K[int(batch.turn_offsets[n]) + turn] += more
            credit_T = _credit(algorithm, _with_rewards(batch, paid_K))
            own_T = _tokens_of(batch, n, turn)
            if not (plain[own_T] != 0).any():
                continue
            asked += 1
            moved = float((credit_T - plain)[own_T].mean())
            stays = abs(moved) <= near
            if stays or _runs_against(algorithm, moved):
                yield Checked(asked, "a turn's own reward")
                yield _stray_turn(algorithm.name, turn, lengths[n], more, 0.0 if stays else moved)
                return
    yield Checked(asked, "a turn's own reward")


def _stray_turn(name: str, turn: int, turns: int, more: float, moved: float) -> Finding:
    goes = f"goes down by {-moved:.4g}" if moved else "stays"
    return Finding(
        f"turn {turn} of a trajectory with {turns} turns is paid {more:.3g} more, and its credit {goes}; expected that it "
        f"goes up: the estimator of {name} leaves out what this turn earned, or puts it on another turn. Look at how "
        "rewards are laid onto turns (inputs.reward_A, inputs.reward_P)"
    )


def _credit_of(batch: Batch, credit_T: Tensor, n: int) -> float:
    """The mean over the tokens of a trajectory that have any."""
    own_T = (batch.trajectory_of_token_T == n) & batch.eligible_T & (credit_T != 0)
    return float(credit_T[own_T].mean()) if own_T.any() else 0.0


def _best(algorithm: Algorithm, batch: Batch, plain: Tensor, near: float) -> Iterator[RuleResult]:
    """Where nobody is credited above zero, who earned more than the mean of its group is not credited below it."""
    above = 0
    punished: tuple[float, float, float] | None = None
    groups = range(int(batch.group_of_trajectory_N.max()) + 1)
    for group in groups:
        members = _members(batch, group)
        paid = [float(batch.reward_N[n]) for n in members]
        mean = float(np.mean(paid))
        for n, reward in zip(members, paid):
            credit = _credit_of(batch, plain, n)
            above += credit > near
            if reward > mean + NEAR and credit < -near:
                punished = reward, mean, credit
    yield Checked(len(groups), "the best of a group")
    if above == 0 and punished is not None:
        reward, mean, credit = punished
        yield Finding(
            f"no trajectory is credited above zero, and one that earned {reward:.4g} where its group earned {mean:.4g} on "
            f"average is credited with {credit:.4g}; expected that the best of a group is credited above zero. The baseline of "
            f"{algorithm.name} depends on the trajectory's own reward (the best of all with itself among them), which biases "
            "the gradient: take it over the others of the group"
        )


def _later(algorithm: Algorithm, batch: Batch, plain: Tensor, near: float) -> Iterator[RuleResult]:
    """More is paid at the end of a trajectory: its credit does not fall from token to token towards that end."""
    asked = 0
    falls = 0
    for n in range(batch.num_trajectories):
        own_T = (batch.trajectory_of_token_T == n) & batch.eligible_T & (plain != 0)
        if int(own_T.sum()) < 3:
            continue
        paid_K = batch.turn_reward_K.clone()
        paid_K[_last_turns(batch, [n])] += SHIFT
        moved = (_credit(algorithm, _with_rewards(batch, paid_K)) - plain)[own_T].abs()
        steps = moved[1:] - moved[:-1]
        asked += 1
        falls += bool((steps < -near).all())
        if asked == LATER or falls < asked:
            break
    yield Checked(asked, "a reward at the end")
    if asked == LATER and falls == asked:
        yield Finding(
            f"of {SHIFT:g} more at the end of a trajectory its first tokens get the most and the last ones the least, token by "
            f"token, in {asked} of {asked} trajectories; expected that credit does not fall towards the reward: the discount of "
            f"{algorithm.name} counts from the front, not to the reward. Turn the order of the exponents round"
        )


# ------------------------------------------------------------------------------------------------ the rule


def _of_ones_own(evidence: Evidence) -> bool:
    algorithm = evidence.algorithm
    return isinstance(algorithm, Algorithm) and algorithm.name not in ALGORITHMS


def _check(evidence: Evidence) -> Iterator[RuleResult]:
    yield from properties_of(evidence.algorithm)


def _check_objective(evidence: Evidence) -> Iterator[RuleResult]:
    yield from objective_properties(evidence.algorithm)


RULES: tuple[Rule, ...] = (
    Rule(
        "R47",
        "credit answers to rewards",
        MEANS,
        "Follow the made-up group by hand; `workbench bias --algorithm my_module:MINE` says what the gradient is worth.",
        ("algorithm",),
        _check,
        "start",
        applies=_of_ones_own,
    ),
    Rule(
        "R48",
        "a loss holds what goes too far",
        "Updates are held on the wrong side, pushed away from the policy that sampled, or weigh as the batch happens to be cut.",
        "Follow one token by hand: its ratio, its advantage, the gradient of its loss by its logprob.",
        ("algorithm",),
        _check_objective,
        "start",
        applies=_of_ones_own,
    ),
)
