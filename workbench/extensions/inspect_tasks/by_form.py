"""Right answers that are never paid because of how they are written (E19): those below zero, those with a point, and so on.

Of many tasks the solver's one answer, or the payload's gold one, is said. Where all answers with one mark fail, and nearly
all without it succeed, what reads them stumbles over the mark: no policy can solve such a task.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, RuleResult
from workbench.extensions.inspect_tasks.answers import known_gold
from workbench.extensions.scripted_play.given import CheckInput, inside
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Script,
    Spent,
    play,
    replay,
)
from workbench.extensions.scripted_play.written_numbers import number_of
from workbench.values import Task
from workbench.values.errors import shortened
from workbench.values.seeds import rng_at

DRAWN = 64  # tasks
SECONDS = 1.0
MARKED = 3  # answers with a mark, at least
UNMARKED = 4  # and without it
NEARLY_ALL = 0.95


class AnswerMark(NamedTuple):
    """Something that some answers have in their writing and others do not."""

    what: str
    has: Callable[[str], bool]


def _below_zero(words: str) -> bool:
    number = number_of(words)
    return number is not None and number.value < 0


def _is_zero(words: str) -> bool:
    number = number_of(words)
    return number is not None and number.value == 0


def _with_decimals(words: str) -> bool:
    number = number_of(words)
    return number is not None and number.decimals > 0


def _large(words: str) -> bool:
    number = number_of(words)
    return number is not None and abs(number.value) >= 1000


MARKS = (
    AnswerMark("below zero", _below_zero),
    AnswerMark("that are zero", _is_zero),
    AnswerMark("with a decimal point", _with_decimals),
    AnswerMark("of a thousand or more", _large),
    AnswerMark("of several words", lambda words: " " in words.strip()),
    AnswerMark("with a capital", lambda words: re.search(r"[A-Z]", words) is not None),
    AnswerMark("with a hyphen", lambda words: re.search(r"\w-\w", words) is not None),
    AnswerMark("with an apostrophe", lambda words: re.search(r"\w['’]\w", words) is not None),
    AnswerMark("with a slash", lambda words: "/" in words),
    AnswerMark(
        "with a letter beside a to z", lambda words: re.search(r"[^\W\d_a-zA-Z]", words) is not None
    ),
)


class AnswerResult(NamedTuple):
    """An answer that ended its task in one turn, and whether it was right."""

    task: Task
    text: str
    words: str
    right: bool


def said_answers(given: CheckInput) -> list[AnswerResult]:
    """The solver's, or else the payload's gold answer, of many new tasks; known once for all checks."""
    return given.once("said answers", lambda: list(_said_answers(given)))


def _said_answers(given: CheckInput) -> Iterator[AnswerResult]:
    if given.why_not_played() is not None:
        return
    spent = Spent()
    for task in given.further_tasks(DRAWN, "said"):
        if spent.seconds > SECONDS:
            return
        played = _right_play(given, task)
        if played is not None and not played.error and len(played.results) == 1 and played.ended:
            if played.success is not None:
                text = played.texts[0]
                yield AnswerResult(task, text, inside(text), played.success)


def _right_play(given: CheckInput, task: Task) -> PlayedTrajectory | None:
    family: Any = given.family
    if "solver" in given.own:
        rng = rng_at("check-env", "said", task.id)
        return play(family, task, 0, lambda env: family.solver_action(env, rng))
    gold = known_gold(given, task)
    return replay(family, Script(task, 0, (given.as_answer(gold),))) if gold else None


def check_by_form(given: CheckInput) -> Iterator[RuleResult]:
    """Whether what is right is paid, whatever mark stands in it."""
    answers = said_answers(given)
    yield Checked(len(answers), "right answers by their writing")
    wrong = [one for one in answers if not one.right]
    if not wrong or given.by_chance:
        return
    whose = "solver's" if "solver" in given.own else "payload's gold"
    for mark in MARKS:
        marked = [one for one in answers if mark.has(one.words)]
        plain = [one for one in answers if not mark.has(one.words)]
        for some, others, what in (
            (marked, plain, mark.what),
            (plain, marked, f"other than those {mark.what}"),
        ):
            if _fails_alone(some, others):
                yield _never_paid(some, others, what, whose)
                return
    beyond = _beyond_a_size(answers)
    if beyond is not None:
        yield _never_paid(*beyond, whose)
        return
    yield from _fails_at_some(answers, wrong, whose)


SIZES: tuple[tuple[str, Callable[[str], float | None]], ...] = (
    ("of more than {:g} characters", lambda words: len(words.strip())),
    ("of more than {:g} words", lambda words: len(words.split())),
    (
        "with a size above {:g}",
        lambda words: abs(float(number.value)) if (number := number_of(words)) else None,
    ),
)


def _beyond_a_size(
    answers: Sequence[AnswerResult],
) -> tuple[list[AnswerResult], list[AnswerResult], str] | None:
    """Whether all answers beyond some size fail and the others succeed: (those, the others, in words)."""
    for what, size in SIZES:
        sized = [(size(one.words), one) for one in answers]
        if any(value is None for value, _ in sized):
            continue
        right = [value for value, one in sized if one.right]
        if not right:
            return None
        some = [one for value, one in sized if value > max(right)]
        others = [one for value, one in sized if value <= max(right)]
        if _fails_alone(some, others):
            return some, others, what.format(max(right))
    return None


def _fails_alone(some: Sequence[AnswerResult], others: Sequence[AnswerResult]) -> bool:
    if len(some) < MARKED or len(others) < UNMARKED or any(one.right for one in some):
        return False
    return sum(one.right for one in others) >= NEARLY_ALL * len(others)


def _never_paid(
    some: Sequence[AnswerResult], others: Sequence[AnswerResult], what: str, whose: str
) -> Finding:
    return Finding(
        f"the {whose} answers {what} are never right, at {len(some)} of {len(some)} tasks ({shortened(some[0].words, 40)} at "
        f"{some[0].task.id!r}), and {sum(one.right for one in others)} of {len(others)} other ones are; expected that each right answer is "
        "paid: what reads it stumbles over that (a pattern without the sign or the point, a conversion), so nobody can solve "
        "these tasks",
        severity=ERROR,
    )


def _fails_at_some(
    answers: Sequence[AnswerResult], wrong: Sequence[AnswerResult], whose: str
) -> Iterator[RuleResult]:
    if len(answers) < 2 * UNMARKED or not UNMARKED <= len(wrong) <= len(answers) - UNMARKED:
        return
    yield Finding(
        f"the {whose} answer is wrong at {len(wrong)} of {len(answers)} tasks, where chance decides nothing: {shortened(wrong[0].words, 40)} at "
        f"{wrong[0].task.id!r} for one. Either it is no solution, and a policy is compared with too little, or what is right there is not "
        "paid (a rounding, a comparison of floats, a gold answer computed otherwise)",
        severity=NOTE,
    )
