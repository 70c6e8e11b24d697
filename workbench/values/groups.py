"""Several groups as one value: what a rollout returns, and what a step holds.

    groups = wb.rollout(session, 4)
    groups                           as the last line of a cell: a row a group
    groups.to_frame()                a row per trajectory, in pandas

It is a tuple: everything that takes a list of groups takes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.values.trajectories import Group, Trajectory, trajectories_of
from workbench.values.view import ShownTuple

if TYPE_CHECKING:
    import pandas

SHOWN = 5  # names of tasks in a representation


class Groups(ShownTuple[Group]):
    """Groups in order. Frozen, like what is in it."""

    def to_frame(self) -> pandas.DataFrame:
        """A row per trajectory, in address order; what is not known is missing, never 0 (invariant 5).

        `group` (its number here), `task_id`, `env`, `attempt` · `reward`, `success`, `outcome`, `scored` ·
        `reward/NAME`: its parts, summed over turns and outcome · `stop_reason`, `error` · `turns`, `sampled_tokens`,
        `context_tokens` (of its longest sequence), `surprise` (mean -logprob in nats of what was sampled) ·
        `task/NAME`: the task's metadata, such as the row of a data set · `info/NAME`: the environment's info of the
        last turn; of both the scalars only. Needs pandas.
        """
        import pandas

        rows: list[dict[str, Any]] = []
        for number, group in enumerate(self):
            rows += [{"group": number, **_columns(trajectory)} for trajectory in group]
        frame = pandas.DataFrame(rows)
        if not rows:
            return frame
        # Columns that tasks and environments name are sorted, so that no trajectory decides their order.
        first = list(rows[0])[:_FIXED]
        named = sorted(set(frame.columns) - set(first))
        return frame[first + named].astype({"success": "boolean"})

    def __repr__(self) -> str:
        trajectories = trajectories_of(self)
        rewards = [
            trajectory.reward for trajectory in trajectories if trajectory.reward is not None
        ]
        names = ", ".join(f"{group.task.id[:60]!r}" for group in self[:SHOWN])
        if len(self) > SHOWN:
            names += ", ..."
        mean = f"mean reward {np.mean(rewards):.3g}" if rewards else "none scored"
        return f"<{len(self)} groups, {len(trajectories)} trajectories, {mean}; tasks {names}; .to_frame() makes a table>"


_FIXED = 13  # columns of every row, before those that tasks and environments name


def _columns(trajectory: Trajectory) -> dict[str, Any]:
    """Column -> value of one trajectory."""
    columns = {
        "task_id": trajectory.task.id,
        "env": trajectory.task.env,
        "attempt": trajectory.attempt,
        "reward": np.nan if trajectory.reward is None else trajectory.reward,
        "success": trajectory.success,
        "outcome": np.nan if trajectory.outcome is None else trajectory.outcome,
        "scored": trajectory.reward is not None,
        "stop_reason": trajectory.stop_reason.value,
        "turns": len(trajectory.turns),
        "sampled_tokens": trajectory.num_sampled,
        "context_tokens": max(map(len, trajectory.segments), default=0),
        "surprise": np.nan if trajectory.surprise is None else trajectory.surprise,
    }
    if trajectory.error:
        columns["error"] = trajectory.error
    columns |= _reward_parts(trajectory)
    columns |= _scalars("task", trajectory.task.metadata)
    if trajectory.turns:
        columns |= _scalars("info", trajectory.turns[-1].info)
    return columns


def _reward_parts(trajectory: Trajectory) -> dict[str, float]:
    """The named parts of its reward, summed over turns and outcome."""
    sums: dict[str, float] = {}
    for parts in (*(turn.reward_parts for turn in trajectory.turns), trajectory.outcome_parts):
        for name, value in parts.items():
            column = f"reward/{name}"
            sums[column] = sums.get(column, 0.0) + value
    return sums


def _scalars(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{prefix}/{name}": value
        for name, value in values.items()
        if isinstance(value, (str, bool, int, float))
    }
