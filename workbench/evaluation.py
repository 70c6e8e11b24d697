"""How good is a policy, and compared with what: the same held-out tasks for everyone (law 12).

Every policy plays the same tasks with the same dynamics seeds and, where it samples, the same noise (common random
numbers), so that differences are paired task by task. Success is reported sampled at temperature 1 *and* greedy:
training often only sharpens, and one of the two alone would overstate it.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from workbench.collect import CollectConfig
from workbench.envs import baselines
from workbench.envs.base import EnvFamily
from workbench.envs.runners import EnvAnswer, EnvRunner, InlineRunner
from workbench.errors import ConfigError, EnvError
from workbench.seeds import seed_of
from workbench.stats import paired_difference, wilson_interval
from workbench.types import Group, Task, Trajectory, trajectories_of

MODES = ("sampled", "greedy")


@dataclass(frozen=True)
class EvaluationConfig:
    num_tasks: int = 512  # held-out tasks; 512 give a 95 % interval of about +-4 points
    seed: int = 0         # of the noise, never of the tasks: those are fixed

    def __post_init__(self) -> None:
        if self.num_tasks < 2:
            raise ConfigError(f"evaluation.num_tasks is at least 2, got {self.num_tasks}")


@dataclass(frozen=True)
class Score:
    """One policy in one mode on the held-out tasks; `success_low/high` is Wilson's 95 % interval. `reward`, `turns` and
    `tokens` are means per trajectory, `valid_format` is the share of turns (None: the environment does not say).

    `by_task` [n] is 1.0 where the attempt succeeded, in task order: what paired differences are computed from.
    `tokens` counts sampled tokens; None for policies that sample none (random, solver). A trajectory that a fault ended
    counts as no success and is reported in `faults`.
    """

    policy: str
    mode: str
    n: int
    success: float
    success_low: float
    success_high: float
    reward: float
    turns: float
    tokens: float | None
    valid_format: float | None
    faults: int
    by_task: tuple[float, ...]

    def __str__(self) -> str:
        low, high = (f"{100 * bound:.1f}" for bound in (self.success_low, self.success_high))
        return f"{self.policy:9} {self.mode:7}  {100 * self.success:5.1f} %  [{low}, {high}]  n={self.n}"


def _score(policy: str, mode: str, success: Sequence[bool], rewards: Sequence[float], turns: Sequence[int],
           tokens: Sequence[int] | None, valid: Sequence[bool] | None, faults: int) -> Score:
    low, high = wilson_interval(int(sum(success)), len(success))
    return Score(policy, mode, len(success), float(np.mean(success)), float(low), float(high), float(np.mean(rewards)),
                 float(np.mean(turns)), None if tokens is None else float(np.mean(tokens)),
                 None if not valid else float(np.mean(valid)), faults, tuple(float(s) for s in success))


def score_trajectories(policy: str, mode: str, trajectories: Sequence[Trajectory]) -> Score:
    """Summarise attempts, one per task. Unscored rewards are left out of the mean, never counted as 0 (law 5)."""
    scored = [t.reward for t in trajectories if t.reward is not None]
    ended = [t for t in trajectories if t.turns and not t.stop_reason.is_fault]
    if ended and all(t.success is None for t in ended):
        raise EnvError(f"the environment of task {ended[0].task.id!r} does not say whether an attempt succeeded, and "
                       "that is no zero: put `success` (true or false) into the info of its StepResults")
    return _score(
        policy, mode, [bool(t.success) for t in trajectories], scored or [float("nan")],
        [len(t.turns) for t in trajectories], [t.num_sampled for t in trajectories],
        [bool(turn.info["valid_format"]) for t in trajectories for turn in t.turns if "valid_format" in turn.info],
        sum(t.stop_reason.is_fault for t in trajectories),
    )


def evaluate_policy(
    name: str, tasks: Sequence[Task],
    play: Callable[[Sequence[Task], CollectConfig, tuple[int | str, ...]], list[Group]],
    *, config: CollectConfig, seed: int, modes: Sequence[str] = MODES,
) -> list[Score]:
    """Let a policy play `tasks` once per mode: sampled at temperature 1, and greedy.

    `play(tasks, config, address)` collects one attempt per task; it is handed in, because who samples (one process or
    many) is not this page's business. The same address for every policy: common random numbers.
    """
    scores = []
    for mode in modes:
        if mode not in MODES:
            raise ConfigError(f"evaluation modes are {MODES}, got {mode!r}")
        settings = replace(config, temperature=1.0 if mode == "sampled" else 0.0, top_p=1.0)
        scores.append(score_trajectories(name, mode, trajectories_of(play(tasks, settings, (seed, "evaluation")))))
    return scores


def evaluate_baselines(tasks: Sequence[Task], *, family: EnvFamily, seed: int,
                       runner: EnvRunner | None = None) -> list[Score]:
    """The neighbours that every result is shown with: uniform random play and the best-known solver.

    They play with the dynamics seeds that policies get, so that they can be paired with them. `runner` runs whole
    attempts, each within the deadline of one call (none: in this thread). An attempt in which the environment raises,
    hangs or dies is a fault and no success, as it is for a policy. Raises EnvError if all of them are.
    """
    scores = []
    for name in baselines.BASELINES:
        answers = _play_all(baselines.Yardstick(family, name, seed), tasks, seed, runner or InlineRunner())
        attempts = [None if a.observation is None else baselines.played(a.observation) for a in answers]
        ended = [attempt for attempt in attempts if attempt is not None]
        if not ended:
            raise EnvError(f"{name} play of {family.name} broke in every attempt, the last time with "
                           f"{answers[-1].error}; mend the environment before anything is trained in it")
        scores.append(_score(
            name, "sampled" if name == "random" else "greedy", [a is not None and a.success for a in attempts],
            [a.reward for a in ended], [a.turns for a in ended], None, None, len(attempts) - len(ended)))
    return scores


def _play_all(family: EnvFamily, tasks: Sequence[Task], seed: int, runner: EnvRunner) -> list[EnvAnswer]:
    """What `runner` answers to one reset of each task, in task order."""
    names = [f"{family.policy}#{index}" for index in range(len(tasks))]
    answers: dict[str, EnvAnswer] = {}
    try:
        for name, task in zip(names, tasks):
            runner.reset(name, family, task, seed_of(seed, "evaluation", "dynamics", task.id, 0))
        while len(answers) < len(tasks):
            for answer in runner.poll(0.05):
                answers[answer.key] = answer
                runner.close(answer.key)
    finally:
        for name in names:
            runner.close(name)
    return [answers[name] for name in names]


def compare(a: Score, b: Score) -> dict[str, Any]:
    """Paired difference b - a in success over the same tasks, with its 95 % interval."""
    difference = paired_difference(np.asarray(a.by_task), np.asarray(b.by_task))
    return {"a": f"{a.policy} {a.mode}", "b": f"{b.policy} {b.mode}", "difference": float(difference.mean),
            "low": float(difference.low), "high": float(difference.high), "n": a.n}


def report(scores: Sequence[Score]) -> dict[str, Any]:
    """JSON-able: one row per score, and every policy against `untrained` and `random` in the same mode."""
    rows = [asdict(score) for score in scores]
    by_name = {(s.policy, s.mode): s for s in scores}
    paired = []
    for score in scores:
        for other in ("untrained", "random"):
            base = by_name.get((other, score.mode)) or (by_name.get((other, "sampled")) if other == "random" else None)
            if base is not None and score.policy not in (other, "random", "solver"):
                paired.append(compare(base, score))
    return {"rows": rows, "paired": paired}
