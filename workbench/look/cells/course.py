"""The course of a run as JSON values: its curves with their baselines, and marks where something happened."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.basics.extensions import has_service, service
from workbench.look.cells.live_run import attach
from workbench.look.curves import Curve
from workbench.look.escape import visible
from workbench.look.live import live_curves
from workbench.run.store import Run
from workbench.values.errors import StoreError


def course_of(run: Run) -> dict[str, Any]:
    """Name, state, committed steps, the curves worth drawing with their levels, and marks; and what an
    extension adds (what was spent up to each step, the stop reasons)."""
    rows = run.metrics_rows()
    evaluations = run.evaluations()
    try:
        status = attach(run.path).status
        state = status.state
        of = status.steps
    except StoreError:  # this process writes it: there is no other to ask
        state = "running"
        of = None
    extra = service("course_extras", "curves")(run) if has_service("course_extras") else {}
    return {
        "name": visible(run.name),
        "state": state,
        "steps": [row["step"] for row in rows],
        "of": of,
        **extra,
        "curves": [_curve(curve) for curve in live_curves(rows, evaluations)],
        "marks": _marks(run),
    }


def _curve(curve: Curve) -> dict[str, Any]:
    return {
        "title": curve.panel.title,
        "value": _known_numbers(curve.value),
        "points": [[point.step, point.value, point.mode] for point in curve.points],
        "levels": [[line.name, line.value] for line in curve.lines],
    }


def _known_numbers(values: np.ndarray) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _marks(run: Run) -> list[list[Any]]:
    """[step, what happened]: findings of the lint, skipped updates, changed settings."""
    marks: list[list[Any]] = []
    for step in (*run.steps(), *run.uncommitted()):
        report = run.lint_values(step) or {"answers": ()}
        for answer in report["answers"]:
            for finding in answer["findings"][:1]:
                marks.append([step, f"{answer['rule']}: {finding['severity']}"])
    for event in run.events():
        if event["kind"] == "skipped_update":
            reason = visible(str(event["reason"]))
            marks.append([event["step"], f"update {event['update']} skipped: {reason}"])
        elif event["kind"] == "settings":
            names = visible(", ".join(event["changed"]))
            marks.append([event["after"] + 1, f"settings changed: {names}"])
    return marks
