"""What came of a step: what its attempts earned, without reading what they said, and what its last update used."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from workbench.run.columns import TRAJECTORIES
from workbench.run.parquet import read_parquet
from workbench.run.store import Run
from workbench.types import CreditTable
from workbench.types.errors import StoreError
from workbench.types.trajectories import StopReason, Trajectory

COLUMNS = ("group", "outcome", "scored", "success", "stop_reason", "turn_reward")


class _Turn(NamedTuple):
    reward: float | None


class _Attempt(NamedTuple):
    """What decides an attempt's reward, and its reward by the very rule of `Trajectory`."""

    turns: tuple[_Turn, ...]
    outcome: float | None
    scored: bool
    stop_reason: StopReason


def outcomes_of(run: Run, step: int) -> list[list[tuple[float | None, bool | None]]]:
    """(reward, success) of every attempt, by group, without the one aside: as `run.groups(step)` says, in a small part of its time. Raises StoreError for a
    step that is not there or is damaged."""
    data, path = run.trajectory_bytes(step)
    columns, _ = read_parquet(data, path, TRAJECTORIES, (*COLUMNS, "greedy"))
    groups: dict[int, list[tuple[float | None, bool | None]]] = {}
    try:
        aside_N = (
            columns["greedy"].to_pylist()
            if "greedy" in columns
            else [False] * len(columns["group"])
        )
        rows = zip(aside_N, *(columns[name].to_pylist() for name in COLUMNS), strict=True)
        for group, outcome, scored, success, stop, turns in (
            row for aside, *row in rows if not aside
        ):
            attempt = _Attempt(tuple(map(_Turn, turns)), outcome, scored, StopReason(stop))
            groups.setdefault(group, []).append((Trajectory.reward.fget(attempt), success))
    except (KeyError, ValueError, TypeError, pa.ArrowException) as error:
        raise StoreError(
            f"{path} is damaged: its columns do not say what attempts earned ({error!r}); restore it from a "
            "copy of the run"
        ) from error
    return list(groups.values())


def last_credit(run: Run, step: int) -> CreditTable | None:
    """What the last update of a step of several used; None where there was at most one: nothing had moved before it."""
    updates = run.updates(step)
    return run.credit(step, updates[-1]) if len(updates) > 1 else None
