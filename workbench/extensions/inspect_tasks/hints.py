"""What beside the question tells the right answer (E9): a number of the task, the place of an option, the form of the prompt.

Of many tasks the solver's answer is compared with what a prompt shows of each: where one feature alone has one answer alone, at
all of them, the answer can be read off it. A feature that the prompt asks about is no hint; where words of the question
differ from answer to answer that is a note, since they may be the question.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from workbench.basics.findings import NOTE, Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import (
    SEEDLIKE,
    SLOW_S,
    CheckInput,
    inside,
    until_a_finding,
)
from workbench.extensions.scripted_play.playing import Spent, play, text_of
from workbench.values import Observation, Task
from workbench.values.errors import shortened
from workbench.values.seeds import rng_at

DRAWN = 96  # tasks whose answers are compared with what their prompts show
SECONDS = 2.0
LEAST = 24  # tasks by which an option's place is judged
MOST_ANSWERS = 12  # different ones: more cannot be told by a small feature
UNEVEN = 0.22  # more than its share, of the tasks at which one answer is right
EACH = 4  # tasks with the same feature, on average
FEW_ANSWERS = 8  # of random play, of which each should be right at some task
RARE = 10  # tasks for each of them
NUMBERED = (*SEEDLIKE, "number", "no", "nr")
MODULI = range(2, 13)
# An identifier in a prompt, by the word before it.
LABELLED = re.compile(
    r"\b(?:task|puzzle|case|ticket|problem|seed|id|ref\w*|sample|example|row|record|box|room)\b[\s.:#-]{0,3}(\w*\d[\w-]*)|#\s*(\d[\w-]*)",
    re.IGNORECASE,
)
ABOUT_NUMBERS = re.compile(
    r"\b(?:even|odd|parity|digits?|divisible|divided|modulo|remainder|multiple|prime)\b",
    re.IGNORECASE,
)
ABOUT_PLACES = re.compile(
    r"\b(?:first|second|third|fourth|fifth|last|middle|next|position|place|before|after|order\w*|\d+(?:st|nd|rd|th))\b",
    re.IGNORECASE,
)
ABOUT_SIZES = re.compile(
    r"\b(?:long\w*|short\w*|length|letters?|characters?|words?|syllables?|size|most|least|biggest|smallest|count|how many)\b",
    re.IGNORECASE,
)
LISTED = re.compile(r"^\s*(?:[-*•]|[A-Za-z0-9][).:])\s*(.+?)\s*$", re.MULTILINE)
INLINE = re.compile(
    r"(?<![A-Za-z0-9])([A-Z]|[1-9])[).:]\s*(.+?)\s*(?=(?<![A-Za-z0-9])(?:[A-Z]|[1-9])[).:]\s|[.\n]|$)"
)
IN_A_ROW = re.compile(r"((?:[\w' -]{1,40}, ){2,}(?:(?:or|and) )?[\w' -]{1,40})")


class TaskAnswer(NamedTuple):
    """A task, what its first prompt shows, and what the solver answers."""

    task: Task
    opening: Observation
    prompt: str
    answer: str


def check_hints(given: CheckInput) -> Iterator[RuleResult]:
    """Look at numbers, at places and at forms, in this order."""
    answered = _answered_tasks(given)
    yield Checked(len(answered), "what tells beside the question")
    if len(answered) < LEAST:
        return
    looks = (_numbers_tell, _places_tell, _forms_tell, _words_tell, _one_is_often_right)
    yield from until_a_finding((*looks, partial(_one_is_never_right, given)), answered)


def _answered_tasks(given: CheckInput) -> list[TaskAnswer]:
    family: Any = given.family
    solver = given.own.get("solver", ())
    if not solver or given.step_s > SLOW_S or given.by_chance:
        return []
    answered: dict[str, TaskAnswer] = {}
    spent = Spent()
    for task in given.further_tasks(DRAWN, "hints"):
        if spent.seconds > SECONDS:
            break
        rng = rng_at("check-env", "hints", task.id)
        played = play(family, task, 0, lambda env, rng=rng: family.solver_action(env, rng))
        if played.opening is not None and played.texts and played.success is not False:
            words = "\n".join(map(inside, played.texts))
            prompt = text_of(played.opening)
            answered.setdefault(prompt, TaskAnswer(task, played.opening, prompt, words))
    return list(answered.values())


def _asks(pattern: re.Pattern[str], answered: Sequence[TaskAnswer]) -> bool:
    return any(pattern.search(one.prompt) for one in answered[:6])


def _tells(answered: Sequence[TaskAnswer], features: Sequence[Hashable]) -> bool:
    """Whether one feature has one answer alone, at all tasks, and enough tasks have each of them."""
    by_feature: dict[Hashable, set[str]] = defaultdict(set)
    for one, feature in zip(answered, features):
        by_feature[feature].add(one.answer)
    answers = {one.answer for one in answered}
    few = 2 <= len(answers) <= MOST_ANSWERS and EACH * len(by_feature) <= len(answered)
    return few and all(len(its_answers) == 1 for its_answers in by_feature.values())


# ------------------------------------------------------------------------------------------------ numbers


def _numbers_tell(answered: Sequence[TaskAnswer]) -> Iterator[RuleResult]:
    """Identifiers that a prompt shows: fields of the payload that are called so, and what follows such a word."""
    if _asks(ABOUT_NUMBERS, answered) or not _differ_beside_numbers(answered):
        return
    for name, values in _identifiers(answered).items():
        how = _relation(answered, values)
        if how:
            yield Finding(
                f"the right answer follows from the task's {name}{how}, which the prompt shows, at {len(answered)} of as many "
                f"tasks ({values[0]!r} at {answered[0].task.id!r}, where it is {shortened(repr(answered[0].answer), 40)}): it can "
                "be read off that identifier, and nothing else of the prompt has to be understood. Draw the right answer, its "
                "place and what is shown from a generator (rng_at('my_env', task_seed)), not one from the other"
            )
            return


def _differ_beside_numbers(answered: Sequence[TaskAnswer]) -> bool:
    """Whether prompts ask for different things, their identifiers left out."""
    rest = {LABELLED.sub("", one.prompt.replace(str(one.task.task_seed), "")) for one in answered}
    return 2 * len(rest) >= len(answered)


def _identifiers(answered: Sequence[TaskAnswer]) -> dict[str, list[str]]:
    """Name -> the value at each task, of those that all tasks show."""
    named: dict[str, list[str]] = {}
    for name in ("task_seed", *answered[0].task.payload):
        if name.lower() not in NUMBERED and name != "task_seed":
            continue
        values = [
            str(one.task.task_seed if name == "task_seed" else one.task.payload.get(name))
            for one in answered
        ]
        if all(value in one.prompt for value, one in zip(values, answered)):
            named[name] = values
    matches = [LABELLED.search(one.prompt) for one in answered]
    if all(matches):
        named["identifier"] = [match[1] or match[2] for match in matches]
    return named


def _relation(answered: Sequence[TaskAnswer], values: Sequence[str]) -> str:
    """How the answer follows, in words; "" where it does not."""
    numbers = [int("".join(re.findall(r"\d", value)) or 0) for value in values]
    for modulus in MODULI:
        if _tells(answered, [number % modulus for number in numbers]):
            return f" modulo {modulus}"
        if _tells(answered, [sum(map(int, str(number))) % modulus for number in numbers]):
            return f" (the sum of its digits, modulo {modulus})"
    for what, place in (("first", 0), ("last", -1)):
        if _tells(answered, [value[place] for value in values]):
            return f" ({what} character)"
    return ""


# ------------------------------------------------------------------------------------------------ places


def _options(one: TaskAnswer) -> list[str]:
    """The options that a prompt lists, in its order; [] where there is no list that holds the answer or its letter."""
    inline = [match[2] for match in INLINE.finditer(one.prompt)]
    rows = [re.split(r", (?:or |and )?", match[0]) for match in IN_A_ROW.finditer(one.prompt)]
    in_order = []
    for value in one.task.payload.values():
        items = list(map(str, value)) if isinstance(value, (list, tuple)) else []
        if all(item and item in one.prompt for item in items):
            in_order.append(sorted(items, key=one.prompt.find))
    for options in (*in_order, LISTED.findall(one.prompt), inline, *rows):
        options = [option.strip(" .;") for option in options]
        if len(options) >= 3 and _place(one, options) is not None:
            return options
    return []


def _place(one: TaskAnswer, options: Sequence[str]) -> int | None:
    """Of the right option: it is said in words, or by its letter or number."""
    answer = one.answer.strip().casefold()
    folded = [option.casefold() for option in options]
    if answer in folded:
        return folded.index(answer)
    for labels in ("abcdefghij", "123456789"):
        if len(answer) == 1 and answer in labels[: len(options)]:
            return labels.index(answer)
    return None


def _places_tell(answered: Sequence[TaskAnswer]) -> Iterator[RuleResult]:
    """The right option stands at one place in all lists, or is the longest or the only marked one."""
    listed = [(one, options) for one in answered if (options := _options(one))]
    different = {options[_place(one, options)] for one, options in listed}
    yield Checked(len(listed), "options")
    if len(listed) < max(LEAST, len(answered) // 2) or len(different) < 3:
        return
    marks = [(one, list(_marks(options, _place(one, options)))) for one, options in listed]
    common = set.intersection(*(set(of_one) for _, of_one in marks))
    for mark in [mark for mark in marks[0][1] if mark in common]:
        asked = ABOUT_PLACES if mark.startswith("at place") else ABOUT_SIZES
        if _asks(asked, answered):
            continue
        one, options = listed[0]
        yield Finding(
            f"the right option is {mark} at {len(listed)} of {len(listed)} tasks that list options: at {one.task.id!r} "
            f"{shortened(repr(options[_place(one, options)]), 50)} of {shortened(', '.join(options), 90)}; a policy takes it "
            "without reading the question. Shuffle the options with rng_at('my_env', task_seed), and make wrong ones like the right one"
        )
        return


def _marks(options: Sequence[str], place: int) -> Iterator[str]:
    """By what the option at a place could be told from the others."""
    right = options[place]
    others = [option for number, option in enumerate(options) if number != place]
    yield f"at place {place + 1} from the front"
    yield f"at place {len(options) - place} from the end"
    if len(right) > max(map(len, others)):
        yield "the longest of all"
    if len(right) < min(map(len, others)):
        yield "the shortest of all"
    for what, pattern in (
        ("in capitals", r"[A-Z]{2}"),
        ("with a digit in it", r"\d"),
        ("with a mark in it", r"[^\w\s]"),
    ):
        if re.search(pattern, right) and not any(re.search(pattern, option) for option in others):
            yield f"the only one {what}"


# ------------------------------------------------------------------------------------------------ form and wording


def _forms(one: TaskAnswer) -> Mapping[str, Hashable]:
    prompt = one.prompt
    return {
        "the white space at its end": prompt[len(prompt.rstrip()) :],
        "its double spaces": len(re.findall(r"\S  +\S", prompt)),
        "the mark at its end": prompt.rstrip()[-1:] if not prompt.rstrip()[-1:].isalnum() else "",
    }


def _forms_tell(answered: Sequence[TaskAnswer]) -> Iterator[RuleResult]:
    forms = [_forms(one) for one in answered]
    for name in forms[0]:
        if _tells(answered, [form[name] for form in forms]):
            yield Finding(
                f"the form of the prompt tells the right answer at {len(answered)} of as many tasks: {name} goes with it and is "
                "no part of the question. Build the prompt without the answer, from one and the same pattern"
            )
            return


def _words_tell(answered: Sequence[TaskAnswer]) -> Iterator[RuleResult]:
    """Its length, or sentences that many tasks have."""
    sentences = [set(re.split(r"(?<=[.?!:])\s+|\s*\n\s*", one.prompt)) for one in answered]
    known = Counter(chain.from_iterable(sentences))
    common = {
        sentence
        for sentence, times in known.items()
        if EACH <= times < len(answered) and not re.search(r"\d", sentence)
    }
    features: dict[str, list[Hashable]] = {
        "which of its sentences it has": [frozenset(of_one & common) for of_one in sentences],
        "its length in words": [len(one.prompt.split()) for one in answered],
    }
    for name, values in features.items():
        lengths = name.startswith("its length")
        if _tells(answered, values) and not (lengths and _asks(ABOUT_SIZES, answered)):
            yield Finding(
                f"the wording of the prompt tells the right answer at {len(answered)} of as many tasks, whatever else it says: "
                f"{name} goes with it. Where that is not what is asked about, draw the wording apart from the answer",
                severity=NOTE,
            )
            return


# ------------------------------------------------------------------------------------------------ one answer for most


def _one_is_often_right(answered: Sequence[TaskAnswer]) -> Iterator[RuleResult]:
    """Of few answers one is right far more often than its share."""
    times = Counter(one.answer.strip() for one in answered)
    kinds = len(times)
    if not 2 <= kinds <= MOST_ANSWERS:
        return
    answer, most = times.most_common(1)[0]
    share, fair = most / len(answered), 1 / kinds
    by_chance = (fair * (1 - fair) / len(answered)) ** 0.5
    if share >= fair + UNEVEN and share >= fair + 4 * by_chance:
        yield Finding(
            f"one answer, {shortened(answer, 40)}, is right at {most} of {len(answered)} tasks ({share:.0%}; there are {kinds} "
            "different ones): whoever always says it is mostly paid, and success begins there. Draw the right answer evenly, or "
            "report success beside that of the most frequent answer",
            severity=NOTE,
        )


def _one_is_never_right(given: CheckInput, answered: Sequence[TaskAnswer]) -> Iterator[RuleResult]:
    """Of the few answers that random play gives one is right at no task."""
    by_chance = Counter(
        "\n".join(map(inside, one.texts)).strip()
        for one in given.own.get("random", ())
        if len(one.texts) == 1
    )
    right = Counter(one.answer.strip() for one in answered)
    few = 2 <= len(by_chance) <= FEW_ANSWERS and set(right) <= set(by_chance)
    if not few or len(answered) < RARE * len(by_chance):
        return
    never = [answer for answer in by_chance if answer not in right]
    if never and len(right) >= 2:
        yield Finding(
            f"{shortened(never[0], 40)} is right at none of {len(answered)} tasks, and is one of the {len(by_chance)} answers that there are: an index may be off "
            "by one where the right one is drawn (integers(n - 1)), or it may be left out. A policy learns never to say it",
            severity=NOTE,
        )
