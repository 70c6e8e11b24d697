"""A game for a pretrained model: a whole number from 1 to 15 is to be found in five guesses, each answered by higher or
lower. Halving always finds it in four.

The reader is lenient, since a small model writes prose: the first number of an answer is the guess. One game in five is
held out. There are only 15 numbers, so the same ones are guessed in training and in evaluation: what can be learned is how
to search, not which number it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from workbench.values import Message, Observation, StepResult, Task
from workbench.values.seeds import rng_at

HIGHEST = 15
GUESSES = 5
ASKED = (
    "I think of a whole number from 1 to {highest}. Guess it. After each guess I say higher or lower. "
    "You have {guesses} guesses. Answer with one number only. Game {game}."
)


class Game:
    """One number."""

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        self.number = int(task.payload["number"])
        self.low = 1  # what the replies so far leave: from low to high
        self.high = HIGHEST
        self.left = GUESSES
        text = ASKED.format(highest=HIGHEST, guesses=GUESSES, game=task.payload["game"])
        return Observation((Message("user", text),))

    def step(self, action_text: str) -> StepResult:
        self.left -= 1
        written = re.search(r"\d+", action_text[:200])
        if written is None or len(written[0]) > 6:
            return self._reply("That is no number. Answer with one number only.", 0.0, False)
        guess = int(written[0])
        if guess == self.number:
            return self._reply("Right.", 1.0, True)
        if guess < self.number:
            self.low = max(self.low, guess + 1)
            return self._reply("Higher.", 0.0, False, valid=True)
        self.high = min(self.high, guess - 1)
        return self._reply("Lower.", 0.0, False, valid=True)

    def _reply(
        self, text: str, reward: float, success: bool, valid: bool | None = None
    ) -> StepResult:
        over = success or self.left == 0
        info = {"success": success, "valid_format": success if valid is None else valid}
        return StepResult(Observation((Message("user", text),)), reward, terminated=over, info=info)


@dataclass(frozen=True)
class Guessing:
    """Numbers from 1 to 15."""

    max_turns: int = GUESSES
    name: ClassVar[str] = "guess_15"

    def task(self, task_seed: int) -> Task:
        number = int(rng_at("guess_15.task", task_seed).integers(1, HIGHEST + 1))
        payload = {"number": number, "game": task_seed % 100_000}
        return Task(f"guess_15/{task_seed}", "guess_15", task_seed, payload)

    def make(self) -> Game:
        return Game()

    def random_action(self, env: Game, rng: np.random.Generator) -> str:
        return str(rng.integers(1, HIGHEST + 1))

    def solver_action(self, env: Game, rng: Any) -> str:
        return str((env.low + env.high) // 2)
