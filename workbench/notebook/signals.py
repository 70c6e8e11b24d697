"""The signals of a run that may warn of a collapse, of every committed step; of one that trains, so far.

wb.signals(run)                     spreads, flat groups, repetition, templates, lengths, what the updates said
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.notebook.spread import MOST_STEPS
from workbench.rollouts.step_signals import step_signals
from workbench.run.outcomes import last_credit
from workbench.run.store import Run, open_run
from workbench.types.evenly import evenly
from workbench.types.monitored import RunSignals, StepSignals, probes_of

if TYPE_CHECKING:
    from workbench.notebook.live_run import RunningRun


def signals(run: Run | RunningRun | str | Path, *, most: int = MOST_STEPS) -> RunSignals:
    """The signals of a run's committed steps; of more than `most`, of so many evenly chosen. And its success on the
    held-out tasks, beside the untrained policy's.

    The same numbers came out while it trained: they are a function of what is stored of a step, of nothing else.
    Raises StoreError for what is no run, and for a step that is damaged."""
    run = open_run(run)
    steps = run.steps()
    read = tuple(_of_step(run, step) for step in evenly(steps, most))
    return RunSignals(run.name, read, probes_of(run.evaluations()), len(steps))


@lru_cache(maxsize=4096)
def _of_step(run: Run, step: int) -> StepSignals:
    return step_signals(step, run.groups(step), run.metrics_line(step), last_credit(run, step))
