"""One attempt, played without a policy: what was said, answered, paid and raised, and how long it took. Nothing here raises for
an environment's sake.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from workbench.envs.base import EnvFamily
from workbench.envs.baselines import trajectory_of, with_its_score
from workbench.envs.checks.scripts import Script
from workbench.envs.runners import check_messages
from workbench.envs.scoring import scores_after
from workbench.envs.shared import opened
from workbench.types import Observation, StepResult, Task, Trajectory
from workbench.types.errors import EnvError


@dataclass(frozen=True)
class PlayedAttempt:
    """`error`: what was raised, "" for nothing, and `where`: in make, reset, "step 3", the policy. `changed`: global
    generators that it left in another state than it found them in. `reward` is None where some of it is none, or is no
    number. `seconds` [K + 1]: of reset and of every step."""

    policy: str
    task: Task
    seed: int
    texts: tuple[str, ...] = ()
    opening: Observation | None = None
    results: tuple[StepResult, ...] = ()
    error: str = ""
    where: str = ""
    seconds: tuple[float, ...] = ()
    changed: tuple[str, ...] = ()
    outcome: float = 0.0
    success: bool | None = None

    @property
    def reward(self) -> float | None:
        paid = [result.reward for result in self.results]
        if not paid or not all(map(is_number, paid)):
            return None
        return float(sum(paid)) + self.outcome

    @property
    def ended(self) -> bool:
        """The environment itself said that it was over."""
        return bool(self.results) and (self.results[-1].terminated or self.results[-1].truncated)

    @property
    def shown(self) -> list[Observation]:
        return [
            each
            for each in (self.opening, *(result.observation for result in self.results))
            if each is not None
        ]

    @property
    def script(self) -> Script:
        return Script(self.task, self.seed, self.texts)

    @property
    def trajectory(self) -> Trajectory:
        return trajectory_of(
            self.task, self.seed, self.opening, list(zip(self.texts, self.results))
        )


def is_number(value: Any) -> bool:
    return (
        isinstance(value, (int, float, np.number))
        and not isinstance(value, bool)
        and math.isfinite(value)
    )


def clocks() -> tuple[float, float]:
    """When playing begins, for `spent`."""
    return time.process_time(), time.monotonic()


def spent(began: tuple[float, float]) -> float:
    """Seconds spent on playing: those of this process, so that a busy machine changes nothing; a quarter of the wall clock's,
    where an environment only waits."""
    return max(time.process_time() - began[0], (time.monotonic() - began[1]) / 4)


def text_of(observation: Observation | None) -> str:
    return (
        "" if observation is None else "\n".join(message.text for message in observation.messages)
    )


def same(one: Any, other: Any) -> bool:
    """Equal, or written alike: NaN and arrays cannot be asked."""
    try:
        return bool(one == other) or _written(one) == _written(other)
    except ValueError:
        return _written(one) == _written(other)


def _written(value: Any) -> Any:
    """`repr` of all that is in it: that of an observation or a result is made for people, and cut."""
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__qualname__, [
            (each.name, _written(getattr(value, each.name))) for each in fields(value)
        ]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [_written(each) for each in value]
    return repr(
        {key: _written(each) for key, each in value.items()} if isinstance(value, dict) else value
    )


# ------------------------------------------------------------------------------------------------ global generators


@contextmanager
def global_dice(seed: int) -> Iterator[None]:
    """Python's and numpy's global generators seeded for a while, and put back."""
    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def _global_states() -> dict[str, Any]:
    return {"random": random.getstate(), "numpy.random": repr(np.random.get_state())}


# ------------------------------------------------------------------------------------------------ one attempt


def play(
    family: EnvFamily,
    task: Task,
    seed: int,
    policy: str,
    act: Callable[[Any], str],
    most: int | None = None,
) -> PlayedAttempt:
    """Play `task` once, for at most `most` actions (None: the family's turns)."""
    facts: dict[str, Any] = {
        "texts": [],
        "results": [],
        "seconds": [],
        "where": "make",
        "error": "",
    }
    before = _global_states()
    try:
        with opened(family) as env:
            _steps(env, task, seed, act, most or family.max_turns, facts)
    except (Exception, SystemExit) as error:  # anybody's environment
        facts["error"] = f"{type(error).__name__}: {error}"
    changed = tuple(name for name, state in _global_states().items() if state != before[name])
    facts |= {name: tuple(facts[name]) for name in ("texts", "results", "seconds")}
    facts["texts"] = facts["texts"][: len(facts["results"]) + (facts["where"].startswith("step"))]
    results = facts["results"]
    success = results[-1].info.get("success") if results else None
    played = PlayedAttempt(
        policy,
        task,
        seed,
        changed=changed,
        success=success if isinstance(success, bool) else None,
        **facts,
    )
    return _with_outcome(family, played)


def _steps(
    env: Any, task: Task, seed: int, act: Callable[[Any], str], most: int, facts: dict[str, Any]
) -> None:
    def timed(where: str, call: Callable[[], Any]) -> Any:
        facts["where"] = where
        began = time.perf_counter()
        value = call()
        facts["seconds"].append(time.perf_counter() - began)
        return value

    facts["opening"] = _checked(timed("reset", lambda: env.reset(task, seed)), Observation, "reset")
    for k in range(most):
        facts["where"] = "the policy"
        facts["texts"].append(act(env))
        result = _checked(
            timed(f"step {k}", lambda: env.step(facts["texts"][-1])), StepResult, "step"
        )
        facts["results"].append(result)
        if result.terminated or result.truncated:
            break
    facts["where"] = ""


def _checked(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        raise EnvError(f"{where} returns a {kind.__name__}, got {type(value).__name__}")
    check_messages(value if kind is Observation else value.observation)
    return value


def _with_outcome(family: EnvFamily, played: PlayedAttempt) -> PlayedAttempt:
    """With what is paid for the attempt as a whole."""
    if played.error or not played.results:
        return played
    outcome, success = 0.0, played.success
    if not played.ended and all(map(is_number, played.results[-1].if_cut.values())):
        outcome = float(sum(played.results[-1].if_cut.values()))
    if scores_after(family):
        scored = with_its_score(family, played.trajectory)
        outcome, success = outcome + (scored.outcome or 0.0), scored.success
    return PlayedAttempt(**{**vars(played), "outcome": outcome, "success": success})
