"""How good is a policy, and compared with what: the same held-out tasks for everyone (law 12).

Every policy plays the same tasks with the same dynamics seeds and, where it samples, the same noise (common random
numbers), so that differences are paired task by task. Success is reported sampled at temperature 1 *and* greedy:
training often only sharpens, and one of the two alone would overstate it.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from workbench.envs import baselines
from workbench.envs.base import EnvFamily
from workbench.envs.runners import EnvAnswer, EnvRunner, InlineRunner
from workbench.rollouts.config import CollectConfig
from workbench.types import Group, Task, Trajectory, trajectories_of
from workbench.types.errors import ConfigError, EnvError
from workbench.types.seeds import seed_of
from workbench.types.stats import Difference, Estimate, clustered_difference, paired_difference, pass_at_k, share

MODES = ("sampled", "greedy")


@dataclass(frozen=True)
class Score:
    """One policy in one mode on the held-out tasks. `n` counts tasks, `attempts` those at each. `success_low/high` is a
    95 % interval over tasks: Wilson's for one attempt each, else clustered (`stats.share`). `reward`, `turns` and
    `tokens` are means per trajectory, `valid_format` is the share of turns (None: the environment does not say).

    `by_task` [n] is the share of a task's attempts that succeeded, in task order: what paired differences are computed
    from. `tokens` counts sampled tokens; None for policies that sample none (random, solver). A trajectory that a fault
    ended counts as no success and is reported in `faults`.
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
    attempts: int = 1

    @property
    def ks(self) -> tuple[int, ...]:
        """The k that pass@k is told for: 1, 2, 4 ... up to the attempts; none where there is one attempt."""
        return tuple(2**i for i in range(self.attempts.bit_length())) if self.attempts > 1 else ()

    def pass_at_by_task(self, k: int) -> np.ndarray:
        """[n] unbiased chance that one of k attempts succeeds. DataError for more than there were."""
        return pass_at_k(np.rint(np.asarray(self.by_task) * self.attempts).astype(int), self.attempts, k)

    def pass_at(self, k: int) -> Estimate:
        """pass@k over the tasks, with its 95 % interval; `pass_at(1)` is `success`."""
        return share(self.pass_at_by_task(k), self.attempts)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Score:
        """The score that a report's row tells. Rows of before there were several attempts are of one."""
        known = {field.name: row[field.name] for field in fields(cls) if field.name in row}
        return cls(**known | {"by_task": tuple(row["by_task"])})

    def row(self) -> dict[str, Any]:
        """JSON-able. Of several attempts there are also `pass_at_K`, `pass_at_K_low` and `pass_at_K_high`; a row of one
        attempt has none of them, nor `attempts`: it is what it always was."""
        row = asdict(self)
        if self.attempts == 1:
            del row["attempts"]
        for k in self.ks:
            found = self.pass_at(k)
            row |= {f"pass_at_{k}": found.mean, f"pass_at_{k}_low": found.low, f"pass_at_{k}_high": found.high}
        return row

    def __str__(self) -> str:
        low, high = (f"{100 * bound:.1f}" for bound in (self.success_low, self.success_high))
        several = f" x {self.attempts}" if self.attempts > 1 else ""
        return f"{self.policy:9} {self.mode:7}  {100 * self.success:5.1f} %  [{low}, {high}]  n={self.n}{several}"


def _score(policy: str, mode: str, success: Sequence[bool], rewards: Sequence[float], turns: Sequence[int],
           tokens: Sequence[int] | None, valid: Sequence[bool] | None, faults: int, attempts: int) -> Score:
    by_task_N = np.asarray(success, dtype=np.float64).reshape(-1, attempts).mean(axis=1)
    rate = share(by_task_N, attempts)
    return Score(policy, mode, rate.n, rate.mean, rate.low, rate.high, float(np.mean(rewards)),
                 float(np.mean(turns)), None if tokens is None else float(np.mean(tokens)),
                 None if not valid else float(np.mean(valid)), faults, tuple(by_task_N.tolist()), attempts)


def score_trajectories(policy: str, mode: str, trajectories: Sequence[Trajectory], *, attempts: int = 1) -> Score:
    """Summarise trajectories: `attempts` at the first task, as many at the second, and so on. Unscored rewards are left
    out of the mean, never counted as 0 (law 5)."""
    scored = [t.reward for t in trajectories if t.reward is not None]
    ended = [t for t in trajectories if t.turns and not t.stop_reason.is_fault]
    if ended and all(t.success is None for t in ended):
        raise EnvError(f"the environment of task {ended[0].task.id!r} does not say whether an attempt succeeded, and "
                       "that is no zero: put `success` (true or false) into the info of its StepResults")
    return _score(
        policy, mode, [bool(t.success) for t in trajectories], scored or [float("nan")],
        [len(t.turns) for t in trajectories], [t.num_sampled for t in trajectories],
        [bool(turn.info["valid_format"]) for t in trajectories for turn in t.turns if "valid_format" in turn.info],
        sum(t.stop_reason.is_fault for t in trajectories), attempts,
    )


def evaluate_policy(
    name: str, tasks: Sequence[Task],
    play: Callable[[Sequence[Task], int, CollectConfig, tuple[int | str, ...]], list[Group]],
    *, config: CollectConfig, seed: int, modes: Sequence[str] = MODES, attempts: int = 1,
) -> list[Score]:
    """Let a policy play `tasks` once per mode: sampled at temperature 1, `attempts` times each, and greedy, once.

    `play(tasks, attempts, config, address)` collects; it is handed in, because who samples (one process or many) is not
    this page's business. The same address for every policy: common random numbers, and the first attempt is the same
    whether or not others follow.
    """
    scores = []
    for mode in modes:
        if mode not in MODES:
            raise ConfigError(f"evaluation modes are {MODES}, got {mode!r}")
        settings = replace(config, temperature=1.0 if mode == "sampled" else 0.0, top_p=1.0)
        count = attempts if mode == "sampled" else 1
        groups = play(tasks, count, settings, (seed, "evaluation"))
        scores.append(score_trajectories(name, mode, trajectories_of(groups), attempts=count))
    return scores


def evaluate_baselines(tasks: Sequence[Task], *, family: EnvFamily, seed: int, runner: EnvRunner | None = None,
                       attempts: int = 1) -> list[Score]:
    """The baselines that every result is shown with: uniform random play, `attempts` times at each task, and the
    best-known solver, once.

    They play with the dynamics seeds that policies get, so that they can be paired with them. `runner` runs whole
    attempts, each within the deadline of one call (none: in this thread). An attempt in which the environment raises,
    hangs or dies is a fault and no success, as it is for a policy. Raises EnvError if all of them are, and ConfigError
    where there is nothing to play.
    """
    if not tasks or attempts < 1:
        raise ConfigError(f"baselines need at least one task and one attempt, got {len(tasks)} and {attempts}")
    scores = []
    for name in baselines.BASELINES:
        mode, count = ("sampled", attempts) if name == "random" else ("greedy", 1)
        answers = _play_all(family, name, tasks, seed, count, runner or InlineRunner())
        played = [None if a.observation is None else baselines.played(a.observation) for a in answers]
        ended = [attempt for attempt in played if attempt is not None]
        if not ended:
            raise EnvError(f"{name} play of {family.name} broke in every attempt, the last time with "
                           f"{answers[-1].error}; mend the environment before anything is trained in it")
        scores.append(_score(
            name, mode, [a is not None and a.success for a in played],
            [a.reward for a in ended if a.reward is not None] or [float("nan")], [a.turns for a in ended], None, None,
            len(played) - len(ended), count))
    return scores


def _play_all(family: EnvFamily, policy: str, tasks: Sequence[Task], seed: int, attempts: int,
              runner: EnvRunner) -> list[EnvAnswer]:
    """What `runner` answers to one reset for each attempt at each task, in that order."""
    names = [f"{policy}#{index}" for index in range(len(tasks) * attempts)]
    answers: dict[str, EnvAnswer] = {}
    try:
        for index, name in enumerate(names):
            task, number = tasks[index // attempts], index % attempts
            runner.reset(name, baselines.BaselineFamily(family, policy, seed, number), task,
                         seed_of(seed, "evaluation", "dynamics", task.id, number))
        while len(answers) < len(names):
            for answer in runner.poll(0.05):
                answers[answer.key] = answer
                runner.close(answer.key)
    finally:
        for name in names:
            runner.close(name)
    return [answers[name] for name in names]


def compare(a: Score, b: Score, k: int | None = None) -> dict[str, Any]:
    """Paired difference b - a over the same tasks with its 95 % interval: in success, or in pass@k."""
    if k is not None:
        difference = _over_tasks(a.pass_at_by_task(k), b.pass_at_by_task(k))
    elif a.attempts == b.attempts == 1:
        difference = paired_difference(np.asarray(a.by_task), np.asarray(b.by_task))
    else:
        difference = _over_tasks(np.asarray(a.by_task), np.asarray(b.by_task))
    what = "" if k is None else f" pass@{k}"
    return {"a": f"{a.policy} {a.mode}{what}", "b": f"{b.policy} {b.mode}{what}", "difference": float(difference.mean),
            "low": float(difference.low), "high": float(difference.high), "n": a.n}


def _over_tasks(a_N: np.ndarray, b_N: np.ndarray) -> Difference:
    return clustered_difference(a_N, b_N, np.arange(len(a_N)))


def report(scores: Sequence[Score]) -> dict[str, Any]:
    """JSON-able: one row per score, and every policy against `untrained` and `random` in the same mode; where both had
    several attempts, in the largest common pass@k too."""
    by_name = {(s.policy, s.mode): s for s in scores}
    paired = []
    for score in scores:
        for other in ("untrained", "random"):
            base = by_name.get((other, score.mode)) or (by_name.get((other, "sampled")) if other == "random" else None)
            if base is not None and score.policy not in (other, "random", "solver"):
                paired.append(compare(base, score))
                paired += [compare(base, score, k) for k in sorted({*base.ks} & {*score.ks})[-1:]]
    return {"rows": [score.row() for score in scores], "paired": paired}
