"""Several groups as one value: what a rollout returns, and what a step holds.

    groups = wb.rollout(session, 4)
    groups                           as the last line of a cell: a row a group
    groups.to_frame()                a row an attempt, in pandas

It is a tuple: everything that takes a list of groups takes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.types.trajectories import Group, Trajectory, trajectories_of
from workbench.types.view import ShownTuple

if TYPE_CHECKING:
    import pandas

SHOWN = 5  # names of tasks in a representation


class Groups(ShownTuple[Group]):
    """Groups in order. Frozen, like what is in it."""

    def to_frame(self) -> pandas.DataFrame:
        """A row an attempt, in address order; what is not known is missing, never 0 (law 5).

        `group` (its number here), `task_id`, `env`, `attempt` · `reward`, `success`, `outcome`, `scored` ·
        `reward/NAME`: its parts, summed over turns and outcome · `stop_reason`, `error` · `turns`, `sampled_tokens`,
        `context_tokens` (of its longest sequence), `surprise` (mean -logprob in nats of what was sampled) ·
        `task/NAME`: the task's metadata, such as the row of a data set · `info/NAME`: what the environment said of the
        last turn; of both the scalars only. Needs pandas.
        """
        import pandas

        rows = [_row(number, attempt) for number, group in enumerate(self) for attempt in group]
        first = list(rows[0])[:_PLAIN] if rows else []
        frame = pandas.DataFrame(rows)
        frame = frame[
            first + sorted(set(frame.columns) - set(first))
        ]  # names in an order that no attempt decides
        return frame.astype({"success": "boolean"}) if rows else frame

    def __repr__(self) -> str:
        attempts = trajectories_of(self)
        rewards = [attempt.reward for attempt in attempts if attempt.reward is not None]
        names = ", ".join(f"{group.task.id[:60]!r}" for group in self[:SHOWN]) + ", ..." * (
            len(self) > SHOWN
        )
        mean = f"mean reward {np.mean(rewards):.3g}" if rewards else "none scored"
        return f"<{len(self)} groups, {len(attempts)} attempts, {mean}; tasks {names}; .to_frame() makes a table>"


_PLAIN = 13  # columns of every row, before those that tasks and environments name


def _row(number: int, attempt: Trajectory) -> dict[str, Any]:
    parts: dict[str, float] = {}
    for each in (*(turn.reward_parts for turn in attempt.turns), attempt.outcome_parts):
        for name, value in each.items():
            parts[f"reward/{name}"] = parts.get(f"reward/{name}", 0.0) + value
    row = {
        "group": number,
        "task_id": attempt.task.id,
        "env": attempt.task.env,
        "attempt": attempt.attempt,
        "reward": np.nan if attempt.reward is None else attempt.reward,
        "success": attempt.success,
        "outcome": np.nan if attempt.outcome is None else attempt.outcome,
        "scored": attempt.reward is not None,
        "stop_reason": attempt.stop_reason.value,
        "turns": len(attempt.turns),
        "sampled_tokens": attempt.num_sampled,
        "context_tokens": max(map(len, attempt.segments), default=0),
        "surprise": np.nan if attempt.surprise is None else attempt.surprise,
    }
    return (
        row
        | ({"error": attempt.error} if attempt.error else {})
        | parts
        | _scalars("task", attempt.task.metadata)
        | _scalars("info", attempt.turns[-1].info if attempt.turns else {})
    )


def _scalars(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{prefix}/{name}": value
        for name, value in values.items()
        if isinstance(value, (str, bool, int, float))
    }
