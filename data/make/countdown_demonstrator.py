"""Who shows how to play Countdown, imperfectly on purpose: what the shipped policy imitates before rewards teach it.

It tries expressions in its thought, with their values, and knows when one has hit the target. But mostly it is hasty:
it answers its first try, whatever that is worth. Rewards tell the hasty from the patient; the demonstrator does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data.make.demonstrations import format_slip
from workbench.tools.action_format import format_action
from workbench.values.errors import ConfigError
from workbench.worlds.arithmetic import joined
from workbench.worlds.countdown import CountdownEnv

Try = tuple[str, str, int]  # expression, how it is said in the thought, value
_APPLY = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


@dataclass(frozen=True)
class CountdownDemonstrator:
    """Tries expressions of three numbers, joined two at a time, until one hits or `tries` are made; answers the last.

    hasty   probability of one try only
    aim     probability that a try is one that hits
    slip    probability of a format slip
    """

    hasty: float = 0.75
    aim: float = 0.12
    tries: int = 4
    slip: float = 0.04

    def __post_init__(self) -> None:
        if self.tries < 1 or not all(
            0 <= share <= 1 for share in (self.hasty, self.aim, self.slip)
        ):
            raise ConfigError(
                f"a demonstrator makes at least one try, and its habits are probabilities; got {self}"
            )

    def action(self, env: CountdownEnv, rng: np.random.Generator) -> str:
        """One turn: `20 + 5 = 25 , 25 - 11 = 14 no ; 20 - 5 = 15 , 15 + 11 = 26 yes`, and the last of them."""
        if len(env.numbers) != 3 or "/" in env.family.operations:
            raise ConfigError(
                "this demonstrator plays three numbers without division; use the preset countdown-small"
            )
        hits = solutions(env.numbers, env.target, env.family.operations)
        said: list[str] = []
        for _ in range(1 if rng.random() < self.hasty else self.tries):
            tried = (
                hits[rng.integers(len(hits))]
                if rng.random() < self.aim
                else one_try(env.numbers, env.family.operations, rng)
            )
            said.append(f"{tried[1]} {'yes' if tried[2] == env.target else 'no'}")
            if tried[2] == env.target:
                break
        if rng.random() < self.slip:
            return format_slip(tried[0], rng)
        return format_action([tried[0]], think=True, thought=" ; ".join(said))


def one_try(numbers: tuple[int, ...], operations: str, rng: np.random.Generator) -> Try:
    """Any expression of three numbers, uniformly over their orders, operations and sides."""
    first, second, third = (numbers[at] for at in rng.permutation(3))
    one, other = (operations[rng.integers(len(operations))] for _ in range(2))
    return tried(first, one, second, other, third, bool(rng.integers(2)))


def tried(first: int, one: str, second: int, other: str, third: int, behind: bool) -> Try:
    """(first one second) other third; with the third in front unless `behind`."""
    inner = _APPLY[one](first, second)
    sides = [(joined(str(first), one, str(second)), inner), (str(third), third)][
        :: 1 if behind else -1
    ]
    value = _APPLY[other](sides[0][1], sides[1][1])
    return (
        joined(sides[0][0], other, sides[1][0]),
        f"{first} {one} {second} = {inner} , {sides[0][1]} {other} {sides[1][1]} = {value}",
        value,
    )


def solutions(numbers: tuple[int, ...], target: int, operations: str) -> list[Try]:
    """All tries that hit the target."""
    found = [
        tried(numbers[a], one, numbers[b], other, numbers[3 - a - b], behind)
        for a in range(3)
        for b in range(3)
        if a != b
        for one in operations
        for other in operations
        for behind in (True, False)
    ]
    return [each for each in found if each[2] == target]
