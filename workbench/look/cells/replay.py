"""Replay of a stored step by the run's own algorithm, with what is to be said of that algorithm's code."""

from __future__ import annotations

from pathlib import Path

from workbench.learn.replay import ReplayReport, replay_step
from workbench.run.store import Run, open_run
from workbench.training.stored import stored_config
from workbench.values.errors import ConfigError


def replay(run: Run | str | Path, step: int) -> tuple[ReplayReport, tuple[str, ...]]:
    """(what came of recomputing the credit of a step, in words what of the run's code is not as it was). Only the
    algorithm is needed; raises ConfigError where it cannot be had here."""
    run = open_run(run)
    stored = stored_config(run)
    if "algorithm" in stored.missing:
        raise ConfigError(
            f"replay computes credit by the run's own algorithm, which cannot be had here: "
            f"{stored.missing['algorithm']}"
        )
    return replay_step(run, step, stored.config.algorithm), stored.notes
