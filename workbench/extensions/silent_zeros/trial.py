"""What is asked: rows, the words known to be paid for them, wrong ones, and what reward functions pay for each.

Axis letters: N rows, F functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from workbench.basics.findings import Place
from workbench.extensions.silent_zeros.rewards import (
    BatchRewards,
    CompletionBatch,
    RewardFunction,
    as_messages,
    column_of,
    pay,
    text_of,
)
from workbench.extensions.silent_zeros.token_path import TokenPath
from workbench.values.errors import DataError

TINY = 1e-6
NONSENSE = "I do not know."
Words = str | Sequence[Any] | Callable[[Mapping[str, Any]], Any]
# Forms in which an answer of a column is commonly demanded.
FORMS = (
    "{}",
    "<answer>{}</answer>",
    "<think>\nI think.\n</think>\n<answer>\n{}\n</answer>",
    "<think>I think.</think><answer>{}</answer>",
    "\\boxed{{{}}}",
    "#### {}",
    "The answer is {}.",
)


class RowPlace(Place):
    """A row of the user's data, and its column; in `trajectory`."""

    def __str__(self) -> str:
        return str(self.trajectory)


@dataclass(frozen=True, eq=False)
class RewardTrial:
    """A trainer's rows and functions, and the way of words to them.

    rows            [N] as its reward functions see them
    numbers         [N] of the rows in the user's data
    words           [N] known to be paid: text, or the messages of an answer
    column          that they stand in; "" where they stand in none
    form            in which they are written out of the column
    conversational  completions are handed over as messages
    """

    rows: Sequence[Mapping[str, Any]]
    numbers: Sequence[int]
    words: Sequence[Any]
    column: str
    functions: Sequence[RewardFunction]
    path: TokenPath
    conversational: bool
    form: str = FORMS[0]

    def __len__(self) -> int:
        return len(self.rows)

    def pay(self, words: Sequence[Any], ids: Sequence[Sequence[int]] | None = None) -> BatchRewards:
        """What functions pay for these words, handed over as they are."""
        return pay(self.functions, self.batch(words, ids))

    def batch(
        self, words: Sequence[Any], ids: Sequence[Sequence[int]] | None = None
    ) -> CompletionBatch:
        if ids is None:
            ids = [self.path.encoded(text_of(word)) for word in words]
        if self.conversational:
            words = [as_messages(word) for word in words]
        return CompletionBatch(self.rows, list(words), list(ids))

    def only(self, rows: Sequence[int]) -> RewardTrial:
        """These rows alone."""
        return replace(
            self,
            rows=[self.rows[row] for row in rows],
            numbers=[self.numbers[row] for row in rows],
            words=[self.words[row] for row in rows],
        )

    def place(self, row: int) -> Place:
        """A row in the user's data."""
        where = f"row {self.numbers[row]}"
        return RowPlace(f"{where}, column {self.column!r}" if self.column else where)

    def wrong_words(self, declared: Sequence[Any] | None) -> list[list[Any]]:
        """Answers that are wrong, the empty one first: those declared, else what is right for two other rows."""
        empty = [_like(words, "") for words in self.words]
        if declared is not None:
            return [empty, list(declared)]
        return [empty, *(self._of_other_rows(shift) for shift in (1, 2))]

    def _of_other_rows(self, shift: int) -> list[Any]:
        moved = [*self.words[shift:], *self.words[:shift]]
        return [
            _like(own, NONSENSE) if _same(own, other) else other
            for own, other in zip(self.words, moved)
        ]


def _like(words: Any, text: str) -> Any:
    """Other text, in the form of these words."""
    return text if isinstance(words, str) else as_messages(text)


def _same(one: Any, other: Any) -> bool:
    return _plain(text_of(one)) == _plain(text_of(other))


def _plain(text: str) -> str:
    """Letters, digits and signs of numbers, in small letters; "4.0" is "4"."""
    kept = re.sub(r"[^\w.+-]", "", text.casefold())
    try:
        return f"{float(kept):g}"
    except ValueError:
        return kept


def words_of(row: Mapping[str, Any], words: Words, number: int) -> Any:
    """Words known to be paid for a row: of a column, a function or a list. None where there are none."""
    if isinstance(words, str):
        value = column_of(row, words)
        if isinstance(value, (list, tuple)) and value and not isinstance(value[0], Mapping):
            value = value[0]  # several answers are right
    elif callable(words):
        value = words(row)
    elif number < len(words):
        value = words[number]
    else:
        raise DataError(
            f"words has one entry for each row; it has {len(words)}, and row {number} is asked about"
        )
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return value.strip("\n") or None
    is_messages = isinstance(value, (list, tuple)) and all(isinstance(m, Mapping) for m in value)
    return list(value) if is_messages and value else None


def in_form(trial: RewardTrial, form: str) -> RewardTrial:
    """The same with words in one of the forms in which an answer is demanded."""
    return replace(trial, words=[form.format(text_of(words)) for words in trial.words], form=form)


# ------------------------------------------------------------------------------------------------ right and wrong


@dataclass(frozen=True, eq=False)
class RewardOutcome:
    """What functions pay for the words known to be paid, and for wrong ones.

    right    for the words, handed over directly
    wrong    for the empty answer, then for others
    stable   [F] it returned the same when it was asked again
    """

    right: BatchRewards
    wrong: Sequence[BatchRewards]
    stable: np.ndarray

    @cached_property
    def highest_NF(self) -> np.ndarray:
        """The most that a wrong answer is paid; -inf where none is scored."""
        return _most([answer.values_NF for answer in self.wrong])

    @cached_property
    def lowest_NF(self) -> np.ndarray:
        """The least that a wrong answer is paid; +inf where none is scored."""
        return -_most([-answer.values_NF for answer in self.wrong])

    @cached_property
    def lowest_words_NF(self) -> np.ndarray:
        """... of those that are not empty."""
        return -_most([-answer.values_NF for answer in self.wrong[1:]])

    @cached_property
    def tells_NF(self) -> np.ndarray:
        """bool: no wrong answer is paid more than the right one, and one with words less."""
        right = self.right.values_NF
        return (right > self.lowest_words_NF + TINY) & (right >= self.highest_NF - TINY)

    @cached_property
    def pays_NF(self) -> np.ndarray:
        """bool: the words earn more than the empty answer, or than another wrong one."""
        empty = self.wrong[0].values_NF
        right = self.right.values_NF
        return ((right > empty + TINY) | self.tells_NF) & self.stable

    def lost_NF(self, other: BatchRewards) -> np.ndarray:
        """bool: the words were paid, and `other`, which is the same on its way, is at most half as far above a wrong answer."""
        low = np.where(np.isfinite(self.lowest_NF), self.lowest_NF, 0.0)
        half = low + (self.right.values_NF - low) / 2
        return self.pays_NF & ~(other.values_NF > half)


def _most(answers: Sequence[np.ndarray]) -> np.ndarray:
    """The largest of each place, NaN aside."""
    return np.max([np.where(np.isnan(values), -np.inf, values) for values in answers], axis=0)


def compare(trial: RewardTrial, wrong: Sequence[Any] | None) -> RewardOutcome:
    """Ask for the words twice, and for wrong answers."""
    right = trial.pay(trial.words)
    again = trial.pay(trial.words)
    same = np.isclose(right.values_NF, again.values_NF, atol=1e-5, equal_nan=True).all(axis=0)
    answers = [trial.pay(words) for words in trial.wrong_words(wrong)]
    return RewardOutcome(right, answers, same)
