"""What a question itself says of its right answer (E33): the same question with its options in another order, an order or a form that
it asks for, and the line that it asks about."""

from __future__ import annotations

import datetime
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import CheckInput, until_a_finding
from workbench.extensions.scripted_play.playing import text_of
from workbench.extensions.scripted_play.words import framed
from workbench.values import Task
from workbench.values.errors import shortened

TASKS = 120
FEWEST = 4
OPTION = re.compile(
    r"(?:^|(?<=\s))\(?([A-H]|[1-8])[).:]\s*(.+?)(?=\s+\(?(?:[A-H]|[1-8])[).:]\s|\s*$)", re.MULTILINE
)
LARGEST_FIRST = re.compile(
    r"\b(?:(?:from )?(?:the )?(?:largest|biggest|highest|greatest|latest|newest|longest"
    r"|heaviest) to (?:the )?(?:smallest|lowest|least|earliest|oldest|shortest|lightest)"
    r"|descending|decreasing)\b",
    re.IGNORECASE,
)
SMALLEST_FIRST = re.compile(
    r"\b(?:(?:from )?(?:the )?(?:smallest|lowest|least|earliest|oldest|shortest|lightest) to "
    r"(?:the )?(?:largest|biggest|highest|greatest|latest|newest|longest|heaviest)|ascending"
    r"|increasing)\b",
    re.IGNORECASE,
)
BY_LETTER = re.compile(r"\balphabetical(?:ly)?\b", re.IGNORECASE)
REVERSED = re.compile(
    r"\brevers\w+|\bbackward|\bby (?:the )?(?:length|size|number|age)\b", re.IGNORECASE
)
PLACES = re.compile(
    r"\b(?:round\w*|give|with|to) (?:\w+ ){0,3}?(?:to )?(one|two|three|1|2|3) (?:decimals?"
    r"|decimal places|digits after)\b",
    re.IGNORECASE,
)
WHOLE = re.compile(
    r"\brounded (?:up |down )?to (?:the nearest )?(?:a )?(?:whole (?:number)?|integer)\b",
    re.IGNORECASE,
)
PLACES_OF = {"one": 1, "two": 2, "three": 3, "1": 1, "2": 2, "3": 3}
DATE_FORMS = {
    r"YYYY-MM-DD": "%Y-%m-%d",
    r"DD\.MM\.YYYY": "%d.%m.%Y",
    r"MM/DD/YYYY": "%m/%d/%Y",
    r"DD/MM/YYYY": "%d/%m/%Y",
    r"HH:MM": "%H:%M",
}
DAYS_AFTER = re.compile(
    r"\b(?:what|which) (?:date|day) is (\d{1,4}) (day|week)s? (after|before|from|later than) "
    r"(\d{4}-\d\d-\d\d)\b",
    re.IGNORECASE,
)
ASKS_MORE = re.compile(
    r"\b(?:after|before|next|previous|following|second|third|later|earlier|difference|between"
    r"|convert|local|zone|except|not|than|if|total|sum|average|how many|how much|add\w*|plus"
    r"|minus|count)\b",
    re.IGNORECASE,
)
OFTEN = 0.9


class ReadTask(NamedTuple):
    """A task, its first prompt, and the words that are its right answer."""

    task: Task
    prompt: str
    answer: str


def check_reread(given: CheckInput) -> Iterator[RuleResult]:
    read = _read(given)
    yield Checked(len(read), "questions and their answers")
    if len(read) < FEWEST:
        return
    looks = (_same_question, _stated_order, _stated_form, _days_after, _asked_line, _labels)
    yield from until_a_finding(looks, read)


def _read(given: CheckInput) -> list[ReadTask]:
    """New tasks of one answer, that the solver solves."""
    if "solver" not in given.own or given.family.max_turns != 1:
        return []
    solved = given.solved_anew("reread", TASKS, 1 / 4)
    frames = framed([one.texts[-1] for one in solved]) if solved else []
    return [
        ReadTask(one.task, text_of(one.opening), words.strip())
        for one, (_, words, _) in zip(solved, frames)
    ]


# ------------------------------------------------------------------------------------------------ options in another order


def _same_question(read: Sequence[ReadTask]) -> Iterator[RuleResult]:
    """The letters of one question, asked with its options in several orders, all name one text."""
    by_stem: dict[str, list[tuple[ReadTask, str]]] = defaultdict(list)
    for one in read:
        options = dict(OPTION.findall(one.prompt))
        if len(options) >= 2 and one.answer.strip("().").upper() in options:
            named = options[one.answer.strip("().").upper()].strip().casefold()
            by_stem[OPTION.sub("", one.prompt)].append((one, named))
    asked = {
        stem: them for stem, them in by_stem.items() if len({one.prompt for one, _ in them}) > 1
    }
    several = [them for them in asked.values() if len({named for _, named in them}) > 1]
    # Options may be other ones each time; then what was right before must stand among them and not be it.
    bad = [them for them in several if _passed_over(them)]
    if len(asked) >= FEWEST and 2 * len(bad) >= len(asked):
        (one, named), (other, others) = _passed_over(bad[0])
        yield Finding(
            f"the letter of the right answer does not follow its "
            f"text: {shortened(OPTION.sub('', one.prompt), 70)} has {one.answer!r} ({named}) at "
            f"{one.task.id!r} and {other.answer!r} ({others}) at {other.task.id!r}, whose "
            f"options hold both; so with {len(bad)} of {len(asked)} questions "
            "that came more than once. The letter was made before the options were shuffled, or "
            "from the wrong list. Look for the right text in the "
            "shuffled options",
            severity=ERROR,
        )


def _passed_over(them: Sequence[tuple[ReadTask, str]]) -> list[tuple[ReadTask, str]]:
    """Two tasks with another right text, of which the one's stands among the other's options; [] for none."""
    for one in them:
        for other in them:
            texts = {text.strip().casefold() for _, text in OPTION.findall(other[0].prompt)}
            if one[1] != other[1] and one[1] in texts:
                return [one, other]
    return []


# ------------------------------------------------------------------------------------------------ an order that is stated


def _stated_order(read: Sequence[ReadTask]) -> Iterator[RuleResult]:
    """An answer that lists the prompt's own items is in the order that the prompt states."""
    wrong: list[ReadTask] = []
    asked = 0
    for one in read:
        down, up, letters = (
            p.search(one.prompt) for p in (LARGEST_FIRST, SMALLEST_FIRST, BY_LETTER)
        )
        items = [
            item.strip()
            for item in re.split(r"\s*(?:,|;|\n|>|<|\|)\s*", one.answer)
            if item.strip()
        ]
        if (
            sum(map(bool, (down, up, letters))) != 1
            or REVERSED.search(one.prompt)
            or len(items) < 3
        ):
            continue
        if not all(
            re.search(rf"(?<![\w.]){re.escape(item)}(?![\w])", one.prompt) for item in items
        ):
            continue
        keys = [item.casefold() for item in items] if letters else _as_numbers(items)
        if keys is None:
            continue
        asked += 1
        wrong += [one] if keys != sorted(keys, reverse=bool(down)) else []
    if asked >= FEWEST and len(wrong) >= OFTEN * asked:
        one = wrong[0]
        yield Finding(
            f"the prompt asks for an order, and the right answer has another one at {len(wrong)} "
            f"of {asked} tasks: {shortened(one.prompt, 110)} has "
            f"{shortened(one.answer, 60)} at {one.task.id!r}. Sort as the prompt says "
            f"(reverse=True), or say what is sorted",
            severity=ERROR,
        )


def _as_numbers(items: Sequence[str]) -> list[float] | None:
    try:
        return [float(item) for item in items]
    except ValueError:
        return None


# ------------------------------------------------------------------------------------------------ a form that is stated


def _stated_form(read: Sequence[ReadTask]) -> Iterator[RuleResult]:
    """A right answer has the decimals and the form of a date that the prompt states."""
    for form, code in DATE_FORMS.items():
        asked = [one for one in read if re.search(rf"(?<!\w){form}(?!\w)", one.prompt)]
        wrong = [one for one in asked if not _are_dates(one.answer, code)]
        if len(asked) >= FEWEST and len(wrong) >= max(FEWEST, 0.2 * len(asked)):
            one = wrong[0]
            yield Finding(
                f"the prompt asks for {form.replace(chr(92), '')}, and the right answer "
                f"of {one.task.id!r} is {shortened(one.answer, 40)}, which is none (so at "
                f"{len(wrong)} of {len(asked)} tasks): month and day are exchanged, or another "
                f"form is compared. Make both of one format",
                severity=ERROR,
            )
            return
    asked_for = [(one, _places(one.prompt)) for one in read]
    stated = [(one, places) for one, places in asked_for if places is not None]
    wrong = [
        (one, places)
        for one, places in stated
        if re.fullmatch(r"-?\d+\.\d+", one.answer) and len(one.answer.partition(".")[2]) > places
    ]
    if len(wrong) >= FEWEST and len(wrong) >= len(stated) / 4:
        one, places = wrong[0]
        yield Finding(
            f"the prompt asks for {places} decimals, and the right answer of {one.task.id!r} "
            f"is {one.answer}, so at {len(wrong)} of {len(stated)} tasks: the gold "
            "number was never rounded. Where it is compared as a text, who does as the prompt "
            "says is wrong. Round it, and compare numbers with a tolerance",
            severity=ERROR if len(one.answer.partition(".")[2]) > places + 3 else NOTE,
        )


def _are_dates(answer: str, code: str) -> bool:
    """One date of this form, or several."""
    return _is_date(answer, code) or all(
        _is_date(part, code) for part in re.split(r"\s*[,;\n]\s*", answer.strip())
    )


def _is_date(text: str, code: str) -> bool:
    try:
        datetime.datetime.strptime(text.strip(), code)
    except ValueError:
        return False
    return True


def _places(prompt: str) -> int | None:
    match = PLACES.search(prompt)
    if match is not None:
        return PLACES_OF[match[1].lower()]
    return 0 if WHOLE.search(prompt) else None


def _days_after(read: Sequence[ReadTask]) -> Iterator[RuleResult]:
    """A date that is so many days from another one."""
    wrong: list[tuple[ReadTask, datetime.date]] = []
    asked = 0
    for one in read:
        match = DAYS_AFTER.search(one.prompt)
        if match is None or not _is_date(one.answer, "%Y-%m-%d"):
            continue
        asked += 1
        days = int(match[1]) * (7 if match[2].lower() == "week" else 1)
        step = datetime.timedelta(days=-days if match[3].lower() == "before" else days)
        expected = datetime.date.fromisoformat(match[4]) + step
        wrong += [(one, expected)] if expected.isoformat() != one.answer else []
    if asked >= FEWEST and len(wrong) >= max(2, 0.02 * asked):
        one, expected = wrong[0]
        yield Finding(
            f"the right answer of {one.task.id!r} is {one.answer}, "
            f"and {shortened(DAYS_AFTER.search(one.prompt)[0], 60)} is {expected} (so "
            f"at {len(wrong)} of "
            f"{asked} tasks). Count with datetime.timedelta, from the day itself",
            severity=ERROR,
        )


# ------------------------------------------------------------------------------------------------ the line that is asked about


def _asked_line(read: Sequence[ReadTask]) -> Iterator[RuleResult]:
    """Of lines that are read: the answer stands in the one that has the question's own word, and not always in the one beside it."""
    shifts: Counter[int | None] = Counter()
    example: dict[int | None, tuple[ReadTask, str]] = {}
    offsets: Counter[int] = Counter()
    for one in read:
        lines = [line for line in one.prompt.splitlines() if line.strip()]
        matching = _line_of_question(lines)
        if matching is None or len(one.answer) < 2:
            continue
        at, question = matching
        if ASKS_MORE.search(question):
            continue
        holding = [
            k for k, line in enumerate(lines) if k != question_at(lines) and _has(line, one.answer)
        ]
        shift = 0 if at in holding else None
        if len(holding) == 1:
            shift = holding[0] - at
        shifts[shift] += 1
        example.setdefault(shift, (one, lines[at]))
        if shift is None and not holding:
            offsets.update(_offsets(lines[at], one.answer))
    asked = shifts.total()
    if asked < 2 * FEWEST:
        return
    (shift, times), *_ = shifts.most_common(1)
    one, line = example[shift]
    if shift and times >= OFTEN * asked and len({o.answer for o in read}) >= FEWEST:
        yield _line_beside(one, line, shift, f"{times} of {asked}")
    elif shift is None and times >= OFTEN * asked and offsets:
        (offset, often), *_ = offsets.most_common(1)
        if often >= OFTEN * asked and offset:
            yield _with_offset(one, line, offset, f"{often} of {asked}")


def _line_beside(one: ReadTask, line: str, shift: int, share: str) -> Finding:
    return Finding(
        f"the right answer stands in the line {'after' if shift > 0 else 'before'} the one that is "
        f"asked about, at {share} tasks: {one.answer!r} at {one.task.id!r}, where the question's "
        f"own word stands in {shortened(line, 80)}. An index is off by {abs(shift)}",
        severity=ERROR,
    )


def _with_offset(one: ReadTask, line: str, offset: int, share: str) -> Finding:
    unit = "minutes" if ":" in one.answer else "each time"
    return Finding(
        f"the right answer is what stands in the line that is asked about, {offset:+d} ({unit}), "
        f"at {share} tasks, and nothing in the question says so: {one.answer!r} at "
        f"{one.task.id!r}, where {shortened(line, 80)} is read. It was made in another zone or "
        "counted from another start than what is shown",
        severity=ERROR if ":" in one.answer and offset % 15 == 0 else NOTE,
    )


def question_at(lines: Sequence[str]) -> int:
    return max((k for k, line in enumerate(lines) if "?" in line), default=-1)


def _has(line: str, words: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(words)}(?!\w|\.\d)", line, re.IGNORECASE) is not None


def _line_of_question(lines: Sequence[str]) -> tuple[int, str] | None:
    """The one line that has a word of the question which no other line has."""
    at = question_at(lines)
    if at < 0 or len(lines) < 5:
        return None
    question = re.split(r"(?<=\?)", lines[at])[0]
    matching = Counter(
        holding[0]
        for word in set(re.findall(r"[\w.]*\w", question))
        if len(holding := [k for k, line in enumerate(lines) if k != at and _has(line, word)]) == 1
    )
    return (next(iter(matching)), question) if len(matching) == 1 else None


def _offsets(line: str, answer: str) -> set[int]:
    """What must be added to a number of the line to come to the answer; of times in minutes."""
    if match := re.fullmatch(r"(\d{1,2}):(\d\d)", answer):
        mine = int(match[1]) * 60 + int(match[2])
        times = [
            int(h) * 60 + int(m) for h, m in re.findall(r"(?<!\d)(\d{1,2}):(\d\d)(?!\d)", line)
        ]
        return {(mine - time + 720) % 1440 - 720 for time in times}
    if re.fullmatch(r"-?\d{2,6}", answer):
        return {
            int(answer) - int(number) for number in re.findall(r"(?<![\d.])\d{2,6}(?![\d.])", line)
        }
    return set()


# ------------------------------------------------------------------------------------------------ labels


def _labels(read: Sequence[ReadTask]) -> Iterator[RuleResult]:
    """Numbers of labels in the payload name the words that the prompt lists, in its order and not turned by one."""
    names = [name for name, value in read[0].task.payload.items() if type(value) is int]
    answers = sorted({one.answer for one in read})
    if not 3 <= len(answers) <= 8 or any(
        not re.fullmatch(r"[A-Za-z][\w -]{1,20}", a) for a in answers
    ):
        return
    places = {answer: _last_place(answer, read[0].prompt) for answer in answers}
    if min(places.values()) < 0:
        return
    order = sorted(answers, key=places.__getitem__)
    for name in names:
        spoken = defaultdict(set)
        for one in read:
            spoken[one.task.payload.get(name)].add(order.index(one.answer))
        if len(spoken) != len(order) or any(len(them) > 1 for them in spoken.values()):
            continue
        keys = sorted(spoken)
        first = keys[0]
        if keys != [*range(first, first + len(order))] or first not in (0, 1):
            continue
        turned = {(next(iter(spoken[key])) - (key - first)) % len(order) for key in keys}
        if len(turned) == 1 and turned != {0}:
            yield Finding(
                f"{name!r} of the payload counts from {first}, and the right words are those of "
                f"the prompt's list, {', '.join(order)}, turned by {turned.pop()}: "
                f"{name} = {first} is {order[next(iter(spoken[first]))]!r}. Labels off by one "
                f"train the policy to say the neighbour of what is right. Hold "
                "some tasks against their label by hand",
                severity=NOTE,
            )
            return


def _last_place(words: str, prompt: str) -> int:
    """Where the words stand last in the prompt, by themselves; -1 where they do not."""
    matches = re.finditer(rf"(?<!\w){re.escape(words)}(?!\w)", prompt)
    return max((match.start() for match in matches), default=-1)
