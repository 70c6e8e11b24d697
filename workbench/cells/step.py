"""One step of training, made anew or once more from what is stored.

    tasks ─ rollout ─ store ─ batch ─ credit ─ update ─ store ─ sync
                                └────── `repeat_step` ──────┘

What follows the trajectories is one function for both, so a step that is replayed cannot be another one.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.batch import Batch
from workbench.cells.rollout import rollout
from workbench.errors import LearnerError
from workbench.metrics import rollout_metrics
from workbench.session import Session
from workbench.store import RunWriter
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
    reports: tuple[UpdateReport, ...] = ()


def train_step(session: Session, step: int, run: RunWriter | None = None,
               on_done: Callable[..., None] | None = None) -> StepOutcome:
    """Collect, credit, update, hand the new weights to the engine. `step` counts from 1.

    With `run` the step's trajectories are durable before the first update and each credit table after its update
    (law 14); `commit_step` is left to the caller.
    """
    clock = Clock()
    groups = rollout(session, session.train_tasks(step), step=step, purpose="train", on_done=on_done)
    clock.lap("collect")
    if run is not None:
        run.write_step(step, groups)
    clock.lap("store")
    try:
        outcome = _learn(session, step, groups, clock)
    except LearnerError as error:  # what led to the end is kept, then the end is told
        _store_updates(run, getattr(error, "reports", []))
        raise
    clock.lap("update")
    _store_updates(run, outcome.reports)
    clock.lap("store")
    synchronise(session)
    clock.lap("sync")
    return outcome


def repeat_step(session: Session, step: int, groups: Sequence[Group]) -> StepOutcome:
    """The same step once more, from its stored trajectories: nothing is sampled, nothing is stored. With the weights
    and the optimizer that it began with, every number comes out as it did then."""
    return _learn(session, step, groups, Clock())


def synchronise(session: Session) -> None:
    """Hand the learner's weights to the engine, unless it has them already (version 0: those it was opened with)."""
    if session.engine.policy_version != session.learner.version:
        session.sync()


def _learn(session: Session, step: int, groups: Sequence[Group], clock: Clock) -> StepOutcome:
    batch = Batch.from_groups(groups)
    batch = session.learner.facts(batch)  # what credit needs of the models: values, reference logprobs
    credit = session.config.algorithm.credit(batch)
    clock.lap("credit")
    reports = session.learner.update(batch, credit, step=step)
    made = sum(report.skipped is None for report in reports)
    metrics = rollout_metrics(groups) | {f"credit_{name}": value for name, value in credit.notes.items()}
    metrics |= over_updates([report.metrics for report in reports])
    metrics |= {"updates": made, "policy_version": session.learner.version}
    return StepOutcome(step, tuple(groups), metrics, clock.laps, made, tuple(reports))


def _store_updates(run: RunWriter | None, reports: Sequence[UpdateReport]) -> None:
    for report in reports if run is not None else ():
        run.write_credit(report.table, skipped=report.skipped)


def over_updates(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """One number for all updates of a step: the last of what is counted on from update to update, the sum of amounts,
    the largest of maxima, the mean of anything else. Each over the updates that have it: an absent one is not zero."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: float(_together(key)([row[key] for row in rows if key in row])) for key in keys}


def _together(key: str) -> Callable[[list[float]], float]:
    if key in ("bad_updates", "empty_updates"):
        return lambda numbers: numbers[-1]
    if key in ("trained_tokens", "micro_batches"):
        return sum
    return max if key.endswith("_max") else np.mean


class Clock:
    """Wall and CPU seconds by phase. A phase that comes twice is added up: `store_s` is everything that makes a step
    durable (trajectories, credit tables, commit), so the price of durability is one number."""

    def __init__(self, laps: dict[str, float] | None = None) -> None:
        self.laps = {} if laps is None else laps
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def lap(self, name: str) -> None:
        """What was done since the last lap was `name`."""
        wall, cpu = time.perf_counter(), time.process_time()
        for key, seconds in ((f"{name}_s", wall - self._wall), (f"{name}_cpu_s", cpu - self._cpu)):
            self.laps[key] = self.laps.get(key, 0.0) + seconds
        self._wall, self._cpu = wall, cpu
