"""Alarms of a run that trains (train.on_alarm): what its signals look like after each step, said once for each kind, and
what is done then.

Nothing is looked at unless it is asked for, and a note changes no number of a run. With "stop" it ends after the step that
it committed, and goes on when it is resumed. With "slow" and "restore" the next step begins otherwise: that is an event
before it is done, so that a run which was interrupted comes to the same end.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Collection
from statistics import fmean
from typing import Any

from workbench.extensions.collapse.alarms import alarms_of
from workbench.extensions.collapse.probes import probes_of
from workbench.extensions.collapse.step_signals import StepSignals, last_credit, step_signals
from workbench.learn.learner import Learner, go_back
from workbench.run.alarm_events import AlarmEvent, alarm_events
from workbench.run.recording import RunWriter
from workbench.run.store import Run
from workbench.training import checkpoint
from workbench.training.step import StepOutcome
from workbench.values.errors import LearnerError


class Alarms:
    """Remembers the signals of every committed step, which kinds were named, and what was done; what was before, from the
    run's folder. `how`: train.on_alarm."""

    def __init__(self, stored: Run, how: str):
        self.stored = stored
        self.how = how
        self.steps: list[StepSignals] = []
        events = stored.events()
        self.said = {event["named"] for event in events if event["kind"] == "alarm"}
        self.done = alarm_events(events)

    @property
    def needed(self) -> Collection[int]:
        """Steps whose checkpoints a resumed run may have to go back to again."""
        return {event.restored for event in self.done.values() if event.restored is not None}

    def look(
        self, step: int, outcome: StepOutcome | None, run: RunWriter, note: Callable[[str], None]
    ) -> None:
        """Write an event and say it for each kind that the run looks like now and did not before. `outcome`: of this step,
        if it is at hand. Raises LearnerError where such a run is to stop."""
        if self.how == "off":
            return
        self.steps += [self._signals(at) for at in range(len(self.steps) + 1, step)]
        self.steps.append(self._signals(step, outcome))
        new = [kind for kind in alarms_of(self.steps) if kind not in self.said]
        if not new:
            return
        self.said |= {*new}
        acts = None
        if self.how in ("slow", "restore"):
            back = _best(self.stored) if self.how == "restore" else None
            acts = AlarmEvent(step, back)
        shows = f"wb.signals({str(self.stored.path)!r}) shows its signals"
        for kind in new:
            event: dict[str, Any] = {"kind": "alarm", "step": step, "named": kind}
            if acts is not None:
                event |= {"slower": True, "restored": acts.restored}
            run.event(event)
            note(
                f"alarm after step {step}: this looks like a collapse ({kind}); {_in_words(acts)}{shows}"
            )
        if acts is not None:
            self.done[step] = acts
        if self.how == "stop":
            path = shlex.quote(str(self.stored.path))
            raise LearnerError(
                f"stopped after step {step} by train.on_alarm = 'stop': this looks like a collapse "
                f"({', '.join(new)}). {shows}. An alarm may be wrong: `workbench "
                f"resume {path}` goes on, and is not stopped by the same kind again"
            )

    def act(self, step: int, learner: Learner) -> None:
        """Do what was written down for the end of this step. Every process calls it. StoreError where the checkpoint to go
        back to is gone or damaged."""
        if step not in self.done:
            return
        if (back := self.done[step].restored) is not None:
            _, tensors, state = checkpoint.load(self.stored.path, back)
            go_back(learner, tensors, state["learner"])
        learner.updates.slowed.append(learner.version)

    def _signals(self, step: int, outcome: StepOutcome | None = None) -> StepSignals:
        if outcome is None:
            return step_signals(
                step,
                self.stored.groups(step),
                self.stored.metrics_line(step),
                last_credit(self.stored, step),
            )
        last = outcome.reports[-1].table if outcome.reports else None
        return step_signals(step, outcome.groups, outcome.metrics, last)


def _best(stored: Run) -> int | None:
    """The kept checkpoint with the highest success on the held-out tasks, the mean of sampled and greedy, the later of equal
    ones; the oldest where none of them was evaluated. None where there is none."""
    success: dict[int, list[float]] = defaultdict(list)
    for probe in probes_of(stored.evaluations()):
        success[probe.step].append(probe.success)
    saved = checkpoint.steps(stored.path)
    evaluated = [step for step in saved if step in success]
    if not evaluated:
        return next(iter(saved), None)
    return max(evaluated, key=lambda step: (fmean(success[step]), step))


def _in_words(acts: AlarmEvent | None) -> str:
    if acts is None:
        return ""
    back = "" if acts.restored is None else f"back to the checkpoint of step {acts.restored}, and "
    return f"{back}on with a tenth of the learning rate; "
