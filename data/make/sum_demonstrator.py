"""Who shows how to add and subtract, imperfectly on purpose: what the policy for reasoning-gym's chain_sum imitates.

It knows how to work a chain of terms out, one sum after the other. But mostly it guesses: it says a number that is not
far off. And now and then it miscalculates. Rewards tell the one who works it out; the demonstrator does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data.make.demonstrations import format_slip
from workbench.extensions.adapters.reasoning_gym import ReasoningGymEnv
from workbench.tools.action_format import format_action
from workbench.values.errors import ConfigError


@dataclass(frozen=True)
class SumDemonstrator:
    """Works out `57 + 87 - 70` from the left, or guesses; answers what it then has.

    guess    probability of a guess, at most `far` from the answer
    mistake  probability that a sum of the working is off, by 1 or by 10
    slip     probability of a format slip
    """

    guess: float = 0.75
    far: int = 20
    mistake: float = 0.08
    slip: float = 0.04

    def __post_init__(self) -> None:
        if self.far < 1 or not all(
            0 <= share <= 1 for share in (self.guess, self.mistake, self.slip)
        ):
            raise ConfigError(
                f"a guess is at least 1 off at most, and habits are probabilities; got {self}"
            )

    def action(self, env: ReasoningGymEnv, rng: np.random.Generator) -> str:
        """One turn: `57 + 87 = 144 ; 144 - 70 = 74`, and the last of it."""
        terms = env.entry["metadata"]["expression"].split()
        value, said = int(terms[0]), []
        for sign, term in zip(terms[1::2], terms[2::2]):
            before, value = value, value + int(term) if sign == "+" else value - int(term)
            if rng.random() < self.mistake:
                value += int(rng.choice((-10, -1, 1, 10)))
            said.append(f"{before} {sign} {term} = {value}")
        if rng.random() < self.slip:
            return format_slip(str(value), rng)
        if rng.random() < self.guess:
            guessed = int(env.entry["answer"]) + int(rng.integers(-self.far, self.far + 1))
            return format_action([str(guessed)], think=True, thought="guess")
        return format_action([str(value)], think=True, thought=" ; ".join(said))
