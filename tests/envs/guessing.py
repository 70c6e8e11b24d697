"""An environment of somebody's own, as small as one can be: no solver, no random policy, no success, no snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.values import Message, Observation, StepResult, Task


class Guess:
    """Says a number; pays the share of it that was named, so that there is a return and no success."""

    def reset(self, task, dynamics_seed):
        self.number = task.payload["number"]
        return Observation((Message("user", f"Name a number below {self.number + 2}."),))

    def step(self, action_text):
        digits = [word for word in action_text.split() if word.isdigit()]
        reward = min(float(digits[0]) / (self.number + 1), 1.0) if digits else 0.0
        return StepResult(Observation((Message("user", "Noted."),)), reward, terminated=True)


@dataclass(frozen=True)
class Guessing:
    """Only what every family must have."""

    max_turns: int = 2
    name: ClassVar[str] = "guessing"

    def task(self, task_seed):
        return Task(f"guessing/{task_seed}", self.name, task_seed, {"number": task_seed % 97})

    def make(self):
        return Guess()


class WithRandom(Guessing):
    """The same with random play."""

    def random_action(self, env, rng):
        return str(rng.integers(env.number + 2))
