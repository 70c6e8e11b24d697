"""How far apart the attempts of each group are, over a whole run: what a comparison within groups can learn from.

spread = wb.group_spread(run)       a picture of every group of every step, as the last line of a cell
spread.first_flat                   the first step at which a group was flat
spread.to_frame()                   a row a group, in pandas
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from workbench.types.view import Shown

if TYPE_CHECKING:
    import pandas

SIDES = ("all won", "all lost", "all the same")  # of a flat group; "" is one that is not


def flat_side(outcomes: Sequence[tuple[float | None, bool | None]]) -> str:
    """Of (reward, success) of the attempts of a group: "all won", "all lost" or "all the same" where every scored one earned
    the same reward; "" where they differ, and where fewer than two were scored."""
    scored = [(reward, success) for reward, success in outcomes if reward is not None]
    if len(scored) < 2 or len({reward for reward, _ in scored}) > 1:
        return ""
    return {frozenset({True}): "all won", frozenset({False}): "all lost"}.get(
        frozenset(success for _, success in scored), "all the same"
    )


class GroupSpread(NamedTuple):
    """One group of one step. `scored`: attempts that were; `std`: of their rewards, n - 1, NaN below two; `side` as
    `flat_side` says."""

    step: int
    task: int
    scored: int
    mean: float
    std: float
    side: str

    @classmethod
    def of(
        cls, step: int, task: int, outcomes: Sequence[tuple[float | None, bool | None]]
    ) -> GroupSpread:
        rewards = [reward for reward, _ in outcomes if reward is not None]
        return cls(
            step,
            task,
            len(rewards),
            float(np.mean(rewards)) if rewards else float("nan"),
            float(np.std(rewards, ddof=1)) if len(rewards) > 1 else float("nan"),
            flat_side(outcomes),
        )


@dataclass(frozen=True, repr=False)
class RunSpread(Shown):
    """Every group of the steps that were read, in order. `name` of the run, `steps` of it in all."""

    name: str
    groups: tuple[GroupSpread, ...]
    steps: int

    def at(self, step: int) -> tuple[GroupSpread, ...]:
        return tuple(group for group in self.groups if group.step == step)

    @property
    def read(self) -> list[int]:
        """The steps that were read."""
        return sorted({group.step for group in self.groups})

    def shares(self, side: str) -> list[float]:
        """Per step that was read: the share of its groups that are flat on this side; "" of those that are not flat."""
        return [
            float(np.mean([group.side == side for group in self.at(step)])) for step in self.read
        ]

    @property
    def first_flat(self) -> GroupSpread | None:
        """The first flat group; None where all groups differ."""
        return next((group for group in self.groups if group.side), None)

    @property
    def all_flat(self) -> int | None:
        """The first step at which every group was flat: nothing to compare, nothing learned."""
        return next(
            (step for step in self.read if all(group.side for group in self.at(step))), None
        )

    def to_frame(self) -> pandas.DataFrame:
        """A row a group: step, task, scored, mean, std, side. Needs pandas."""
        import pandas

        return pandas.DataFrame(self.groups, columns=GroupSpread._fields)
