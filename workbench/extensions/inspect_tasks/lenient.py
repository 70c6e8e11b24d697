"""Wrong answers that are paid like the right one (E27): the solver's last words, changed so that they are wrong.

    the answers of others      among several, the nearest one, the right one negated
    less of it, or more        its beginning, half of its letters or items, digits and letters behind it
    another value              the last digit, the digits behind the point, the sign, the order
    no answer                  the form alone, a pattern, the question or its expression copied

A change that is paid at nearly all tasks is no accident. Whether it is wrong is not always certain: where the answers of
other tasks are often right, too, nothing is said; where another number may be as right (nothing hidden in the payload says
which one is) it is a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.inspect_tasks.answers import (
    LEAST,
    OFTEN,
    AnswerProbe,
    SolverAnswer,
    is_paid,
    right_answers,
)
from workbench.extensions.inspect_tasks.by_form import AnswerResult, said_answers
from workbench.extensions.inspect_tasks.wider import FURTHER
from workbench.extensions.scripted_play.given import CheckInput, needs_given_words
from workbench.extensions.scripted_play.leaks import leaves
from workbench.extensions.scripted_play.playing import Spent, replay
from workbench.extensions.scripted_play.written_numbers import number_of
from workbench.values.errors import shortened
from workbench.values.seeds import rng_at

OTHERS = 6  # of them that are tried at each task, to see whether one answer alone is right
SHOWN = 2  # tasks, in a message
SEVERAL = 0.1  # of others' answers that are paid: or more, and several answers are right
NEARLY_ALL = 0.9  # of the answers of other tasks
WHOLE = re.compile(r"-?\d{1,12}")
EXPRESSION = re.compile(r"(?<![\w.])\(?-?\d+(?:\s*[-+*/()]\s*\(?-?\d+\)?)+(?![\w])")
# What a prompt says where more than one number, or less than all, is right.
TOLERANT = re.compile(
    r"\b(?:about|within|around|roughly|approx\w*|nearest|near|close\w*|tolerance|estimate\w*|round\w*|±|at least|at most|between|any|above|below|than|off|margin|per ?cent|numbers? (?:that|which))\b|%",
    re.IGNORECASE,
)
SHORT_FORMS = re.compile(
    r"\b(?:abbrev\w*|initials?|first letters?|prefix\w*|about|approx\w*|nearest|round\w*|estimate\w*)\b",
    re.IGNORECASE,
)
SOME = re.compile(
    r"\b(?:any|some|(?:one|two|three|several|few) of|at least|or more|a few)\b", re.IGNORECASE
)
# No word of an order, or one that says that it does not matter.
ANY_ORDER = re.compile(
    r"\bany order\b|\border (?:is|does) not|"
    r"\A(?!.*\b(?:sort\w*|order\w*|sequence|alphabet\w*|ascending|descending|ranking|reverse\w*)\b)",
    re.IGNORECASE | re.DOTALL,
)
COPYING = re.compile(r"\b(?:repeat|copy|echo|quote|same words)\b", re.IGNORECASE)


def check_lenient(given: CheckInput) -> Iterator[RuleResult]:
    """Play the right answer changed, at tasks whose right answers differ."""
    if (why := given.why_not_played()) is not None:
        yield NotChecked(why)
        return
    answers = right_answers(given)
    if len(answers) < LEAST:
        yield NotChecked(
            f"{LEAST} tasks with an answer of their own that is paid (a solver's, or the payload's gold one)"
        )
        return
    others = [answer.words for answer in answers]
    of_others = _others_paid(given, answers, others)
    if of_others.several:
        yield from _several_said(of_others, answers)
        yield from _paid_changes(given, answers, others, [one for one in FURTHER if one.always])
        yield NotChecked(
            "tasks of which one answer alone is right: those of other tasks are paid, too"
        )
        return
    yield from _paid_changes(given, answers, others, [*CHANGES, *FURTHER])
    yield from _from_elsewhere(given, answers)


def _from_elsewhere(given: CheckInput, answers: Sequence[SolverAnswer]) -> Iterator[RuleResult]:
    """A wrong answer in its place, and the right one in words before it, or behind it."""
    if any(not (one.before + one.after).strip() for one in answers):
        return  # no place of its own: the whole text is the answer
    for where, text_of_both, counts in (
        (
            "before",
            "I thought of {right} and dropped it.\n{wrong}",
            r"\bfirst (?:answer|word|number|tag|one)\b",
        ),
        ("behind", "{wrong}\nIt is not {right}.", r"\blast\b"),
    ):
        if re.search(counts, given.first_prompt, re.IGNORECASE):
            continue  # that one is read, and not the one in its place
        paid: list[tuple[SolverAnswer, str]] = []
        for one, other in zip(answers, [*answers[1:], answers[0]]):
            wrong = f"{one.before}{other.words}{one.after}"
            text = text_of_both.format(right=one.words.strip(), wrong=wrong)
            script = one.played.script.ending(text)
            paid += [(one, text)] if is_paid(one, replay(given.family, script)) else []
        yield Checked(len(answers), "a right answer in another place")
        if len(answers) >= LEAST and len(paid) >= OFTEN * len(answers):
            one, text = paid[0]
            yield Finding(
                f"a wrong answer is paid where the right one stands in words {where} it, at {len(paid)} of {len(answers)} tasks: {shortened(repr(text), 90)} at "
                f"{one.played.task.id!r}; expected that the answer in its own place counts. The whole text is searched for what is right, so "
                "that naming many things is paid. Read the place of the answer, and compare that",
                severity=ERROR,
            )
            return


def _paid_changes(
    given: CheckInput,
    answers: Sequence[SolverAnswer],
    others: Sequence[str],
    changes: Sequence[AnswerProbe],
) -> Iterator[RuleResult]:
    spent = Spent()
    paid_for: list[tuple[AnswerProbe, int, int, SolverAnswer, str]] = []
    count = 0
    for change in changes:
        if spent.seconds > given.budget_s:
            break
        asked = 0
        paid: list[tuple[SolverAnswer, str]] = []
        for answer in answers:
            words = change.words(answer, others)
            if words is None or words.strip() == answer.words.strip():
                continue
            asked += 1
            if is_paid(answer, answer.saying(words)):
                paid.append((answer, words))
            elif asked >= LEAST and not paid:
                break
        count += asked
        if asked >= LEAST and len(paid) >= OFTEN * asked:
            paid_for.append((change, len(paid), asked, *paid[0]))
    yield Checked(count, "answers changed")
    if paid_for:
        yield _finding(given, answers, paid_for)


def _finding(
    given: CheckInput,
    answers: Sequence[SolverAnswer],
    paid_for: Sequence[tuple[AnswerProbe, int, int, SolverAnswer, str]],
) -> Finding:
    """One finding of all changes that are paid, the most certain first."""
    sure = [one for one in paid_for if _is_sure(given, one[0], answers)]
    change, paid, asked, answer, words = [*sure, *paid_for][0]
    also = ", ".join(other.name for other, *_ in paid_for if other is not change)
    more = f" Paid like it: {also}." if also else ""
    return Finding(
        f"{change.name} is paid like the right answer at {paid} of {asked} tasks: at {answer.played.task.id!r} the solver says "
        f"{shortened(repr(answer.words), 60)}, and {shortened(repr(words), 90)} succeeds as well; expected that a wrong answer "
        f"fails. {change.means}.{more} Compare the whole answer with the right one, numbers by their value",
        severity=ERROR if sure else NOTE,
    )


class OtherAnswers(NamedTuple):
    """Answers of other tasks that were said at a task: how many, and those that were paid there."""

    asked: int
    paid: list[tuple[SolverAnswer, str]]

    @property
    def several(self) -> bool:
        """Where none could be said nothing speaks for a single right answer."""
        return not self.asked or len(self.paid) > SEVERAL * self.asked


def _others_paid(
    given: CheckInput, answers: Sequence[SolverAnswer], others: Sequence[str]
) -> OtherAnswers:
    spent = Spent()
    paid: list[tuple[SolverAnswer, str]] = []
    asked = 0
    for number, answer in enumerate(answers):
        if spent.seconds > given.budget_s:
            break
        rng = rng_at("check-env", "several", number)
        wrong = [words for words in others if words.strip() != answer.words.strip()]
        for place in rng.permutation(len(wrong))[:OTHERS]:
            asked += 1
            if is_paid(answer, answer.saying(wrong[place])):
                paid.append((answer, wrong[place]))
    return OtherAnswers(asked, paid)


def _is_whole(answer: SolverAnswer) -> bool:
    """Whether it is all that the task asks for, and not the last move of a game: in one turn, or after calls of tools."""
    return len(answer.played.texts) == 1 or any(one.tool_calls for one in answer.played.results)


def _several_said(others: OtherAnswers, answers: Sequence[SolverAnswer]) -> Iterator[RuleResult]:
    """Several answers may be right; so it looks, too, where a scorer takes nearly everything."""
    meant = any(SOME.search(answer.prompt) for answer in answers)
    if not others.paid or meant:
        return
    # The last move of a game may be right elsewhere, too; not nearly all of them, of so many
    # different ones.
    nearly_all = len(others.paid) >= NEARLY_ALL * others.asked
    different = len({words for _, words in others.paid})
    if not all(map(_is_whole, answers)) and not (nearly_all and different >= LEAST):
        return
    by_task = {answer.played.task.id: (answer, words) for answer, words in others.paid}
    examples = "; ".join(
        f"at {task!r} the solver says {shortened(repr(answer.words), 40)}, and {shortened(repr(words), 40)} is right as well"
        for task, (answer, words) in list(by_task.items())[:SHOWN]
    )
    yield Finding(
        f"the right answers of other tasks are right at {len(others.paid)} of {others.asked} tries: {examples}. Where a task has "
        "several right answers this is so; else look how an answer is compared (sorted, by its length, by a difference with a "
        "sign, by what it contains)",
        severity=NOTE,
    )


# ------------------------------------------------------------------------------------------------ how sure


def _is_sure(given: CheckInput, change: AnswerProbe, answers: Sequence[SolverAnswer]) -> bool:
    meant = change.meant is not None and any(change.meant.search(one.prompt) for one in answers)
    if change.words is _other_sign and any(_below_zero(one) for one in said_answers(given)):
        return True  # answers of both signs are asked for
    listing = change.words in (_among_others, _question) and needs_given_words(given)
    hidden = not change.one_known or all(map(_is_hidden, answers))
    return change.sure and hidden and not meant and not listing


def _below_zero(said: AnswerResult) -> bool:
    number = number_of(said.words)
    return number is not None and number.value < 0


def _is_hidden(answer: SolverAnswer) -> bool:
    words = answer.words.strip().casefold()
    values = {str(leaf).strip().casefold() for leaf in leaves(dict(answer.played.task.payload))}
    shown = re.search(rf"(?<!\w){re.escape(words)}(?!\w)", answer.prompt.casefold())
    return words in values and shown is None


# ------------------------------------------------------------------------------------------------ changes


def _number(answer: SolverAnswer) -> str | None:
    words = answer.words.strip()
    return words if WHOLE.fullmatch(words) else None


def _items(answer: SolverAnswer, least: int = 3) -> tuple[list[str], str] | None:
    """The items of a list, and what stands between them."""
    for between in (", ", ",", "; ", " | ", "\n", " "):
        items = answer.words.strip().split(between)
        if len(items) >= least and all(re.fullmatch(r"[\w-]+", item) for item in items):
            return items, between
    return None


def _among_others(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    wrong = [words for words in others if words != answer.words][:4]
    return " or ".join([*wrong[:2], answer.words, *wrong[2:]]) if len(wrong) == 4 else None


def _beginning(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    words = answer.words.strip()
    if _items(answer) is not None or len(words.lstrip("-")) < 2:
        return None
    return words[: max(1, len(words) // 2)].strip()


def _some_items(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    parts = _items(answer)
    return parts[1].join(parts[0][: len(parts[0]) // 2]) if parts else None


def _one_repeated(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    """The first of several different items, as often as there are items."""
    parts = _items(answer, least=2)
    if parts is None or len(set(parts[0])) < len(parts[0]):
        return None
    return parts[1].join(parts[0][:1] * len(parts[0]))


def _two_swapped(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    """Four items at least: the same three in a ring are the same ring in any order."""
    parts = _items(answer, least=4)
    if parts is None:
        return None
    first, second, *rest = parts[0]
    return parts[1].join([second, first, *rest])


def _turned_round(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    parts = _items(answer)
    return parts[1].join(parts[0][::-1]) if parts else None


def _other_end(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    """A word with other letters at its end, two at least."""
    words = answer.words.strip()
    if not re.fullmatch(r"[A-Za-z]{4,}", words):
        return None
    kept = words[: -max(2, 2 * len(words) // 5)]
    return kept + "".join("q" if letter != "q" else "z" for letter in words[len(kept) :])


def _longer(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    number = _number(answer)
    return None if number is None else f"{number}7"


def _last_digit(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    number = _number(answer)
    return None if number is None else f"{number[:-1]}{(int(number[-1]) + 1) % 10}"


def _alone(answer: SolverAnswer) -> str | None:
    """A number, where what stands around it is not passed over: else a sign and a fraction would be, too."""
    number = _number(answer)
    return number if number and not is_paid(answer, answer.saying(f"{number} zq")) else None


def _with_a_fraction(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    number = _alone(answer)
    return f"{number}.6" if number else None


def _other_sign(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    number = _alone(answer)
    return str(-int(number)) if number and int(number) else None


def _expression(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    match = EXPRESSION.search(answer.prompt) if _number(answer) is not None else None
    return None if match is None else match[0].strip()


def _question(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    return answer.prompt


CHANGES: tuple[AnswerProbe, ...] = (
    AnswerProbe(
        "the right answer among four of other tasks",
        _among_others,
        "It is looked for anywhere in the text, so listing what may be right is paid",
        COPYING,
    ),
    AnswerProbe(
        "the form of an answer with nothing in it",
        lambda answer, others: "" if answer.before.strip() or answer.after.strip() else None,
        "The form is paid, and not what it holds",
    ),
    AnswerProbe(
        "'.*'",
        lambda answer, others: ".*",
        "The answer is taken for a pattern, and this one fits everything (re.match with the policy's words first)",
    ),
    AnswerProbe(
        "the question's own expression, copied,",
        _expression,
        "The answer is evaluated, so that nothing has to be computed",
    ),
    AnswerProbe(
        "the whole question, repeated,",
        _question,
        "The right answer is looked for anywhere in the text, and the question holds it",
        COPYING,
    ),
    AnswerProbe(
        "the right word with other letters at its end",
        _other_end,
        "Words that are somewhat alike are taken for equal (a ratio, a distance, a beginning)",
        SHORT_FORMS,
    ),
    AnswerProbe(
        "the beginning of the right answer",
        _beginning,
        "A part of the answer is enough (startswith, in)",
        SHORT_FORMS,
    ),
    AnswerProbe(
        "the first half of the items",
        _some_items,
        "What is missing is not missed (zip ends with the shorter one; a subset)",
        SOME,
    ),
    AnswerProbe(
        "the first item, said as often as there are items,",
        _one_repeated,
        "Items that are named again count again",
        SOME,
    ),
    AnswerProbe(
        "the right answer with its first two items swapped",
        _two_swapped,
        "The order is lost (a set, a sorted list, a count)",
        ANY_ORDER,
    ),
    AnswerProbe(
        "the items in the opposite order",
        _turned_round,
        "The order is lost (a set, a sorted list, a count)",
        ANY_ORDER,
        sure=False,  # a tour is as long the other way round
    ),
    AnswerProbe(
        "the right number with one more digit",
        _longer,
        "The right answer is looked for in the text (startswith, in), and digits may follow",
        SHORT_FORMS,
    ),
    AnswerProbe(
        "the right number with another last digit",
        _last_digit,
        "Numbers that are near are taken for equal, though the prompt allows no tolerance",
        TOLERANT,
        one_known=True,
    ),
    AnswerProbe(
        "the right number with .6 behind it",
        _with_a_fraction,
        "A fraction is cut off (int(float(text)))",
        TOLERANT,
        one_known=True,
    ),
    AnswerProbe(
        "the right number with the other sign", _other_sign, "The sign is lost", sure=False
    ),
)
