"""A step that was repeated, held against the stored one: every column of every credit table, and the metrics line.

This is the free self-check of a resumed run. It reads what the updates really did, the logprobs under the new weights
among it, so wrong weights, a lost optimizer or another formula cannot go on unnoticed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from workbench.learn.rounding import is_rounding
from workbench.run.equality import first_difference
from workbench.run.store import Run, differing
from workbench.training.step import StepOutcome
from workbench.types import canonical_json


@dataclass(frozen=True)
class Unequal:
    """Something of a step that did not come out again. `rounding`: another rounding would explain it."""

    what: str
    text: str
    rounding: bool


def compare(stored: Run, outcome: StepOutcome) -> list[Unequal]:
    """Where a repeated step differs from the stored one; [] where every bit is the same."""
    step, found = outcome.step, []
    skipped = stored.skipped(step)
    if len(outcome.reports) != len(stored.updates(step)):
        text = (
            f"{len(stored.updates(step))} updates are stored, {len(outcome.reports)} were made now"
        )
        return [Unequal("updates", text, False)]
    for report in outcome.reports:
        update = report.table.update
        before, now = stored.credit(step, update).columns, report.table.columns
        if list(before) != list(now):
            text = f"update {update} has the columns {', '.join(before)}; now {', '.join(now)}"
            found.append(Unequal("columns", text, False))
            continue
        for name in before:
            if (
                text := first_difference(before[name], now[name], f"update {update}, column {name}")
            ) is not None:
                found.append(
                    Unequal(
                        name, text, name == "clip_state" or is_rounding(before[name], now[name])
                    )
                )
        if skipped.get(update) != report.skipped:
            both = (skipped.get(update) is None) == (report.skipped is None)
            found.append(
                Unequal(
                    "skipped",
                    f"update {update}: skipped for {skipped.get(update)!r}, now {report.skipped!r}",
                    both,
                )
            )
    line = stored.metrics_line(step)
    now = json.loads(canonical_json.json_bytes(outcome.metrics, "metrics"))
    if (text := first_difference(line, now, "metrics")) is not None:
        found.append(Unequal("metrics", text, True))
    return found


def drift_since(stored: Run, step: int, now: dict[str, Any]) -> str:
    """What of the machine differs, in words, between now and when the steps after `step` were made; "": nothing."""
    machines = stored.machines()
    first = max((i for i, (after, _) in enumerate(machines) if after <= step), default=0)
    return "; ".join(
        dict.fromkeys(differing(facts, now) for _, facts in machines[first:] if facts != now)
    )
