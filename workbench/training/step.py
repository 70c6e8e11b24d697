"""One step of training, made anew or once more from what is stored.

    tasks ─ rollout ─ store ─ batch ─ credit ─ (before) ─ update ─ store ─ (after) ─ sync
                                └───────── `repeat_step` ─┘   without instruments

With train.staleness = 1 the rollout is the one that training/ahead.py made while the step before was learned from.

(before) and (after) are where instruments look: training/instruments.py.

What follows the trajectories is one function for both, so a step that is replayed cannot be another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from workbench.learn.algorithms.base import Credit
from workbench.learn.batch import Batch
from workbench.learn.noise import signal_to_noise
from workbench.learn.update_report import UpdateReport
from workbench.rollouts.metrics import rollout_metrics
from workbench.run.recording import RunWriter
from workbench.training.information import prompt_information
from workbench.training.instruments import Instrument
from workbench.training.session import Session, rollout
from workbench.types import Group, Groups
from workbench.types.errors import ConfigError, LearnerError, LintError
from workbench.types.findings import LintReport, together
from workbench.types.view import Shown

if TYPE_CHECKING:
    from workbench.training.ahead import Ahead


@dataclass(frozen=True, eq=False, repr=False)
class StepOutcome(Shown):
    """What one step did: its groups, its numbers, and the seconds each phase took (wall and CPU, kept apart, law 14)."""

    step: int
    groups: tuple[Group, ...]
    metrics: dict[str, Any]
    clock: dict[str, float]
    updates: int  # optimizer updates that were made; 0: the step taught nothing
    reports: tuple[UpdateReport, ...] = ()
    lint: LintReport | None = None  # None: no instrument looked, or a step that is repeated


class StepRollout(NamedTuple):
    """The attempts of a step, who watched them being sampled, and how long that took."""

    groups: Groups
    watches: StepWatchers
    seconds: float


def train_step(
    session: Session,
    step: int,
    run: RunWriter | None = None,
    on_done: Callable[..., None] | None = None,
    *,
    start: bool | None = None,
    instruments: Sequence[Instrument] = (),
    ahead: Ahead | None = None,
) -> StepOutcome:
    """Collect, credit, update, hand the new weights to the engine; `instruments` look before and after the updates.
    With `ahead` the attempts are taken from it, and it begins the next step's before this one is learned from.

    `step` counts from 1. With `run` the step's trajectories are durable before the first update and each credit table
    after its update (law 14); `commit_step` is left to the caller. `start`: instruments also run the checks that they
    run once (None: in step 1). Raises LintError, before anything is updated, where an instrument ends the step.
    """
    clock = Clock()
    taken = ahead.take(step) if ahead is not None else None
    watches = (
        StepWatchers(session, step, instruments, start=step == 1 if start is None else start)
        if taken is None
        else taken.watches
    )
    groups = (
        taken.groups
        if taken is not None
        else rollout(
            session,
            session.train_tasks(step),
            step=step,
            purpose="train",
            on_done=on_done,
            engine=watches.engine,
        )
    )
    clock.lap("collect")
    if ahead is not None:
        ahead.begin(step + 1)
        clock.laps["sampling_s"] = taken.seconds if taken is not None else clock.laps["collect_s"]
        clock.lap("sync")
    if run is not None:
        run.write_step(step, groups)
    clock.lap("store")
    if hasattr(session.engine, "rest"):
        session.engine.rest()
    try:
        outcome = _learn(session, step, groups, clock, watches)
    except LearnerError as error:  # the updates that were made before it are kept
        _store_updates(run, getattr(error, "reports", []))
        raise
    except LintError as error:
        if run is not None:
            run.write_lint(step, error.report)
        raise
    clock.lap("update")
    _store_updates(run, outcome.reports)
    clock.lap("store")
    if watches:
        outcome = watches.after(outcome)
        clock.lap("lint")
        if run is not None:
            run.write_lint(step, outcome.lint)
        watches.judge(outcome.lint)
    if ahead is None:
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


class StepWatchers:
    """What the instruments of a run have to do with one step, made before its rollout, which asks `engine`. False where there
    is none."""

    def __init__(
        self, session: Session, step: int, instruments: Sequence[Instrument], *, start: bool
    ) -> None:
        self._watches = tuple(
            instrument.begin(session, step, start=start) for instrument in instruments
        )
        engines = [watch.engine for watch in self._watches if watch.engine is not session.engine]
        if len(engines) > 1:
            raise ConfigError(
                f"one instrument may record the engine, got {len(engines)} that do; hand in one of them"
            )
        self.engine = engines[0] if engines else session.engine

    def __bool__(self) -> bool:
        return bool(self._watches)

    def before(self, groups: Sequence[Group], batch: Batch, credit: Credit) -> None:
        self._batch, self._credit = batch, credit
        for watch in self._watches:
            watch.before(groups, batch, credit)

    def after(self, outcome: StepOutcome) -> StepOutcome:
        found = [
            watch.after(outcome.groups, self._batch, self._credit, outcome.reports, outcome.metrics)
            for watch in self._watches
        ]
        return replace(outcome, lint=together(found))

    def judge(self, report: LintReport) -> None:
        for watch in self._watches:
            watch.judge(report)


def _learn(
    session: Session,
    step: int,
    groups: Sequence[Group],
    clock: Clock,
    watches: StepWatchers | None = None,
) -> StepOutcome:
    batch = session.learner.facts(
        Batch.from_groups(groups)
    )  # what credit needs of the models: values, reference logprobs
    credit = session.config.algorithm.credit(batch)
    clock.lap("credit")
    if watches:
        watches.before(groups, batch, credit)
        clock.lap("lint")
    every = session.config.train.information_every
    information = (
        _information(session, step, groups, batch, credit) if every and step % every == 0 else {}
    )
    reports = session.learner.update(batch, credit, step=step)
    made = sum(report.skipped is None for report in reports)
    metrics = (
        rollout_metrics(groups)
        | {f"credit_{name}": value for name, value in credit.notes.items()}
        | information
    )
    metrics |= over_updates([each.metrics for each in reports]) | {
        "updates": made,
        "policy_version": session.learner.version,
    }
    metrics |= {} if session.chooser is None else session.chooser.came(step, groups)
    if session.config.train.staleness and bool(batch.eligible_T.any()):
        metrics["staleness"] = (
            session.learner.version - made - int(batch.policy_version_T[batch.eligible_T].min())
        )
    return StepOutcome(step, tuple(groups), metrics, clock.laps, made, tuple(reports))


def _information(
    session: Session, step: int, groups: Sequence[Group], batch: Batch, credit: Credit
) -> dict[str, float]:
    return prompt_information(groups, session.learner.logprobs) | signal_to_noise(
        session.learner, batch, credit, step=step
    )


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

    def idle(self) -> dict[str, float]:
        """Shares of these wall seconds in which the learner waited for attempts or a sync, in which nothing was sampled, and
        that a sync took."""
        spent = {
            name: seconds
            for name, seconds in self.laps.items()
            if name.endswith("_s") and not name.endswith("_cpu_s")
        }
        sampling, collect, sync = (
            spent.pop("sampling_s", None),
            spent.get("collect_s", 0.0),
            spent.get("sync_s", 0.0),
        )
        whole = sum(spent.values())
        if not whole:
            return {}
        return {
            "learner_idle": (collect + sync) / whole,
            "sync_share": sync / whole,
            "engine_idle": max(0.0, 1 - (collect if sampling is None else sampling) / whole),
        }

    def lap(self, name: str) -> None:
        """What was done since the last lap was `name`."""
        wall, cpu = time.perf_counter(), time.process_time()
        for key, seconds in ((f"{name}_s", wall - self._wall), (f"{name}_cpu_s", cpu - self._cpu)):
            self.laps[key] = self.laps.get(key, 0.0) + seconds
        self._wall, self._cpu = wall, cpu
