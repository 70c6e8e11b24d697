"""Before anything runs: how many jobs, what they will cost, and how small a difference the plan could detect.

Costs are measured, never guessed: from jobs that are done, or from a pilot (the plan's first job, which counts). What
could be detected follows from the variances of the differences at hand; before there are any, from those that
differences of arms have on search and FrozenLake (docs/evidence/ablations.md), for seeds that differ little and much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from workbench.ablation.drive import DONE, JobState, tally
from workbench.ablation.facts import facts_of
from workbench.ablation.plan import Job, Plan, config_of, settings_of
from workbench.ablation.power import last_level, variances
from workbench.ablation.starts import by_row, speaks_for
from workbench.ablation.tuning import all_states, tuned
from workbench.types.crossed import detectable

TASK_SD, REST_SD = 0.20, 0.42  # of differences of success, where nothing is measured yet
SEED_SDS = (0.015, 0.06)  # lake and search; a task on which seeds rise or stay
MOST_READ = 64  # runs that are read for it


def forecast(plan: Plan, seeds: Sequence[int], out: Path) -> dict[str, Any]:
    """As JSON values; `show_forecast` draws it."""
    found, plan = all_states(plan, seeds, out), tuned(plan, out)
    done = [one for one in found if one.state == DONE]
    costs = [one.facts["cpu_seconds"] for one in done if one.facts]
    left = len(found) - len(done)
    facts = _read(plan, out, done)
    rows, _, facts = by_row(plan, seeds, facts)
    return {
        "title": plan.title,
        "name": plan.name,
        "notebook": Path(plan.notebook).name if plan.notebook else None,
        "arms": [
            {
                "name": arm.name,
                "label": arm.label,
                "base": arm.base_name,
                "inert": arm.inert,
                "set": settings_of(plan, Job(arm.name, 0)),
            }
            for arm in plan.arms
        ],
        "all": dict(plan.all),
        "seeds": [*seeds],
        "jobs": len(found),
        "tally": tally(found),
        "left": left,
        "cost": {"of": len(costs), "each": fmean(costs), "left": fmean(costs) * left}
        if costs
        else None,
        "compare": len(plan.compare) + len(plan.interactions),
        "margin": plan.analysis.margin if plan.analysis else None,
        "looks": [*plan.analysis.looks] if plan.analysis else None,
        "controls": plan.controls is not None,
        "tuning": _tuning(plan, found),
        "detect": _detect(rows, facts),
        "speaks": speaks_for(plan),
        "rows": "starts" if plan.starts_vary else "seeds",
    }


def _tuning(plan: Plan, found: Sequence[JobState]) -> str:
    if plan.tuning is None:
        return ""
    trials = sum(one.job.seed in plan.tuning.seeds for one in found)
    seeds = f"seed{'s' * (len(plan.tuning.seeds) > 1)} {', '.join(map(str, plan.tuning.seeds))}"
    return (
        f"{trials} of these jobs are trials: every arm tries {len(plan.tuning.points)} settings at {seeds}, then is "
        "judged with its best"
    )


def _read(plan: Plan, out: Path, done: Sequence[JobState]) -> dict[Job, Mapping[str, Any]]:
    done = [one for one in done if plan.tuning is None or one.job.seed not in plan.tuning.seeds]
    wanted = [one for one in done if any(one.job.arm in pair for pair in plan.compare)] or done[:1]
    return {
        one.job: facts_of(plan, one.job, out, one.facts) for one in wanted[:MOST_READ] if one.facts
    }


def _detect(plan: Plan, facts: Mapping[Job, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What is found four times in five: {"difference" (in the unit of the margin), "if" (which variances)}."""
    tasks = _tasks(plan, facts)
    if plan.analysis is None or not plan.compare or tasks is None:
        return []
    by_return = any(one.get("measure") == "return" for one in facts.values())
    level = last_level(plan, len(plan.compare) + len(plan.interactions))
    runs, unit = plan.analysis.seeds, 1 if by_return else 100
    tables = {
        name: {
            "seeds": {
                str(seed): facts[Job(name, seed)] for seed in plan.seeds if Job(name, seed) in facts
            }
        }
        for name in {name for pair in plan.compare for name in pair}
    }
    if (measured := variances(plan, tables, plan.compare)) is not None:
        return [
            {
                "difference": unit * detectable(*measured, runs, tasks, level),
                "if": "as the differences measured so far",
            }
        ]
    if by_return or tasks == 1:
        return []
    return [
        {
            "difference": unit * detectable(sd**2, TASK_SD**2, REST_SD**2, runs, tasks, level),
            "if": f"if seeds differ by {unit * sd:g} points, and tasks as on search",
        }
        for sd in SEED_SDS
    ]


def _tasks(plan: Plan, facts: Mapping[Job, Mapping[str, Any]]) -> int | None:
    if facts:
        return next(iter(facts.values()))["tasks"]
    ran = next((arm for arm in plan.arms if not arm.inert), None)
    return (
        None
        if plan.notebook or ran is None
        else config_of(plan, Job(ran.name, 0)).evaluation.num_tasks
    )
