"""The session of a stored run: with the weights of its newest checkpoint, or with those that any step left.

reopen(run)              what the run is now
reopen(run, step=3)      as step 3 left it, also where its checkpoint was not kept
session_of("frozenlake") the session of whatever has one: a run, a config, what `load_config` takes
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.run.store import Run, open_run
from workbench.training import checkpoint
from workbench.training.compare_repeated import compare
from workbench.training.config import PRESETS, load_config
from workbench.training.on_alarm import open_alarms
from workbench.training.session import Session, open_session
from workbench.training.step import repeat_step
from workbench.training.stored import config_of_run
from workbench.values.errors import StoreError


def session_of(source: Any) -> Session:
    """The session that a session is, that a run has (`reopen`), or that a config, or what `load_config` takes, opens."""
    if isinstance(source, Session):
        return source
    is_path = isinstance(source, (str, Path)) and str(source) not in PRESETS
    if isinstance(source, Run) or is_path and Path(source).is_dir():
        return reopen(source)
    return open_session(load_config(source))


def reopen(
    run: Any, *, step: int | None = None, quiet: bool = False, trust: bool = False
) -> Session:
    """The session of a stored run with the weights of its newest checkpoint, or those that `step` left, synchronised.

    Where the checkpoint of `step` was not kept, the steps since the one before it are learned again from their stored
    trajectories, and each must be reproduced, last bits aside. `run`: what `store.open_run` returned, or its folder;
    `trust` as there. Raises StoreError where the run has no readable checkpoint or such a step, or one is not reproduced;
    ConfigError where code that it names cannot be had here.
    """
    run = open_run(run, trust=trust)
    session = replace(open_session(config_of_run(run), quiet=quiet), run=run)
    loaded = checkpoint.load_newest(run.path) if step is None else _before(run, step)
    if loaded is None and step is None:
        raise StoreError(
            f"{run.path} has no checkpoint yet; train at least one step, or evaluate the policy it "
            f"started from: {session.policy.name}"
        )
    if loaded is not None:
        session.learner.load_state(loaded.tensors, loaded.state["learner"])
    first = loaded.step if loaded is not None else 0
    if step is not None and first < step:
        if not quiet:
            print(f"note: learning again from step {first} to {step}", file=sys.stderr)
        _learn_again(session, run, first, step)
    if session.learner.version:  # version 0 is what the engine holds: nothing was updated yet
        session.sync()
    return session


def _before(run: Run, step: int) -> checkpoint.Checkpoint | None:
    """The newest sound checkpoint of a step, or of one before it."""
    run.metrics_line(step)  # says which steps there are
    for kept in reversed(checkpoint.steps(run.path)):
        if kept <= step and checkpoint.damage(run.path, kept) is None:
            return checkpoint.load(run.path, kept)
    return None


def _learn_again(session: Session, run: Run, first: int, last: int) -> None:
    """Repeat the steps after `first`, `last` included, from their stored trajectories."""
    alarms = open_alarms(run, session.config.train.on_alarm)
    for step in range(first + 1, last + 1):
        alarms.act(step - 1, session.learner)
        outcome = repeat_step(session, step, run.groups(step))
        for unequal in compare(run, outcome):
            if not unequal.rounding:
                raise StoreError(
                    f"{run.path} has no checkpoint of step {last}, and step {step} is not reproduced from its stored "
                    f"trajectories: {unequal.text}. Ask for a step that has one: {checkpoint.steps(run.path)}"
                )
