"""What a policy can do at higher or lower, told apart: to say a number, to be brief, to read the replies, to halve.

A guess of a range of n numbers that leaves L below and R above leaves (L^2 + R^2) / n of them on average over the hidden
number: luck is no part of it. `waste` puts that on a scale from 0 (halving) to 1 (nothing ruled out).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from workbench.values import Trajectory, Turn


@dataclass(frozen=True)
class Skill:
    """Means over turns: `valid` holds a number (share), `tokens` sampled; over valid guesses: `inside` names a number that
    is left (share), `waste` (0 halving, 1 nothing ruled out; None where no guess had a choice)."""

    valid: float
    tokens: float
    inside: float | None
    waste: float | None

    def row(self) -> dict[str, float | None]:
        return asdict(self)


def skill_of(trajectories: Iterable[Trajectory]) -> Skill:
    """Of all turns of these trajectories, of which there is at least one."""
    trajectories = list(trajectories)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    guesses = [turn for turn in turns if turn.info["valid_format"]]
    choices = [turn for turn in guesses if turn.info["before"][0] < turn.info["before"][1]]
    wasted = [waste_of(*turn.info["before"], guess=int(turn.moves[0])) for turn in choices]
    return Skill(
        len(guesses) / len(turns),
        sum(trajectory.num_sampled for trajectory in trajectories) / len(turns),
        float(np.mean([is_inside(turn) for turn in guesses])) if guesses else None,
        float(np.mean(wasted)) if wasted else None,
    )


def is_inside(turn: Turn) -> bool:
    """Whether the guess is one of the numbers that were left."""
    low, high = turn.info["before"]
    return low <= int(turn.moves[0]) <= high


def waste_of(low: int, high: int, *, guess: int) -> float:
    """0: as good as halving, 1: rules nothing out. The only number that is left is named (0) or not (1)."""
    inside = low <= guess <= high
    count = high - low + 1
    if count == 1:
        return 0.0 if inside else 1.0
    smaller = (count - 1) // 2
    best = (smaller**2 + (count - 1 - smaller) ** 2) / count**2
    left = ((guess - low) ** 2 + (high - guess) ** 2) / count**2 if inside else 1.0
    return (left - best) / (1 - best)


def grade(low: int, high: int, *, guess: int) -> float:
    """How much less a guess wastes than a random one among the numbers left: above 0 for better ones, whatever the range."""
    usual = [waste_of(low, high, guess=number) for number in range(low, high + 1)]
    return sum(usual) / len(usual) - waste_of(low, high, guess=guess)
