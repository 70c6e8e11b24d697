"""The course of a run as JSON values: its curves with their baselines, and marks where something happened."""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.notebook.live_run import attach
from workbench.run.store import Run
from workbench.types.errors import StoreError
from workbench.views.curves import Curve
from workbench.views.escape import visible
from workbench.views.live import live_curves


def course_of(run: Run) -> dict[str, Any]:
    """Name, state, committed steps, the curves worth drawing with their levels, and marks."""
    rows, evaluations = run.metrics_rows(), run.evaluations()
    try:
        status = attach(run.path).status
        state, of = status.state, status.steps
    except StoreError:  # this process writes it: there is no other to ask
        state, of = "running", None
    return {
        "name": visible(run.name),
        "state": state,
        "steps": [row["step"] for row in rows],
        "of": of,
        "curves": [_curve(curve) for curve in live_curves(rows, evaluations)],
        "marks": _marks(run),
    }


def _curve(curve: Curve) -> dict[str, Any]:
    value, mean = (
        [float(each) if np.isfinite(each) else None for each in values]
        for values in (curve.value, curve.mean)
    )
    return {
        "title": curve.panel.title,
        "value": value,
        "mean": mean,
        "points": [[point.step, point.value, point.mode] for point in curve.points],
        "levels": [[line.name, line.value] for line in curve.lines],
    }


def _marks(run: Run) -> list[list[Any]]:
    """[step, what happened]: findings of the lint, skipped updates, changed settings."""
    found = [
        [step, f"{answer['rule']}: {finding['severity']}"]
        for step in (*run.steps(), *run.uncommitted())
        if (said := run.lint_values(step)) is not None
        for answer in said["answers"]
        for finding in answer["findings"][:1]
    ]
    for event in run.events():
        if event["kind"] == "skipped_update":
            found.append(
                [
                    event["step"],
                    f"update {event['update']} skipped: {visible(str(event['reason']))}",
                ]
            )
        elif event["kind"] == "settings":
            found.append(
                [event["after"] + 1, f"settings changed: {visible(', '.join(event['changed']))}"]
            )
    return found
