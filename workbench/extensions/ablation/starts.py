"""Warm starts as a factor: every arm is trained from each of several policies.

    [starts]
    "policy.name" = ["search-tiny", "policies/search-tiny-b"]     # one axis, written like those of a grid

y[start, seed, task]: seeds differ from start to start, so what a table judges is one row of task means for each

    start    where there are FEW starts or more: they are taken as drawn at random, a row is the mean over the start's
             seeds, and the interval speaks for other starts (with other seeds) and other tasks
    seed     where there are fewer: so few say nothing of others, so they are held fixed, a row is the mean over the
             starts, and the table says that it speaks for these

Either way rows are alike and independent, as `types.crossed` wants them. Holding starts fixed that another reader would
draw anew makes intervals too short: docs/evidence/ablations.md says how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np

from workbench.extensions.ablation.plan import Job, Plan, config_of
from workbench.extensions.ablation.verdicts import FEW
from workbench.look.words import count
from workbench.values.errors import ConfigError

Facts = Mapping[str, Any]
MODES = ("sampled", "greedy")


def by_row(
    plan: Plan, seeds: Sequence[int], ends: Mapping[Job, Facts]
) -> tuple[Plan, list[int], dict[Job, Facts]]:
    """Plan, rows and facts as if there were no starts: `Job(arm, row)` has the mean of the jobs that make up this row.
    A row that lacks a job is not there, one with a failed job failed."""
    if not plan.starts:
        return plan, [*seeds], dict(ends)
    names = [name for name, _ in plan.starts]
    rows = [*range(len(names))] if plan.starts_vary else [*seeds]
    means = {}
    for arm in plan.arms:
        for row in () if arm.inert else rows:
            if plan.starts_vary:
                of_row = [Job(arm.name, seed, names[row]) for seed in seeds]
            else:
                of_row = [Job(arm.name, row, name) for name in names]
            if all(job in ends for job in of_row):
                means[Job(arm.name, row)] = _mean_facts({job: ends[job] for job in of_row})
    row_seeds = tuple(rows) if plan.starts_vary else plan.seeds
    return replace(plan, starts=(), seeds=row_seeds), rows, means


def _mean_facts(ends: Mapping[Job, Facts]) -> Facts:
    """What a row's jobs found, on average; the first failure where one failed."""
    for job, facts in ends.items():
        if "failed" in facts:
            return {"failed": f"{job}: {facts['failed']}"}
    all_facts = [*ends.values()]
    first = all_facts[0]
    if len({facts["tasks"] for facts in all_facts}) > 1:
        raise ConfigError(
            f"{next(iter(ends)).arm}: its jobs have different numbers of held-out tasks; they must be the same for all"
        )
    mean = dict(first)
    for mode in MODES:
        if mode in first:
            mean[mode] = _mean_by_task(all_facts, mode)
    for cost in ("cpu_seconds", "training_cpu_seconds"):
        mean[cost] = sum(facts[cost] for facts in all_facts)
    notebooks = [str(facts["notebook"]) for facts in all_facts if facts.get("notebook")]
    return mean | {
        "rows": _untrained(all_facts) if first["rows"] else [],
        "lint": None if first["lint"] is None else _lint([facts["lint"] for facts in all_facts]),
        "evaluated": {},
        "curves": _mean_curves([facts["curves"] for facts in all_facts]),
        "run": None,
        "notebook": " and ".join(notebooks),
    }


def _mean_by_task(rows: Sequence[Facts], name: str) -> list[float]:
    return np.mean([row[name] for row in rows], axis=0).tolist()


def _lint(reports: Sequence[Facts]) -> Facts:
    """The fewest steps that were looked at, and every rule that one of them names."""
    errors = {rule for report in reports for rule in report["errors"]}
    notes = {rule for report in reports for rule in report["notes"]}
    steps = min(report["steps"] for report in reports)
    return {"steps": steps, "errors": sorted(errors), "notes": sorted(notes)}


def _mean_curves(curves: Sequence[Mapping[str, Sequence[float | None]]]) -> Facts:
    """Those that all jobs have."""
    means = {}
    for name in curves[0]:
        if all(name in by_name for by_name in curves):
            means[name] = _mean_course([by_name[name] for by_name in curves])
    return means


def _mean_course(courses: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Step by step, over those that have the step."""
    means = []
    for values in zip_longest(*courses):
        known = [value for value in values if value is not None]
        means.append(float(np.mean(known)) if known else None)
    return means


def _untrained(all_facts: Sequence[Facts]) -> list[Facts]:
    """What the rows of an evaluation say of the untrained policy, as a mean over the starts."""
    means = []
    for mode in MODES:
        rows = []
        for facts in all_facts:
            for row in facts["rows"]:
                if (row["policy"], row["mode"]) == ("untrained", mode):
                    rows.append(row)
        mean = dict(rows[0])
        for name in ("by_task", "reward_by_task"):
            if all(row.get(name) for row in rows):
                mean[name] = _mean_by_task(rows, name)
        means.append(mean)
    return means


def speaks_for(plan: Plan) -> str:
    """For which initial checkpoints the table holds, in a sentence."""
    names = ", ".join(name for name, _ in plan.starts)
    if plan.starts_vary:
        return (
            f"Generalises to other initial checkpoints: these {len(plan.starts)} ({names}) are a random effect, each with "
            f"{count(len(plan.seeds), 'training seed')}."
        )
    if len(plan.starts) > 1:
        return (
            f"Holds for these {len(plan.starts)} initial checkpoints ({names}) only: from {FEW} on they are a "
            "random effect."
        )
    if plan.notebook:
        if names:
            return _for_one_start(names)
        return "Holds for what its notebook begins with: no initial checkpoint was varied."
    ran = [Job(arm.name, 0) for arm in plan.arms if not arm.inert]
    try:
        policies = sorted({config_of(plan, job).policy.name for job in ran})
    except ConfigError:
        return ""
    if len(policies) == 1:
        return _for_one_start(names or policies[0])
    return f"Holds for the initial checkpoints of its arms only, one each ({', '.join(policies)})."


def _for_one_start(name: str) -> str:
    return f"One initial checkpoint ({name}): the result may not generalise to others."
