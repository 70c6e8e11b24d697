"""Attempts of two policies at the same tasks, side by side: who solved what the other did not, and where they part.

paired = pair_groups(before, after, ("untrained", "trained"))
paired.lost                 the tasks that the second solved less often
paired.difference           second less first, with its interval
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from workbench.types.errors import DataError
from workbench.types.stats import Difference, clustered_difference, paired_difference
from workbench.types.trajectories import Group, Task
from workbench.types.view import Shown

if TYPE_CHECKING:
    import pandas

WON, LOST, BOTH, NEITHER, ALIKE, UNKNOWN = "won", "lost", "both", "neither", "alike", "not known"


@dataclass(frozen=True, eq=False, repr=False)
class Pair(Shown):
    """One task, and both policies' attempts at it; `names` of both sides."""

    task: Task
    first: Group
    second: Group
    names: tuple[str, str] = ("first", "second")

    @property
    def success(self) -> tuple[float | None, float | None]:
        """The share of each side's attempts that succeeded; None where the environment does not say it of all of them."""
        return _mean([t.success for t in self.first]), _mean([t.success for t in self.second])

    @property
    def reward(self) -> tuple[float | None, float | None]:
        """The mean reward of each side; None where one attempt was not scored."""
        return _mean([t.reward for t in self.first]), _mean([t.reward for t in self.second])

    @property
    def change(self) -> str:
        """ "won": the second did better; "lost": the first did; "both" and "neither": all or none of their attempts
        succeeded; "alike": the same otherwise. By success, by reward where that is not known, else "not known"."""
        a, b = self.success if None not in self.success else self.reward
        if a is None or b is None:
            return UNKNOWN
        if a != b:
            return WON if b > a else LOST
        return ALIKE if None in self.success or a not in (0.0, 1.0) else BOTH if a else NEITHER

    @property
    def first_difference(self) -> int | None:
        """The first turn in which the first attempts of both sides wrote other words; None: they wrote the same."""
        a, b = (tuple(turn.text for turn in group[0].turns) for group in (self.first, self.second))
        same = next(
            (number for number, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b))
        )
        return None if a == b else same


@dataclass(frozen=True, eq=False, repr=False)
class PairedGroups(Shown):
    """Pairs in task order. `names` of both sides; `left_out`: tasks that only one of them attempted."""

    names: tuple[str, str]
    pairs: tuple[Pair, ...]
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Pair:
        return self.pairs[index]

    def of(self, change: str) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.pairs if pair.change == change)

    @property
    def won(self) -> tuple[Pair, ...]:
        return self.of(WON)

    @property
    def lost(self) -> tuple[Pair, ...]:
        return self.of(LOST)

    @property
    def measure(self) -> str:
        """What `difference` is of: "success", or "reward" where success is not known of any task."""
        return "success" if any(None not in pair.success for pair in self.pairs) else "reward"

    @cached_property
    def difference(self) -> Difference | None:
        """Second less first over the tasks that both were judged on, with its 95 % interval; None where there are none."""
        both = [found for pair in self.pairs if None not in (found := getattr(pair, self.measure))]
        if not both:
            return None
        a_N, b_N = (np.array(side, np.float64) for side in zip(*both))
        if (
            all(len(pair.first) == len(pair.second) == 1 for pair in self.pairs)
            and self.measure == "success"
        ):
            return paired_difference(a_N, b_N)
        return clustered_difference(a_N, b_N, np.arange(len(a_N)))

    def to_frame(self) -> pandas.DataFrame:
        """A row a task: its id, the change, success and reward of both, and the turn in which they part. Needs pandas."""
        import pandas

        return pandas.DataFrame(
            [
                {
                    "task_id": pair.task.id,
                    "change": pair.change,
                    **{
                        f"{what}/{name}": value
                        for what in ("success", "reward")
                        for name, value in zip(self.names, getattr(pair, what))
                    },
                    "first_difference": pair.first_difference,
                }
                for pair in self.pairs
            ]
        )

    def __repr__(self) -> str:
        counts = Counter(pair.change for pair in self.pairs)
        said = ", ".join(f"{count} {change}" for change, count in counts.items())
        return f"<{len(self)} tasks of {self.names[0]!r} and {self.names[1]!r}: {said}>"[:2000]


def pair_groups(
    first: Sequence[Group], second: Sequence[Group], names: tuple[str, str] = ("first", "second")
) -> PairedGroups:
    """Pair two lists of groups by task: id, seed and payload must be the same. Of tasks that come more than once the n-th
    is paired with the n-th. Raises DataError where no task is common to both."""
    if names[0] == names[1]:
        names = (f"{names[0]} (first)", f"{names[1]} (second)")
    waiting: dict[tuple, list[Group]] = {}
    for group in second:
        waiting.setdefault(_key(group.task), []).append(group)
    pairs = [
        Pair(group.task, group, found.pop(0), names)
        for group in first
        if (found := waiting.get(_key(group.task)))
    ]
    if not pairs:
        raise DataError(
            f"{names[0]} and {names[1]} have no task in common, so nothing can be paired: they attempted "
            f"{_some(first)} and {_some(second)}"
        )
    return PairedGroups(names, tuple(pairs), len(first) + len(second) - 2 * len(pairs))


def _key(task: Task) -> tuple:
    return (
        task.env,
        task.id,
        task.task_seed,
        repr(sorted(task.payload.items(), key=lambda item: item[0])),
    )


def _some(groups: Sequence[Group]) -> str:
    return (
        ", ".join(group.task.id[:40] for group in groups[:3]) + ", ..." * (len(groups) > 3)
        or "nothing"
    )


def _mean(values: Sequence[float | bool | None]) -> float | None:
    return None if not values or None in values else float(np.mean(values))
