"""The spread of every group over training.

wb.group_spread(run)                which groups could teach anything, and on which side the others were flat
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.run.outcomes import outcomes_of
from workbench.run.store import Run, open_run
from workbench.types.evenly import evenly
from workbench.types.spreads import GroupSpread, RunSpread

if TYPE_CHECKING:
    from workbench.notebook.live_run import RunningRun

MOST_STEPS = 500  # read of a longer run, evenly chosen; all of 1,000 take seconds


def group_spread(run: Run | RunningRun | str | Path, *, most: int = MOST_STEPS) -> RunSpread:
    """Mean, spread and flat side of every group of a run's committed steps; of more than `most`, of so many evenly chosen.

    A comparison within groups (GRPO and its kin) learns nothing from a group whose attempts all earned the same: all won is
    too easy, all lost too hard. Raises StoreError for what is no run, and for a step that is damaged."""
    run = open_run(run)
    steps = run.steps()
    return RunSpread(
        run.name,
        tuple(group for step in evenly(steps, most) for group in _of_step(run, step)),
        len(steps),
    )


@lru_cache(maxsize=4096)
def _of_step(run: Run, step: int) -> tuple[GroupSpread, ...]:
    return tuple(
        GroupSpread.of(step, task, outcomes) for task, outcomes in enumerate(outcomes_of(run, step))
    )
