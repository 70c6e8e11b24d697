"""Higher or lower: find a hidden whole number within a few guesses; each is answered by "Higher." or "Lower.".

    prompt   I am thinking of a whole number from 23 to 37. You have 4 guesses. ...
    turn 0   35                    reply   Lower. Left: 23 to 34.
    turn 1   28                    reply   Higher. Left: 29 to 34.

Halving what is left finds any of 2^n - 1 numbers within n guesses. `task_seed` makes the range and the number; nothing
is left to chance afterwards. One *range* in five is held out.

The first whole number of an answer is the guess, whatever stands around it. An answer without one uses up its guess and
pays `format_penalty`; a number outside of what is left is a guess like any other, and rules nothing out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np

from workbench.basics.settings import at_least, check_settings, one_of
from workbench.extensions.real_model.skill import grade
from workbench.tools.action_format import user_message
from workbench.values import Message, Observation, StepResult, Task, Text, sum_of
from workbench.values.errors import EnvError
from workbench.values.seeds import rng_at
from workbench.worlds.game_settings import FormatPenalty
from workbench.worlds.splits import content_split

NUMBER = re.compile(r"\d+")
LONGEST_READ = 200  # characters of an answer in which a number is looked for


@dataclass(frozen=True)
class HigherLower:
    """A family of hidden numbers. The fields are its only configuration."""

    numbers: Annotated[int, at_least(2, most=100_000), "how many numbers a range holds"] = 15
    lowest: Annotated[int, at_least(0, most=1_000_000_000), "smallest first number of a range"] = 10
    highest: Annotated[int, at_least(0, most=1_000_000_000), "largest first number of a range"] = 49
    max_turns: Annotated[int, at_least(1, most=10_000), "guesses"] = 4
    pay: Annotated[
        str,
        one_of("graded", "narrowed", "found"),
        "graded: what a guess rules out on average over where the number may be, above what any number that is "
        "left does; narrowed: the share of the numbers left that it did rule out; found: 1 for the number",
    ] = "graded"
    format_penalty: FormatPenalty = -0.1

    name: ClassVar[str] = "higher_lower"

    def __post_init__(self) -> None:
        check_settings(self)

    def task(self, task_seed: int) -> Task:
        """A range, and a number in it."""
        rng = rng_at("higher_lower.task", task_seed)
        low = int(rng.integers(self.lowest, self.highest + 1))
        high = low + self.numbers - 1
        secret = int(rng.integers(low, high + 1))
        payload = {"low": low, "high": high, "secret": secret}
        return Task(f"higher_lower/{task_seed}", self.name, int(task_seed), payload)

    def split_of(self, task: Task) -> str:
        """By the range: a held-out one is never trained on, though its numbers lie in others, too."""
        return content_split(f"{task.payload['low']}-{task.payload['high']}")

    def make(self) -> HigherLowerEnv:
        return HigherLowerEnv(self)

    def random_action(self, env: HigherLowerEnv, rng: np.random.Generator) -> str:
        """Any number of the range that the prompt names."""
        return str(rng.integers(env.first[0], env.first[1] + 1))

    def careful_action(self, env: HigherLowerEnv, rng: np.random.Generator) -> str:
        """Any number that is left: it reads the replies and has no plan. What a warm start is shown."""
        return str(rng.integers(env.left[0], env.left[1] + 1))

    def solver_action(self, env: HigherLowerEnv, rng: np.random.Generator) -> str:
        """The middle of what is left."""
        return str(sum(env.left) // 2)

    @property
    def solver_name(self) -> str:
        return "optimal"

    @property
    def label(self) -> str:
        return f"Higher or lower, {self.numbers} numbers, {self.max_turns} guesses, pays what is {self.pay}"


class HigherLowerEnv:
    """One trajectory. Picklable, and rebuilt by (family, task, dynamics_seed)."""

    def __init__(self, family: HigherLower) -> None:
        self.family = family
        self.first = (0, 0)
        self.left = (0, 0)
        self.secret = 0
        self.turns = 0
        self.found = False
        self.finished = True

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        self.first = (task.payload["low"], task.payload["high"])
        self.left = self.first
        self.secret = task.payload["secret"]
        self.turns = 0
        self.found = False
        self.finished = False
        low, high = self.first
        rules = (
            f"I am thinking of a whole number from {low} to {high}. You have {self.family.max_turns} guesses. "
            "After each guess I say whether my number is higher or lower, and which numbers are left. "
            "Answer with one number and nothing else. Your first guess?"
        )
        return Observation(
            (
                Message("system", (Text("You play a guessing game.", trusted=True),)),
                Message("user", (Text(rules, trusted=True),)),
            )
        )

    def step(self, action_text: str) -> StepResult:
        if self.finished:
            raise EnvError("this trajectory is over or was never begun; call reset first")
        number = NUMBER.search(action_text[:LONGEST_READ])
        guess = None if number is None else int(number.group())
        before = self.left
        self.turns += 1
        words = "That is no number. Answer with one number and nothing else."
        if guess is not None:
            words = self._answer(guess)
        self.finished = self.found or self.turns >= self.family.max_turns
        parts = {
            self.family.pay: self._paid(before, guess),
            "format": float(self.family.format_penalty) if guess is None else 0.0,
        }
        info = {
            "success": self.found,
            "moves": [] if guess is None else [str(guess)],
            "valid_format": guess is not None,
            "complaint": "There is no number." if guess is None else "",
            "before": list(before),
            "left": list(self.left),
            "state": self.draw(),
        }
        return StepResult(
            user_message(Text(words, trusted=True)),
            sum_of(parts.values()),
            parts,
            terminated=self.found,
            truncated=self.finished and not self.found,
            info=info,
        )

    def _paid(self, before: tuple[int, int], guess: int | None) -> float:
        if self.family.pay == "graded":
            # No number rules out as much as one that is not left.
            return grade(*before, guess=before[0] - 1 if guess is None else guess)
        if self.family.pay == "found" or self.found:
            return float(self.found)
        return 1.0 - _count(self.left) / _count(before)

    def _answer(self, guess: int) -> str:
        low, high = self.left
        if guess == self.secret:
            self.found = True
            self.left = (guess, guess)
            return f"Yes, it is {guess}."
        if guess < self.secret:
            word = "Higher"
            self.left = (max(low, guess + 1), high)
        else:
            word = "Lower"
            self.left = (low, min(high, guess - 1))
        return f"{word}. Left: {self.left[0]} to {self.left[1]}."

    def snapshot(self) -> dict[str, Any]:
        return {
            "first": list(self.first),
            "left": list(self.left),
            "secret": self.secret,
            "turns": self.turns,
            "found": self.found,
            "finished": self.finished,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        for name, value in snapshot.items():
            setattr(self, name, tuple(value) if isinstance(value, list) else value)

    def state_key(self) -> str:
        return f"{self.left[0]}-{self.left[1]}, {self.turns} used"

    def draw(self) -> str:
        return f"{self.left[0]} to {self.left[1]} left"


def _count(left: tuple[int, int]) -> int:
    """How many numbers a range holds."""
    return left[1] - left[0] + 1


PRESETS: Mapping[str, HigherLower] = MappingProxyType({"higher-lower": HigherLower()})
