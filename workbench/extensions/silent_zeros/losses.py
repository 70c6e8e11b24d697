"""The steps between a policy and its reward functions: which of them loses words that are paid, at which row, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from workbench.basics.extensions import has_service, service
from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.silent_zeros.rewards import BatchRewards
from workbench.extensions.silent_zeros.scorer import quoted
from workbench.extensions.silent_zeros.token_path import STEPS, TOO_LONG, PathText
from workbench.extensions.silent_zeros.trial import RewardOutcome, RewardTrial

StepResult = tuple[str, RuleResult]  # (step, what was found of it)


@dataclass(frozen=True, eq=False)
class PathOutcome:
    """What came of the words on their way.

    results  of the steps
    kept_NF  bool: paid, and still paid at the end
    """

    results: Sequence[StepResult]
    kept_NF: np.ndarray


@dataclass(frozen=True, eq=False)
class PathRewards:
    """What functions paid behind one step.

    rewards   None where the step altered nothing
    paid_NF   bool: the words are paid as before, or nearly
    alive_N   bool: rows whose words the step gave something for
    """

    step: str
    rewards: BatchRewards | None
    paid_NF: np.ndarray
    alive_N: np.ndarray


def walk_words(trial: RewardTrial, outcome: RewardOutcome) -> PathOutcome:
    """Walk the words of all rows, ask functions after each step, and name the step behind which words are never paid again.
    What a later step puts right (a parser that leaves a thought out) is lost nowhere."""
    walks = [trial.path.walk(row, words) for row, words in zip(trial.rows, trial.words)]
    results: list[StepResult] = [*_failed_steps(trial, walks)]
    steps = list(_step_outcomes(trial, outcome, walks))
    later = np.zeros_like(outcome.pays_NF)
    for number in reversed(range(len(steps))):
        here = steps[number]
        before = steps[number - 1].paid_NF if number else outcome.pays_NF
        lost = before & ~here.paid_NF & ~later & here.alive_N[:, None]
        results.append(
            (here.step, Checked(int((before & here.alive_N[:, None]).any(axis=1).sum())))
        )
        if here.rewards is not None:
            results += _losses(trial, outcome, walks, here.step, here.rewards, lost)
        later |= here.paid_NF
    return PathOutcome(results, steps[-1].paid_NF)


def _step_outcomes(
    trial: RewardTrial, outcome: RewardOutcome, walks: Sequence[PathText]
) -> Iterator[PathRewards]:
    before: list[Any] = list(trial.words)
    paid = outcome.pays_NF
    for step in STEPS:
        alive = np.array([step in walk.after and step not in walk.failed for walk in walks])
        texts = [
            walk.after[step] if here else words for walk, here, words in zip(walks, alive, before)
        ]
        rewards = None
        if texts != before:
            rewards = trial.pay(texts, [walk.ids for walk in walks])
            paid = outcome.pays_NF & ~outcome.lost_NF(rewards)
        paid = paid & alive[:, None]
        yield PathRewards(step, rewards, paid, alive)
        before = texts


def _failed_steps(trial: RewardTrial, walks: Sequence[PathText]) -> Iterator[StepResult]:
    for step in STEPS:
        rows = [row for row, walk in enumerate(walks) if step in walk.failed]
        if rows:
            walk = walks[rows[0]]
            handed = walk.after.get("stop", trial.words[rows[0]])
            yield (
                step,
                Finding(
                    f"the {step} gives no answer for the words {quoted(handed)}: {walk.failed[step]} "
                    f"({len(rows)} of {len(trial)} rows)",
                    trial.place(rows[0]),
                    count=len(rows),
                ),
            )


def _losses(
    trial: RewardTrial,
    outcome: RewardOutcome,
    walks: Sequence[PathText],
    step: str,
    rewards: BatchRewards,
    lost_NF: np.ndarray,
) -> Iterator[StepResult]:
    """One finding a function that pays no longer behind this step."""
    for column, function in enumerate(trial.functions):
        rows = np.flatnonzero(lost_NF[:, column])
        if not len(rows):
            continue
        row = int(rows[0])
        why = walks[row].why.get(step) or "the words become others"
        right = outcome.right.words(row, column)
        yield (
            step,
            Finding(
                f"{why}. {function.place} {right} for {quoted(trial.words[row])}; of what is left of it, "
                f"{quoted(walks[row].after[step])}, it {rewards.words(row, column)} ({len(rows)} of {len(trial)} rows)",
                trial.place(row),
                _severity(why, len(rows), int(outcome.pays_NF[:, column].sum())),
                len(rows),
            ),
        )


def _severity(why: str, lost: int, paid: int) -> str:
    """A few rows whose words are too long are a note: fewer words may be right as well."""
    return NOTE if why.startswith(TOO_LONG) and 2 * lost < paid else ERROR


# ------------------------------------------------------------------------------------------------ variations


def vary_words(
    trial: RewardTrial, outcome: RewardOutcome, kept_NF: np.ndarray, may_vary: Sequence[str] | None
) -> Iterator[RuleResult]:
    """Harmless variations of the words, walked: a note where one is not paid; an error where it was declared harmless."""
    if not has_service("variations_of"):
        yield NotChecked("the extension scripted_play, which has the variations")
        return
    variations_of = service("variations_of", "harmless variations of an answer")
    must, asked = variations_of(SimpleNamespace(may_vary=may_vary))
    severity = NOTE if may_vary is None else ERROR
    for variation in (*must, *asked):
        yield from _varied(trial, outcome, kept_NF, variation.what, variation.of, severity)


def _varied(
    trial: RewardTrial,
    outcome: RewardOutcome,
    kept_NF: np.ndarray,
    what: str,
    vary: Callable[[str], str],
    severity: str,
) -> Iterator[RuleResult]:
    rows = [row for row, words in enumerate(trial.words) if isinstance(words, str)]
    texts = [vary(words) if row in rows else words for row, words in enumerate(trial.words)]
    if texts == list(trial.words) or not kept_NF.any():
        return
    walks = [trial.path.walk(row, words) for row, words in zip(trial.rows, texts)]
    ends = [walk.after.get("parser", "") for walk in walks]
    rewards = trial.pay(ends, [walk.ids for walk in walks])
    lost = outcome.lost_NF(rewards) & kept_NF
    yield Checked(int(kept_NF.any(axis=1).sum()))
    for column in np.flatnonzero(lost.any(axis=0)):
        row = int(lost[:, column].argmax())
        yield Finding(
            f"with {what}, {quoted(texts[row])}, {trial.functions[column].place} {rewards.words(row, column)}, and "
            f"{outcome.right.words(row, column)} without ({int(lost[:, column].sum())} of {len(trial)} rows)",
            trial.place(row),
            severity,
            int(lost[:, column].sum()),
        )
