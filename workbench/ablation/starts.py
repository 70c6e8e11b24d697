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
from typing import Any

import numpy as np

from workbench.ablation.plan import Job, Plan, config_of
from workbench.ablation.verdicts import FEW
from workbench.types.errors import ConfigError
from workbench.views.words import count

Facts = Mapping[str, Any]
MODES = ("sampled", "greedy")


def by_row(
    plan: Plan, seeds: Sequence[int], found: Mapping[Job, Facts]
) -> tuple[Plan, list[int], dict[Job, Facts]]:
    """Plan, rows and facts as if there were no starts: `Job(arm, row)` has the mean of the jobs that make up this row.
    A row that lacks a job is not there, one with a failed job failed."""
    if not plan.starts:
        return plan, [*seeds], dict(found)
    names = [name for name, _ in plan.starts]
    rows = [*range(len(names))] if plan.starts_vary else [*seeds]
    made = {}
    for arm in (arm for arm in plan.arms if not arm.inert):
        for row in rows:
            whole = (
                [Job(arm.name, seed, names[row]) for seed in seeds]
                if plan.starts_vary
                else [Job(arm.name, row, name) for name in names]
            )
            if all(job in found for job in whole):
                made[Job(arm.name, row)] = _mean([found[job] for job in whole], whole)
    return (
        replace(plan, starts=(), seeds=tuple(rows) if plan.starts_vary else plan.seeds),
        rows,
        made,
    )


def _mean(all_facts: Sequence[Facts], whole: Sequence[Job]) -> Facts:
    failed = next(
        (f"{job}: {facts['failed']}" for job, facts in zip(whole, all_facts) if "failed" in facts),
        None,
    )
    if failed is not None:
        return {"failed": failed}
    first = all_facts[0]
    if len({facts["tasks"] for facts in all_facts}) > 1:
        raise ConfigError(
            f"{whole[0].arm}: its jobs have different numbers of held-out tasks; they must be the same for all"
        )
    both = [name for name in MODES if name in first]
    lint = (
        None
        if first["lint"] is None
        else {
            "steps": min(facts["lint"]["steps"] for facts in all_facts),
            **{
                kind: sorted({rule for facts in all_facts for rule in facts["lint"][kind]})
                for kind in ("errors", "notes")
            },
        }
    )
    return {
        **first,
        **{name: np.mean([facts[name] for facts in all_facts], axis=0).tolist() for name in both},
        "rows": _untrained(all_facts) if first["rows"] else [],
        "lint": lint,
        "evaluated": {},
        "curves": {
            name: _mean_course([facts["curves"][name] for facts in all_facts])
            for name in first["curves"]
            if all(name in facts["curves"] for facts in all_facts)
        },
        **{
            name: sum(facts[name] for facts in all_facts)
            for name in ("cpu_seconds", "training_cpu_seconds")
        },
        "run": None,
        "notebook": " and ".join(
            str(facts["notebook"]) for facts in all_facts if facts.get("notebook")
        ),
    }


def _mean_course(courses: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Step by step, over those that have the step."""
    steps = range(max(map(len, courses)))
    known = [
        [course[at] for course in courses if at < len(course) and course[at] is not None]
        for at in steps
    ]
    return [float(np.mean(values)) if values else None for values in known]


def _untrained(all_facts: Sequence[Facts]) -> list[Facts]:
    """What the rows of an evaluation say of the untrained policy, as a mean over the starts."""
    made = []
    for mode in MODES:
        rows = [
            row
            for facts in all_facts
            for row in facts["rows"]
            if (row["policy"], row["mode"]) == ("untrained", mode)
        ]
        told = {
            name: np.mean([row[name] for row in rows], axis=0).tolist()
            for name in ("by_task", "reward_by_task")
            if all(row.get(name) for row in rows)
        }
        made.append({**rows[0], **told})
    return made


def speaks_for(plan: Plan) -> str:
    """Which policies to begin with the table speaks for, in a sentence."""
    names = ", ".join(name for name, _ in plan.starts)
    if plan.starts_vary:
        return (
            f"Speaks for other starts, too: these {len(plan.starts)} ({names}) are taken as drawn at random, each with "
            f"{count(len(plan.seeds), 'training seed')}."
        )
    if len(plan.starts) > 1:
        return (
            f"Speaks for these {len(plan.starts)} starts ({names}) and for no other: from {FEW} on they are taken as "
            "drawn at random."
        )
    if plan.notebook:
        return (
            "Speaks for what its notebook begins with: no start was varied."
            if not names
            else _one(names)
        )
    try:
        found = sorted(
            {config_of(plan, Job(arm.name, 0)).policy.name for arm in plan.arms if not arm.inert}
        )
    except ConfigError:
        return ""
    return (
        _one(names or found[0])
        if len(found) == 1
        else (
            f"Speaks for the starts that its arms began from, one each ({', '.join(found)}), and for no other."
        )
    )


def _one(name: str) -> str:
    return f"Speaks for the one start that every run began from ({name}): from another one it may end otherwise."
