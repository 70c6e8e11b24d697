"""Right answers (E33): what is called right against what can be worked out, the same prompt with another right answer, options
that stand there twice, and answers that are as good as the solver's."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, islice
from math import comb

import numpy as np

from workbench.basics.digits import whole_in
from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.inspect_tasks.answers import (
    LEAST,
    SolverAnswer,
    is_paid,
    right_answers,
)
from workbench.extensions.inspect_tasks.by_form import AnswerResult, said_answers
from workbench.extensions.inspect_tasks.known_questions import worked_out
from workbench.extensions.inspect_tasks.longer_forms import check_longer_forms
from workbench.extensions.inspect_tasks.reread import check_reread
from workbench.extensions.scripted_play.given import CheckInput
from workbench.extensions.scripted_play.playing import (
    Script,
    Spent,
    opening_of,
    replay,
    text_of,
)
from workbench.extensions.scripted_play.written_numbers import number_of
from workbench.values.errors import shortened
from workbench.values.seeds import rng_at

FEWEST = 4  # prompts by which a kind is judged
TWICE = 3  # tasks
SOME = 0.1  # of the answers that could be worked out
ROUNDED = 0.006  # of a number, where a prompt rounds
TRIED = 60  # answers that may be as good, of a task
LEAST_TRIED = 40
MOST = 50_000  # choices that are listed
ANY_OF_THEM = re.compile(
    r"\b(?:an?|any|some|one)\b (?:\w+ ){0,2}?(?:largest|longest|shortest|cheapest|smallest|best|fastest|optimal|maxim\w+|minim\w+|valid|possible|correct)\b",
    re.IGNORECASE,
)
OPTION = re.compile(r"(?:^|\s)\(?([A-H])[).:]\s*(.+?)(?=\s+\(?[A-H][).:]\s|\s*$)", re.MULTILINE)
BETWEEN = (", ", ",", " ")


def check_right_ones(given: CheckInput) -> Iterator[RuleResult]:
    if (why := given.why_not_played()) is not None:
        yield NotChecked(why)
        return
    right = [one for one in said_answers(given) if one.right]
    prompts = {one.task.id: text_of(opening_of(given.family, one.task, 0)) for one in right}
    if len(right) >= FEWEST:
        yield from _worked_out(right, prompts)
        if given.family.max_turns == 1:  # else there are replies to go by
            yield from _same_prompt(given, right, prompts)
        yield from _options_twice(right, prompts)
    yield from check_longer_forms(given)
    yield from check_reread(given)
    answers = right_answers(given)
    if len(answers) >= LEAST:
        yield from _as_good(given, answers)
    if len(right) < FEWEST and len(answers) < LEAST:
        yield NotChecked(
            f"{FEWEST} answers that are known to be paid (a solver's, or the payload's gold one)"
        )


# ------------------------------------------------------------------------------------------------ worked out


def _value(words: str) -> Fraction | None:
    number = number_of(words)
    if number is not None:
        return Fraction(number.value)
    match = re.fullmatch(r"\s*(-?\d+)\s*/\s*(\d+)\s*", words)
    return Fraction(int(match[1]), int(match[2]) or 1) if match else None


def _agree(words: str, expected: str) -> bool:
    ours = _value(words)
    theirs = _value(expected)
    if ours is not None and theirs is not None:
        return (
            abs(ours - theirs) <= ROUNDED * max(1, abs(theirs))
            if theirs.denominator > 1
            else ours == theirs
        )
    strip = re.compile(r"[\s,;'\"\[\]().]+")
    return strip.sub("", words).casefold() == strip.sub("", expected).casefold()


def _worked_out(right: Sequence[AnswerResult], prompts: dict[str, str]) -> Iterator[RuleResult]:
    """Questions of which everybody knows the answer: sums, letters of a word, a list in order."""
    asked: list[tuple[AnswerResult, str]] = []
    for one in right:
        expected = worked_out(prompts[one.task.id])
        asked += [(one, expected)] if expected is not None else []
    wrong = [(one, expected) for one, expected in asked if not _agree(one.words, expected)]
    yield Checked(len(asked), "answers that can be worked out")
    if len(wrong) < FEWEST - 1 or len(wrong) < SOME * len(asked):
        return
    one, expected = wrong[0]
    every = len(wrong) == len(asked)  # then it may be another question than it looks like
    yield Finding(
        f"what is called right is not what the question asks for at {len(wrong)} of {len(asked)} tasks whose answer can be worked out: at {one.task.id!r} "
        f"{shortened(one.words, 40)} is paid, and {shortened(expected, 40)} is the answer to {shortened(prompts[one.task.id][-160:], 170)}; expected that they are the "
        "same. Look at how the gold answer is made (whole-number division, the order of operations, off by one, a wrong index)",
        severity=NOTE if every else ERROR,
    )


# ------------------------------------------------------------------------------------------------ the same prompt


def _same_prompt(
    given: CheckInput, right: Sequence[AnswerResult], prompts: dict[str, str]
) -> Iterator[RuleResult]:
    """Tasks that show the same and have other right answers, of one turn: nobody who reads it can know."""
    by_prompt: dict[str, dict[str, AnswerResult]] = defaultdict(dict)
    for one in right:
        by_prompt[prompts[one.task.id]].setdefault(one.words.strip(), one)
    torn = [
        (prompt, *list(answers.values())[:2])
        for prompt, answers in by_prompt.items()
        if len(answers) > 1
    ]
    # Where both are right at both tasks, there are several right answers.
    torn = [
        (prompt, one, other)
        for prompt, one, other in torn
        if replay(given.family, Script(one.task, 0, (other.text,))).success is False
    ]
    shared = sum(len(by_prompt[prompt]) for prompt, _, _ in torn)
    yield Checked(len(by_prompt), "prompts and their answers")
    if shared >= TWICE and shared >= SOME * len(right):
        prompt, one, other = torn[0]
        yield Finding(
            f"tasks that show the very same prompt have different right answers, {shared} of {len(right)} tasks: {shortened(one.words, 40)} at {one.task.id!r} and "
            f"{shortened(other.words, 40)} at {other.task.id!r}, both with {shortened(prompt[-120:], 130)}; what decides is not shown, or several answers are "
            "as right and one alone is paid. Show what the answer depends on, or accept each right one",
            severity=ERROR,
        )


# ------------------------------------------------------------------------------------------------ options


def _options_twice(right: Sequence[AnswerResult], prompts: dict[str, str]) -> Iterator[RuleResult]:
    """Options by letters, of which the right one stands under another letter, too; or under none."""
    twice: list[tuple[AnswerResult, str]] = []
    missing: list[AnswerResult] = []
    asked = 0
    for one in right:
        options = {
            letter: text.strip(" .;,") for letter, text in OPTION.findall(prompts[one.task.id])
        }
        letter = one.words.strip().strip("().").upper()
        if len(options) < 3 or len(letter) != 1 or not letter.isalpha():
            continue
        asked += 1
        if letter not in options:
            missing.append(one)
            continue
        twins = [
            name
            for name, text in options.items()
            if name != letter and text.casefold() == options[letter].casefold()
        ]
        twice += [(one, f"{letter} and {twins[0]}: {options[letter]}")] if twins else []
    yield Checked(asked, "options by letters")
    if len(twice) >= TWICE and len(twice) >= 0.05 * asked:
        one, where = twice[0]
        yield Finding(
            f"the right option stands under two letters at {len(twice)} of {asked} tasks ({shortened(where, 60)} at {one.task.id!r}), and one of them is paid: "
            "draw wrong options that differ from the right one and from each other",
            severity=ERROR,
        )
    elif len(missing) >= TWICE:
        yield Finding(
            f"the right letter is none that the prompt lists at {len(missing)} of {asked} tasks, {shortened(missing[0].words, 20)} at {missing[0].task.id!r} "
            "for one: list all options, or count letters from the same list",
            severity=NOTE,
        )


# ------------------------------------------------------------------------------------------------ as good as the solver's


def _as_good(given: CheckInput, answers: Sequence[SolverAnswer]) -> Iterator[RuleResult]:
    """The prompt asks for any of several, and none but the solver's is ever right, whatever item is exchanged or moved."""
    asks = ANY_OF_THEM.search(given.first_prompt)
    if asks is None:
        return
    between = next(
        (sign for sign in BETWEEN if all(sign in one.words.strip() for one in answers)), None
    )
    if between is None:
        return
    tried = 0
    spent = Spent()
    for number, one in enumerate(answers):
        for other in islice(_others(one, between, rng_at("check-env", "as good", number)), TRIED):
            if spent.seconds > given.budget_s:
                break
            tried += 1
            if is_paid(one, one.saying(between.join(other))):
                yield Checked(tried, "answers that may be as good")
                return
    yield Checked(tried, "answers that may be as good")
    if tried >= LEAST_TRIED:
        yield Finding(
            f"the prompt asks for {asks[0]!r}, of which there may be several, and none but the solver's own is paid: of {tried} others with as many items, at "
            f"{len(answers)} tasks, each is refused. Where others are as good, they are called wrong: judge what was asked for (valid, and of the best "
            "size), and do not compare with one solution",
            severity=NOTE,
        )


def _others(one: SolverAnswer, between: str, rng: np.random.Generator) -> Iterator[list[str]]:
    """Other answers of as many items, in the order of the solver's where that is sorted: two items in each other's place, and then
    choices of what the prompt names."""
    items = one.words.strip().split(between)
    by_size = items == sorted(items, key=_size)
    if not by_size:
        for place in range(len(items) - 1):
            if items[place] != items[place + 1]:
                yield [*items[:place], items[place + 1], items[place], *items[place + 2 :]]
    named = list(dict.fromkeys(re.findall(_kind_of(items), one.prompt)))
    if not named or comb(len(named), len(items)) > MOST:
        return
    choices = [list(choice) for choice in combinations(named, len(items))]
    for place in rng.permutation(len(choices)):
        other = sorted(choices[place], key=_size) if by_size else choices[place]
        if other != items:
            yield other


def _size(item: str) -> tuple[bool, int, str]:
    number = whole_in(item)
    return (number is None, number or 0, item)


def _kind_of(items: Sequence[str]) -> str:
    """Words of a prompt that may be items: numbers, single letters, or the like."""
    if all(item.lstrip("-").isdigit() for item in items):
        return r"(?<![\w.])-?\d+(?![\w.])"
    return r"\b[A-Z]\b" if all(len(item) == 1 for item in items) else r"\b[A-Z]\w+\b"
