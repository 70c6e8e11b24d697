"""A step that was repeated, compared with the stored one: every column of every credit table, and the metrics line.

This is the free self-check of a resumed run. It reads what the updates really did, the logprobs under the new weights
among it, so wrong weights, a lost optimizer or another formula cannot go on unnoticed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.basics import canonical_json
from workbench.learn.rounding import is_rounding
from workbench.run.equality import first_difference
from workbench.run.store import Run, differing
from workbench.training.step import StepOutcome


@dataclass(frozen=True)
class Unequal:
    """Something of a step that was not reproduced. `rounding`: another rounding would explain it."""

    what: str
    text: str
    rounding: bool


def compare(stored: Run, outcome: StepOutcome) -> list[Unequal]:
    """Where a repeated step differs from the stored one; [] where every bit is the same."""
    step = outcome.step
    stored_updates = len(stored.updates(step))
    if len(outcome.reports) != stored_updates:
        text = f"{stored_updates} updates are stored, {len(outcome.reports)} were made now"
        return [Unequal("updates", text, False)]
    skipped = stored.skipped(step)
    unequal = []
    for report in outcome.reports:
        update = report.table.update
        before = stored.credit(step, update).columns
        now = report.table.columns
        if list(before) != list(now):
            text = f"update {update} has the columns {', '.join(before)}; now {', '.join(now)}"
            unequal.append(Unequal("columns", text, False))
            continue
        unequal += _compare_columns(update, before, now)
        reason = skipped.get(update)
        if reason != report.skipped:
            both = (reason is None) == (report.skipped is None)
            text = f"update {update}: skipped for {reason!r}, now {report.skipped!r}"
            unequal.append(Unequal("skipped", text, both))
    line = stored.metrics_line(step)
    made = json.loads(canonical_json.json_bytes(outcome.metrics, "metrics"))
    # A metric that later code has besides is no other step; one that is gone or has another value is.
    line_now = {name: value for name, value in made.items() if name in line}
    if (text := first_difference(line, line_now, "metrics")) is not None:
        unequal.append(Unequal("metrics", text, True))
    return unequal


def _compare_columns(
    update: int, before: Mapping[str, np.ndarray], now: Mapping[str, np.ndarray]
) -> list[Unequal]:
    unequal = []
    for name in before:
        text = first_difference(before[name], now[name], f"update {update}, column {name}")
        if text is not None:
            rounding = name == "clip_state" or is_rounding(before[name], now[name])
            unequal.append(Unequal(name, text, rounding))
    return unequal


def drift_since(stored: Run, step: int, now: dict[str, Any]) -> str:
    """What of the machine differs, in words, between now and when the steps after `step` were made; "": nothing."""
    machines = stored.machines()
    first = max((i for i, (after, _) in enumerate(machines) if after <= step), default=0)
    return "; ".join(
        dict.fromkeys(differing(facts, now) for _, facts in machines[first:] if facts != now)
    )
