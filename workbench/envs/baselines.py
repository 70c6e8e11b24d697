"""Play without tokens: a random policy, a solver or any function plays a task (law 12).

No result means much without its baselines. Published multi-turn results have turned out to sit on the success of
uniform random play once that was measured, so it is measured here for every environment. The figures are made by
`workbench.rollouts.evaluate.evaluate_baselines`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workbench.envs.base import EnvFamily
from workbench.envs.awaiting import EventLoop
from workbench.envs.scoring import scored, scores_after
from workbench.envs.shared import opened
from workbench.types import Message, Observation, StepResult, StopReason, Task, Trajectory, Turn
from workbench.types.errors import EnvError
from workbench.types.seeds import rng_at

BASELINES = ("random", "solver")
NONE_KNOWN = "none known"


@dataclass(frozen=True)
class Attempt:
    """What came of one attempt. `moves` counts those carried out; `reward` is the undiscounted sum over turns, None
    where one of them could not be scored. `success` is None where the environment does not say."""

    success: bool | None
    reward: float | None
    turns: int
    moves: int


def known(family: EnvFamily) -> tuple[str, ...]:
    """Those of BASELINES that the family has: `random_action`, `solver_action`."""
    return tuple(name for name in BASELINES if callable(getattr(family, f"{name}_action", None)))


def none_known(family: EnvFamily) -> dict[str, str]:
    """Those that it does not have, in the words that stand in their place in every table (law 12)."""
    return {name: NONE_KNOWN for name in BASELINES if name not in known(family)}


def play(
    family: EnvFamily, task: Task, dynamics_seed: int, policy: Callable[[Any], str]
) -> Attempt:
    """Play `task` once, with a policy that sees the environment and writes action texts, until the task is over, a
    limit of the environment ran out, or `family.max_turns` answers were given."""
    rewards, moves, success, turns, said = [], 0, None, 0, []
    with opened(family) as env:
        first = env.reset(task, dynamics_seed)
        for turns in range(1, family.max_turns + 1):
            text = policy(env)
            result = env.step(text)
            said.append((text, result))
            rewards.append(result.reward)
            moves += len(result.info.get("moves", ()))
            success = bool(result.info["success"]) if "success" in result.info else None
            if result.terminated or result.truncated:
                break
    if scores_after(family):
        ended = with_its_score(family, trajectory_of(task, dynamics_seed, first, said))
        return Attempt(ended.success, ended.reward, turns, moves)
    return Attempt(success, None if None in rewards else sum(rewards, 0.0), turns, moves)


def trajectory_of(
    task: Task, dynamics_seed: int, first: Observation, said: Sequence[tuple[str, StepResult]]
) -> Trajectory:
    """An attempt that was played without tokens: action texts, and what the environment answered."""
    turns = (
        Turn(
            k,
            text,
            reply=result.observation.messages,
            reward=result.reward,
            info=result.info,
            tool_calls=result.tool_calls,
        )
        for k, (text, result) in enumerate(said)
    )
    last = said[-1][1] if said else None
    success = bool(last.info["success"]) if last is not None and "success" in last.info else None
    return Trajectory(task, 0, dynamics_seed, first, tuple(turns), (), _end(last), success=success)


def with_its_score(family: EnvFamily, attempt: Trajectory) -> Trajectory:
    """The attempt as a family that scores it afterwards does (`envs.scoring`)."""
    loop = EventLoop()
    try:
        return scored(family, attempt, loop)
    finally:
        loop.close()


def _end(last: StepResult | None) -> StopReason:
    if last is None:
        return StopReason.MAX_TURNS
    return (
        StopReason.TERMINATED
        if last.terminated
        else StopReason.ENV_TRUNCATED
        if last.truncated
        else StopReason.MAX_TURNS
    )


@dataclass(frozen=True)
class BaselineFamily:
    """A family made of another: its `reset` plays a whole attempt by one of the BASELINES and shows what came of it.

    So a runner can play baselines, with its deadlines, wherever it runs environments; one call is one attempt, of
    that number at the task.
    """

    family: Any
    policy: str
    seed: int
    attempt: int = 0
    name: str = "baseline"
    max_turns: int = 0

    def make(self) -> _PlaysAtReset:
        return _PlaysAtReset(self)


class _PlaysAtReset:
    def __init__(self, baseline: BaselineFamily) -> None:
        self.baseline = baseline

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        family, policy = self.baseline.family, self.baseline.policy
        act = getattr(family, f"{policy}_action")
        number = (
            (self.baseline.attempt,) if self.baseline.attempt else ()
        )  # the first is as where there is one only
        rng = rng_at(self.baseline.seed, "baseline", policy, task.id, *number)
        attempt = play(family, task, dynamics_seed, lambda env: act(env, rng))
        return Observation((Message("user", json.dumps(asdict(attempt))),))

    def step(self, action_text: str) -> StepResult:
        raise EnvError("a baseline has played its attempt at reset; there is nothing to answer")


def played(observation: Observation) -> Attempt:
    """The attempt that a `BaselineFamily` shows."""
    return Attempt(**json.loads(observation.messages[0].text))
