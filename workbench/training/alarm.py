"""Alarms of a run that trains (train.on_alarm): what its signals look like after each step, said once for each kind.

Nothing is looked at unless it is asked for, and an alarm changes no number of a run: with "stop" it ends after the step that
it committed, and goes on when it is resumed.
"""
from __future__ import annotations

import shlex
from collections.abc import Callable

from workbench.rollouts.alarms import alarms_of
from workbench.rollouts.step_signals import step_signals
from workbench.run.outcomes import last_credit
from workbench.run.recording import RunWriter
from workbench.run.store import Run
from workbench.training.step import StepOutcome
from workbench.types.errors import LearnerError
from workbench.types.monitored import StepSignals


class AlarmWatch:
    """Remembers the signals of every committed step, and which kinds were named; what was before, from the run's folder."""

    def __init__(self, stored: Run, how: str):
        self.stored, self.how = stored, how
        self.steps: list[StepSignals] = []
        self.said = {event["named"] for event in stored.events() if event["kind"] == "alarm"}

    def look(self, outcome: StepOutcome, run: RunWriter, note: Callable[[str], None]) -> None:
        """Write an event and say it for each kind that the run looks like now and did not before. Raises LearnerError where
        such a run is to stop."""
        for step in range(len(self.steps) + 1, outcome.step):
            self.steps.append(step_signals(step, self.stored.groups(step), self.stored.metrics_line(step),
                                           last_credit(self.stored, step)))
        last = outcome.reports[-1].table if outcome.reports else None
        self.steps.append(step_signals(outcome.step, outcome.groups, outcome.metrics, last))
        new = [kind for kind in alarms_of(self.steps) if kind not in self.said]
        self.said |= {*new}
        shows = f"wb.signals({str(self.stored.path)!r}) shows its signals"
        for kind in new:
            run.event({"kind": "alarm", "step": outcome.step, "named": kind})
            note(f"alarm after step {outcome.step}: this looks like a collapse ({kind}); {shows}")
        if new and self.how == "stop":
            path = shlex.quote(str(self.stored.path))
            raise LearnerError(f"stopped after step {outcome.step} by train.on_alarm = 'stop': this looks like a collapse "
                               f"({', '.join(new)}). {shows}. An alarm may be wrong: `workbench "
                               f"resume {path}` goes on, and is not stopped by the same kind again")
