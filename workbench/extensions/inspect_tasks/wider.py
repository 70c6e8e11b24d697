"""Wrong answers that only some answers can be changed into (E27): lists with items too many, numbers with a sign or a point,
words with their letters in another order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

from workbench.extensions.inspect_tasks.answers import AnswerProbe, SolverAnswer
from workbench.extensions.scripted_play.written_numbers import (
    WrittenNumber,
    counted,
    number_of,
)

MOST_EXTRA = 8  # items that are added
ITEM = re.compile(r"[\w'-]+(?: [\w'-]+){0,2}")
BETWEEN = (", ", ",", "; ", ";", " | ", "\n", " and ", " ")
SOME = re.compile(
    r"\b(?:any(?! order)|some|at least|or more|few|also|every(?:thing|one)? (?:you|that you))\b",
    re.IGNORECASE,
)
# What a prompt says where a sign means nothing.
UNSIGNED = re.compile(
    r"\b(?:absolute|magnitude|distance|how far|differ\w*|apart|size of|without (?:a |its )?sign)\b",
    re.IGNORECASE,
)
TOLERANT = re.compile(
    r"\b(?:about|around|roughly|approx\w*|nearest|near|close\w*|estimate\w*|at least|at most|any|between)\b",
    re.IGNORECASE,
)
PERCENT = re.compile(
    r"\b(?:within|by up to|±|tolerance of|off by)\s*(?P<before>\d+(?:\.\d+)?|one|two|three|five|ten) ?(?:%|per ?cent)"
    r"|(?P<after>\d+(?:\.\d+)?|\b(?:one|two|three|five|ten)) ?(?:%|per ?cent) (?:off|of error|tolerance|margin)",
    re.IGNORECASE,
)
WITHIN = re.compile(
    r"\b(?:within|±|tolerance of|off by)\s*(?:at most )?(\d*\.\d+|\d+)(?! ?(?:%|per ?cent|turn|step|move|answer|guess|tr))",
    re.IGNORECASE,
)
ANY_ORDER = re.compile(
    r"\bany order\b|\border (?:is|does) not|\b(?:both|pair|two numbers|factors|roots|solutions)\b",
    re.IGNORECASE,
)
NUMBERS_LISTED = re.compile(r"-?[\d.]+(?:[\s,;]+-?[\d.]+){2,}")
OF_AN_ORDER = re.compile(
    r"\b(?:sort\w*|orders?|ordered|sequence|ascending|descending|ranking|reverse\w*|then|first\b.*\bthen|row|column|from\b.*\bto)\b",
    re.IGNORECASE | re.DOTALL,
)
MIXED = re.compile(r"\b(?:anagram|mixed|scrambl\w*|any order|letters)\b", re.IGNORECASE)
FAR = Decimal("0.02")  # of a number, where a prompt allows no tolerance
TIMES = 4  # the tolerance that a prompt states: further off than that is wrong


# ------------------------------------------------------------------------------------------------ lists


def _between(others: Sequence[str]) -> str | None:
    """What stands between the items of most answers."""
    for between in BETWEEN:
        if 2 * sum(between in words.strip() for words in others) >= len(others):
            return between
    return None


def _items_of(words: str, between: str) -> list[str]:
    items = [item.strip() for item in words.strip().split(between)]
    return items if all(map(ITEM.fullmatch, items)) else []


def _all_items(others: Sequence[str]) -> tuple[str, list[str]] | None:
    """What stands between items, and all items of all answers, in their order."""
    between = _between(others)
    listed = [_items_of(words, between) for words in others] if between else []
    if not all(listed) or len(listed) < 2:
        return None
    every: dict[str, None] = {}
    for items in listed:
        every |= dict.fromkeys(items)
    return between, list(every)


def _with_others(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    """The right items, with those of other tasks before and behind them."""
    known = _all_items(others)
    if known is None:
        return None
    between, every = known
    own = _items_of(answer.words, between)
    extra = [item for item in every if item not in own][:MOST_EXTRA]
    if len(extra) < 2:
        return None
    half = len(extra) // 2
    return between.join([*extra[:half], *own, *extra[half:]])


def _one_exchanged(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    """One of three items or more, the first, is another task's."""
    known = _all_items(others)
    own = _items_of(answer.words, known[0]) if known else []
    extra = [item for item in known[1] if item not in own] if known else []
    return known[0].join([extra[0], *own[1:]]) if extra and len(own) >= 3 else None


# ------------------------------------------------------------------------------------------------ numbers


def _signs(others: Sequence[str]) -> set[bool]:
    numbers = [number for words in others if (number := number_of(words)) and number.value]
    return {number.value < 0 for number in numbers}


def _turned(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    """Where right answers are of both signs, a sign says something."""
    number = number_of(answer.words)
    if number is None or not number.value or len(_signs(others)) < 2:
        return None
    return number.written(-number.value)


def _plain_decimal(answer: SolverAnswer) -> WrittenNumber | None:
    number = number_of(answer.words)
    return number if number and number.decimals and number.value else None


def _without_point(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    number = _plain_decimal(answer)
    return number.written(number.value.scaleb(number.decimals), 0) if number else None


def _ten_times(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    number = _plain_decimal(answer)
    return number.written(number.value * 10) if number else None


def _decimal(text: str) -> Decimal:
    return Decimal(counted(text)) if text.isalpha() else Decimal(text)


def _tolerance(prompt: str, value: Decimal) -> Decimal | None:
    """What a prompt allows a number to be off by; None where it says nothing."""
    percent = PERCENT.search(prompt)
    if percent:
        share = _decimal(percent["before"] or percent["after"]) / 100
        return abs(value) * share
    within = WITHIN.search(prompt)
    return Decimal(within[1]) if within else None


def _beyond(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    """Further off than the prompt allows."""
    number = number_of(answer.words)
    stated = _tolerance(answer.prompt, number.value) if number and number.value else None
    if stated is None or TIMES * stated >= abs(number.value):
        return None
    return number.written(number.value + TIMES * stated, max(number.decimals, 3))


def _too_far(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    """Off by two percent, where the prompt allows nothing."""
    number = _plain_decimal(answer)
    if number is None or _tolerance(answer.prompt, number.value) is not None:
        return None
    return number.written(number.value + max(FAR * abs(number.value), Decimal("0.02")))


# ------------------------------------------------------------------------------------------------ words


def _backwards(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    words = answer.words.strip()
    turned = words[::-1]
    if not re.fullmatch(r"[A-Za-z]{4,}", words) or turned.lower() == words.lower():
        return None
    return turned


# ------------------------------------------------------------------------------------------------ parts of an answer


def _numbers_in(words: str) -> list[re.Match[str]]:
    return list(re.finditer(r"\d+(?:\.\d+)?", words))


def _exchanged(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    """An answer of several numbers, the first two of them in each other's place: where some answer has a larger one first.
    Numbers that always rise are as well those of a set, whose order says nothing; so are those of a longer list whose prompt
    has no word of an order (coins that are paid together)."""
    words = answer.words.strip()
    if NUMBERS_LISTED.fullmatch(words) and not OF_AN_ORDER.search(answer.prompt):
        return None
    places = _numbers_in(words)
    if len(places) < 2 or places[0][0] == places[1][0] or number_of(words):
        return None
    if not any(_falls(known) for known in (words, *others)):
        return None
    one, other = places[:2]
    return f"{words[: one.start()]}{other[0]}{words[one.end() : other.start()]}{one[0]}{words[other.end() :]}"


def _falls(words: str) -> bool:
    """Whether the first number of an answer is larger than its second one."""
    places = _numbers_in(words)
    return len(places) > 1 and Decimal(places[0][0]) > Decimal(places[1][0])


def _with_another(answer: SolverAnswer, place: int) -> str | None:
    """An answer of several numbers, one of them by one more."""
    words = answer.words.strip()
    places = _numbers_in(words)
    if len(places) < 2 or number_of(words):
        return None
    at = places[place]
    more = Decimal(at[0]) + 1
    return f"{words[: at.start()]}{more}{words[at.end() :]}"


def _first_number(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    return _with_another(answer, 0)


def _last_number(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    return _with_another(answer, -1)


def _other_unit(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    """The number with the unit that another answer has, or with one that is none."""
    number = number_of(answer.words)
    if number is None or not number.after.strip():
        return None
    units = {other.after for words in others if (other := number_of(words))} - {number.after}
    return number._replace(after=min(units, default=" zq")).written()


def _other_last_word(answer: SolverAnswer, others: Sequence[str]) -> str | None:
    """Two words or a few, the last of them another's."""
    words = answer.words.split()
    if not 2 <= len(words) <= 6 or not all(re.fullmatch(r"[A-Za-z'.-]+", word) for word in words):
        return None
    last = [other.split()[-1] for other in others if len(other.split()) >= 2]
    wrong = [word for word in last if word.casefold() not in answer.words.casefold()]
    return " ".join([*words[:-1], wrong[0]]) if wrong else None


FURTHER: tuple[AnswerProbe, ...] = (
    AnswerProbe(
        "the right answer with its first two numbers exchanged",
        _exchanged,
        "The places of numbers are lost (a set, a sorted list, a sum)",
        ANY_ORDER,
    ),
    AnswerProbe(
        "an answer whose first number is wrong by one",
        _first_number,
        "The last number alone is compared",
        TOLERANT,
    ),
    AnswerProbe(
        "an answer whose last number is wrong by one",
        _last_number,
        "The first number alone is compared",
        TOLERANT,
    ),
    AnswerProbe(
        "the right number with another unit",
        _other_unit,
        "The unit is lost, although right answers have one",
        sure=False,
    ),
    AnswerProbe(
        "the right answer with another last word",
        _other_last_word,
        "A part of the words is enough (the first word, a ratio, any())",
        SOME,
    ),
    AnswerProbe(
        "the right items and wrong ones beside them",
        _with_others,
        "What is named too much costs nothing (recall alone): who lists everything is right at every task",
        SOME,
    ),
    AnswerProbe(
        "a list with one item exchanged for a wrong one",
        _one_exchanged,
        "A part of the items is enough (a threshold, any())",
        SOME,
    ),
    AnswerProbe(
        "the right number with the other sign, where right answers are of both signs,",
        _turned,
        "The sign is lost (abs(), digits alone)",
        UNSIGNED,
    ),
    AnswerProbe(
        "the right number without its decimal point",
        _without_point,
        "The point is lost, or another unit is taken as well (digits alone)",
        re.compile(r"\bcents?\b", re.IGNORECASE),
    ),
    AnswerProbe(
        "ten times the right number",
        _ten_times,
        "The place of the point is lost (digits alone)",
    ),
    AnswerProbe(
        "a number four times as far off as the prompt allows",
        _beyond,
        "The tolerance is wider than what is said (an absolute one beside a relative one, a rounding)",
        always=True,
    ),
    AnswerProbe(
        "a number that is off by two percent, where the prompt allows nothing,",
        _too_far,
        "The tolerance is wider than what is said (an absolute one beside a relative one, a rounding)",
        TOLERANT,
        one_known=True,
    ),
    AnswerProbe(
        "the right word backwards",
        _backwards,
        "Letters are compared without their order (a set, a sorted list, a count)",
        MIXED,
    ),
)
