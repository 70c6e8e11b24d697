"""The outcomes of a step: what its trajectories earned, without reading their text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from workbench.run.arrow import pa
from workbench.run.columns import TRAJECTORIES
from workbench.run.parquet import read_parquet
from workbench.values.errors import StoreError
from workbench.values.trajectories import StopReason, Trajectory


class StoredRun(Protocol):
    """What is read here of a run folder: a `Run` (store.py), which offers what is made from it."""

    name: str

    def steps(self) -> list[int]: ...

    def trajectory_bytes(self, step: int) -> tuple[bytes, Path]: ...


COLUMNS = ("group", "outcome", "scored", "success", "stop_reason", "turn_reward")


class _Turn(NamedTuple):
    reward: float | None


class _OpenTrajectory(NamedTuple):
    """What decides a trajectory's reward, and its reward by the very rule of `Trajectory`."""

    turns: tuple[_Turn, ...]
    outcome: float | None
    scored: bool
    stop_reason: StopReason


Outcome = tuple[float | None, bool | None]  # (reward, success)


def outcomes_of(run: StoredRun, step: int) -> list[list[Outcome]]:
    """(reward, success) of every trajectory, by group, greedy ones left out: as in `run.groups(step)`, in a small part of
    its time. Raises StoreError for a step that is not there or is damaged."""
    data, path = run.trajectory_bytes(step)
    columns, _ = read_parquet(data, path, TRAJECTORIES, (*COLUMNS, "greedy"))
    groups: dict[int, list[Outcome]] = {}
    try:
        rows = zip(is_greedy_N(columns), columns["group"].to_pylist(), outcomes_N(columns))
        for is_greedy, group, outcome in rows:
            if not is_greedy:
                groups.setdefault(group, []).append(outcome)
    except (KeyError, ValueError, TypeError, pa.ArrowException) as error:
        raise StoreError(
            f"{path} is damaged: its columns do not say what trajectories earned ({error!r}); restore it from a "
            "copy of the run"
        ) from error
    return list(groups.values())


def is_greedy_N(columns: Mapping[str, pa.Array]) -> list[bool]:
    """Whether each row is the greedy trajectory beside a group, which is no member of it."""
    if "greedy" not in columns:
        return [False] * len(columns["group"])
    return columns["greedy"].to_pylist()


def outcomes_N(columns: Mapping[str, pa.Array]) -> list[Outcome]:
    """(reward, success) of each row."""
    names = ("turn_reward", "outcome", "scored", "stop_reason", "success")
    rows = zip(*(columns[name].to_pylist() for name in names), strict=True)
    outcomes = []
    for rewards, outcome, scored, stop, success in rows:
        turns = tuple(map(_Turn, rewards))
        trajectory = _OpenTrajectory(turns, outcome, scored, StopReason(stop))
        outcomes.append((Trajectory.reward.fget(trajectory), success))
    return outcomes
