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
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np

from workbench.basics.findings import LintReport, together
from workbench.learn.algorithms.base import Credit
from workbench.learn.batch import Batch
from workbench.learn.noise import signal_to_noise
from workbench.learn.update_report import UpdateReport
from workbench.rollouts.metrics import rollout_metrics
from workbench.run.recording import RunWriter
from workbench.training.information import prompt_information
from workbench.training.instruments import Instrument
from workbench.training.session import Session, rollout
from workbench.values import Group, Groups
from workbench.values.errors import ConfigError, LearnerError, LintError
from workbench.values.view import Shown


@dataclass(frozen=True, eq=False, repr=False)
class StepOutcome(Shown):
    """What one step did: its groups, its numbers, and the seconds each phase took (wall and CPU, kept apart, invariant 14)."""

    step: int
    groups: tuple[Group, ...]
    metrics: dict[str, Any]
    clock: dict[str, float]
    updates: int  # optimizer updates that were made; 0: the step taught nothing
    reports: tuple[UpdateReport, ...] = ()
    lint: LintReport | None = None  # None: no instrument looked, or a step that is repeated


class StepRollout(NamedTuple):
    """The trajectories of a step, who watched them being sampled, and how long that took."""

    groups: Groups
    watches: StepWatchers
    seconds: float


class RolloutAhead(Protocol):
    """Samples the next step while one is learned from: `Ahead` (ahead.py)."""

    def take(self, step: int) -> StepRollout | None: ...

    def begin(self, step: int) -> None: ...


def train_step(
    session: Session,
    step: int,
    run: RunWriter | None = None,
    on_done: Callable[..., None] | None = None,
    *,
    start: bool | None = None,
    instruments: Sequence[Instrument] = (),
    ahead: RolloutAhead | None = None,
) -> StepOutcome:
    """Collect, credit, update, hand the new weights to the engine; `instruments` look before and after the updates.
    With `ahead` the trajectories are taken from it, and it begins the next step's before this one is learned from.

    `step` counts from 1. With `run` the step's trajectories are durable before the first update and each credit table
    after its update (invariant 14); `commit_step` is left to the caller. `start`: instruments also run the checks that they
    run once (None: in step 1). Raises LintError, before anything is updated, where an instrument ends the step.
    """
    clock = Clock()
    sampled = ahead.take(step) if ahead is not None else None
    if sampled is None:
        watches = StepWatchers(
            session, step, instruments, start=step == 1 if start is None else start
        )
        groups = rollout(
            session,
            session.train_tasks(step),
            step=step,
            purpose="train",
            on_done=on_done,
            engine=watches.engine,
        )
        sampled = StepRollout(groups, watches, clock.seconds)
    groups = sampled.groups
    clock.lap("collect")
    if hasattr(session.engine, "work"):
        clock.laps |= session.engine.work()
    if ahead is not None:
        ahead.begin(step + 1)
        clock.laps["sampling_s"] = sampled.seconds
        clock.lap("sync")
    if run is not None:
        run.write_step(step, groups)
    clock.lap("store")
    if hasattr(session.engine, "rest"):
        session.engine.rest()
    try:
        outcome = _learn(session, step, groups, clock, sampled.watches)
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
    if sampled.watches:
        outcome = _look_after(sampled.watches, outcome, run, clock)
    if ahead is None:
        synchronise(session)
        clock.lap("sync")
    return outcome


def _look_after(
    watches: StepWatchers, outcome: StepOutcome, run: RunWriter | None, clock: Clock
) -> StepOutcome:
    """Let the instruments look once more, store what they report, and let them judge it."""
    outcome = watches.after(outcome)
    clock.lap("lint")
    if run is not None:
        run.write_lint(outcome.step, outcome.lint)
    watches.judge(outcome.lint)
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
        self._batch = batch
        self._credit = credit
        for watch in self._watches:
            watch.before(groups, batch, credit)

    def after(self, outcome: StepOutcome) -> StepOutcome:
        groups = outcome.groups
        reports = outcome.reports
        metrics = outcome.metrics
        lint = [
            watch.after(groups, self._batch, self._credit, reports, metrics)
            for watch in self._watches
        ]
        return replace(outcome, lint=together(lint))

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
    # What credit needs of the models: values, reference logprobs.
    batch = session.learner.facts(Batch.from_groups(groups))
    credit = session.config.algorithm.credit(batch)
    clock.lap("credit")
    if watches:
        watches.before(groups, batch, credit)
        clock.lap("lint")
    every = session.config.train.information_every
    is_due = every and step % every == 0
    information = _information(session, step, groups, batch, credit) if is_due else {}
    reports = session.learner.update(batch, credit, step=step)
    made = sum(report.skipped is None for report in reports)
    metrics = rollout_metrics(groups)
    metrics |= {f"credit_{name}": value for name, value in credit.notes.items()}
    metrics |= information
    metrics |= over_updates([report.metrics for report in reports])
    metrics |= {"updates": made, "policy_version": session.learner.version}
    if session.chooser is not None:
        metrics |= session.chooser.came(step, groups)
    if session.config.train.staleness:
        metrics |= _staleness(batch, session.learner.version - made)
    return StepOutcome(step, tuple(groups), metrics, clock.laps, made, tuple(reports))


def _staleness(batch: Batch, version: int) -> dict[str, int]:
    """How many updates the oldest sampled token is behind the weights that the step began with."""
    if not bool(batch.eligible_T.any()):
        return {}
    return {"staleness": version - int(batch.policy_version_T[batch.eligible_T].min())}


def _information(
    session: Session, step: int, groups: Sequence[Group], batch: Batch, credit: Credit
) -> dict[str, float]:
    information = prompt_information(groups, session.learner.logprobs)
    return information | signal_to_noise(session.learner, batch, credit, step=step)


def _store_updates(run: RunWriter | None, reports: Sequence[UpdateReport]) -> None:
    for report in reports if run is not None else ():
        run.write_credit(report.table, skipped=report.skipped)


def over_updates(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """One number for all updates of a step: the last of what is counted on from update to update, the sum of amounts,
    the largest of maxima, the mean of anything else. Each over the updates that have it: an absent one is not zero."""
    summary = {}
    for name in dict.fromkeys(chain.from_iterable(rows)):
        summary[name] = float(_summarise(name, [row[name] for row in rows if name in row]))
    return summary


def _summarise(name: str, numbers: Sequence[float]) -> float:
    if name in ("bad_updates", "empty_updates"):
        return numbers[-1]
    if name in ("trained_tokens", "micro_batches"):
        return sum(numbers)
    if name.endswith("_max"):
        return max(numbers)
    return np.mean(numbers)


class Clock:
    """Wall and CPU seconds by phase. A phase that comes twice is added up: `store_s` is everything that makes a step
    durable (trajectories, credit tables, commit), so the price of durability is one number."""

    def __init__(self, laps: dict[str, float] | None = None) -> None:
        self.laps = {} if laps is None else laps
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def idle(self) -> dict[str, float]:
        """Shares of these wall seconds in which the learner waited for trajectories or a sync, in which nothing was sampled, and
        that a sync took."""
        spent = {}
        for name, seconds in self.laps.items():
            if name.endswith("_s") and not name.endswith("_cpu_s"):
                spent[name] = seconds
        sampling = spent.pop("sampling_s", None)
        collect = spent.get("collect_s", 0.0)
        sync = spent.get("sync_s", 0.0)
        total = sum(spent.values())
        if not total:
            return {}
        if sampling is None:
            sampling = collect
        return {
            "learner_idle": (collect + sync) / total,
            "sync_share": sync / total,
            "engine_idle": max(0.0, 1 - sampling / total),
        }

    @property
    def seconds(self) -> float:
        """Of the wall, since the last lap."""
        return time.perf_counter() - self._wall

    def lap(self, name: str) -> None:
        """What was done since the last lap was `name`."""
        wall = time.perf_counter()
        cpu = time.process_time()
        self.laps[f"{name}_s"] = self.laps.get(f"{name}_s", 0.0) + (wall - self._wall)
        self.laps[f"{name}_cpu_s"] = self.laps.get(f"{name}_cpu_s", 0.0) + (cpu - self._cpu)
        self._wall = wall
        self._cpu = cpu
