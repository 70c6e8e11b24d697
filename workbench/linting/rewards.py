"""Rewards are counted once, and what could not be scored is not zero (R16).

Axis letters: N trajectories · K turns (flat).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from workbench.basics.findings import NOTE, Checked, Finding, NotChecked, Place
from workbench.linting.alignment import differences_of_batch
from workbench.linting.evidence import Evidence
from workbench.linting.messages import number_in_words
from workbench.linting.plain_trajectories import TrajectoryTable, number
from workbench.linting.rule import Rule, RuleResult

NEAR = (
    1e-6  # relative: parts are added up in another order, some environments round what they report
)
DISTINCT = 3  # so many different totals that equal the outcome are no coincidence
ENOUGH = 4  # trajectories of each kind before success and reward are compared


def _check(evidence: Evidence) -> Iterator[RuleResult]:
    trajectories = evidence.plain_trajectories
    yield Checked(len(evidence.trajectories), "rewards of turns and outcomes")
    for n, trajectory in enumerate(evidence.trajectories):
        own = trajectories.reward_N[n]
        reported = trajectory.reward
        if reported is not None and not math.isfinite(reported):
            reported = None
        if (reported is None) != math.isnan(own) or (
            reported is not None and not _near(reported, own)
        ):
            yield Finding(
                f"its reward is {number_in_words(number(reported))}, but its turns and outcome make "
                f"it {number_in_words(own)}",
                evidence.place(n),
            )
        for k, turn in enumerate(trajectory.turns):
            if turn.reward_parts and turn.reward is not None:
                parts = sum(turn.reward_parts.values())
                if not _near(parts, turn.reward):
                    yield Finding(
                        f"turn {k} earned {turn.reward:.6g}, but its parts {dict(turn.reward_parts)} sum to "
                        f"{parts:.6g}",
                        evidence.place(n, turn=k),
                    )
        if trajectory.outcome_parts and trajectory.outcome is not None:
            parts = sum(trajectory.outcome_parts.values())
            if not _near(parts, trajectory.outcome):
                yield Finding(
                    f"its outcome is {trajectory.outcome:.6g}, the named parts of it sum to {parts:.6g}",
                    evidence.place(n),
                    NOTE,
                )
    yield from _counted_twice(evidence, trajectories)
    yield from _plausible(evidence, trajectories)
    if evidence.batch is None:
        yield NotChecked("the batch", "the numbers that training reads")
    elif evidence.batch.num_trajectories == trajectories.num_trajectories:
        yield from _batch_agrees(evidence, trajectories)


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= NEAR * (1 + abs(b)) or (math.isnan(a) and math.isnan(b))


def _batch_agrees(evidence: Evidence, trajectories: TrajectoryTable) -> Iterator[RuleResult]:
    """Numbers of the batch against those of turns and outcomes; NaN exactly where there is none."""
    yield from differences_of_batch(
        evidence, ("turn_offsets", "turn_reward_K", "outcome_N", "reward_N", "scored_N")
    )
    reported = (
        None if evidence.credit is None else evidence.credit.notes.get("trajectories_unscored")
    )
    if reported is not None and reported != (~trajectories.scored_N).sum():
        yield Finding(
            f"the credit's note says {reported:g} unscored trajectories, there are {(~trajectories.scored_N).sum()}",
            Place(step=evidence.step),
        )


def _counted_twice(evidence: Evidence, trajectories: TrajectoryTable) -> Iterator[RuleResult]:
    """An outcome that repeats, in every trajectory, what the turns were already paid."""
    totals = []
    for n, t in enumerate(evidence.trajectories):
        if not trajectories.scored_N[n] or t.outcome is None or not t.turns:
            continue
        totals.append(
            (n, number(t.outcome), sum(turn.reward for turn in t.turns), t.turns[-1].reward)
        )
    for words, column in (("all turns together", 2), ("the last turn", 3)):
        same = [row for row in totals if row[1] == row[column] and row[1] != 0]
        different = [row for row in totals if row[1] != row[column]]
        values = {row[1] for row in same}
        if (
            same
            and not different
            and (len(values) >= DISTINCT or (len(values) > 1 and len(same) >= 2 * ENOUGH))
        ):
            yield Finding(
                f"its outcome {same[0][1]:.6g} is exactly what {words} had earned already, and so it is in "
                f"all {len(totals)} trajectories: the reward is counted twice",
                evidence.place(same[0][0]),
                count=len(same),
            )
            return


def _plausible(evidence: Evidence, trajectories: TrajectoryTable) -> Iterator[RuleResult]:
    """Whether who succeeded earned more."""
    success = np.array(
        [math.nan if t.success is None else float(t.success) for t in evidence.trajectories]
    )
    won, lost = ((success == value) & trajectories.scored_N for value in (1.0, 0.0))
    if min(won.sum(), lost.sum()) < ENOUGH:
        return
    gap = trajectories.reward_N[won].mean() - trajectories.reward_N[lost].mean()
    if gap < 0:
        worst = int(np.flatnonzero(won)[trajectories.reward_N[won].argmin()])
        yield Finding(
            f"trajectories that succeeded earned {-gap:.6g} less on average than those that failed: is the sign "
            "of a reward turned?",
            evidence.place(worst),
            NOTE,
        )


RULES: tuple[Rule, ...] = (
    Rule(
        "R16",
        "rewards are counted once, and unscored is not zero",
        means="the policy is paid by another number than the environment's: a part twice, or a failed scoring as 0, which "
        "moves the baseline of its whole group.",
        mend="sum turn rewards and outcome in one place; let a scoring that failed stay None until the trajectory leaves "
        "baseline and loss; make reward_parts sum to the reward.",
        needs=("groups",),
        check=_check,
        threads=("trl#5902", "SkyRL#201", "AReaL#1681", "AReaL#128", "trl#5773", "verl#7300"),
    ),
)
