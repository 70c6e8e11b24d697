"""Training is a loop over cells; this page is that loop.

    tasks ─ rollout ─ store ─ batch ─ credit ─ update ─ store ─ sync ─ commit

`train_step` is one turn of it and can be called from a notebook; `train_here` runs the whole loop in this process (what
`workbench train`, torchrun and papermill end in); `train` in cells/running.py starts that in a process of its own.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from accelerate.utils import broadcast_object_list, wait_for_everyone

from workbench import checkpoint
from workbench.batch import Batch
from workbench.cells.evaluate import evaluate, neighbours
from workbench.cells.rollout import rollout
from workbench.config import Config, check_liveness, to_dict
from workbench.errors import LearnerError
from workbench.evaluation import Score, report
from workbench.metrics import rollout_metrics
from workbench.session import Session, open_session
from workbench.store import Run, RunWriter, create_run, open_run
from workbench.types import Group
from workbench.update_report import UpdateReport


@dataclass(frozen=True, eq=False)
class StepOutcome:
    """What one step did: its groups, its numbers, and the seconds each phase took (wall and CPU, kept apart, law 14).
    """

    step: int
    groups: tuple[Group, ...]
    metrics: dict[str, Any]
    clock: dict[str, float]
    updates: int  # optimizer updates that were made; 0: the step taught nothing


def train_step(session: Session, step: int, run: RunWriter | None = None,
               on_done: Callable[..., None] | None = None) -> StepOutcome:
    """Collect, credit, update, hand the new weights to the engine. `step` counts from 1.

    With `run` the step's trajectories are durable before the first update and each credit table after its update
    (law 14); `commit_step` is left to the caller.
    """
    clock = _Clock()
    groups = rollout(session, session.train_tasks(step), step=step, purpose="train", on_done=on_done)
    clock.lap("collect")
    if run is not None:
        run.write_step(step, groups)
    clock.lap("store")
    batch = Batch.from_groups(groups)
    batch = session.learner.facts(batch)  # what credit needs of the models: values, reference logprobs
    credit = session.config.algorithm.credit(batch)
    clock.lap("credit")
    try:
        reports = session.learner.update(batch, credit, step=step)
    except LearnerError as error:  # what led to the end is kept, then the end is told
        _store_updates(run, getattr(error, "reports", []))
        raise
    _store_updates(run, reports)
    clock.lap("update")
    made = sum(report_.skipped is None for report_ in reports)
    if made:
        session.sync()
    clock.lap("sync")
    metrics = rollout_metrics(groups) | {f"credit_{name}": value for name, value in credit.notes.items()}
    metrics |= _mean_by_key([report_.metrics for report_ in reports])
    metrics |= {"updates": made, "policy_version": session.learner.version}
    return StepOutcome(step, tuple(groups), metrics, clock.laps, made)


def _store_updates(run: RunWriter | None, reports: Sequence[UpdateReport]) -> None:
    for report_ in reports if run is not None else ():
        run.write_credit(report_.table, skipped=report_.skipped)


def _mean_by_key(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means over the updates of a step, each over the updates that have the number: an absent one is not zero."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: float(np.mean([row[key] for row in rows if key in row])) for key in keys}


def train_here(config: Config, path: str | Path, *, on_step: Callable[[StepOutcome], None] | None = None,
               on_score: Callable[[int, list[Score]], None] | None = None,
               on_rollout: Callable[[int], Callable[..., None]] | None = None) -> Run:
    """Train in this process until `config.train.steps` are done; returns the finished run.

    Evaluates random play, the solver and the untrained policy first, so that no later number stands alone (law 12).
    Under torchrun every process calls this; only the first one writes and is told of steps and scores. Raises
    ConfigError for contradictions, LearnerError after `train.max_empty_steps` steps in a row in which nothing could be
    trained, StoreError if the run folder exists.
    """
    check_liveness(config, frozenset())  # a config that was made in Python has not been through `load_config`
    session = open_session(config)
    first = session.learner.is_main  # made first of all: it asserts the number of processes
    [path] = broadcast_object_list([str(path)])  # a name with a time in it may differ between processes
    run = create_run(path, to_dict(config)) if first else None
    if not first:
        on_step = on_score = on_rollout = None
    try:
        if run is not None:
            run.event({"kind": "policy", "name": session.policy.name, "fingerprint": session.policy.fingerprint})
        scores = neighbours(session) + evaluate(session, name="untrained")
        _record(run, 0, scores, on_score)
        _loop(session, run, scores, on_step, on_score, on_rollout)
    finally:
        if run is not None:
            run.close()
    wait_for_everyone()  # the others must not read what the first one is still writing
    return open_run(path)


def _loop(session: Session, run: RunWriter | None, scores: list[Score], on_step, on_score, on_rollout) -> None:
    train, empty = session.config.train, 0
    for step in range(1, train.steps + 1):
        outcome = train_step(session, step, run, on_rollout(step) if on_rollout else None)
        last = step == train.steps
        if run is not None:
            run.commit_step(step, outcome.metrics, outcome.clock)
            if last or step % train.checkpoint_every == 0:
                _save(session, run, step)
        if on_step is not None:
            on_step(outcome)
        empty = 0 if outcome.updates else empty + 1
        if empty >= train.max_empty_steps:
            fault = next((f"; the first fault: {t.error}" for group in outcome.groups for t in group if t.error), "")
            raise LearnerError(
                f"{empty} steps in a row taught nothing (step {step}: {outcome.metrics.get('flat_groups', 0):.0%} of "
                f"the groups are flat, {outcome.metrics['unscored']:.0f} trajectories unscored{fault}). Look at them "
                f"with `workbench show {run.path if run else 'RUN'} {step}`; a policy that always or never succeeds "
                "gives group baselines nothing to compare")
        if last or (train.evaluate_every and step % train.evaluate_every == 0):
            now = evaluate(session, name="trained")
            _record(run, step, [*scores, *now], on_score)


def _record(run: RunWriter | None, step: int, scores: list[Score], on_score) -> None:
    if run is not None:
        run.write_evaluation(f"step-{step:08d}", {"step": step, **report(scores)})
    if on_score is not None:
        on_score(step, scores)


def _save(session: Session, run: RunWriter, step: int) -> None:
    tensors, state = session.learner.state()
    checkpoint.save(run, step, tensors, {"learner": state, "step": step}, keep=session.config.train.keep_checkpoints)


class _Clock:
    """Wall and CPU seconds since the last lap, by name."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def lap(self, name: str) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        self.laps |= {f"{name}_s": wall - self._wall, f"{name}_cpu_s": cpu - self._cpu}
        self._wall, self._cpu = wall, cpu
