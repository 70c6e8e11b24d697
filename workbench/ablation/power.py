"""What a table of this size can find: from the variances that its own differences have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.ablation.controls import POINTS, contrast
from workbench.ablation.looks import look_levels
from workbench.ablation.plan import Plan
from workbench.ablation.verdicts import FEW
from workbench.types.contrasts import pair_weights
from workbench.types.crossed import parts_of

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
    found = []
    for first, second in pairs:
        both = [
            seed
            for seed in plan.seeds
            if all(str(seed) in arms[name]["seeds"] for name in (first, second))
        ]
        if len(both) >= FEWEST:
            parts = parts_of(contrast(arms, pair_weights(first, second), both))
            found.append([float(parts.seed_X), float(parts.task_X), float(parts.rest_X)])
    return tuple(np.median(found, axis=0).tolist()) if found else None


def power_facts(
    plan: Plan, arms: Mapping[str, Facts], compared: Sequence[Facts], family: int, by_return: bool
) -> dict[str, Any] | None:
    """For the table, as JSON values; `show_power` draws it. None where no difference has two seeds."""
    found = variances(plan, arms, [(pair["first"], pair["second"]) for pair in compared])
    if found is None:
        return None
    tasks = next(len(facts["sampled"]) for arm in arms.values() for facts in arm["seeds"].values())
    few = FEWEST if plan.analysis is None or plan.analysis.normal else FEW
    return {
        "seed": found[0],
        "task": found[1],
        "rest": found[2],
        "runs": len(plan.seeds),
        "tasks": tasks,
        "few": few,
        "level": last_level(plan, family),
        "family": max(family, 1),
        "margin": None
        if plan.analysis is None
        else plan.analysis.margin / (1 if by_return else POINTS),
    }
