"""One step of training, made anew or once more from what is stored.

    tasks ─ rollout ─ store ─ batch ─ credit ─ lint ─ update ─ lint ─ store ─ sync
                                └───────── `repeat_step` ─────────┘   (without the lint)

What follows the trajectories is one function for both, so a step that is replayed cannot be another one.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.algorithms.base import Credit
from workbench.batch import Batch
from workbench.cells.lint import after_the_step, after_updates, before_updates, raise_errors
from workbench.cells.rollout import rollout
from workbench.engines.journal import Journal
from workbench.errors import LearnerError, LintError
from workbench.findings import LintReport, together
from workbench.linting import StepFacts
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
    lint: LintReport | None = None  # None: switched off, or a step that is repeated
    facts: StepFacts | None = None  # what the lint wants to know of it later


def train_step(session: Session, step: int, run: RunWriter | None = None,
               on_done: Callable[..., None] | None = None, *, start: bool | None = None,
               history: Sequence[StepFacts] = ()) -> StepOutcome:
    """Collect, credit, lint, update, hand the new weights to the engine. `step` counts from 1.

    With `run` the step's trajectories are durable before the first update and each credit table after its update
    (law 14); `commit_step` is left to the caller. `start`: also ask the lint's rules that are asked once (None: in
    step 1); `history`: what the lint knows of the steps before. Raises LintError, before anything is updated, where
    the lint finds an error and `config.lint.mode` is
    "assert".
    """
    clock = Clock()
    lints = session.config.lint.mode != "off"
    journal = Journal(session.engine) if lints else None
    groups = rollout(session, session.train_tasks(step), step=step, purpose="train", on_done=on_done, journal=journal)
    clock.lap("collect")
    if run is not None:
        run.write_step(step, groups)
    clock.lap("store")
    check = _Check(session, step, groups, journal, step == 1 if start is None else start,
                   history) if lints else None
    try:
        outcome = _learn(session, step, groups, clock, check)
    except LearnerError as error:  # what led to the end is kept, then the end is told
        _store_updates(run, getattr(error, "reports", []))
        raise
    except LintError as error:
        if run is not None:
            run.write_lint(step, error.report)
        raise
    clock.lap("update")
    _store_updates(run, outcome.reports)
    clock.lap("store")
    if check is not None:
        outcome = check.after(outcome)
        clock.lap("lint")
        if run is not None:
            run.write_lint(step, outcome.lint)
        if session.config.lint.mode == "assert":
            raise_errors(outcome.lint, "after the updates that they are about were made, so the step is not committed")
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


class _Check:
    """The lint's part of one new step: what it said before the updates is joined with what it says after them."""

    def __init__(self, session: Session, step: int, groups: Sequence[Group], journal: Journal, start: bool,
                 history: Sequence[StepFacts]) -> None:
        self.session, self.step, self.groups, self.journal, self.start = session, step, groups, journal, start
        self.history = history

    def before(self, batch: Batch, credit: Credit) -> None:
        """Raises LintError where it finds an error, and that is to end the step."""
        self.batch, self.credit, self.version = batch, credit, self.session.learner.version
        # What is stored with a step does not depend on where a run was interrupted, so only step 1 holds what is asked
        # once; a process that goes on with a run asks it again, and only says what it finds.
        again = self.start and self.step != 1
        self.found = self._asked(start=self.start and not again)
        if self.session.config.lint.mode != "assert":
            return
        for found in (self.found, self._asked(start=True)) if again else (self.found,):
            raise_errors(found, "so nothing was learned from this step")

    def _asked(self, *, start: bool) -> LintReport:
        return before_updates(self.session, self.step, self.groups, self.batch, self.credit, self.journal, start=start)

    def after(self, outcome: StepOutcome) -> StepOutcome:
        updates = after_updates(self.session, self.step, self.groups, self.batch, self.credit, outcome.reports)
        facts, run = after_the_step(self.session, self.step, self.groups, outcome.metrics, self.history,
                                      self.version)
        return replace(outcome, lint=together([self.found, updates, run]), facts=facts)


def _learn(session: Session, step: int, groups: Sequence[Group], clock: Clock, check: _Check | None = None
           ) -> StepOutcome:
    batch = Batch.from_groups(groups)
    batch = session.learner.facts(batch)  # what credit needs of the models: values, reference logprobs
    credit = session.config.algorithm.credit(batch)
    clock.lap("credit")
    if check is not None:
        check.before(batch, credit)
        clock.lap("lint")
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
