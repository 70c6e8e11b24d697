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

import difflib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.inspect_worlds.checks.given import SLOW_S, CheckInput, needs_given_words
from workbench.extensions.inspect_worlds.leaks import leaves
from workbench.extensions.inspect_worlds.paid import NEAR
from workbench.extensions.inspect_worlds.playing import (
    PlayedTrajectory,
    Spent,
    play,
    replay,
    text_of,
    unplayable,
)
from workbench.values import Task
from workbench.values.errors import shortened
from workbench.values.seeds import rng_at, seed_of

LEAST = 4  # tasks by which a change is judged
ASKED = 8  # tasks at which changes are tried
DRAWN = 48  # tasks whose answers are others' wrong ones
OTHERS = 6  # of them that are tried at each task, to see whether one answer alone is right
OFTEN = 0.8  # of the tasks at which a change is paid
SEVERAL = 0.1  # of others' answers that are paid: or more, and several answers are right
LONGEST = 400  # characters of an answer
WHOLE = re.compile(r"-?\d{1,12}")
EXPRESSION = re.compile(r"(?<![\w.])\(?-?\d+(?:\s*[-+*/()]\s*\(?-?\d+\)?)+(?![\w])")
# What a prompt says where more than one number, or less than all, is right.
TOLERANT = re.compile(
    r"\b(?:about|within|around|roughly|approx\w*|nearest|near|close\w*|tolerance|estimate\w*|round\w*|±|at least|at most|between|any|above|below|than|an? (?:\w+ )?number)\b",
    re.IGNORECASE,
)
SHORT_FORMS = re.compile(r"\b(?:abbrev\w*|initials?|first letters?|prefix\w*)\b", re.IGNORECASE)
SOME = re.compile(r"\b(?:any|some|one|two|at least|or more|few)\b", re.IGNORECASE)
ORDERED = re.compile(
    r"\b(?:sort\w*|order\w*|sequence|alphabet\w*|ascending|descending|ranking|reverse\w*)\b",
    re.IGNORECASE,
)
UNORDERED = re.compile(r"\bany order\b|\border (?:is|does) not", re.IGNORECASE)
COPYING = re.compile(r"\b(?:repeat|copy|echo|quote|same words)\b", re.IGNORECASE)


class RightAnswer(NamedTuple):
    """A trajectory that was paid for its last words, and the part of them that is the answer."""

    played: PlayedTrajectory
    before: str
    words: str
    after: str
    prompt: str

    def saying(self, words: str) -> PlayedTrajectory:
        """The same trajectory with other words in the place of the answer."""
        last = f"{self.before}{words}{self.after}"
        return replay(
            self.played.family, self.played.script._replace(texts=(*self.played.texts[:-1], last))
        )


class Change(NamedTuple):
    """A way to make an answer wrong. `words`: None where it cannot be made of this answer."""

    name: str
    words: Callable[[RightAnswer, Sequence[str]], str | None]
    means: str  # what a scorer that pays it does
    severity: Callable[[CheckInput, Sequence[RightAnswer]], str]


def check_lenient(given: CheckInput) -> Iterator[RuleResult]:
    """Play the right answer changed, at tasks whose right answers differ."""
    if (why := unplayable(given.family)) is not None:
        yield NotChecked(why)
        return
    answers = _right_answers(given)
    if len(answers) < LEAST or given.step_s > SLOW_S:
        yield NotChecked(
            f"{LEAST} tasks with an answer of their own that is paid (a solver's, or the payload's gold one)"
        )
        return
    others = _others(given, answers)
    if _several_are_right(given, answers, others):
        yield NotChecked(
            "tasks of which one answer alone is right: those of other tasks are paid, too"
        )
        return
    yield from _paid_changes(given, answers, others)


def _paid_changes(
    given: CheckInput, answers: Sequence[RightAnswer], others: Sequence[str]
) -> Iterator[RuleResult]:
    spent = Spent()
    found: list[tuple[Change, int, int, RightAnswer, str]] = []
    count = 0
    for change in CHANGES:
        if spent.seconds > given.budget_s:
            break
        asked = 0
        paid: list[tuple[RightAnswer, str]] = []
        for answer in answers:
            words = change.words(answer, others)
            if words is None or words.strip() == answer.words.strip():
                continue
            asked += 1
            if _is_paid(answer, answer.saying(words)):
                paid.append((answer, words))
            elif asked >= LEAST and not paid:
                break
        count += asked
        if asked >= LEAST and len(paid) >= OFTEN * asked:
            found.append((change, len(paid), asked, *paid[0]))
    yield Checked(count, "answers changed")
    severities = [(change.severity(given, answers), *rest) for change, *rest in found]
    if found:
        yield _finding(found, [severity for severity, *_ in severities])


def _finding(
    found: Sequence[tuple[Change, int, int, RightAnswer, str]], severities: Sequence[str]
) -> Finding:
    """One finding of all changes that are paid, the most certain first."""
    order = sorted(range(len(found)), key=lambda number: severities[number] != ERROR)
    change, paid, asked, answer, words = found[order[0]]
    also = [found[number][0].name for number in order[1:]]
    more = f" Paid like it are also: {', '.join(also)}." if also else ""
    said = shortened(repr(words), 90)
    return Finding(
        f"{change.name} is paid like the right answer at {paid} of {asked} tasks: at {answer.played.task.id!r} the solver says "
        f"{shortened(repr(answer.words), 60)}, and {said} succeeds as well; expected that a wrong answer fails. {change.means}."
        f"{more} Compare the whole answer with the right one, numbers by their value",
        severity=severities[order[0]],
    )


def _is_paid(answer: RightAnswer, other: PlayedTrajectory) -> bool:
    """Whether it succeeds, or, where nobody says what a success is, earns as much."""
    if other.error or other.reward is None:
        return False
    if other.success is not None:
        return other.success
    return other.reward >= answer.played.reward - NEAR


# ------------------------------------------------------------------------------------------------ right answers


def _right_answers(given: CheckInput) -> list[RightAnswer]:
    """One a task, each another one."""
    played = [one for one in given.own.get("solver", ()) if _earned(one)]
    if not played:
        played = [one for one in map(_by_its_gold(given), given.tasks) if one and _earned(one)]
    first = list({one.task.id: one for one in reversed(played)}.values())[::-1]
    frames = framed([one.texts[-1] for one in first])
    answers: dict[str, RightAnswer] = {}
    for one, (before, words, after) in zip(first, frames):
        if 0 < len(words.strip()) <= LONGEST:
            right = RightAnswer(one, before, words, after, text_of(one.opening))
            answers.setdefault(words.strip(), right)
    if 2 * len(answers) < len(first):
        return []  # few answers: then another task's is often right
    return list(answers.values())[:ASKED]


def _earned(played: PlayedTrajectory) -> bool:
    good = bool(played.texts) and not played.error and played.reward is not None
    return good and (played.success or played.success is None and played.reward > 0)


def _by_its_gold(given: CheckInput) -> Callable[[Task], PlayedTrajectory | None]:
    """Without a solver: the one gold answer that the payload names."""

    def answered(task: Task) -> PlayedTrajectory | None:
        for name in ("gold", "answer", "answers", "solution", "label", "expected", "target"):
            golds = [str(leaf) for leaf in leaves(task.payload.get(name, ()))]
            if len(golds) == 1 and golds[0].strip():
                text = given.as_answer(golds[0])
                return play(given.family, task, 0, lambda env: text, policy="the gold answer")
        return None

    return answered


def framed(texts: Sequence[str]) -> list[tuple[str, str, str]]:
    """Each text as (before, answer, after): between the answer tags, or what is no common beginning or end of all."""
    tagged = [re.search(r"(.*<answer>)(.*?)(</answer>.*)", text, re.DOTALL) for text in texts]
    if all(tagged):
        return [(match[1], match[2], match[3]) for match in tagged]
    before = re.sub(r"[\w.-]*$", "", os.path.commonprefix(list(texts)))
    inner = [text[len(before) :] for text in texts]
    turned = os.path.commonprefix([text[::-1] for text in inner])[::-1]
    after = re.sub(r"^[\w.-]*", "", turned)
    return [(before, text[: len(text) - len(after)], after) for text in inner]


def _others(given: CheckInput, answers: Sequence[RightAnswer]) -> list[str]:
    """What the solver answers at other tasks; those of `answers` among them."""
    words = dict.fromkeys(answer.words for answer in answers)
    family = given.family
    one_turn = all(len(answer.played.texts) == 1 for answer in answers)
    if "solver" not in given.own or not one_turn or hasattr(family, "task_seeds"):
        return list(words)
    spent = Spent()
    texts: list[str] = []
    for number in range(DRAWN):
        if spent.seconds > given.budget_s:
            break
        task = family.task(seed_of("check-env", "others", number))
        rng = rng_at("check-env", "others", task.id)
        played = play(family, task, 0, lambda env, rng=rng: family.solver_action(env, rng), most=1)
        texts += played.texts[:1] if _earned(played) else []
    known = [f"{answer.before}{answer.words}{answer.after}" for answer in answers]
    for _, inner, _ in framed([*known, *texts]):
        words.setdefault(inner)
    return list(words)


def _several_are_right(
    given: CheckInput, answers: Sequence[RightAnswer], others: Sequence[str]
) -> bool:
    spent = Spent()
    paid = 0
    asked = 0
    for number, answer in enumerate(answers):
        if spent.seconds > given.budget_s:
            break
        rng = rng_at("check-env", "several", number)
        wrong = [words for words in others if words.strip() != answer.words.strip()]
        for place in rng.permutation(len(wrong))[:OTHERS]:
            asked += 1
            paid += _is_paid(answer, answer.saying(wrong[place]))
    return asked == 0 or paid > SEVERAL * asked


# ------------------------------------------------------------------------------------------------ how sure


def _sure(given: CheckInput, answers: Sequence[RightAnswer]) -> str:
    return ERROR


def _maybe(given: CheckInput, answers: Sequence[RightAnswer]) -> str:
    return NOTE


def _says(pattern: re.Pattern[str], answers: Sequence[RightAnswer]) -> bool:
    return any(pattern.search(answer.prompt) for answer in answers)


def _unless_listing(given: CheckInput, answers: Sequence[RightAnswer]) -> str:
    return NOTE if needs_given_words(given) or _says(COPYING, answers) else ERROR


def _unless_short_forms(given: CheckInput, answers: Sequence[RightAnswer]) -> str:
    return NOTE if _says(SHORT_FORMS, answers) or _says(TOLERANT, answers) else ERROR


def _unless_some(given: CheckInput, answers: Sequence[RightAnswer]) -> str:
    return NOTE if _says(SOME, answers) else ERROR


def _where_ordered(given: CheckInput, answers: Sequence[RightAnswer]) -> str:
    ordered = _says(ORDERED, answers) and not _says(UNORDERED, answers)
    return ERROR if ordered else NOTE


def _where_one_is_known(given: CheckInput, answers: Sequence[RightAnswer]) -> str:
    """Where the payload holds the answer and no prompt shows it, it is the right one, and no example of several."""
    hidden = all(_is_hidden(answer) for answer in answers)
    return ERROR if hidden and not _says(TOLERANT, answers) else NOTE


def _is_hidden(answer: RightAnswer) -> bool:
    words = answer.words.strip().casefold()
    values = {str(leaf).strip().casefold() for leaf in leaves(dict(answer.played.task.payload))}
    shown = re.search(rf"(?<!\w){re.escape(words)}(?!\w)", answer.prompt.casefold())
    return words in values and shown is None


# ------------------------------------------------------------------------------------------------ changes


def _number(answer: RightAnswer) -> str | None:
    words = answer.words.strip()
    return words if WHOLE.fullmatch(words) else None


def _items(answer: RightAnswer, least: int = 3) -> tuple[list[str], str] | None:
    """The items of a list, and what stands between them."""
    for between in (", ", ",", "; ", " | ", "\n", " "):
        items = answer.words.strip().split(between)
        if len(items) >= least and all(re.fullmatch(r"[\w-]+", item) for item in items):
            return items, between
    return None


def _among_others(answer: RightAnswer, others: Sequence[str]) -> str | None:
    wrong = [words for words in others if words != answer.words][:4]
    return " or ".join([*wrong[:2], answer.words, *wrong[2:]]) if len(wrong) == 4 else None


def _nearest(answer: RightAnswer, others: Sequence[str]) -> str | None:
    wrong = [words for words in others if words.strip() != answer.words.strip()]
    if _number(answer) is not None:
        numbers = [words for words in wrong if WHOLE.fullmatch(words.strip())]
        mine = int(answer.words)
        return min(numbers, key=lambda words: abs(int(words) - mine), default=None)
    if _items(answer) is not None:
        return None  # the same things in another order
    return max(wrong, key=lambda words: _likeness(words, answer.words), default=None)


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _beginning(answer: RightAnswer, others: Sequence[str]) -> str | None:
    words = answer.words.strip()
    if _items(answer) is not None or len(words.lstrip("-")) < 2:
        return None
    return words[: max(1, len(words) // 2)].strip()


def _some_items(answer: RightAnswer, others: Sequence[str]) -> str | None:
    parts = _items(answer)
    return parts[1].join(parts[0][: len(parts[0]) // 2]) if parts else None


def _last_items(answer: RightAnswer, others: Sequence[str]) -> str | None:
    parts = _items(answer)
    return parts[1].join(parts[0][1:]) if parts else None


def _turned_round(answer: RightAnswer, others: Sequence[str]) -> str | None:
    parts = _items(answer)
    return parts[1].join(parts[0][::-1]) if parts else None


def _half_other(answer: RightAnswer, others: Sequence[str]) -> str | None:
    """A word with other letters in its second half."""
    words = answer.words.strip()
    if not re.fullmatch(r"[A-Za-z]{4,}", words):
        return None
    half = len(words) // 2
    return words[:half] + "".join("q" if letter != "q" else "z" for letter in words[half:])


def _its_letters(answer: RightAnswer, others: Sequence[str]) -> str | None:
    words = answer.words.strip()
    turned = words[::-1]
    return turned if re.fullmatch(r"[A-Za-z]{4,}", words) and turned != words else None


def _longer(answer: RightAnswer, others: Sequence[str]) -> str | None:
    number = _number(answer)
    return None if number is None else f"{number}7"


def _inside_a_word(answer: RightAnswer, others: Sequence[str]) -> str | None:
    words = answer.words.strip()
    return f"zq{words}zq" if re.fullmatch(r"[A-Za-z]{3,}", words) else None


def _last_digit(answer: RightAnswer, others: Sequence[str]) -> str | None:
    number = _number(answer)
    return None if number is None else f"{number[:-1]}{(int(number[-1]) + 1) % 10}"


def _with_a_fraction(answer: RightAnswer, others: Sequence[str]) -> str | None:
    """Not where whatever stands around a number is passed over: then the fraction is, too."""
    number = _number(answer)
    if number is None or _is_paid(answer, answer.saying(f"{number} zq")):
        return None
    return f"{number}.6"


def _other_sign(answer: RightAnswer, others: Sequence[str]) -> str | None:
    number = _number(answer)
    if number is None or int(number) == 0 or _is_paid(answer, answer.saying(f"{number} zq")):
        return None
    return str(-int(number))


def _sum_of_it(answer: RightAnswer, others: Sequence[str]) -> str | None:
    number = _number(answer)
    return None if number is None else f"{int(number) - 1}+1"


def _expression(answer: RightAnswer, others: Sequence[str]) -> str | None:
    match = EXPRESSION.search(answer.prompt) if _number(answer) is not None else None
    return None if match is None else match[0].strip()


def _question(answer: RightAnswer, others: Sequence[str]) -> str | None:
    return answer.prompt


def _negated(answer: RightAnswer, others: Sequence[str]) -> str | None:
    return f"not {answer.words.strip()}" if _number(answer) is None else None


CHANGES: tuple[Change, ...] = (
    Change(
        "the right answer among four of other tasks",
        _among_others,
        "It is looked for anywhere in the text, so listing what may be right is paid",
        _unless_listing,
    ),
    Change(
        "the form of an answer with nothing in it",
        lambda answer, others: "" if answer.before.strip() or answer.after.strip() else None,
        "The form is paid, and not what it holds",
        _sure,
    ),
    Change(
        "nothing at all", lambda answer, others: " ", "What is empty stands in every text", _sure
    ),
    Change(
        "'.*'",
        lambda answer, others: ".*",
        "The answer is taken for a pattern, and this one fits everything (re.match with the policy's words first)",
        _sure,
    ),
    Change("'%'", lambda answer, others: "%", "The answer is taken for a pattern", _sure),
    Change(
        "'the'",
        lambda answer, others: "the",
        "What is stripped of articles is empty, and stands in every text",
        _sure,
    ),
    Change(
        "the question's own expression, copied,",
        _expression,
        "The answer is evaluated, so that nothing has to be computed",
        _sure,
    ),
    Change(
        "the whole question, repeated,",
        _question,
        "The right answer is looked for anywhere in the text, and the question holds it",
        _unless_listing,
    ),
    Change(
        "the right word with other letters in its second half",
        _half_other,
        "Words that are somewhat alike are taken for equal (a ratio, a distance, a beginning)",
        _unless_short_forms,
    ),
    Change(
        "the right word from back to front",
        _its_letters,
        "Letters are compared without their order",
        _sure,
    ),
    Change(
        "the beginning of the right answer",
        _beginning,
        "A part of the answer is enough (startswith, in)",
        _unless_short_forms,
    ),
    Change(
        "the first half of the items",
        _some_items,
        "What is missing is not missed (zip ends with the shorter one; a subset)",
        _unless_some,
    ),
    Change(
        "all items but the first",
        _last_items,
        "What is missing is not missed (a subset)",
        _unless_some,
    ),
    Change(
        "the items in the opposite order",
        _turned_round,
        "The order is lost (a set, a sorted list, a count)",
        _where_ordered,
    ),
    Change(
        "the right number with one more digit",
        _longer,
        "The right answer is looked for in the text (startswith, in), and digits may follow",
        _unless_short_forms,
    ),
    Change(
        "the right number with another last digit",
        _last_digit,
        "Numbers that are near are taken for equal, though the prompt allows no tolerance",
        _where_one_is_known,
    ),
    Change(
        "the right number with .6 behind it",
        _with_a_fraction,
        "A fraction is cut off (int(float(text)))",
        _where_one_is_known,
    ),
    Change(
        "the nearest answer of another task",
        _nearest,
        "What is somewhat alike is taken for equal",
        _where_one_is_known,
    ),
    Change("the right number with the other sign", _other_sign, "The sign is lost", _maybe),
    Change("the right number as a sum", _sum_of_it, "The answer is evaluated", _maybe),
    Change(
        "the right word inside a longer one",
        _inside_a_word,
        "It is looked for anywhere in the text, inside of words, too",
        _maybe,
    ),
    Change(
        "the right answer behind 'not'", _negated, "It is looked for anywhere in the text", _maybe
    ),
)
