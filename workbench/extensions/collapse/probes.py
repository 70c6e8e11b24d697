"""Success on the held-out tasks, evaluation by evaluation, beside the untrained policy on the same tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from workbench.values.stats import task_difference

LOST = 0.5  # of the start's success on the probe set: with an interval excluding 0, a collapse
SIDES = ("untrained", "trained")


class ProbeRecord(NamedTuple):
    """Success on the held-out tasks after a step, in one mode; `change`: less that of the untrained policy on the same
    tasks, with its paired 95 % interval."""

    step: int
    mode: str
    success: float
    change: float
    low: float
    high: float

    @property
    def fell(self) -> bool:
        """Half of the initial success or more is lost, and the interval excludes 0."""
        return self.change <= -LOST * (self.success - self.change) and self.high < 0


def probes_of(reports: Mapping[str, Mapping[str, Any]]) -> tuple[ProbeRecord, ...]:
    """From the evaluations of a run (`run.evaluations()`), those of the trained policy beside the untrained one."""
    records = []
    for report in sorted(reports.values(), key=lambda each: each.get("step", 0)):
        rows = {(row["policy"], row["mode"]): row for row in report.get("rows", ())}
        for mode in ("sampled", "greedy"):
            pair = [rows.get((policy, mode), {}).get("by_task") for policy in SIDES]
            if all(pair) and len(pair[0]) == len(pair[1]):
                change = task_difference(*pair)
                success = rows["trained", mode]["success"]
                records.append(
                    ProbeRecord(
                        report.get("step", 0), mode, success, change.mean, change.low, change.high
                    )
                )
    return tuple(records)
