"""The result that a job's notebook ended in: beside the job's record, and beside the run that it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from workbench.ablation.numbers import DIFFERENT, RECOMPUTED, TRUST, AuditedNumber
from workbench.ablation.recomputed import courses_of_run, tasks_of_run
from workbench.run.store import Run

RECORD = "the sealed record of the job"
Values = Sequence[Any]


def audited_result(
    cell: int, said: Mapping[str, Any], job: Mapping[str, Any] | None, runs: Sequence[Run]
) -> list[AuditedNumber]:
    """Every number of a result. What the record of the job has otherwise is different; what the run that it names
    holds, too, is recomputed or different; what neither holds is taken on trust."""
    record = (job or {}).get("result") or {}
    named = PurePath(str(said.get("run") or "")).name
    run = next((run for run in runs if run.name == named), None)
    courses = courses_of_run(run) if run is not None else {}
    tasks = said.get("per_task", [])
    found = _against(cell, "per_task", tasks, record.get("per_task"), _tasks(run, tasks))
    for name, course in (said.get("curves") or {}).items():
        by = (courses[name], f"metric {name} of run {run.name}") if name in courses else None
        found += _against(cell, f"curve {name}", course, (record.get("curves") or {}).get(name), by)
    for name, value in (said.get("numbers") or {}).items():
        kept = record.get("numbers") or {}
        by = _metric(name, value, courses, run)
        found += _against(cell, name, [value], [kept[name]] if name in kept else None, by)
    return found


def _against(
    cell: int, name: str, said: Values, record: Values | None, made: tuple[Values, str] | None
) -> list[AuditedNumber]:
    """Value by value: the record first, since it was taken from this very notebook when it ended."""
    found = []
    for at, value in enumerate(said):
        where = f"{name}, {at + 1} of {len(said)}" if len(said) > 1 else name
        for other, by in filter(None, ((record, RECORD) if record is not None else None, made)):
            now = other[at] if at < len(other) else "nothing"
            if now != value or len(other) != len(said):
                found.append(AuditedNumber(cell, where, f"{value!r}", DIFFERENT, by, f"{now!r}"))
                break
        else:
            found.append(
                AuditedNumber(cell, where, f"{value!r}", RECOMPUTED, made[1])
                if made
                else AuditedNumber(
                    cell,
                    where,
                    f"{value!r}",
                    TRUST,
                    "no run that is here holds it"
                    + ("; the record of the job says the same" if record is not None else ""),
                )
            )
    return found


def _tasks(run: Run | None, said: Values) -> tuple[Values, str] | None:
    """The evaluation that a result's tasks are: the one that agrees most; None where none has as many tasks."""
    if run is None:
        return None
    fits = {
        by: values
        for by, values in tasks_of_run(run).items()
        if len(values) == len(said) and len(said) > 1
    }
    mean = {
        by: [sum(values) / len(values)]
        for by, values in tasks_of_run(run).items()
        if len(said) == 1 and values and None not in values
    }
    fits |= mean
    best = max(fits, key=lambda by: sum(a == b for a, b in zip(fits[by], said)), default=None)
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
