"""What is being exported, and the count of what is not.

job = Export(run, dest, steps, min_reward)
for step, groups in job.groups(): ...       one step in memory at a time
job.count.report()                          "left out: 12 of 96 trajectories: no reward"
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.run.store import Run
from workbench.values import Group, Trajectory


@dataclass
class _Count:
    """What was exported and what was not, counted while it is written.

    seen: trajectories, groups, rows: how many there were.
    left_out: (unit, reason) -> how many were left out for it.
    remarks: (unit, words) -> of how many a reader should know this.
    """

    seen: Counter[str] = field(default_factory=Counter)
    left_out: Counter[tuple[str, str]] = field(default_factory=Counter)
    remarks: Counter[tuple[str, str]] = field(default_factory=Counter)

    def report(self) -> list[str]:
        """In words, a line each; nothing where all went out as it was."""
        lines = []
        for what, counts in (("left out: ", self.left_out), ("note: ", self.remarks)):
            for (unit, reason), number in counts.items():
                lines.append(f"{what}{number} of {self.seen[unit]} {unit}: {reason}")
        return lines


@dataclass(frozen=True)
class Export:
    """An export under way.

    steps: committed ones, in order.
    min_reward: what a trajectory must have earned to be learned from (None: it must have succeeded).
    """

    run: Run
    dest: Path
    steps: tuple[int, ...]
    min_reward: float | None = None
    count: _Count = field(default_factory=_Count)

    def groups(self) -> Iterator[tuple[int, list[Group]]]:
        """Step by step: no more than one is in memory."""
        for step in self.steps:
            yield step, self.groups_of(step)

    def groups_of(self, step: int) -> list[Group]:
        groups = self.run.groups(step)
        self.count.seen["groups"] += len(groups)
        self.count.seen["trajectories"] += sum(map(len, groups))
        return groups

    def trajectories(self) -> Iterator[tuple[int, int, Trajectory]]:
        """(step, number of the group, trajectory)."""
        for step, groups in self.groups():
            for number, group in enumerate(groups):
                for trajectory in group:
                    yield step, number, trajectory

    def leave_out(self, reason: str, unit: str = "trajectories") -> None:
        self.count.left_out[unit, reason] += 1

    def remark(self, words: str, unit: str = "trajectories") -> None:
        self.count.remarks[unit, words] += 1

    def unusable(self, trajectory: Trajectory) -> str | None:
        """Why nothing can be learned from a trajectory, whatever it earned."""
        if not trajectory.turns:
            return "no turn"
        if trajectory.reward is None:
            return "no reward (a fault, or it could not be scored)"
        return None

    def not_good(self, trajectory: Trajectory) -> str | None:
        """Why a trajectory is no example to follow."""
        if self.min_reward is not None:
            is_enough = trajectory.reward >= self.min_reward
            return None if is_enough else f"earned less than {self.min_reward:g}"
        if trajectory.success is None:
            return "the environment does not say whether it succeeded; choose by --min-reward"
        return None if trajectory.success else "did not succeed"

    def json_of(self, row: Mapping[str, Any]) -> str:
        """A row as JSON on one line, counted."""
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
        clean = self.clean(text)
        if clean != text:
            self.remark("half a character stands there, written as U+FFFD", "rows")
        self.count.seen["rows"] += 1
        return clean

    @staticmethod
    def clean(text: str) -> str:
        """Half a character (a lone surrogate), which no file of text can hold, becomes U+FFFD."""
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
