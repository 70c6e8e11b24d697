"""Training is a loop over cells; this page is that loop.

    tasks ─ rollout ─ store ─ batch ─ credit ─ update ─ store ─ sync ─ commit

`train_step` is one turn of it and can be called from a notebook; `train_here` runs the whole loop in this process (what
`workbench train`, torchrun and papermill end in); `train` starts that in a process of its own.
"""
from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from accelerate.utils import broadcast_object_list, wait_for_everyone

from workbench import checkpoint
from workbench.batch import Batch
from workbench.cells.evaluate import evaluate, neighbours
from workbench.cells.rollout import rollout
from workbench.cells.watch import follow
from workbench.config import Config, check_liveness, to_dict
from workbench.errors import LearnerError, StoreError
from workbench.evaluation import Score, report
from workbench.metrics import rollout_metrics
from workbench.session import Session, open_session
from workbench.store import Run, RunWriter, create_run, open_run
from workbench.types import Group
from workbench.update_report import UpdateReport
from workbench.views import progress


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


# ------------------------------------------------------------------------------------------------ in its own process


@dataclass(frozen=True, eq=False)
class RunningRun:
    """A run that trains in its own process: a kernel never becomes a rank, and its restart does not end the run."""

    path: Path
    process: subprocess.Popen
    steps: int  # that it was asked for

    @property
    def run(self) -> Run:
        """What is committed so far."""
        return open_run(self.path)

    def wait(self) -> Run:
        """Block until it ends, with a progress line; a run that was stopped is returned as far as it came. Raises
        LearnerError with the end of its log if it failed.

        An interrupt (Ctrl-C, or the kernel's stop button) ends the waiting, not the run.
        """
        with progress(self.steps, self.path.name) as bar:
            try:
                while self.process.poll() is None:
                    follow(bar, self.path)
                    with suppress(subprocess.TimeoutExpired):
                        self.process.wait(timeout=0.5)
            except KeyboardInterrupt:
                bar.close("no longer waited for; the run goes on until it is done, or .stop()")
                raise
            follow(bar, self.path)
            stopped, failed = self.process.returncode == -signal.SIGTERM, self.process.returncode != 0
            bar.close("stopped" if stopped else f"failed with status {self.process.returncode}" if failed else "")
        if failed and not stopped:
            log = Path(f"{self.path}.log").read_text(errors="replace")
            raise LearnerError(f"the run in {self.path} ended with status {self.process.returncode}; "
                               f"its log ends:\n{log[-3000:]}")
        return self.run

    def stop(self) -> None:
        """Ask it to end (SIGTERM). Committed steps stay."""
        self.process.terminate()


def fresh_path(path: str | Path) -> Path:
    """`path`, or `path-2`, `path-3` ... if it is taken: a run is never overwritten."""
    path, number = Path(path), 2
    free = path
    while free.exists() or Path(f"{free}.log").exists():
        free, number = path.with_name(f"{path.name}-{number}"), number + 1
    return free


def train(config: Config, path: str | Path) -> RunningRun:
    """Start training in a process of its own and return at once; `.wait()` gives the finished `Run`."""
    path = Path(path)
    if path.exists():
        raise StoreError(f"{path} exists; a run is never overwritten. Choose another name, or remove the folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    from workbench.writer import write_file

    settings = path.parent / f"{path.name}.config.json"
    # one may lie there of a failed try
    write_file(settings, json.dumps(to_dict(config), indent=1).encode(), replace=True)
    with open(f"{path}.log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "workbench.cli", "train", str(settings), "--out", str(path)],
                                   stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    return RunningRun(path, process, config.train.steps)
