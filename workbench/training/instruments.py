"""What may look at every step of training: a lint, a recorder, a check of one's own.

    instrument.begin(session, step, start=...)  ─▶  watch
        watch.engine                       what the rollout asks: the session's engine, or one that also records
        watch.before(groups, batch, credit)   credit is known, nothing is updated yet; may raise to end the step
        watch.after(groups, batch, credit, reports, metrics)   the updates were made; its findings are stored

Training knows no instrument by name: whoever calls `train_here` or `train_step` hands them in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from workbench.basics.findings import LintReport
    from workbench.engines.base import Engine
    from workbench.learn.algorithms.base import Credit
    from workbench.learn.batch import Batch
    from workbench.learn.update_report import UpdateReport
    from workbench.run.store import Run
    from workbench.training.session import Session
    from workbench.values import Group


class StepWatch(Protocol):
    """One instrument's part of one step."""

    engine: Engine

    def before(self, groups: Sequence[Group], batch: Batch, credit: Credit) -> None:
        """Called before the first update. Raises LintError where the step must not be learned from."""

    def after(
        self,
        groups: Sequence[Group],
        batch: Batch,
        credit: Credit,
        reports: Sequence[UpdateReport],
        metrics: Mapping[str, Any],
    ) -> LintReport:
        """Called after the last update; returns everything that was found in this step, before and after."""

    def judge(self, report: LintReport) -> None:
        """Called once the report is stored. Raises LintError where the step must not be committed."""


class Instrument(Protocol):
    """Looks at steps and changes nothing. One object serves one run, so it may remember what it saw."""

    def resume(self, run: Run) -> None:
        """Called once, before the first new step: read what is remembered of the steps that `run` has."""

    def begin(self, session: Session, step: int, *, start: bool) -> StepWatch:
        """Called before the rollout. `start`: the first new step of this process, for checks that run once."""
