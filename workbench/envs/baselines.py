"""Play without tokens: a random policy, a solver or any function plays a task (law 12).

No result means much without its baselines. Published multi-turn results have turned out to sit on the success of
uniform random play once that was measured, so it is measured here for every environment. The figures are made by
`workbench.rollouts.evaluate.evaluate_baselines`.
"""
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from workbench.envs.base import EnvFamily
from workbench.types import Message, Observation, StepResult, Task
from workbench.types.errors import EnvError
from workbench.types.seeds import rng_at

BASELINES = ("random", "solver")


@dataclass(frozen=True)
class Attempt:
    """What came of one attempt. `moves` counts those carried out; `reward` is the undiscounted sum over turns, None
    where one of them could not be scored."""

    success: bool
    reward: float | None
    turns: int
    moves: int


def play(family: EnvFamily, task: Task, dynamics_seed: int, policy: Callable[[Any], str]) -> Attempt:
    """Play `task` once, with a policy that sees the environment and writes action texts, until the task is over, a
    limit of the environment ran out, or `family.max_turns` answers were given."""
    env = family.make()
    env.reset(task, dynamics_seed)
    rewards, moves, success, turns = [], 0, False, 0
    for turns in range(1, family.max_turns + 1):
        result = env.step(policy(env))
        rewards.append(result.reward)
        moves += len(result.info.get("moves", ()))
        success = bool(result.info.get("success", False))
        if result.terminated or result.truncated:
            break
    return Attempt(success, None if None in rewards else sum(rewards, 0.0), turns, moves)


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
        act = {"random": family.random_action, "solver": family.solver_action}[policy]
        number = (self.baseline.attempt,) if self.baseline.attempt else ()  # the first is as where there is one only
        rng = rng_at(self.baseline.seed, "baseline", policy, task.id, *number)
        attempt = play(family, task, dynamics_seed, lambda env: act(env, rng))
        return Observation((Message("user", json.dumps(asdict(attempt))),))

    def step(self, action_text: str) -> StepResult:
        raise EnvError("a baseline has played its attempt at reset; there is nothing to answer")


def played(observation: Observation) -> Attempt:
    """The attempt that a `BaselineFamily` shows."""
    return Attempt(**json.loads(observation.messages[0].text))
