"""The alarms of a run that trains (train.on_alarm), as the training loop sees them: an extension brings them, or nobody."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from workbench.basics.extensions import service
from workbench.learn.learner import Learner
from workbench.run.recording import RunWriter
from workbench.run.store import Run
from workbench.training.step import StepOutcome


class AlarmWatch(Protocol):
    """What looks at every committed step and may change how the next one begins."""

    @property
    def needed(self) -> Collection[int]:
        """Steps whose checkpoints a resumed run may have to go back to again."""

    def look(
        self, step: int, outcome: StepOutcome | None, run: RunWriter, note: Callable[[str], None]
    ) -> None:
        """Look at a step; write an event for what is new. Raises LearnerError where the run is to stop."""

    def act(self, step: int, learner: Learner) -> None:
        """Do what was written down for the end of this step."""


class NoAlarms:
    """train.on_alarm = "off": nothing is looked at and nothing done."""

    needed: Collection[int] = ()

    def look(
        self, step: int, outcome: StepOutcome | None, run: RunWriter, note: Callable[[str], None]
    ) -> None:
        pass

    def act(self, step: int, learner: Learner) -> None:
        pass


def open_alarms(stored: Run, how: str) -> AlarmWatch:
    """The alarms of a run. `how`: train.on_alarm. Raises ConfigError where they are asked for and no extension has them."""
    if how == "off":
        return NoAlarms()
    return service("open_alarms", f"train.on_alarm = {how!r}")(stored, how)
