"""What a table of this size can find: from the variances that its own differences have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from workbench.extensions.ablation.contrasts import pair_weights
from workbench.extensions.ablation.controls import POINTS, contrast
from workbench.extensions.ablation.crossed import parts_of
from workbench.extensions.ablation.looks import look_levels
from workbench.extensions.ablation.plan import Plan
from workbench.extensions.ablation.verdicts import FEW

FEWEST = 2  # seeds of a pair from which variances can be taken
ALPHA = 0.05  # where nothing was declared
Facts = Mapping[str, Any]


def family_size(declared: Facts) -> int:
    """How many differences are judged together."""
    return len(declared["compare"]) + len(declared.get("interactions", ()))


def last_level(plan: Plan, family: int) -> float:
    """The level that the last look leaves to the smallest p-value of the family."""
    if plan.analysis is None:
        return ALPHA / max(family, 1)
    return look_levels(plan.analysis.looks, plan.analysis.alpha / max(family, 1))[-1]


def variances(
    plan: Plan, arms: Mapping[str, Facts], pairs: Sequence[tuple[str, str]]
) -> tuple[float, float, float] | None:
    """Of seeds, tasks and the rest: the median of the differences that at least two seeds have. None: none has."""
    of_pairs = []
    for pair in pairs:
        runs = [arms[name]["seeds"] for name in pair]
        both = [seed for seed in plan.seeds if all(str(seed) in by_seed for by_seed in runs)]
        if len(both) >= FEWEST:
            parts = parts_of(contrast(arms, pair_weights(*pair), both))
            of_pairs.append([float(parts.seed_X), float(parts.task_X), float(parts.rest_X)])
    return tuple(np.median(of_pairs, axis=0).tolist()) if of_pairs else None


def power_facts(
    plan: Plan, arms: Mapping[str, Facts], compared: Sequence[Facts], family: int, by_return: bool
) -> dict[str, Any] | None:
    """For the table, as JSON values; `show_power` draws it. None where no difference has two seeds."""
    measured = variances(plan, arms, [(pair["first"], pair["second"]) for pair in compared])
    if measured is None:
        return None
    seed, task, rest = measured
    ran = chain.from_iterable(arm["seeds"].values() for arm in arms.values())
    few = FEW
    margin = None
    if plan.analysis is not None:
        margin = plan.analysis.margin / (1 if by_return else POINTS)
    if plan.analysis is None or plan.analysis.normal:
        few = FEWEST
    return {
        "seed": seed,
        "task": task,
        "rest": rest,
        "runs": len(plan.seeds),
        "tasks": len(next(ran)["sampled"]),
        "few": few,
        "level": last_level(plan, family),
        "family": max(family, 1),
        "margin": margin,
    }
