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
    wasted = [waste_of(*turn.info["before"], guess=int(turn.moves[0])) for turn in guesses]
    wasted = [waste for waste in wasted if waste is not None]
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


def waste_of(low: int, high: int, *, guess: int) -> float | None:
    """0: as good as halving, 1: rules nothing out. None where one number is left: there is nothing to choose."""
    count = high - low + 1
    if count == 1:
        return None
    smaller = (count - 1) // 2
    best = (smaller**2 + (count - 1 - smaller) ** 2) / count**2
    left = 1.0
    if low <= guess <= high:
        left = ((guess - low) ** 2 + (high - guess) ** 2) / count**2
    return (left - best) / (1 - best)
