"""Right answers that are refused although the prompt shows their form (E30): a case, commas between thousands, decimals, what
stands between items; and which of two answers in one text counts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import NamedTuple

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.inspect_tasks.answers import (
    LEAST,
    OFTEN,
    SolverAnswer,
    is_paid,
    right_answers,
)
from workbench.extensions.inspect_tasks.demanded import check_demanded
from workbench.extensions.inspect_tasks.json_forms import check_json
from workbench.extensions.scripted_play.given import (
    EXAMPLE,
    PLACEHOLDER,
    CheckInput,
    inside,
)
from workbench.extensions.scripted_play.playing import Spent
from workbench.extensions.scripted_play.written_numbers import (
    WrittenNumber,
    counted,
    number_of,
)
from workbench.values.errors import shortened

FEWEST = 3  # answers that a form changes
SHOWN = re.compile(
    r"(?:like this|for example|for instance|e\.g\.|such as|in the form|as in)[:,]?\s*[`'\"(]?([^`'\"\n()]{1,60}?)[`'\")]?(?:[.;]?\s*(?:\n|$)|[.;] )",
    re.IGNORECASE,
)
IN_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
DECIMALS = re.compile(
    r"\b(one|two|three|\d) (?:decimals|decimal (?:places|digits))\b", re.IGNORECASE
)
BETWEEN = (", ", ",", "; ", ";", " - ", "-", " ")
LAST_COUNTS = re.compile(
    r"\b(?:last|final)\b[^.\n]{0,40}\b(?:answer|tag|line|one)\b[^.\n]{0,25}\b(?:counts?|is (?:read|taken|used|judged|scored))|"
    r"\b(?:correct|change|revise)\b[^.\n]{0,40}\b(?:answer|yourself)\b[^.\n]{0,40}\blast\b",
    re.IGNORECASE,
)
FIRST_COUNTS = re.compile(
    r"\bfirst\b[^.\n]{0,40}\b(?:answer|tag|line|one)\b[^.\n]{0,25}\b(?:counts?|is (?:read|taken|used|judged|scored))",
    re.IGNORECASE,
)


class Form(NamedTuple):
    """A form that the prompt shows, and how an answer is written in it (None: it is so already, or cannot be)."""

    what: str
    written: Callable[[SolverAnswer], str | None]
    sure: bool = True


def check_forms(given: CheckInput) -> Iterator[RuleResult]:
    """The solver's paid answers, in the form of the prompt's own example."""
    if (why := given.why_not_played()) is not None:
        yield NotChecked(why)
        return
    yield from check_json(given)
    answers = right_answers(given)
    yield from check_demanded(given, answers)
    if len(answers) < LEAST:
        yield NotChecked(f"{LEAST} tasks with an answer of their own that is paid")
        return
    spent = Spent()
    for form in _forms(given, answers):
        if spent.seconds > given.budget_s:
            break
        yield from _refused(answers, form)
    yield from _which_counts(answers)


def _refused(answers: Sequence[SolverAnswer], form: Form) -> Iterator[RuleResult]:
    refused: list[tuple[SolverAnswer, str]] = []
    asked = 0
    for answer in answers:
        words = form.written(answer)
        if words is None or words == answer.words.strip():
            continue
        asked += 1
        if not is_paid(answer, answer.saying(words)):
            refused.append((answer, words))
    yield Checked(asked, "right answers in the prompt's form")
    if asked >= FEWEST and len(refused) >= OFTEN * asked:
        answer, words = refused[0]
        yield Finding(
            f"the right answer is refused in the form that the prompt shows, {form.what}, at {len(refused)} of {asked} tasks: at "
            f"{answer.played.task.id!r} {shortened(answer.words, 50)} is paid and {shortened(words, 50)} is not; "
            "expected that who writes as the prompt does is understood. Compare numbers by value, words without case; or show "
            "the form that is read",
            severity=ERROR if form.sure else NOTE,
        )


# ------------------------------------------------------------------------------------------------ forms


def _example(given: CheckInput) -> str:
    """What the first prompt shows as an answer; "" for nothing."""
    tagged = EXAMPLE.search(given.first_prompt)
    if tagged is not None:
        return inside(tagged[0])
    shown = SHOWN.search(given.first_prompt)
    return shown[1].strip() if shown else ""


def _forms(given: CheckInput, answers: Sequence[SolverAnswer]) -> Iterator[Form]:
    example = _example(given)
    number = number_of(example)
    if number is not None:
        yield from _number_forms(number, example)
    elif re.search(r"[A-Za-z]{2}", example) and not PLACEHOLDER.search(example):
        yield from _word_forms(example, answers)
    if any(IN_THOUSANDS.search(answer.prompt) for answer in answers) and not (
        number and number.commas
    ):
        yield Form("commas between thousands as in its own numbers", _with_commas, sure=False)
    stated = DECIMALS.search(given.first_prompt)
    if stated is not None:
        places = counted(stated[1])
        yield Form(f"{stated[0]!r}", lambda answer: _with_decimals(answer, places))


def _number_forms(number: WrittenNumber, example: str) -> Iterator[Form]:
    if number.commas:
        yield Form(f"commas between thousands as in {example!r}", _with_commas)
    yield Form(
        f"as many decimals as in {example!r}",
        lambda answer: _with_decimals(answer, number.decimals),
    )
    if number.currency or number.after.strip():

        def dressed(answer: SolverAnswer) -> str | None:
            own = number_of(answer.words)
            if own is None or own.currency or own.after:
                return None
            return own._replace(currency=number.currency, after=number.after).written()

        yield Form(f"with the sign or unit of {example!r}", dressed)


def _with_commas(answer: SolverAnswer) -> str | None:
    own = number_of(answer.words)
    if own is None or own.commas or abs(own.value) < 1000:
        return None
    return own._replace(commas=True).written()


def _with_decimals(answer: SolverAnswer, places: int) -> str | None:
    """None where that would change its value."""
    own = number_of(answer.words)
    if own is None or own.decimals == places:
        return None
    rounded = round(own.value, places) if places else Decimal(int(own.value))
    return own.written(rounded, places) if rounded == own.value else None


def _between_all(spoken: Sequence[str]) -> str | None:
    """What stands between the items of every answer."""
    for between in BETWEEN:
        if all(between in words for words in spoken):
            return between
    return None


def _word_forms(example: str, answers: Sequence[SolverAnswer]) -> Iterator[Form]:
    spoken = [answer.words.strip() for answer in answers]
    folded = {words.casefold(): words for words in spoken}
    other_case = folded.get(example.casefold(), example) != example  # an answer, written otherwise
    for what, change in (
        ("small letters", str.lower),
        ("capitals", str.upper),
        ("a capital", str.capitalize),
    ):
        if example == change(example) and not any(words == change(words) for words in spoken):
            yield Form(
                f"{what} as in {shortened(example, 40)}",
                lambda answer, change=change: change(answer.words.strip()),
                sure=other_case,
            )
            break
    between = next((one for one in BETWEEN if one in example), None)
    other = _between_all(spoken)
    if between and other and between != other and len(example.split(between)) >= 3:
        yield Form(
            f"{between!r} between items as in {shortened(example, 40)}",
            lambda answer: between.join(answer.words.strip().split(other)),
        )


# ------------------------------------------------------------------------------------------------ which of two


def _which_counts(answers: Sequence[SolverAnswer]) -> Iterator[RuleResult]:
    """Two answers in one text, a wrong and the right one, where the prompt says which of them counts."""
    prompt = answers[0].prompt
    last = LAST_COUNTS.search(prompt)
    first = FIRST_COUNTS.search(prompt)
    if not answers[0].before.strip() or bool(last) == bool(first):
        return
    stated = "last" if last else "first"
    good = {"last": 0, "first": 0}
    asked = 0
    for answer, other in zip(answers, [*answers[1:], answers[0]]):
        between = f"{answer.after}\n{answer.before}"
        asked += 1
        good["last"] += is_paid(answer, answer.saying(f"{other.words}{between}{answer.words}"))
        good["first"] += is_paid(answer, answer.saying(f"{answer.words}{between}{other.words}"))
    yield Checked(asked, "two answers in one text")
    taken = "first" if stated == "last" else "last"
    if good[stated] <= (1 - OFTEN) * asked and good[taken] >= OFTEN * asked:
        yield Finding(
            f"the prompt says that the {stated} answer counts ({shortened((last or first)[0], 70)}), and the {taken} one does: of "
            f"{asked} texts with the right answer {stated} and a wrong one beside it {good[stated]} are paid, and with the right "
            f"one {taken} {good[taken]}. Read the {stated} match"
        )
