"""The reward functions themselves: do they pay the words known to be paid, as they are, and wrong answers less?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from workbench.basics.findings import NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.silent_zeros.rewards import (
    BatchRewards,
    RewardFunction,
    column_of,
    text_of,
)
from workbench.extensions.silent_zeros.trial import TINY, RewardOutcome, RewardTrial, compare
from workbench.values.errors import shortened

SHOWN = 60  # characters of words in a message


def scorer_results(trial: RewardTrial, outcome: RewardOutcome) -> Iterator[RuleResult]:
    """All that is asked of the functions."""
    yield Checked(len(trial) * len(trial.functions), "words handed over directly")
    for column in np.flatnonzero(~outcome.stable):
        name = trial.functions[column].name
        yield NotChecked(f"the same payment when asked twice, of {name}", name)
    yield from _faults(trial, outcome.right, "the right words")
    names = ("the empty answer", *["a wrong answer"] * (len(outcome.wrong) - 1))
    for answers, name in zip(outcome.wrong[:2], names):
        yield from _faults(trial, answers, name, outcome.right)
    yield from _unscored(trial, outcome)
    yield from _told_apart(trial, outcome)


def quoted(words: object) -> str:
    """The words in a message."""
    return shortened(text_of(words), SHOWN)


# ------------------------------------------------------------------------------------------------ what is no payment


def _faults(
    trial: RewardTrial,
    rewards: BatchRewards,
    whose: str,
    right: BatchRewards | None = None,
) -> Iterator[Finding]:
    """One finding a function: it raises, or returns what is no number. With `right`: what it did there is not said again."""
    for column, function in enumerate(trial.functions):
        rows = [row for row, where in rewards.faults if where == column]
        if right is not None:
            rows = [row for row in rows if (row, column) not in right.faults]
        if rows:
            row = min(rows)
            fault = rewards.faults[row, column]
            yield Finding(
                f"{function.place} {fault} for {whose} ({len(rows)} of {len(trial)} rows){_columns(trial, fault)}",
                trial.place(row),
                count=len(rows),
            )


def _columns(trial: RewardTrial, fault: str) -> str:
    """Of an argument that is missing: the columns that there are."""
    if "argument" not in fault and "KeyError" not in fault:
        return ""
    return f"; the row has the columns {', '.join(map(str, trial.rows[0]))}"


def _unscored(trial: RewardTrial, outcome: RewardOutcome) -> Iterator[Finding]:
    """Rows that no function scores: None is no zero, it leaves the row out."""
    right = outcome.right
    unscored = right.unscored_NF.all(axis=1)
    if not unscored.any():
        return
    row = int(unscored.argmax())
    others = any(np.isfinite(answer.values_NF[unscored]).any() for answer in outcome.wrong)
    words = "while a wrong answer is scored" if others else "whatever is answered"
    count = int(unscored.sum())
    yield Finding(
        f"{_all_places(trial.functions)} return{'s' if len(trial.functions) == 1 else ''} None for the right words "
        f"{quoted(trial.words[row])}, {words} ({count} of {len(trial)} rows): such a row is left out, and nothing is learned "
        "from it",
        trial.place(row),
        "error" if others or unscored.all() else NOTE,
        count,
    )


def _all_places(functions: Sequence[RewardFunction]) -> str:
    return ", ".join(function.place for function in functions)


# ------------------------------------------------------------------------------------------------ right from wrong


def _told_apart(trial: RewardTrial, outcome: RewardOutcome) -> Iterator[RuleResult]:
    known = np.isfinite(outcome.right.values_NF) & outcome.stable
    rows = known.any(axis=1)
    if not rows.any():
        return
    if not (outcome.tells_NF & known).any():
        yield _never(trial, outcome, np.flatnonzero(rows))
        return
    yield Checked(int(rows.sum()), "right from wrong")
    yield from _rows_unpaid(trial, outcome, known)
    yield from _same_for_all(trial, outcome, known)
    yield from _together(trial, outcome)


def _never(trial: RewardTrial, outcome: RewardOutcome, rows: np.ndarray) -> Finding:
    """No function pays right words more than wrong ones, at any row."""
    row = int(rows[0])
    parts = []
    for column, function in enumerate(trial.functions):
        wrong = outcome.wrong[1].words(row, column)
        empty = outcome.wrong[0].words(row, column)
        parts.append(
            f"{function.place} {outcome.right.words(row, column)} for the right words {quoted(trial.words[row])}, "
            f"{wrong} for wrong ones, {empty} for the empty answer"
        )
    return Finding(
        f"right words earn no more than wrong ones at all of {len(rows)} rows: {'; '.join(parts)}. "
        f"{_why_never(trial, outcome)}",
        trial.place(row),
        count=len(rows),
    )


def _why_never(trial: RewardTrial, outcome: RewardOutcome) -> str:
    """What makes the functions pay, where something that is tried does."""
    turned = replace(trial, conversational=not trial.conversational)
    if _tells(turned):
        if trial.conversational:
            return (
                "They pay the same words as plain text: the prompts are messages, so this trainer hands over "
                'completion[0]["content"], and the function reads the completion itself'
            )
        return "They pay the same words as messages: the prompts are text, so this trainer hands over text"
    if len(trial) > 1 and _tells(trial.only([len(trial) - 1])):
        return "Alone a row is paid: the function mixes the rows of a batch"
    value = column_of(trial.rows[0], trial.column) if trial.column else None
    if value is not None and not isinstance(value, str):
        return f"Column {trial.column!r} holds {type(value).__name__}, and the policy writes text"
    paid = outcome.right.values_NF
    if np.nanmax(paid) > TINY:
        return "Nothing of the answer is compared with the row"
    return (
        "Look at what it compares the answer with. Where it wants more than these words, hand over the whole answer: "
        "words=lambda row: ..."
    )


def _tells(trial: RewardTrial) -> bool:
    outcome = compare(trial, None)
    return bool((outcome.tells_NF & np.isfinite(outcome.right.values_NF)).any())


def _rows_unpaid(
    trial: RewardTrial, outcome: RewardOutcome, known: np.ndarray
) -> Iterator[Finding]:
    """Rows at which a function does not pay the right words, while it pays them at others."""
    right = outcome.right.values_NF
    for column, function in enumerate(trial.functions):
        tells = outcome.tells_NF[:, column] & known[:, column]
        if not tells.any():
            continue
        usual = float(np.median(right[tells, column]))
        unpaid = (
            known[:, column]
            & ~tells
            & (right[:, column] <= outcome.lowest_NF[:, column] + TINY)
            & (right[:, column] < usual - TINY)
        )
        if not unpaid.any():
            continue
        row = int(unpaid.argmax())
        alone = compare(trial.only([row]), None)
        mixed = bool(alone.right.values_NF[0, column] > right[row, column] + TINY)
        cause = (
            "Asked about alone it is paid: the function mixes the rows of a batch"
            if mixed
            else "Look at this row's columns, and at how the function reads them"
        )
        yield Finding(
            f"{function.place} pays {right[row, column]:.4g} for the right words {quoted(trial.words[row])}, no more than "
            f"for a wrong answer, and {usual:.4g} at other rows ({int(unpaid.sum())} of {len(trial)} rows). {cause}",
            trial.place(row),
            count=int(unpaid.sum()),
        )


def _same_for_all(
    trial: RewardTrial, outcome: RewardOutcome, known: np.ndarray
) -> Iterator[Finding]:
    """A function, one of several, that pays everything alike."""
    if len(trial.functions) < 2:
        return
    alike = (np.abs(outcome.highest_NF - outcome.lowest_NF) < TINY) & (
        np.abs(outcome.right.values_NF - outcome.lowest_NF) < TINY
    )
    for column, function in enumerate(trial.functions):
        if (alike | ~known)[:, column].all() and known[:, column].any():
            yield Finding(
                f"{function.place} pays {outcome.right.values_NF[known[:, column], column][0]:.4g} for right, wrong and empty "
                f"answers alike, at all of {int(known[:, column].sum())} rows; whether it can pay was not seen. Hand over "
                "whole answers that it pays: words=lambda row: ...",
                severity=NOTE,
            )


def _together(trial: RewardTrial, outcome: RewardOutcome) -> Iterator[Finding]:
    """By the trainer's weights, right words must not earn less than all wrong ones."""
    weights = np.array([function.weight for function in trial.functions])
    right = np.nansum(outcome.right.values_NF * weights, axis=1)
    wrong = [np.nansum(answer.values_NF * weights, axis=1) for answer in outcome.wrong]
    less = right <= np.min(wrong, axis=0) + TINY
    if less.all():
        named = ", ".join(f"{function.name} x {function.weight:g}" for function in trial.functions)
        yield Finding(
            f"weighted and summed ({named}) right words earn {right[0]:.4g}, and every wrong answer as much or more "
            f"({min(answers[0] for answers in wrong):.4g} at least), at all of {len(trial)} rows",
            trial.place(0),
            count=len(trial),
        )
