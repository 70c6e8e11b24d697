"""What a job found: from its run folder (law 13), or from the result that its notebook ended in. JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workbench.ablation.plan import Job, Plan, config_of
from workbench.run.store import Run, open_run
from workbench.training.config import to_dict
from workbench.training.stored import config_of_run
from workbench.types.errors import DataError, StoreError

MODES = ("sampled", "greedy")
CURVES = ("success", "turns", "entropy", "grad_norm")  # of the metrics of a run
OF_RETURNS = {"success": "reward_mean"}  # what is drawn instead where nobody says who succeeded
Facts = Mapping[str, Any]


def facts_of(plan: Plan, job: Job, out: Path, end: Facts) -> dict[str, Any]:
    """What a job found: `end` is its record (`work.ended`). StoreError where its run is gone, or is of another
    configuration than the plan's."""
    return _of_result(end) if "result" in end else _of_run(plan, job, out, end)


def _of_result(end: Facts) -> dict[str, Any]:
    """Of a notebook of the user's own, which measured what it wanted: no greedy play, no neighbours, no lint."""
    found = end["result"]
    return ({"measure": "return"} if found["measure"] == "return" else {}) | {
        "sampled": found["per_task"],
        "rows": [],
        "curves": found["curves"],
        "evaluated": {},
        "tasks": len(found["per_task"]),
        "steps": None,
        "lint": None,
        "run": found["run"],
        "numbers": found["numbers"],
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
    first, last = (
        report
        for step, report in sorted((r["step"], r) for r in run.evaluations().values())
        if step in (0, len(run.steps()))
    )
    rows = {(row["policy"], row["mode"]): row for row in last["rows"]}
    metrics, told = run.metrics(), {}
    names, value = {name: name for name in CURVES}, "success"
    if rows["trained", "sampled"]["success"] is None:
        told, value, names = (
            {"measure": "return"},
            "reward",
            {OF_RETURNS.get(name, name): name for name in CURVES},
        )
    return (
        told
        | ({"absent": first["absent"]} if "absent" in first else {})
        | {
            **{mode: by_task(rows["trained", mode], job) for mode in MODES},
            "rows": first["rows"],
            "curves": {
                shown: [None if np.isnan(x) else float(x) for x in metrics[name].astype(float)]
                for name, shown in names.items()
                if name in metrics
            },
            "evaluated": {
                str(report["step"]): {
                    row["mode"]: row[value]
                    for row in report["rows"]
                    if row["policy"] == ("trained" if report["step"] else "untrained")
                }
                for report in run.evaluations().values()
            },
            "tasks": rows["trained", "sampled"]["n"],
            "steps": len(run.steps()),
            "lint": _lint(run),
            "run": end["run"],
            "code": end["code"],
            "notebook": end["notebook"],
            "cpu_seconds": end["cpu_seconds"],
            "training_cpu_seconds": _training(run),
        }
    )


def by_task(row: Facts, job: Job | str) -> list[float]:
    """Success of each task, or return where nobody says who succeeded."""
    found = row["by_task"] if row["success"] is not None else row["reward_by_task"]
    if None in found:
        raise DataError(
            f"{job}: no attempt at held-out task {list(found).index(None)} was scored, so arms cannot be "
            "compared task by task; mend what broke there (workbench show) and run it again"
        )
    return found


def _lint(run: Run) -> dict[str, Any]:
    """Steps that the lint looked at, and what it said of them, by rule."""
    reports = [report for step in run.steps() if (report := run.lint(step)) is not None]
    said = {
        kind: sorted(
            {
                answer.rule
                for report in reports
                for answer in report.answers
                if getattr(answer, kind)
            }
        )
        for kind in ("errors", "notes")
    }
    return {"steps": len(reports), **said}


def _training(run: Run) -> float:
    clock = run.clock()
    return float(clock[[name for name in clock if name.endswith("_cpu_s")]].to_numpy().sum())
