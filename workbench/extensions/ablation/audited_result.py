"""The result that a job's notebook ended in: beside the job's record, and beside the run that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from workbench.extensions.ablation.numbers import DIFFERENT, RECOMPUTED, TRUST, AuditedNumber
from workbench.extensions.ablation.recomputed import courses_of_run, tasks_of_run
from workbench.run.store import Run

RECORD = "the sealed record of the job"
Values = Sequence[Any]


def audited_result(
    cell: int, result: Mapping[str, Any], job: Mapping[str, Any] | None, runs: Sequence[Run]
) -> list[AuditedNumber]:
    """Every number of a result. What the record of the job has otherwise is different; what the run that it names
    holds, too, is recomputed or different; what neither holds is taken on trust."""
    record = (job or {}).get("result") or {}
    named = PurePath(str(result.get("run") or "")).name
    run = next((run for run in runs if run.name == named), None)
    courses = courses_of_run(run) if run is not None else {}
    tasks = result.get("per_task", [])
    audited = _against(cell, "per_task", tasks, record.get("per_task"), _tasks(run, tasks))
    recorded_curves = record.get("curves") or {}
    for name, course in (result.get("curves") or {}).items():
        remade = (courses[name], f"metric {name} of run {run.name}") if name in courses else None
        audited += _against(cell, f"curve {name}", course, recorded_curves.get(name), remade)
    recorded_numbers = record.get("numbers") or {}
    for name, value in (result.get("numbers") or {}).items():
        recorded = [recorded_numbers[name]] if name in recorded_numbers else None
        audited += _against(cell, name, [value], recorded, _metric(name, value, courses, run))
    return audited


def _against(
    cell: int, name: str, values: Values, record: Values | None, remade: tuple[Values, str] | None
) -> list[AuditedNumber]:
    """Value by value: the record first, since it was taken from this very notebook when it ended."""
    sources = [] if record is None else [(record, RECORD)]
    if remade:
        sources.append(remade)
    audited = []
    for at, value in enumerate(values):
        where = f"{name}, {at + 1} of {len(values)}" if len(values) > 1 else name
        for others, by in sources:
            now = others[at] if at < len(others) else "nothing"
            if now != value or len(others) != len(values):
                audited.append(AuditedNumber(cell, where, f"{value!r}", DIFFERENT, by, f"{now!r}"))
                break
        else:
            mark = RECOMPUTED if remade else TRUST
            audited.append(AuditedNumber(cell, where, f"{value!r}", mark, _reason(record, remade)))
    return audited


def _reason(record: Values | None, remade: tuple[Values, str] | None) -> str:
    """By what a value that nothing contradicts is taken as it is."""
    if remade:
        return remade[1]
    if record is not None:
        return "no run that is here holds it; the record of the job says the same"
    return "no run that is here holds it"


def _tasks(run: Run | None, values: Values) -> tuple[Values, str] | None:
    """The evaluation that a result's tasks are: the one that agrees most; None where none has as many tasks."""
    if run is None:
        return None
    fits: dict[str, Values] = {}
    for by, by_task in tasks_of_run(run).items():
        if len(values) > 1 and len(by_task) == len(values):
            fits[by] = by_task
        elif len(values) == 1 and by_task and None not in by_task:
            fits[by] = [sum(by_task) / len(by_task)]
    best = max(fits, key=lambda by: sum(a == b for a, b in zip(fits[by], values)), default=None)
    return None if best is None else (fits[best], f"{best} of run {run.name}")


def _metric(
    name: str, value: Any, courses: Mapping[str, Values], run: Run | None
) -> tuple[Values, str] | None:
    """A number that is called after a metric of the run is its value at some step; at the last, if at none."""
    if run is None or name not in courses or not courses[name]:
        return None
    steps = [at for at, now in enumerate(courses[name]) if now == value]
    at = steps[-1] if steps else len(courses[name]) - 1
    return [courses[name][at]], f"metric {name} of run {run.name} at its step {run.steps()[at]}"
