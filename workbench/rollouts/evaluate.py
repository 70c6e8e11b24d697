"""How good is a policy, and compared with what: the same held-out tasks for everyone (invariant 12).

Every policy plays the same tasks with the same dynamics seeds and, where it samples, the same noise (common random
numbers), so that differences are paired task by task. Success is reported sampled, as the run samples, *and* greedy:
training often only sharpens, and one of the two alone would overstate it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any

import numpy as np

from workbench.basics.annotated import checked_methods
from workbench.rollouts.config import GREEDY, CollectConfig
from workbench.values import Group, Task, Trajectory, trajectories_of
from workbench.values.errors import ConfigError, DataError, EnvError, shortened
from workbench.values.seeds import seed_of
from workbench.values.stats import (
    Difference,
    Estimate,
    clustered_difference,
    mean_interval,
    paired_difference,
    pass_at_k,
    share,
)
from workbench.values.tokens import PLAIN, sampling_words
from workbench.values.view import Shown, ShownTuple
from workbench.worlds import baselines
from workbench.worlds.base import EnvFamily
from workbench.worlds.runners import EnvAnswer, EnvRunner, InlineRunner

MODES = ("sampled", "greedy")
# Of a row only where success is not known.
OF_RETURNS = ("reward_low", "reward_high", "reward_by_task")


@checked_methods
@dataclass(frozen=True, repr=False)
class Score(Shown):
    """One policy in one mode on the held-out tasks. `n` counts tasks, `attempts` those at each. `success_low/high` is a
    95 % interval over tasks: Wilson's for one trajectory each, else clustered (`stats.share`). `reward`, `turns` and
    `tokens` are means per trajectory, `valid_format` is the share of turns (None: the environment does not say).

    `by_task` [n] is the share of a task's trajectories that succeeded, in task order: what paired differences are computed
    from. `tokens` counts sampled tokens; None for policies that sample none (random, solver). A trajectory that a fault
    ended counts as no success and is reported in `faults`.

    Where the environment does not say whether a trajectory succeeded, `success` and its interval are None, `by_task` is
    empty, and policies are compared by return: `reward_by_task` [n] (None: no trajectory of that task was scored) and
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
    temperature: float = 1.0  # of a policy that samples; in a row only where it is not 1
    top_p: float = 1.0
    # stored beside a row, in none
    played: tuple[Group, ...] = field(default=(), repr=False, compare=False)

    @property
    def ks(self) -> tuple[int, ...]:
        """The k that pass@k is told for: 1, 2, 4 ... up to the trajectories; none where there is one trajectory, or no success
        to tell."""
        several = self.attempts > 1 and self.success is not None
        return tuple(2**i for i in range(self.attempts.bit_length())) if several else ()

    def pass_at_by_task(self, k: int) -> np.ndarray:
        """[n] unbiased chance that one of k trajectories succeeds. DataError for more than there were."""
        won_N = np.rint(np.asarray(self.by_task) * self.attempts).astype(int)
        return pass_at_k(won_N, self.attempts, k)

    def pass_at(self, k: int) -> Estimate:
        """pass@k over the tasks, with its 95 % interval; `pass_at(1)` is `success`."""
        return share(self.pass_at_by_task(k), self.attempts)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Score:
        """The score that a report's row tells. Rows of before there were several trajectories are of one. DataError for what is
        no such row."""
        try:
            known = {own.name: row[own.name] for own in fields(cls) if own.name in row}
            for name in ("by_task", "reward_by_task"):
                known[name] = tuple(row.get(name, ()))
            return cls(**known)
        except TypeError as error:
            raise DataError(
                f"a score's row is one of `Score.row()`, got {shortened(row)}"
            ) from error

    def row(self) -> dict[str, Any]:
        """JSON-able. Of several trajectories there are also `pass_at_K`, `pass_at_K_low` and `pass_at_K_high`; a row of one
        trajectory has none of them, nor `attempts`, and one that tells success no interval of the return."""
        row = {own.name: getattr(self, own.name) for own in fields(self) if own.name != "played"}
        if self.attempts == 1:
            del row["attempts"]
        if self.success is not None:
            for name in OF_RETURNS:
                del row[name]
        for name, usual in PLAIN.items():
            if row[name] == usual:
                del row[name]
        for k in self.ks:
            estimate = self.pass_at(k)
            row |= {
                f"pass_at_{k}": estimate.mean,
                f"pass_at_{k}_low": estimate.low,
                f"pass_at_{k}_high": estimate.high,
            }
        return row

    def __str__(self) -> str:
        several = f" x {self.attempts}" if self.attempts > 1 else ""
        if self.success is None:
            interval = "[not known]"
            if self.reward_low is not None:
                interval = f"[{self.reward_low:.3f}, {self.reward_high:.3f}]"
            figures = f"return {self.reward:.3f}  {interval}"
        else:
            low, high = (f"{100 * bound:.1f}" for bound in (self.success_low, self.success_high))
            figures = f"{100 * self.success:5.1f} %  [{low}, {high}]"
        return f"{self.policy:9} {sampling_words(vars(self)):7}  {figures}  n={self.n}{several}"


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
    """`rewards`: of every trajectory, task by task, None where it was not scored; `success` too, None: nobody says."""
    scored = [reward for reward in rewards if reward is not None]
    score = Score(
        policy,
        mode,
        n=len(rewards) // attempts,
        success=None,
        success_low=None,
        success_high=None,
        reward=_mean(scored),
        turns=_mean(turns),
        tokens=None if tokens is None else _mean(tokens),
        valid_format=_mean(valid) if valid else None,
        faults=faults,
        by_task=(),
        attempts=attempts,
    )
    if success is None:
        return _with_returns(score, rewards)
    by_task_N = np.asarray(success, dtype=np.float64).reshape(-1, attempts).mean(axis=1)
    rate = share(by_task_N, attempts)
    return replace(
        score,
        success=rate.mean,
        success_low=rate.low,
        success_high=rate.high,
        by_task=tuple(by_task_N.tolist()),
    )


def _mean(numbers: Sequence[float]) -> float:
    return float(np.mean(numbers)) if len(numbers) else float("nan")


def _with_returns(score: Score, rewards: Sequence[float | None]) -> Score:
    """The score with the mean return of each task, and the interval over tasks where they differ."""
    by_task: list[float | None] = []
    for first in range(0, len(rewards), score.attempts):
        known = [r for r in rewards[first : first + score.attempts] if r is not None]
        by_task.append(_mean(known) if known else None)
    score = replace(score, reward_by_task=tuple(by_task))
    means = [mean for mean in by_task if mean is not None]
    if len(means) < 2 or np.ptp(means) == 0:  # no spread tells nothing of tasks
        return score
    around = mean_interval(means)
    return replace(score, reward_low=around.low, reward_high=around.high)


def score_trajectories(
    policy: str, mode: str, trajectories: Sequence[Trajectory], *, attempts: int = 1
) -> Score:
    """Summarise trajectories: `attempts` at the first task, as many at the second, and so on. Unscored rewards are left
    out of the mean, never counted as 0 (invariant 5); nor is a success that the environment says nothing of."""
    ended = [t for t in trajectories if t.turns and not t.stop_reason.is_fault]
    says = not ended or any(t.success is not None for t in ended)
    turns = chain.from_iterable(t.turns for t in trajectories)
    return _score(
        policy,
        mode,
        [bool(t.success) for t in trajectories] if says else None,
        [t.reward for t in trajectories],
        [len(t.turns) for t in trajectories],
        [t.num_sampled for t in trajectories],
        [bool(turn.info["valid_format"]) for turn in turns if "valid_format" in turn.info],
        sum(t.stop_reason.is_fault for t in trajectories),
        attempts,
    )


class Scores(ShownTuple[Score]):
    """Scores of policies on the same tasks. `known`: the report of their baselines, where it was made before; it is shown
    with them, and is none of them."""

    known: Mapping[str, Any] = {}

    def beside(self, known: Mapping[str, Any]) -> Scores:
        """The same scores, shown beside the rows of a report."""
        scores = type(self)(self)
        scores.known = known
        return scores


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
    """Let a policy play `tasks` once per mode: sampled as `config` samples, `attempts` times each, and greedy, once.

    `play(tasks, trajectories, config, address)` collects; it is handed in, because who samples (one process or many) is not
    this page's business. The same address for every policy: common random numbers, and the first trajectory is the same
    whether or not others follow.
    """
    scores = []
    for mode in modes:
        if mode not in MODES:
            raise ConfigError(f"evaluation modes are {MODES}, got {mode!r}")
        settings = config if mode == "sampled" else replace(config, **GREEDY)
        count = attempts if mode == "sampled" else 1
        groups = play(tasks, count, settings, (seed, "evaluation"))
        score = score_trajectories(name, mode, trajectories_of(groups), attempts=count)
        bent = {name: getattr(config, name) for name in PLAIN if mode == "sampled"}
        scores.append(replace(score, played=tuple(groups), **bent))
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
    trajectories, each within the deadline of one call (none: in this thread). A trajectory in which the environment raises,
    hangs or dies is a fault and no success, as it is for a policy. Raises EnvError if all of them are, and ConfigError
    where there is nothing to play.
    """
    if not tasks or attempts < 1:
        raise ConfigError(
            f"baselines need at least one task and one trajectory, got {len(tasks)} and {attempts}"
        )
    scores = []
    for name in baselines.known(family):
        count = attempts if name == "random" else 1
        answers = _play_all(family, name, tasks, seed, count, runner or InlineRunner())
        scores.append(_score_of_baseline(family, name, answers, count))
    return Scores(scores)


def _score_of_baseline(
    family: EnvFamily, name: str, answers: Sequence[EnvAnswer], attempts: int
) -> Score:
    played = [
        None if answer.observation is None else baselines.played(answer.observation)
        for answer in answers
    ]
    ended = [trajectory for trajectory in played if trajectory is not None]
    if not ended:
        raise EnvError(
            f"{name} play of {family.name} broke in every trajectory, the last time with "
            f"{answers[-1].error}; fix the environment before anything is trained in it"
        )
    says = any(trajectory.success is not None for trajectory in ended)
    return _score(
        name,
        "sampled" if name == "random" else "greedy",
        [trajectory is not None and bool(trajectory.success) for trajectory in played]
        if says
        else None,
        [None if trajectory is None else trajectory.reward for trajectory in played],
        [trajectory.turns for trajectory in ended],
        None,
        None,
        len(played) - len(ended),
        attempts,
    )


def _play_all(
    family: EnvFamily,
    policy: str,
    tasks: Sequence[Task],
    seed: int,
    attempts: int,
    runner: EnvRunner,
) -> list[EnvAnswer]:
    """What `runner` answers to one reset for each trajectory of each task, in that order."""
    names = [f"{policy}#{index}" for index in range(len(tasks) * attempts)]
    answers: dict[str, EnvAnswer] = {}
    try:
        for index, name in enumerate(names):
            task = tasks[index // attempts]
            number = index % attempts
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
        both = _paired_returns(a, b)
        returns_a = [first for first, _ in both]
        returns_b = [second for _, second in both]
        difference = _over_tasks(returns_a, returns_b)
        return _comparison(a, b, "", difference, len(both)) | {"of": "return"}
    if k is not None:
        difference = _over_tasks(a.pass_at_by_task(k), b.pass_at_by_task(k))
    elif a.attempts == b.attempts == 1:
        difference = paired_difference(np.asarray(a.by_task), np.asarray(b.by_task))
    else:
        difference = _over_tasks(np.asarray(a.by_task), np.asarray(b.by_task))
    return _comparison(a, b, "" if k is None else f" pass@{k}", difference, a.n)


def _paired_returns(a: Score, b: Score) -> list[tuple[float, float]]:
    """The returns of both, of the tasks that both were scored at."""
    return [pair for pair in zip(a.reward_by_task, b.reward_by_task) if None not in pair]


def _comparison(a: Score, b: Score, what: str, difference: Difference, n: int) -> dict[str, Any]:
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
    return known or len(_paired_returns(a, b)) > 1


def _over_tasks(a_N: Sequence[float], b_N: Sequence[float]) -> Difference:
    return clustered_difference(a_N, b_N, np.arange(len(a_N)))


def report(scores: Sequence[Score], absent: Mapping[str, str] = {}) -> dict[str, Any]:
    """JSON-able: one row per score, and every policy against `untrained` and `random` in the same mode; where both had
    several trajectories, in the largest common pass@k too. `absent`: baselines that are not among the scores, and why."""
    by_name = {(score.policy, score.mode): score for score in scores}
    paired = []
    for score in scores:
        if score.policy in ("random", "solver"):
            continue
        for other in ("untrained", "random"):
            base = by_name.get((other, score.mode))
            if base is None and other == "random":
                base = by_name.get(("random", "sampled"))
            if base is None or score.policy == other or not _can_be_paired(base, score):
                continue
            paired.append(compare(base, score))
            common = sorted({*base.ks} & {*score.ks})
            if common:
                paired.append(compare(base, score, common[-1]))
    table: dict[str, Any] = {"rows": [score.row() for score in scores], "paired": paired}
    if absent:
        table["absent"] = dict(absent)
    return table
