"""Rewards that are known only after a trajectory: a judge, a verifier, a test suite.

A family may have `score(trajectory: Trajectory)`, a function or a coroutine. It is called when a trajectory has ended, while
others still play, and returns a number or named parts; they are the trajectory's outcome, paid at its end, beside what its
turns earned. A part `"success"` (true or false) is no reward: it says whether the trajectory succeeded.

Each try that raises is followed by another, up to `score_retries` (2) of them. Where none comes to a number, or none
within `score_deadline_s` (60) seconds, the trajectory is unscored: it leaves baseline and loss, and its error says why.
Attempts that a fault ended are not scored.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.tools.awaiting import EventLoop
from workbench.values import Trajectory
from workbench.values.errors import EnvError, where_raised
from workbench.worlds.base import EnvFamily

RETRIES = 2
DEADLINE_S = 60.0
AT_ONCE = 32  # trajectories that are being scored; others wait, and their deadline with them
PAUSE_S = 0.1  # before the first retry; twice as long before each further one


def scores_after(family: EnvFamily) -> bool:
    return callable(getattr(family, "score", None))


def with_score(trajectory: Trajectory, value: Any) -> Trajectory:
    """The trajectory with what `score` returned. Raises EnvError for what is no reward."""
    parts = dict(value) if isinstance(value, Mapping) else {"score": value}
    success = parts.pop("success", trajectory.success)
    if success is not None and not isinstance(success, bool):
        raise EnvError(f"the part 'success' of a score is true or false, got {success!r}")
    for name, part in parts.items():
        if isinstance(part, bool) or not isinstance(part, (int, float)) or not math.isfinite(part):
            raise EnvError(
                f"score(trajectory) returns a finite number, or such numbers by name; {name!r} is {part!r}"
            )
    parts = {**trajectory.outcome_parts, **{name: float(part) for name, part in parts.items()}}
    return replace(
        trajectory,
        outcome=math.fsum(parts.values()) if parts else None,
        outcome_parts=parts,
        success=success,
    )


def unscored(trajectory: Trajectory, why: str) -> Trajectory:
    return replace(
        trajectory,
        scored=False,
        outcome=None,
        outcome_parts={},
        error=f"its score could not be computed: {why}",
    )


@dataclass(eq=False)
class RewardRunner:
    """Scores trajectories in threads of their own; `take` gives back what is done. Belongs to one collect."""

    family: EnvFamily
    loop: EventLoop = field(default_factory=EventLoop)
    _done: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)
    _room: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(AT_ONCE))
    _begun: dict[str, tuple[Trajectory, threading.Thread, list[float]]] = field(
        default_factory=dict
    )

    @property
    def waiting(self) -> int:
        """Trajectories that are not scored yet."""
        return len(self._begun)

    def begin(self, key: str, trajectory: Trajectory) -> None:
        since: list[float] = []
        thread = threading.Thread(
            target=self._work, args=(key, trajectory, since), daemon=True, name=f"score of {key}"
        )
        self._begun[key] = (trajectory, thread, since)
        thread.start()

    def take(self, wait_s: float) -> list[tuple[str, Trajectory]]:
        """Trajectories that are scored, or unscored for good; waits up to `wait_s` for the first one."""
        ended = []
        try:
            while self._begun:
                if wait_s and not ended:
                    key, trajectory = self._done.get(timeout=wait_s)
                else:
                    key, trajectory = self._done.get_nowait()
                if self._begun.pop(key, None) is not None:  # else it was given up meanwhile
                    ended.append((key, trajectory))
        except queue.Empty:
            pass
        deadline = getattr(self.family, "score_deadline_s", DEADLINE_S)
        for key, (trajectory, thread, since) in list(self._begun.items()):
            if since and time.monotonic() - since[0] > deadline:
                del self._begun[key]
                self.loop.cancel(thread.ident)
                why = f"nothing within {deadline:g} s (score_deadline_s)"
                ended.append((key, unscored(trajectory, why)))
        return ended

    def close(self) -> None:
        """Give up what is under way."""
        for _, thread, _ in self._begun.values():
            self.loop.cancel(thread.ident)
        self._begun = {}
        self.loop.close()

    def _work(self, key: str, trajectory: Trajectory, since: list[float]) -> None:
        with self._room:
            since.append(time.monotonic())
            self._done.put((key, scored(self.family, trajectory, self.loop)))


def scored(
    family: EnvFamily,
    trajectory: Trajectory,
    loop: EventLoop,
    pause: Callable[[float], None] = time.sleep,
) -> Trajectory:
    """`trajectory` as the family scores it, tried as often as it says."""
    retries = getattr(family, "score_retries", RETRIES)
    why = ""
    for number in range(retries + 1):
        try:
            return with_score(trajectory, loop.settle(family.score(trajectory)))
        except Exception as error:  # somebody else's code
            why = f"{type(error).__name__}: {error} ({where_raised(error)})"
            if number < retries:
                pause(PAUSE_S * 2**number)
    return unscored(trajectory, f"{why} (tried {retries + 1} times)" if retries else why)
