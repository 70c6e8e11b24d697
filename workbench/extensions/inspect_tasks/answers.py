"""The right answers of an environment's tasks, as they were paid, and what can be said in their place (E27, E30)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from workbench.extensions.scripted_play.given import CheckInput, without_its_seed
from workbench.extensions.scripted_play.leaks import gold_of
from workbench.extensions.scripted_play.paid import NEAR
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Script,
    replay,
    text_of,
)
from workbench.extensions.scripted_play.words import framed
from workbench.values import Task

LEAST = 4  # tasks by which an answer's form is judged
FIELD_TASKS = 12  # at which values of the payload are said
ASKED = 8  # tasks at which other answers are tried
OFTEN = 0.8  # of the tasks at which one is paid
LONGEST = 400  # characters of an answer


class SolverAnswer(NamedTuple):
    """A trajectory that was paid for its last words, and the part of them that is the answer."""

    played: PlayedTrajectory
    before: str
    words: str
    after: str
    prompt: str

    def saying(self, words: str) -> PlayedTrajectory:
        """The same trajectory with other words in the place of the answer."""
        last = f"{self.before}{words}{self.after}"
        return replay(self.played.family, self.played.script.ending(last))


class AnswerProbe(NamedTuple):
    """A way to make an answer wrong. `words`: None where it cannot be made of this answer."""

    name: str
    words: Callable[[SolverAnswer, Sequence[str]], str | None]
    means: str  # what a scorer that pays it does
    meant: re.Pattern[str] | None = None  # a prompt that says so may mean it: then it is a note
    sure: bool = True
    one_known: bool = (
        False  # an error only where the payload hides the answer: then no other number is as right
    )
    always: bool = False  # asked where several answers are right, too


def is_paid(answer: SolverAnswer, other: PlayedTrajectory) -> bool:
    """Whether it succeeds, or, where nobody says what a success is, earns as much."""
    if other.error or other.reward is None:
        return False
    if other.success is not None:
        return other.success
    return other.reward >= answer.played.reward - NEAR


def right_answers(given: CheckInput) -> list[SolverAnswer]:
    """One a task, each another one."""
    first = [one for one in given.solved_once() if _earned(one)]
    if not first:
        golds = [(task, gold) for task in given.tasks if (gold := known_gold(given, task))]
        first = [one for task, gold in golds if _earned(one := _said(given, task, gold))]
    frames = framed([one.texts[-1] for one in first])
    answers: dict[str, SolverAnswer] = {}
    for one, (before, words, after) in zip(first, frames):
        if 0 < len(words.strip()) <= LONGEST:
            right = SolverAnswer(one, before, words, after, text_of(one.opening))
            answers.setdefault(words.strip(), right)
    if 2 * len(answers) < len(first):
        return []  # few answers: then another task's is often right
    return list(answers.values())[:ASKED]


def known_gold(given: CheckInput, task: Task) -> str:
    """The one gold answer of a task's payload: by its name, or since it is paid where it is said;
    "" for none."""
    if gold := gold_of(task):
        return gold
    name = given.once("the field that is paid", lambda: _paid_field(given))
    return str(task.payload.get(name, "")).strip() if name else ""


def _paid_field(given: CheckInput) -> str:
    """A value of the payload, not shown, that is right at some tasks, while those of other tasks
    are not; "" for none."""
    tasks = given.tasks[:FIELD_TASKS]
    if "solver" in given.own or len(tasks) < FIELD_TASKS:
        return ""
    for name, first in without_its_seed(tasks[0]).items():
        values = [str(task.payload.get(name, "")).strip() for task in tasks]
        if not isinstance(first, (str, int, float)) or len(set(values)) < len(values) // 2:
            continue
        if not all(0 < len(value) <= LONGEST for value in values):
            continue
        right = sum(_earned(_said(given, task, value)) for task, value in zip(tasks, values))
        if right < 3:
            continue
        turned = [*values[1:], values[0]]
        others = sum(
            _earned(_said(given, task, other))
            for task, value, other in zip(tasks, values, turned)
            if other != value
        )
        if right >= 3 * others:
            return name
    return ""


def _earned(played: PlayedTrajectory) -> bool:
    good = bool(played.texts) and not played.error and played.reward is not None
    return good and (played.success or played.success is None and played.reward > 0)


def _said(given: CheckInput, task: Task, gold: str) -> PlayedTrajectory:
    """Without a solver: the one gold answer of the payload."""
    return replay(given.family, Script(task, 0, (given.as_answer(gold),)))
