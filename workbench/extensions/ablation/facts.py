"""What a job found: from its run folder (invariant 13), or from the result that its notebook ended in. JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workbench.extensions.ablation.plan import Job, Plan, config_of
from workbench.run.store import Run, open_run
from workbench.training.config import to_dict
from workbench.training.stored import config_of_run
from workbench.values.errors import DataError, StoreError

MODES = ("sampled", "greedy")
CURVES = ("success", "turns", "entropy", "grad_norm")  # of the metrics of a run
OF_RETURNS = {"success": "reward_mean"}  # what is drawn instead where nobody says who succeeded
Facts = Mapping[str, Any]


def facts_of(plan: Plan, job: Job, out: Path, end: Facts) -> dict[str, Any]:
    """What a job found: `end` is its record (`work.ended`). StoreError where its run is gone, or is of another
    configuration than the plan's."""
    return _of_result(end) if "result" in end else _of_run(plan, job, out, end)


def _of_result(end: Facts) -> dict[str, Any]:
    """Of a notebook of the user's own, which measured what it wanted: no greedy play, no baselines, no lint."""
    result = end["result"]
    return ({"measure": "return"} if result["measure"] == "return" else {}) | {
        "sampled": result["per_task"],
        "rows": [],
        "curves": result["curves"],
        "evaluated": {},
        "tasks": len(result["per_task"]),
        "steps": None,
        "lint": None,
        "run": result["run"],
        "numbers": result["numbers"],
        "code": end["code"],
        "notebook": end["notebook"],
        "cpu_seconds": end["cpu_seconds"],
        "training_cpu_seconds": end["cpu_seconds"],
    }


def _of_run(plan: Plan, job: Job, out: Path, end: Facts) -> dict[str, Any]:
    path = out / "runs" / end["run"]
    run = open_run(path)
    if to_dict(config_of_run(run)) != to_dict(config_of(plan, job)):
        raise StoreError(
            f"{path} was made with another configuration than {plan.name} has for {job}; run it again"
        )
    by_step = {report["step"]: report for report in run.evaluations().values()}
    first = by_step[0]
    last = by_step[len(run.steps())]
    rows = {(row["policy"], row["mode"]): row for row in last["rows"]}
    by_return = rows["trained", "sampled"]["success"] is None
    facts: dict[str, Any] = {"measure": "return"} if by_return else {}
    if "absent" in first:
        facts["absent"] = first["absent"]
    for mode in MODES:
        facts[mode] = by_task(rows["trained", mode], job)
    return facts | {
        "rows": first["rows"],
        "curves": _curves(run, by_return),
        "evaluated": _evaluated(run, "reward" if by_return else "success"),
        "tasks": rows["trained", "sampled"]["n"],
        "steps": len(run.steps()),
        "lint": _lint(run),
        "run": end["run"],
        "code": end["code"],
        "notebook": end["notebook"],
        "cpu_seconds": end["cpu_seconds"],
        "training_cpu_seconds": _training(run),
    }


def _curves(run: Run, by_return: bool) -> dict[str, list[float | None]]:
    """Metrics by the names under which they are drawn."""
    metrics = run.metrics()
    curves = {}
    for drawn_as in CURVES:
        name = OF_RETURNS.get(drawn_as, drawn_as) if by_return else drawn_as
        if name in metrics:
            values = metrics[name].astype(float)
            curves[drawn_as] = [None if np.isnan(value) else float(value) for value in values]
    return curves


def _evaluated(run: Run, measure: str) -> dict[str, dict[str, Any]]:
    """Step -> mode -> success (or return) on held-out tasks, of the policy as it was then."""
    evaluated: dict[str, dict[str, Any]] = {}
    for report in run.evaluations().values():
        policy = "trained" if report["step"] else "untrained"
        evaluated[str(report["step"])] = {
            row["mode"]: row[measure] for row in report["rows"] if row["policy"] == policy
        }
    return evaluated


def by_task(row: Facts, job: Job | str) -> list[float]:
    """Success of each task, or return where nobody says who succeeded."""
    values = row["by_task"] if row["success"] is not None else row["reward_by_task"]
    if None in values:
        raise DataError(
            f"{job}: no trajectory of held-out task {list(values).index(None)} was scored, so arms cannot be "
            "compared task by task; fix what broke there (workbench show) and run it again"
        )
    return values


def _lint(run: Run) -> dict[str, Any]:
    """Steps that the lint looked at, and the rules by which it found errors and notes."""
    errors = set()
    notes = set()
    steps = 0
    for report in map(run.lint, run.steps()):
        if report is None:
            continue
        steps += 1
        errors |= {answer.rule for answer in report.answers if answer.errors}
        notes |= {answer.rule for answer in report.answers if answer.notes}
    return {"steps": steps, "errors": sorted(errors), "notes": sorted(notes)}


def _training(run: Run) -> float:
    clock = run.clock()
    return float(clock[[name for name in clock if name.endswith("_cpu_s")]].to_numpy().sum())
