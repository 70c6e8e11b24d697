"""Held-out tasks that are training tasks with their parts in another order, in other words, or turned over (E2); and splits
that differ in what is hard about them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Finding
from workbench.extensions.scripted_play.given import (
    SEEDLIKE,
    CheckInput,
    without_its_seed,
)
from workbench.extensions.scripted_play.leaks import gold_of, leaves
from workbench.extensions.scripted_play.playing import (
    Spent,
    is_number,
    opening_of,
    play,
    text_of,
)
from workbench.values import Task
from workbench.values.errors import shortened
from workbench.values.seeds import rng_at, seed_of
from workbench.worlds.splits import split_of

SECONDS = 0.35
COMPARED = 48  # held-out tasks
LEAST = 8
FEW = 8  # different problems: fewer cannot be kept apart
MUCH = 0.3  # of those that were compared
SOME = 0.08  # ... that have the very same parts, of a problem of which few are drawn
MOST = 0.6
LONG = 12  # letters of a problem whose letters say which one it is
APART = 1.2  # standard deviations between the two splits
PAYLOADS = 1500  # that are compared, at most
DRAWING_S = 0.2
TOLD = 0.75  # of tasks of one name, which have one answer; of any two at most the rest
TORN = 0.15  # of the problems that were drawn twice, which are in both splits
ASKED = 8  # of them, whose answers are compared
KINDS = 8  # different words of a field that is a kind of task
A_LEVEL = re.compile(
    r"level|difficult|depth|size|digits|hops|steps|length|stage|grade|count|terms", re.IGNORECASE
)
SMALL_SEEDS = 64
NAME = re.compile(r"(?<![.?!:\n] )(?<!^)\b[A-Z][a-z]+\b")


class ShownTask(NamedTuple):
    """A task and what its first prompt says."""

    task: Task
    opening: str


class TaskKey(NamedTuple):
    """By what two tasks are one. `key`: "" where a task has none. `sure`: whoever splits so never
    means it. `many`: only where tasks of one key have one answer far more often than any two, since
    two questions may both be answered by yes."""

    what: str
    key: Callable[[ShownTask], str]
    mend: str
    sure: bool
    many: bool = False


def near_copies(
    given: CheckInput, train: Sequence[Task], held_out: Sequence[Task]
) -> Iterator[Finding]:
    """Held-out tasks whose counterpart is trained on, with the same right answer: among those that are drawn, then among many
    payloads that have the same parts."""
    results = list(_copies_drawn(given, train, held_out))
    yield from results or _copies_of_payloads(given)


def _copies_drawn(
    given: CheckInput, train: Sequence[Task], held_out: Sequence[Task]
) -> Iterator[Finding]:
    spent = Spent()
    known = _shown(given, train, spent)
    compared = _shown(given, list({task.id: task for task in held_out}.values())[:COMPARED], spent)
    if len(compared) < LEAST:
        return
    apart = _same_to_all([*known, *compared])
    names = _names([*known, *compared])
    for likeness in _likenesses(apart, names):
        keys: dict[str, list[ShownTask]] = {}
        for shown in known:
            keys.setdefault(likeness.key(shown), []).append(shown)
        both = list(_pairs(given, compared, keys, likeness))
        if len(keys) <= FEW or len(both) < (SOME if likeness.sure else MUCH) * len(compared):
            continue
        if likeness.many and not _is_told_by_the_name(given, compared, known, keys, likeness):
            continue
        one, other = both[0]
        own_split = hasattr(given.family, "split_of") or hasattr(given.family, "task_seeds")
        sure = likeness.sure and own_split and len(both) >= MOST * len(compared)
        yield Finding(
            f"{len(both)} of {len(compared)} held-out tasks that were compared are training tasks {likeness.what}, and have the "
            f"same right answer: {one.task.id!r} (held out) says {_end(one, apart)}, and {other.task.id!r} (trained on) "
            f"{_end(other, apart)}. Evaluation tells what was remembered. {likeness.mend}",
            severity=ERROR if sure else NOTE,
        )
        return


def _is_told_by_the_name(
    given: CheckInput,
    compared: Sequence[ShownTask],
    known: Sequence[ShownTask],
    keys: Mapping[str, list[ShownTask]],
    likeness: TaskKey,
) -> bool:
    """Whether tasks of one name have one answer far more often than any two tasks have."""
    named = [
        _same_answer(given, shown.task, other.task)
        for shown in compared
        for other in _of_its_key(shown, keys, likeness)[:1]
    ]
    any_two = [
        _same_answer(given, shown.task, known[7 * number % len(known)].task)
        for number, shown in enumerate(compared)
    ]
    if not named or not any_two:
        return False
    return sum(named) >= TOLD * len(named) and sum(any_two) <= (1 - TOLD) * len(any_two)


def _copies_of_payloads(given: CheckInput) -> Iterator[Finding]:
    """Of tasks whose payloads have the same parts, some are held out and the others trained on."""
    family: Any = given.family
    if hasattr(family, "task_seeds") or "solver" not in given.own:
        return
    known = _many_payloads(given)
    apart = _same_to_all(known)
    names = _names(known)
    for likeness in _likenesses(apart, names):
        if likeness.many:
            continue  # a payload holds all that is known of a name
        groups: dict[str, list[ShownTask]] = {}
        for one in known:
            groups.setdefault(likeness.key(one), []).append(one)
        alike = [some for key, some in groups.items() if key and _differ(some)]
        pairs = [pair for some in alike if (pair := _torn(family, some)) is not None]
        if len(groups) <= LEAST * FEW or len(pairs) < max(LEAST, TORN * len(alike)):
            continue
        same = [pair for pair in pairs[:ASKED] if _same_answer(given, pair[0].task, pair[1].task)]
        if 2 * len(same) <= len(pairs[:ASKED]):
            continue
        one, other = same[0]
        sure = likeness.sure and hasattr(family, "split_of")
        yield Finding(
            f"of {len(alike)} problems that were drawn more than once {likeness.what}, {len(pairs)} are held out at one time and trained "
            f"on at another, with the same right answer: {one.task.id!r} (held out) has {shortened(one.opening, 80)}, and "
            f"{other.task.id!r} (trained on) {shortened(other.opening, 80)}. Evaluation tells what was remembered. {likeness.mend}",
            severity=ERROR if sure else NOTE,
        )
        return


def _differ(some: Sequence[ShownTask]) -> bool:
    return len({one.opening for one in some}) > 1


def _torn(family: Any, some: Sequence[ShownTask]) -> tuple[ShownTask, ShownTask] | None:
    """One that is held out and one that is trained on; None where all are in one split."""
    splits = [split_of(family, one.task) for one in some]
    if len(set(splits)) < 2:
        return None
    return some[splits.index("held-out")], some[splits.index("train")]


def _names(shown: Sequence[ShownTask]) -> set[str]:
    """Words with a capital inside a sentence, of any prompt."""
    return set(chain.from_iterable(NAME.findall(one.opening) for one in shown))


def _many_payloads(given: CheckInput) -> list[ShownTask]:
    """Tasks with what is in their payloads, as text in the place of a prompt."""
    known: list[ShownTask] = []
    spent = Spent()
    for number in range(PAYLOADS):
        if spent.seconds > DRAWING_S:
            break
        task = given.family.task(seed_of("check-env", "copies", number))
        values = [value for name, value in without_its_seed(task).items()]
        known.append(ShownTask(task, " ".join(str(leaf) for leaf in leaves(values))))
    return known


def _shown(given: CheckInput, some: Sequence[Task], spent: Spent) -> list[ShownTask]:
    shown = []
    for task in some:
        if spent.seconds > SECONDS:
            break
        shown.append(ShownTask(task, text_of(opening_of(given.family, task, 0))))
    return shown


def _same_to_all(shown: Sequence[ShownTask]) -> set[str]:
    """Words that every prompt has, which say nothing of a task."""
    words = [set(re.findall(r"\w+", one.opening.casefold())) for one in shown[:24]]
    return set.intersection(*words) if words else set()


def _pairs(
    given: CheckInput,
    compared: Sequence[ShownTask],
    keys: Mapping[str, list[ShownTask]],
    likeness: TaskKey,
) -> Iterator[tuple[ShownTask, ShownTask]]:
    for shown in compared:
        for other in _of_its_key(shown, keys, likeness)[:4]:
            if other.opening != shown.opening and _same_answer(given, shown.task, other.task):
                yield shown, other
                break


def _of_its_key(
    shown: ShownTask, keys: Mapping[str, list[ShownTask]], likeness: TaskKey
) -> list[ShownTask]:
    key = likeness.key(shown)
    return keys.get(key, []) if key else []


def _same_answer(given: CheckInput, one: Task, other: Task) -> bool:
    answers = [_answer(given, task) for task in (one, other)]
    return answers[0] == answers[1] and bool(answers[0])


def _answer(given: CheckInput, task: Task) -> tuple[str, ...]:
    """The solver's words, or the gold answer; played once, however often it is compared."""
    return given.once(f"answer to {task.id}", lambda: _answer_of(given, task))


def _answer_of(given: CheckInput, task: Task) -> tuple[str, ...]:
    family: Any = given.family
    if "solver" not in given.own:
        gold = gold_of(task)
        return (gold,) if gold else ()
    rng = rng_at("check-env", "solution")
    return play(family, task, 0, lambda env: family.solver_action(env, rng)).texts


def _end(shown: ShownTask, apart: set[str]) -> str:
    """Where its prompt says something of its own."""
    own = [
        match.start()
        for match in re.finditer(r"\w+", shown.opening)
        if match[0].casefold() not in apart
    ]
    start = max(own[0] - 10, 0) if own else 0
    return shortened(shown.opening[start : start + 100], 100)


# ------------------------------------------------------------------------------------------------ by what they are one


BY_PARTS = "Let split_of go by what makes the problem, its parts sorted: content_split(' '.join(sorted(parts)))"
BEFORE_REWORDING = "Split problems first and reword them then; or let split_of go by the numbers and names of a problem"


def _likenesses(apart: set[str], names: set[str]) -> Iterator[TaskKey]:
    """`apart`: words of all prompts. `names`: words with a capital inside a sentence, of any prompt."""
    words = partial(_words_of, apart)
    letters = partial(_letters_of, apart)
    numbers = partial(_numbers_and_names, apart, names)
    yield TaskKey("with their words in another order", words, BY_PARTS, True)
    yield TaskKey("with their letters in another order", letters, BY_PARTS, True)
    yield TaskKey("turned over or round", _turned_over, BY_PARTS, False)
    yield TaskKey(
        "in other words, with the same numbers and names", numbers, BEFORE_REWORDING, False
    )
    called = partial(_names_alone, apart, names)
    yield TaskKey("in other words, about the same name", called, BEFORE_REWORDING, False, True)


def _own_words(apart: set[str], shown: ShownTask) -> list[str]:
    opening = shown.opening.casefold().replace(str(shown.task.task_seed), " ")
    return [word for word in re.findall(r"\w+", opening) if word not in apart]


def _words_of(apart: set[str], shown: ShownTask) -> str:
    own = _own_words(apart, shown)
    return " ".join(sorted(own)) if len(own) >= 2 else ""


def _letters_of(apart: set[str], shown: ShownTask) -> str:
    own = _own_words(apart, shown)
    numbers = sorted(word for word in own if word.isdigit())  # their digits are no letters
    mixed = "".join(sorted("".join(word for word in own if not word.isdigit())))
    return f"{mixed} {numbers}" if len(mixed) >= LONG or len(set(mixed)) >= 5 else ""


def _numbers_and_names(apart: set[str], names: set[str], shown: ShownTask) -> str:
    opening = shown.opening.replace(str(shown.task.task_seed), " ")
    own = sorted(re.findall(r"\d+(?:\.\d+)?", opening))
    called = _called(apart, names, opening)
    changing = [number for number in own if number not in apart]
    enough = len(changing) >= 2 or bool(changing and called)
    return " ".join([*own, *called]) if enough else ""


def _names_alone(apart: set[str], names: set[str], shown: ShownTask) -> str:
    """Of a prompt without a number of its own: what is asked of the same name is the same where it has the same answer."""
    return " ".join(_called(apart, names, shown.opening))


def _called(apart: set[str], names: set[str], opening: str) -> list[str]:
    """The names of a prompt that not every prompt has, sorted."""
    everywhere = {name.title() for name in apart}
    return sorted(names & set(re.findall(r"\w+", opening)) - everywhere)


def _turned_over(shown: ShownTask) -> str:
    """The least of the eight ways to turn a grid of the payload; "" where it has none."""
    for value in shown.task.payload.values():
        rows = value.splitlines() if isinstance(value, str) else value
        if not isinstance(rows, (list, tuple)) or len(rows) < 3:
            continue
        if all(
            isinstance(row, (str, list, tuple)) and len(row) == len(rows[0]) > 2 for row in rows
        ):
            grid = [[*map(str, row)] for row in rows]
            return min(map(repr, _turns(grid)))
    return ""


def _turns(grid: list[list[str]]) -> Iterator[list[list[str]]]:
    for _ in range(4):
        grid = [list(row) for row in zip(*grid[::-1])]
        yield grid
        yield [row[::-1] for row in grid]


# ------------------------------------------------------------------------------------------------ what is hard


def splits_differ(
    given: CheckInput, train: Sequence[Task], held_out: Sequence[Task]
) -> Iterator[Finding]:
    """A number of the payload that is clearly larger in one split, or that goes by the seed."""
    own = hasattr(given.family, "split_of") or hasattr(given.family, "task_seeds")
    names = sorted(set(chain.from_iterable(map(_numbers, train[:8]))))
    for name in names if own else ():
        ours, theirs = (_column(some, name) for some in (train, held_out))
        if min(len(ours), len(theirs)) < 2 * LEAST:
            continue
        if not set(ours) & set(theirs) and not A_LEVEL.search(name):
            continue  # what is split by: the number of a world, of a map
        spread = float(np.std([*ours, *theirs])) or 1.0
        gap = (float(np.mean(theirs)) - float(np.mean(ours))) / spread
        if abs(gap) >= APART:
            yield Finding(
                f"held-out tasks differ from those that are trained on: {name!r} is {np.mean(theirs):.3g} on average where held "
                f"out and {np.mean(ours):.3g} in training, {abs(gap):.1f} standard deviations apart. The two rates of success do "
                "not compare; where that is not meant, split by a hash of the problem (content_split)",
                severity=NOTE,
            )
            return
    if own:
        yield from _kinds_apart(train, held_out)
    yield from _by_the_seed(given, train, names)


def _kinds_apart(train: Sequence[Task], held_out: Sequence[Task]) -> Iterator[Finding]:
    """A word of the payload that many tasks of one split have, and none of the other."""
    for name in sorted(train[0].payload if train else ()):
        if not isinstance(train[0].payload[name], (str, bool)):
            continue
        ours = Counter(str(task.payload.get(name)) for task in train)
        theirs = Counter(str(task.payload.get(name)) for task in held_out)
        if not 2 <= len(ours | theirs) <= KINDS:
            continue
        for one, other, where in (
            (ours, theirs, "trained on and never held out"),
            (theirs, ours, "held out and never trained on"),
        ):
            missing = [
                kind
                for kind, times in one.items()
                if times >= MUCH * one.total() and kind not in other
            ]
            if missing and other.total() >= 2 * LEAST:
                yield Finding(
                    f"tasks whose {name!r} is {missing[0]!r} are {where} ({one[missing[0]]} of {one.total()} tasks, and 0 of "
                    f"{other.total()}): the held-out rate says nothing of them. Where that is not meant, split by a hash of the problem",
                    severity=NOTE,
                )
                return


def _by_the_seed(
    given: CheckInput, train: Sequence[Task], names: Sequence[str]
) -> Iterator[Finding]:
    if hasattr(given.family, "task_seeds"):
        return
    small = [given.family.task(seed) for seed in range(SMALL_SEEDS)]
    for name in names:
        drawn = _column(train, name)
        counted = _column(small, name)
        grows = all(one <= other for one, other in zip(counted, counted[1:]))
        if len(drawn) > LEAST and len(set(drawn)) == 1 and grows and len(set(counted)) >= 3:
            yield Finding(
                f"{name!r} grows with the task's seed: {min(counted):g} to {max(counted):g} for seeds 0 to {SMALL_SEEDS - 1}, and "
                f"{drawn[0]:g} at each of {len(drawn)} tasks that training draws, whose seeds are numbers of up to 63 bits: "
                "every task has one and the same level. Draw it with rng_at('my_env', task_seed)",
                severity=NOTE,
            )
            return


def _numbers(task: Task) -> dict[str, float]:
    """The numbers of a payload by name; lists and texts by their length."""
    numbers: dict[str, float] = {}
    for name, value in task.payload.items():
        if name.lower() in SEEDLIKE or value == task.task_seed or name == "row":
            continue
        if is_number(value):
            numbers[name] = float(value)
        elif isinstance(value, (list, tuple)) and value:
            numbers[f"length of {name}"] = float(len(list(leaves(value))))
    return numbers


def _column(some: Sequence[Task], name: str) -> list[float]:
    values = [_numbers(task).get(name) for task in some]
    return [value for value in values if value is not None]
