"""What a run had spent at each step, as axes for its curves, and why its trajectories stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.run.store import Run


def course_extras(run: Run) -> dict[str, Any]:
    """What the navigator's curves can be drawn over, and the stop reasons that a search can ask for; JSON values."""
    rows = run.metrics_rows()
    return {"spent": spent(run, rows), "stops": stop_reasons(rows)}


def spent(run: Run, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """What was spent up to the end of each step: tokens sampled, and seconds of the wall in which the run was at work."""
    clock = run.clock_rows()
    config = run.config
    has_changes = any(event["kind"] == "settings" for event in run.events())
    tokens = []
    seconds = []
    for row in rows:
        train = (run.config_of(row["step"]) if has_changes else config).get("train", {})
        trajectories = train.get("tasks_per_step", 0) * train.get("group_size", 0)
        tokens.append(row.get("sampled_tokens", 0.0) * trajectories)
        seconds.append(busy_seconds(clock.get(row["step"], {})))
    return {"tokens": np.cumsum(tokens).tolist(), "seconds": np.cumsum(seconds).tolist()}


def busy_seconds(clock: Mapping[str, Any]) -> float:
    """Seconds of the wall of one step, without what was sampled beside it."""
    total = 0.0
    for name, value in clock.items():
        if name.endswith("_s") and not name.endswith("_cpu_s") and name != "sampling_s":
            total += value
    return total


def stop_reasons(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The reasons for which a trajectory stopped in one of these steps."""
    stops = set()
    for row in rows:
        stops |= {name for name, value in row.items() if name.startswith("stop_") and value}
    return sorted(name.removeprefix("stop_") for name in stops)
