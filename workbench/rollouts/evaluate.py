"""How good is a policy, and compared with what: the same held-out tasks for everyone (law 12).

Every policy plays the same tasks with the same dynamics seeds and, where it samples, the same noise (common random
numbers), so that differences are paired task by task. Success is reported sampled at temperature 1 *and* greedy:
training often only sharpens, and one of the two alone would overstate it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from workbench.envs import baselines
from workbench.envs.base import EnvFamily
from workbench.envs.runners import EnvAnswer, EnvRunner, InlineRunner
from workbench.rollouts.config import CollectConfig
from workbench.types import Group, Task, Trajectory, trajectories_of
from workbench.types.errors import ConfigError, EnvError
from workbench.types.seeds import seed_of
from workbench.types.stats import (
    Difference,
    Estimate,
    clustered_difference,
    mean_interval,
    paired_difference,
    pass_at_k,
    share,
)
from workbench.types.view import Shown, ShownTuple

MODES = ("sampled", "greedy")
OF_RETURNS = (
    "reward_low",
    "reward_high",
    "reward_by_task",
)  # of a row only where success is not known


@dataclass(frozen=True, repr=False)
class Score(Shown):
    """One policy in one mode on the held-out tasks. `n` counts tasks, `attempts` those at each. `success_low/high` is a
    95 % interval over tasks: Wilson's for one attempt each, else clustered (`stats.share`). `reward`, `turns` and
    `tokens` are means per trajectory, `valid_format` is the share of turns (None: the environment does not say).

    `by_task` [n] is the share of a task's attempts that succeeded, in task order: what paired differences are computed
    from. `tokens` counts sampled tokens; None for policies that sample none (random, solver). A trajectory that a fault
    ended counts as no success and is reported in `faults`.

    Where the environment does not say whether an attempt succeeded, `success` and its interval are None, `by_task` is
    empty, and policies are compared by return: `reward_by_task` [n] (None: no attempt at that task was scored) and
    `reward_low/high`, its mean's 95 % interval over tasks (Student's t; None where one task was scored, or all of them
    earned the same: an interval without width would be none).
    """

    policy: str
    mode: str
    n: int
    success: float | None
    success_low: float | None
    success_high: float | None
    reward: float
    turns: float
    tokens: float | None
    valid_format: float | None
    faults: int
    by_task: tuple[float, ...]
    attempts: int = 1
    reward_low: float | None = None
    reward_high: float | None = None
    reward_by_task: tuple[float | None, ...] = ()
    played: tuple[Group, ...] = field(
        default=(), repr=False, compare=False
    )  # stored beside a row, in none

    @property
    def ks(self) -> tuple[int, ...]:
        """The k that pass@k is told for: 1, 2, 4 ... up to the attempts; none where there is one attempt, or no success
        to tell."""
        several = self.attempts > 1 and self.success is not None
        return tuple(2**i for i in range(self.attempts.bit_length())) if several else ()

    def pass_at_by_task(self, k: int) -> np.ndarray:
        """[n] unbiased chance that one of k attempts succeeds. DataError for more than there were."""
        return pass_at_k(
            np.rint(np.asarray(self.by_task) * self.attempts).astype(int), self.attempts, k
        )

    def pass_at(self, k: int) -> Estimate:
        """pass@k over the tasks, with its 95 % interval; `pass_at(1)` is `success`."""
        return share(self.pass_at_by_task(k), self.attempts)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Score:
        """The score that a report's row tells. Rows of before there were several attempts are of one."""
        known = {each.name: row[each.name] for each in fields(cls) if each.name in row}
        return cls(
            **known | {name: tuple(row.get(name, ())) for name in ("by_task", "reward_by_task")}
        )

    def row(self) -> dict[str, Any]:
        """JSON-able. Of several attempts there are also `pass_at_K`, `pass_at_K_low` and `pass_at_K_high`; a row of one
        attempt has none of them, nor `attempts`, and one that tells success no interval of the return."""
        row = {
            each.name: getattr(self, each.name) for each in fields(self) if each.name != "played"
        }
        if self.attempts == 1:
            del row["attempts"]
        if self.success is not None:
            for name in OF_RETURNS:
                del row[name]
        for k in self.ks:
            found = self.pass_at(k)
            row |= {
                f"pass_at_{k}": found.mean,
                f"pass_at_{k}_low": found.low,
                f"pass_at_{k}_high": found.high,
            }
        return row

    def __str__(self) -> str:
        several = f" x {self.attempts}" if self.attempts > 1 else ""
        if self.success is None:
            known = self.reward_low is not None
            interval = (
                f"[{self.reward_low:.3f}, {self.reward_high:.3f}]" if known else "[not known]"
            )
            figures = f"return {self.reward:.3f}  {interval}"
        else:
            low, high = (f"{100 * bound:.1f}" for bound in (self.success_low, self.success_high))
            figures = f"{100 * self.success:5.1f} %  [{low}, {high}]"
        return f"{self.policy:9} {self.mode:7}  {figures}  n={self.n}{several}"


def _score(
    policy: str,
    mode: str,
    success: Sequence[bool] | None,
    rewards: Sequence[float | None],
    turns: Sequence[int],
    tokens: Sequence[int] | None,
    valid: Sequence[bool] | None,
    faults: int,
    attempts: int,
) -> Score:
    """`rewards`: of every attempt, task by task, None where it was not scored; `success` too, None: nobody says."""
    scored = [reward for reward in rewards if reward is not None]
    score = Score(
        policy,
        mode,
        len(rewards) // attempts,
        None,
        None,
        None,
        float(np.mean(scored or [float("nan")])),
        float(np.mean(turns)),
        None if tokens is None else float(np.mean(tokens)),
        None if not valid else float(np.mean(valid)),
        faults,
        (),
        attempts,
    )
    if success is not None:
        by_task_N = np.asarray(success, dtype=np.float64).reshape(-1, attempts).mean(axis=1)
        rate = share(by_task_N, attempts)
        return replace(
            score,
            success=rate.mean,
            success_low=rate.low,
            success_high=rate.high,
            by_task=tuple(by_task_N.tolist()),
        )
    by_task = [
        [r for r in rewards[first : first + attempts] if r is not None]
        for first in range(0, len(rewards), attempts)
    ]
    known = [float(np.mean(some)) for some in by_task if some]
    around = (
        mean_interval(known) if len(known) > 1 and np.ptp(known) > 0 else None
    )  # no spread tells nothing of tasks
    return replace(
        score,
        reward_low=around and around.low,
        reward_high=around and around.high,
        reward_by_task=tuple(float(np.mean(some)) if some else None for some in by_task),
    )


def score_trajectories(
    policy: str, mode: str, trajectories: Sequence[Trajectory], *, attempts: int = 1
) -> Score:
    """Summarise trajectories: `attempts` at the first task, as many at the second, and so on. Unscored rewards are left
    out of the mean, never counted as 0 (law 5); nor is a success that the environment says nothing of."""
    ended = [t for t in trajectories if t.turns and not t.stop_reason.is_fault]
    says = not ended or any(t.success is not None for t in ended)
    return _score(
        policy,
        mode,
        [bool(t.success) for t in trajectories] if says else None,
        [t.reward for t in trajectories],
        [len(t.turns) for t in trajectories],
        [t.num_sampled for t in trajectories],
        [
            bool(turn.info["valid_format"])
            for t in trajectories
            for turn in t.turns
            if "valid_format" in turn.info
        ],
        sum(t.stop_reason.is_fault for t in trajectories),
        attempts,
    )


class Scores(ShownTuple[Score]):
    """Scores of policies on the same tasks."""


def evaluate_policy(
    name: str,
    tasks: Sequence[Task],
    play: Callable[[Sequence[Task], int, CollectConfig, tuple[int | str, ...]], list[Group]],
    *,
    config: CollectConfig,
    seed: int,
    modes: Sequence[str] = MODES,
    attempts: int = 1,
) -> Scores:
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
        score = score_trajectories(name, mode, trajectories_of(groups), attempts=count)
        scores.append(replace(score, played=tuple(groups)))
    return Scores(scores)


def evaluate_baselines(
    tasks: Sequence[Task],
    *,
    family: EnvFamily,
    seed: int,
    runner: EnvRunner | None = None,
    attempts: int = 1,
) -> Scores:
    """The baselines that every result is shown with: uniform random play, `attempts` times at each task, and the
    best-known solver, once. One that the family does not have is not among them (`baselines.none_known`).

    They play with the dynamics seeds that policies get, so that they can be paired with them. `runner` runs whole
    attempts, each within the deadline of one call (none: in this thread). An attempt in which the environment raises,
    hangs or dies is a fault and no success, as it is for a policy. Raises EnvError if all of them are, and ConfigError
    where there is nothing to play.
    """
    if not tasks or attempts < 1:
        raise ConfigError(
            f"baselines need at least one task and one attempt, got {len(tasks)} and {attempts}"
        )
    scores = []
    for name in baselines.known(family):
        mode, count = ("sampled", attempts) if name == "random" else ("greedy", 1)
        answers = _play_all(family, name, tasks, seed, count, runner or InlineRunner())
        played = [
            None if a.observation is None else baselines.played(a.observation) for a in answers
        ]
        ended = [attempt for attempt in played if attempt is not None]
        if not ended:
            raise EnvError(
                f"{name} play of {family.name} broke in every attempt, the last time with "
                f"{answers[-1].error}; mend the environment before anything is trained in it"
            )
        says = any(attempt.success is not None for attempt in ended)
        scores.append(
            _score(
                name,
                mode,
                [a is not None and bool(a.success) for a in played] if says else None,
                [None if a is None else a.reward for a in played],
                [a.turns for a in ended],
                None,
                None,
                len(played) - len(ended),
                count,
            )
        )
    return Scores(scores)


def _play_all(
    family: EnvFamily,
    policy: str,
    tasks: Sequence[Task],
    seed: int,
    attempts: int,
    runner: EnvRunner,
) -> list[EnvAnswer]:
    """What `runner` answers to one reset for each attempt at each task, in that order."""
    names = [f"{policy}#{index}" for index in range(len(tasks) * attempts)]
    answers: dict[str, EnvAnswer] = {}
    try:
        for index, name in enumerate(names):
            task, number = tasks[index // attempts], index % attempts
            runner.reset(
                name,
                baselines.BaselineFamily(family, policy, seed, number),
                task,
                seed_of(seed, "evaluation", "dynamics", task.id, number),
            )
        while len(answers) < len(names):
            for answer in runner.poll(0.05):
                answers[answer.key] = answer
                runner.close(answer.key)
    finally:
        for name in names:
            runner.close(name)
    return [answers[name] for name in names]


def compare(a: Score, b: Score, k: int | None = None) -> dict[str, Any]:
    """Paired difference b - a over the same tasks with its 95 % interval: in success, or in pass@k; in return ("of":
    "return") where the environment does not say who succeeded. DataError where they have no task scored in both."""
    if a.success is None or b.success is None:
        both = [pair for pair in zip(a.reward_by_task, b.reward_by_task) if None not in pair]
        difference = clustered_difference(*zip(*both) if both else ((), ()), np.arange(len(both)))
        return _told(a, b, "", difference, len(both)) | {"of": "return"}
    if k is not None:
        difference = _over_tasks(a.pass_at_by_task(k), b.pass_at_by_task(k))
    elif a.attempts == b.attempts == 1:
        difference = paired_difference(np.asarray(a.by_task), np.asarray(b.by_task))
    else:
        difference = _over_tasks(np.asarray(a.by_task), np.asarray(b.by_task))
    return _told(a, b, "" if k is None else f" pass@{k}", difference, a.n)


def _told(a: Score, b: Score, what: str, difference: Difference, n: int) -> dict[str, Any]:
    return {
        "a": f"{a.policy} {a.mode}{what}",
        "b": f"{b.policy} {b.mode}{what}",
        "difference": float(difference.mean),
        "low": float(difference.low),
        "high": float(difference.high),
        "n": n,
    }


def _can_be_paired(a: Score, b: Score) -> bool:
    """Two scores in which success is known, or returns of at least two tasks are."""
    known = a.success is not None and b.success is not None
    return known or sum(None not in pair for pair in zip(a.reward_by_task, b.reward_by_task)) > 1


def _over_tasks(a_N: np.ndarray, b_N: np.ndarray) -> Difference:
    return clustered_difference(a_N, b_N, np.arange(len(a_N)))


def report(scores: Sequence[Score], absent: Mapping[str, str] = {}) -> dict[str, Any]:
    """JSON-able: one row per score, and every policy against `untrained` and `random` in the same mode; where both had
    several attempts, in the largest common pass@k too. `absent`: baselines that are not among the scores, and why."""
    by_name = {(s.policy, s.mode): s for s in scores}
    paired = []
    for score in scores:
        for other in ("untrained", "random"):
            base = by_name.get((other, score.mode)) or (
                by_name.get((other, "sampled")) if other == "random" else None
            )
            if (
                base is not None
                and score.policy not in (other, "random", "solver")
                and _can_be_paired(base, score)
            ):
                paired.append(compare(base, score))
                paired += [compare(base, score, k) for k in sorted({*base.ks} & {*score.ks})[-1:]]
    return {"rows": [score.row() for score in scores], "paired": paired} | (
        {"absent": dict(absent)} if absent else {}
    )
