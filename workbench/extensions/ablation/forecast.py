"""Before anything runs: how many jobs, what they will cost, and how small a difference the plan could detect.

Costs are measured, never guessed: from jobs that are done, or from a pilot (the plan's first job, which counts). What
could be detected follows from the variances of the differences at hand; before there are any, from those that
differences of arms have on search and FrozenLake (docs/evidence/ablations.md), for seeds that differ little and much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from workbench.extensions.ablation.crossed import detectable
from workbench.extensions.ablation.drive import DONE, JobState, tally
from workbench.extensions.ablation.facts import facts_of
from workbench.extensions.ablation.plan import Arm, Job, Plan, config_of, settings_of
from workbench.extensions.ablation.power import last_level, variances
from workbench.extensions.ablation.starts import by_row, speaks_for
from workbench.extensions.ablation.tuning import all_states, tuned

TASK_SD = 0.20  # of differences of success, where nothing is measured yet
REST_SD = 0.42
SEED_SDS = (0.015, 0.06)  # lake and search; a task on which seeds rise or stay
MOST_READ = 64  # runs that are read for it


def forecast(plan: Plan, seeds: Sequence[int], out: Path) -> dict[str, Any]:
    """As JSON values; `show_forecast` draws it."""
    listed = all_states(plan, seeds, out)
    plan = tuned(plan, out)
    done = [job for job in listed if job.state == DONE]
    costs = [job.facts["cpu_seconds"] for job in done if job.facts]
    left = len(listed) - len(done)
    cost = None
    if costs:
        cost = {"of": len(costs), "each": fmean(costs), "left": fmean(costs) * left}
    rows, _, facts = by_row(plan, seeds, _read(plan, out, done))
    return {
        "title": plan.title,
        "name": plan.name,
        "notebook": Path(plan.notebook).name if plan.notebook else None,
        "arms": [_arm(plan, arm) for arm in plan.arms],
        "all": dict(plan.all),
        "seeds": [*seeds],
        "jobs": len(listed),
        "tally": tally(listed),
        "left": left,
        "cost": cost,
        "compare": len(plan.compare) + len(plan.interactions),
        "margin": plan.analysis.margin if plan.analysis else None,
        "looks": [*plan.analysis.looks] if plan.analysis else None,
        "controls": plan.controls is not None,
        "tuning": _tuning(plan, listed),
        "detect": _detect(rows, facts),
        "speaks": speaks_for(plan),
        "rows": "starts" if plan.starts_vary else "seeds",
    }


def _arm(plan: Plan, arm: Arm) -> dict[str, Any]:
    return {
        "name": arm.name,
        "label": arm.label,
        "base": arm.base_name,
        "inert": arm.inert,
        "set": settings_of(plan, Job(arm.name, 0)),
    }


def _tuning(plan: Plan, listed: Sequence[JobState]) -> str:
    if plan.tuning is None:
        return ""
    seeds = plan.tuning.seeds
    trials = sum(one.job.seed in seeds for one in listed)
    return (
        f"{trials} of these jobs are trials: every arm tries {len(plan.tuning.points)} settings at "
        f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}, then is judged with its best"
    )


def _read(plan: Plan, out: Path, done: Sequence[JobState]) -> dict[Job, Mapping[str, Any]]:
    """What jobs of arms that are compared found (of one job where none is), trials left out."""
    if plan.tuning is not None:
        done = [one for one in done if one.job.seed not in plan.tuning.seeds]
    arms = {*chain.from_iterable(plan.compare)}
    wanted = [one for one in done if one.job.arm in arms] or done[:1]
    return {
        one.job: facts_of(plan, one.job, out, one.facts) for one in wanted[:MOST_READ] if one.facts
    }


def _detect(plan: Plan, facts: Mapping[Job, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The minimum detectable difference at 80 % power: {"difference" (in the unit of the margin), "if" (which variances)}."""
    tasks = _tasks(plan, facts)
    if plan.analysis is None or not plan.compare or tasks is None:
        return []
    by_return = any(of_job.get("measure") == "return" for of_job in facts.values())
    level = last_level(plan, len(plan.compare) + len(plan.interactions))
    runs = plan.analysis.seeds
    unit = 1 if by_return else 100
    measured = variances(plan, _arms_of(plan, facts), plan.compare)
    if measured is not None:
        difference = unit * detectable(*measured, runs, tasks, level)
        return [{"difference": difference, "if": "variances as measured so far"}]
    if by_return or tasks == 1:
        return []
    sizes = []
    for sd in SEED_SDS:
        difference = unit * detectable(sd**2, TASK_SD**2, REST_SD**2, runs, tasks, level)
        reason = f"seed SD {unit * sd:g}; task variance as in the search task"
        sizes.append({"difference": difference, "if": reason})
    return sizes


def _arms_of(plan: Plan, facts: Mapping[Job, Mapping[str, Any]]) -> dict[str, Any]:
    """Arms that are compared, with their runs by seed, as a table has them."""
    arms: dict[str, Any] = {}
    for name in chain.from_iterable(plan.compare):
        runs = {str(seed): facts.get(Job(name, seed)) for seed in plan.seeds}
        arms[name] = {"seeds": {seed: run for seed, run in runs.items() if run is not None}}
    return arms


def _tasks(plan: Plan, facts: Mapping[Job, Mapping[str, Any]]) -> int | None:
    if facts:
        return next(iter(facts.values()))["tasks"]
    ran = next((arm for arm in plan.arms if not arm.inert), None)
    if plan.notebook or ran is None:
        return None
    return config_of(plan, Job(ran.name, 0)).evaluation.num_tasks
