"""Training in this process with the instruments that the configuration asks for.

    wb.train_here(config, "runs/first")      what `workbench train`, torchrun and papermill end in
    wb.resume_here("runs/first")
    wb.train_step(session, 1)                one step, to look at what it returns

`wb.train` (live_run.py) starts the same in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.linting.in_training import TrainingLint
from workbench.rollouts.evaluate import Score
from workbench.run.recording import RunWriter
from workbench.run.store import Run
from workbench.training import resume as resuming
from workbench.training import train as training
from workbench.training.config import Config
from workbench.training.instruments import Instrument
from workbench.training.resume import ResumePlan
from workbench.training.session import Session
from workbench.training.step import StepOutcome
from workbench.training.step import train_step as bare_step


def usual_instruments(config: Config) -> tuple[Instrument, ...]:
    """What looks at every step unless the caller says otherwise: the lint, where `lint.mode` is not "off"."""
    return () if config.lint.mode == "off" else (TrainingLint(),)


def train_step(
    session: Session,
    step: int,
    run: RunWriter | None = None,
    on_done: Callable[..., None] | None = None,
    *,
    start: bool | None = None,
    instruments: Sequence[Instrument] | None = None,
) -> StepOutcome:
    """Collect, credit, lint, update, hand the new weights to the engine. `step` counts from 1.

    `run`, `start`: see `training.step.train_step`. `instruments` None: those that `session.config` asks for; to let
    the lint follow from step to step, make one `TrainingLint()` and hand it to each. Raises LintError, before anything
    is updated, where the lint finds an error and `config.lint.mode` is "assert".
    """
    chosen = usual_instruments(session.config) if instruments is None else instruments
    return bare_step(session, step, run, on_done, start=start, instruments=chosen)


def train_here(
    config: Config,
    path: str | Path,
    *,
    on_step: Callable[[StepOutcome], None] | None = None,
    on_score: Callable[[int, list[Score]], None] | None = None,
    on_rollout: Callable[[int], Callable[..., None]] | None = None,
    on_note: Callable[[str], None] | None = print,
    instruments: Sequence[Instrument] | None = None,
) -> Run:
    """`training.train.train_here` with the instruments that `config` asks for (or those given)."""
    chosen = usual_instruments(config) if instruments is None else instruments
    return training.train_here(
        config,
        path,
        on_step=on_step,
        on_score=on_score,
        on_rollout=on_rollout,
        on_note=on_note,
        instruments=chosen,
    )


def resume_here(
    path: str | Path | ResumePlan,
    settings: Mapping[str, Any] = {},
    *,
    on_step: Callable[[StepOutcome], None] | None = None,
    on_score: Callable[[int, list[Score]], None] | None = None,
    on_rollout: Callable[[int], Callable[..., None]] | None = None,
    on_note: Callable[[str], None] | None = print,
    instruments: Callable[[Config], Sequence[Instrument]] = usual_instruments,
    trust: bool = False,
    accept_changed_code: bool = False,
) -> Run:
    """`training.resume.resume_here` with the instruments that the stored configuration asks for."""
    return resuming.resume_here(
        path,
        settings,
        on_step=on_step,
        on_score=on_score,
        on_rollout=on_rollout,
        on_note=on_note,
        instruments=instruments,
        trust=trust,
        accept_changed_code=accept_changed_code,
    )
