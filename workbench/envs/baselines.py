"""Yardsticks without tokens: let a random policy, a solver or any function play tasks (law 12).

No result means much without its neighbours. Published multi-turn results have turned out to sit on the success of
uniform random play once that was measured, so it is measured here for every environment.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from workbench.envs.base import EnvFamily
from workbench.errors import ConfigError, EnvError
from workbench.seeds import rng_at, seed_of
from workbench.stats import Estimate, cluster_mean, rate
from workbench.types import Message, Observation, StepResult, Task

BASELINES = ("random", "solver")


@dataclass(frozen=True)
class Attempt:
    """What came of one attempt. `moves` counts those carried out; `reward` is the undiscounted sum over turns."""

    success: bool
    reward: float
    turns: int
    moves: int


@dataclass(frozen=True)
class Baseline:
    """One yardstick on a set of tasks, ready to print beside a result.

    `success` with its 95 % interval: Wilson's for one attempt a task, else clustered by task. `attempts[i][j]` is
    attempt j at task i.
    """

    name: str
    success: Estimate
    reward: float
    turns: float
    moves: float
    attempts: tuple[tuple[Attempt, ...], ...]

    def __str__(self) -> str:
        return (f"{self.name}: success {self.success}, reward {self.reward:.3f}, {self.turns:.1f} turns, "
                f"{self.moves:.1f} moves")


def play(family: EnvFamily, task: Task, dynamics_seed: int, policy: Callable[[Any], str]) -> Attempt:
    """Play `task` once, with a policy that sees the environment and writes action texts, until the task is over, a
    limit of the environment ran out, or `family.max_turns` answers were given."""
    env = family.make()
    env.reset(task, dynamics_seed)
    reward, moves, success, turns = 0.0, 0, False, 0
    for turns in range(1, family.max_turns + 1):
        result = env.step(policy(env))
        reward += result.reward or 0.0
        moves += len(result.info.get("moves", ()))
        success = bool(result.info.get("success", False))
        if result.terminated or result.truncated:
            break
    return Attempt(success, reward, turns, moves)


@dataclass(frozen=True)
class Yardstick:
    """A family made of another: its `reset` plays a whole attempt by one of the BASELINES and shows what came of it.

    So a runner can play yardsticks, with its deadlines, wherever it runs environments; one call is one attempt, of
    that number at the task.
    """

    family: Any
    policy: str
    seed: int
    attempt: int = 0
    name: str = "yardstick"
    max_turns: int = 0

    def make(self) -> _PlayedOnce:
        return _PlayedOnce(self)


class _PlayedOnce:
    def __init__(self, yardstick: Yardstick) -> None:
        self.yardstick = yardstick

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        family, policy = self.yardstick.family, self.yardstick.policy
        act = {"random": family.random_action, "solver": family.solver_action}[policy]
        number = (self.yardstick.attempt,) if self.yardstick.attempt else ()  # the first is as where there is one only
        rng = rng_at(self.yardstick.seed, "baseline", policy, task.id, *number)
        attempt = play(family, task, dynamics_seed, lambda env: act(env, rng))
        return Observation((Message("user", json.dumps(asdict(attempt))),))

    def step(self, action_text: str) -> StepResult:
        raise EnvError("a yardstick has played its attempt at reset; there is nothing to answer")


def played(observation: Observation) -> Attempt:
    """The attempt that a `Yardstick` shows."""
    return Attempt(**json.loads(observation.messages[0].text))


def evaluate_baseline(family: EnvFamily, tasks: Sequence[Task], policy: str | Callable[[Any, np.random.Generator], str],
                      seed: int = 0, *, attempts: int = 1) -> Baseline:
    """Play every task `attempts` times with "random", "solver" or a function (env, rng) -> action text.

    The dynamics seeds are those that policies get in an evaluation with the same seed, so that results pair up.
    """
    if not tasks or attempts < 1:
        raise ConfigError(f"a baseline needs at least one task and one attempt, got {len(tasks)} and {attempts}")
    if isinstance(policy, str) and policy not in BASELINES:
        raise ConfigError(f"expected a baseline of {BASELINES} or a function (env, rng) -> text, got {policy!r}")
    act = {"random": family.random_action, "solver": family.solver_action}.get(policy, policy)
    name = getattr(family, "solver_name", "best known") if policy == "solver" else policy
    name = name if isinstance(name, str) else getattr(policy, "__name__", "policy")
    played = []
    for task in tasks:
        rngs = [rng_at(seed, "baseline", name, task.id, j) for j in range(attempts)]
        seeds = [seed_of(seed, "evaluation", "dynamics", task.id, j) for j in range(attempts)]
        played.append(tuple(play(family, task, dynamics_seed, lambda env, rng=rng: act(env, rng))
                            for dynamics_seed, rng in zip(seeds, rngs)))
    flat = [attempt for of_task in played for attempt in of_task]
    flags = np.array([attempt.success for attempt in flat], dtype=float)
    success = rate(int(flags.sum()), len(flags)) if attempts == 1 else cluster_mean(
        flags, np.repeat(np.arange(len(played)), attempts))
    means = [float(np.mean([getattr(attempt, field) for attempt in flat])) for field in ("reward", "turns", "moves")]
    return Baseline(name, success, *means, attempts=tuple(played))
