"""Play without tokens: a random policy, a solver or any function plays a task (invariant 12).

No result means much without its baselines. Published multi-turn results have turned out to sit on the success of
uniform random play once that was measured, so it is measured here for every environment. The figures are made by
`workbench.rollouts.evaluate.evaluate_baselines`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workbench.tools.awaiting import EventLoop
from workbench.values import (
    Message,
    Observation,
    StepResult,
    StopReason,
    Task,
    Trajectory,
    Turn,
    sum_of,
)
from workbench.values.errors import EnvError
from workbench.values.seeds import rng_at
from workbench.worlds.base import EnvFamily
from workbench.worlds.scoring import scored, scores_after
from workbench.worlds.shared import opened

BASELINES = ("random", "solver")
NONE_KNOWN = "none known"


@dataclass(frozen=True)
class BaselineResult:
    """The result of one trajectory. `moves` counts those carried out; `reward` is the undiscounted sum over turns, None
    where one of them could not be scored. `success` is None where the environment does not say."""

    success: bool | None
    reward: float | None
    turns: int
    moves: int


def known(family: EnvFamily) -> tuple[str, ...]:
    """The BASELINES that the family has: `random_action`, `solver_action`."""
    return tuple(name for name in BASELINES if callable(getattr(family, f"{name}_action", None)))


def none_known(family: EnvFamily) -> dict[str, str]:
    """The BASELINES that it does not have, with the words that stand in their place in every table (invariant 12)."""
    return {name: NONE_KNOWN for name in BASELINES if name not in known(family)}


def play(
    family: EnvFamily, task: Task, dynamics_seed: int, policy: Callable[[Any], str]
) -> BaselineResult:
    """Play `task` once, with a policy that sees the environment and writes action texts, until the task is over, a
    limit of the environment ran out, or `family.max_turns` answers were given."""
    moves = 0
    turns = 0
    played_turns = []
    with opened(family) as env:
        first = env.reset(task, dynamics_seed)
        for turns in range(1, family.max_turns + 1):
            text = policy(env)
            result = env.step(text)
            played_turns.append((text, result))
            moves += len(result.info.get("moves", ()))
            if result.terminated or result.truncated:
                break
    ended = trajectory_of(task, dynamics_seed, first, played_turns)
    if scores_after(family):
        ended = with_its_score(family, ended)
    return BaselineResult(ended.success, ended.reward, turns, moves)


def trajectory_of(
    task: Task,
    dynamics_seed: int,
    first: Observation,
    played_turns: Sequence[tuple[str, StepResult]],
) -> Trajectory:
    """A trajectory that was played without tokens: action texts, and what the environment answered. A score reads of it
    what it reads of one that a policy played."""
    turns = (
        Turn(
            k,
            text,
            moves=tuple(result.info.get("moves", ())),
            reply=result.observation.messages,
            reward=result.reward,
            reward_parts=result.reward_parts,
            info=result.info,
            tool_calls=result.tool_calls,
        )
        for k, (text, result) in enumerate(played_turns)
    )
    last = played_turns[-1][1] if played_turns else None
    success = bool(last.info["success"]) if last is not None and "success" in last.info else None
    stop = _end(last)
    owed = dict(last.if_cut) if last is not None and stop is StopReason.MAX_TURNS else {}
    return Trajectory(
        task,
        0,
        dynamics_seed,
        first,
        tuple(turns),
        (),
        stop,
        outcome=sum_of(owed.values()) if owed else None,
        outcome_parts=owed,
        success=success,
    )


def with_its_score(family: EnvFamily, trajectory: Trajectory) -> Trajectory:
    """The trajectory as a family that scores it afterwards does (`worlds.scoring`)."""
    loop = EventLoop()
    try:
        return scored(family, trajectory, loop)
    finally:
        loop.close()


def _end(last: StepResult | None) -> StopReason:
    if last is not None and last.terminated:
        return StopReason.TERMINATED
    if last is not None and last.truncated:
        return StopReason.ENV_TRUNCATED
    return StopReason.MAX_TURNS


@dataclass(frozen=True)
class BaselineFamily:
    """A family made of another: its `reset` plays a whole trajectory by one of the BASELINES and shows what came of it.

    So a runner can play baselines, with its deadlines, wherever it runs environments; one call is one trajectory, of
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
        family = self.baseline.family
        policy = self.baseline.policy
        act = getattr(family, f"{policy}_action")
        # The first one draws as the only one does.
        number = (self.baseline.attempt,) if self.baseline.attempt else ()
        rng = rng_at(self.baseline.seed, "baseline", policy, task.id, *number)
        trajectory = play(family, task, dynamics_seed, lambda env: act(env, rng))
        return Observation((Message("user", json.dumps(asdict(trajectory))),))

    def step(self, action_text: str) -> StepResult:
        raise EnvError("a baseline has played its trajectory at reset; there is nothing to answer")


def played(observation: Observation) -> BaselineResult:
    """The trajectory that a `BaselineFamily` shows."""
    return BaselineResult(**json.loads(observation.messages[0].text))
