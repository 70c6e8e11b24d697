"""What may be said of two sides that did the same steps: ratios with 95 % limits, and whether the work was the same.

Step n of both sides plays the same boards, so figures are compared step by step. The mean of the steps' log-ratios has
Student's interval (`stats.mean_interval`); its exponential is the geometric mean of the ratios. Logarithms, because a
ratio of two times is as likely to be off by a factor upwards as downwards.

Axis letters: N steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, log

from experiments.bench.work import StepWork
from workbench.values.errors import DataError
from workbench.values.stats import Estimate, mean_interval

Figure = Callable[[StepWork], float]
FIGURES: Mapping[str, Figure] = {
    "generated tokens per rollout second": lambda step: step.generated_per_rollout_s,
    "trajectory tokens per training second": lambda step: step.trained_per_train_s,
    "environment steps per second, end to end": lambda step: step.env_steps_per_s,
}
# (the least that is asked for, what is aimed at), by the names above
GOALS: Mapping[str, tuple[float, float]] = dict(zip(FIGURES, ((8.0, 10.0), (3.5, 5.0), (6.0, 8.0))))
WORK: Mapping[str, Figure] = {
    "environment steps": lambda step: step.env_steps,
    "answers": lambda step: step.generations,
    "generated tokens": lambda step: step.generated_tokens,
    "trajectory tokens": lambda step: step.trajectory_tokens,
}
TOLERANCE = 0.10  # of the work: beyond it, two sides are not compared without a warning


def paired_ratio(ours_N: Sequence[float], theirs_N: Sequence[float]) -> Estimate:
    """How many times theirs ours is, step by step: geometric mean with its 95 % interval. All figures are positive."""
    if len(ours_N) != len(theirs_N):
        raise DataError(
            f"paired ratios need the same steps on both sides, got {len(ours_N)} and {len(theirs_N)}"
        )
    if not all(figure > 0 for figure in (*ours_N, *theirs_N)):
        raise DataError(f"a ratio needs positive figures, got {list(ours_N)} and {list(theirs_N)}")
    logs = mean_interval([log(ours / theirs) for ours, theirs in zip(ours_N, theirs_N)])
    return Estimate(
        exp(logs.mean), exp(logs.low), exp(logs.high) if logs.high < 700 else float("inf"), logs.n
    )


def compare(ours: Sequence[StepWork], theirs: Sequence[StepWork]) -> dict[str, Estimate]:
    return {
        name: paired_ratio([figure(step) for step in ours], [figure(step) for step in theirs])
        for name, figure in FIGURES.items()
    }


def totals(steps: Sequence[StepWork]) -> dict[str, int]:
    """The work of all steps together."""
    return {name: int(sum(figure(step) for step in steps)) for name, figure in WORK.items()}


def unequal_work(ours: Sequence[StepWork], theirs: Sequence[StepWork]) -> list[str]:
    """In words, what differs by more than `TOLERANCE` between the two sides' work; [] where nothing does."""
    found = []
    for (name, own), other in zip(totals(ours).items(), totals(theirs).values()):
        if abs(own - other) > TOLERANCE * max(min(own, other), 1):
            found.append(f"{name}: {own:,} against {other:,}")
    return found
