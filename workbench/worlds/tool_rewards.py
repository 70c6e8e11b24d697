"""A reward function of the user's for an environment with tools: what it is told, and what it may say.

    def reward(trajectory: ToolTrajectory):
        return trajectory.answer == trajectory.row["answer"]       # true or false: success, which pays 1 or 0
        return 0.5                                                 # a number: the reward; success is not known
        return {"right": 1.0, "short": 0.1, "success": True}       # parts, and success where it is known
        return None                                                # could not be scored (invariant 5)

It is called once, when the trajectory ends by an answer or by its turns, and may be async. It may call the tools of the
trajectory, and read its folder: so the state that was reached can be judged instead of what was said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.tools.awaited import settled
from workbench.tools.base import ToolResult
from workbench.values import Task
from workbench.values.errors import EnvError, where_raised

OTHER_PARTS = ("format", "process", "tool")  # what turns are paid beside it


@dataclass(frozen=True)
class CallRecord:
    """A call that was made: in which turn (from 0), with what, and what came of it; `error` is "" where nothing went wrong."""

    turn: int
    name: str
    arguments: Mapping[str, Any]
    text: str
    value: Any = None
    error: str = ""


@dataclass(frozen=True)
class ToolTrajectory:
    """A trajectory as a reward function sees it: `answer` is None where the turns ran out, `folder` is the trajectory's own
    where it has one. `call(name, **arguments)` calls one of its tools, with room for a long answer."""

    task: Task
    answer: str | None
    calls: tuple[CallRecord, ...]
    turns: int
    call: Callable[..., ToolResult] = field(repr=False)
    folder: Path | None = None

    @property
    def row(self) -> Mapping[str, Any]:
        """The columns of the data set's row, or the task's payload."""
        return self.task.payload.get("row", self.task.payload)


def judged(
    function: Callable[[ToolTrajectory], Any],
    trajectory: ToolTrajectory | None,
    parts: Mapping[str, float],
    info: dict[str, Any],
) -> dict[str, float] | None:
    """The parts of a turn's reward: those of the turn and, where the trajectory is over, what the function says of it (None:
    unscored). Success goes into `info` where it is known."""
    of_turn = {name: value for name, value in parts.items() if name != "answer"}
    if trajectory is None:
        return of_turn
    what = f"the reward function {getattr(function, '__qualname__', function)} on task {trajectory.task.id!r}"
    rewards, success = verdict_of(asked(function, trajectory, what), what)
    if success is not None:
        info["success"] = success
    return None if rewards is None else of_turn | rewards


def asked(function: Callable[[ToolTrajectory], Any], trajectory: ToolTrajectory, what: str) -> Any:
    """Ask a function of the user's about a trajectory. Raises EnvError, with `what` in it, for whatever it raises."""
    try:
        return settled(function(trajectory))
    except Exception as error:
        where = where_raised(error)
        raise EnvError(f"{what} raised {type(error).__name__}: {error} ({where})") from error


def verdict_of(verdict: Any, what: str) -> tuple[dict[str, float] | None, bool | None]:
    """(parts of the reward, None where unscored; success, None where not known). Raises EnvError for anything else."""
    if isinstance(verdict, Mapping):
        success = verdict.get("success")
        parts = {name: value for name, value in verdict.items() if name != "success"}
        if not parts and success is not None:
            parts = {"reward": success}
    else:
        success = verdict if isinstance(verdict, bool) else None
        parts = {"reward": verdict}
    if success is not None and not isinstance(success, bool):
        raise EnvError(f"{what}: success is true, false or None, got {success!r}")
    if None in parts.values():
        return None, success
    for name, value in parts.items():
        if name in OTHER_PARTS or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise EnvError(
                f"{what} returns a finite number, true or false, None, or a dict of named numbers (not called "
                f'{", ".join(OTHER_PARTS)}) with "success"; got {verdict!r:.200}'
            )
    return {name: float(value) for name, value in parts.items()}, success
