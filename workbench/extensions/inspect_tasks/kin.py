"""Held-out tasks that are training tasks in other words (E2), and held-out tasks of the easiest level alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from workbench.basics.findings import (
    NOTE,
    Checked,
    Finding,
    RuleResult,
)
from workbench.extensions.inspect_tasks.near_copies import near_copies, splits_differ
from workbench.extensions.scripted_play.given import (
    SLOW_S,
    CheckInput,
    without_its_seed,
)
from workbench.extensions.scripted_play.playing import Spent, is_number, opening_of, play, text_of
from workbench.values import Task
from workbench.values.errors import WorkbenchError, shortened
from workbench.values.seeds import rng_at
from workbench.worlds.splits import SPLITS, tasks

DRAWN = 192  # tasks of each split
SECONDS = 2.0
COMPARED = 16  # held-out tasks
FEW = 8  # different problems: fewer cannot be kept apart
MUCH = 0.25  # of the held-out tasks that were compared
NAME = re.compile(r"\b[A-Z][a-z]+\b")
LEVELS = re.compile(
    r"level|difficulty|depth|size|digits|hops|steps|length|stage|grade", re.IGNORECASE
)


def check_kin(given: CheckInput) -> Iterator[RuleResult]:
    if given.step_s > SLOW_S:
        return
    try:
        train, held_out = (tasks(given.family, split, DRAWN) for split in SPLITS)
    except WorkbenchError:
        return
    yield Checked(len(train) + len(held_out), "tasks in other words")
    results = list(_reworded(train, held_out))
    yield from results
    if not results:
        results = list(_renamed(given, train, held_out))
        yield from results
    if not results:
        yield from near_copies(given, train, held_out)
    results = list(_easiest(train, held_out))
    yield from results
    if not results:
        yield from splits_differ(given, train, held_out)


# ------------------------------------------------------------------------------------------------ in other words


def _normal(task: Task) -> str:
    """The payload without case, spaces and the names of its seed."""
    payload = without_its_seed(task)
    if isinstance(
        payload.get("row"), dict
    ):  # of a file: where it stands there makes no other question
        payload = {"row": payload["row"]}
    written = json.dumps(payload, sort_keys=True, default=str, ensure_ascii=False).casefold()
    return re.sub(r"\s+", "", written)


def _written(task: Task) -> str:
    return json.dumps(dict(task.payload), sort_keys=True, default=str)


def _reworded(train: Sequence[Task], held_out: Sequence[Task]) -> Iterator[Finding]:
    known = {_normal(task): task for task in train}
    exact = set(map(_written, train))
    others = {task.id: task for task in held_out}
    both = [
        task for task in others.values() if _normal(task) in known and _written(task) not in exact
    ]
    if len({*map(_normal, others.values())} | set(known)) > FEW and 2 * len(both) >= len(others):
        one, other = both[0], known[_normal(both[0])]
        yield Finding(
            f"{len(both)} of {len(others)} held-out tasks are training tasks but for case and spacing: {one.id!r} asks "
            f"{_question(one)}, and {other.id!r}, which is trained on, {_question(other)}. Evaluation tells what was "
            "remembered. Compare normalised texts before files are split, and drop the near-duplicates"
        )


def _question(task: Task) -> str:
    row = task.payload.get("row")
    value: Any = row if isinstance(row, dict) else dict(task.payload)
    return shortened(json.dumps(value, ensure_ascii=False, default=str), 90)


def _renamed(
    given: CheckInput, train: Sequence[Task], held_out: Sequence[Task]
) -> Iterator[Finding]:
    """The same numbers and words, other names, and the same right answer."""
    family: Any = given.family
    if "solver" not in given.own or hasattr(family, "task_seeds"):
        return
    spent = Spent()
    known: dict[str, Task] = {}
    for task in train:
        if spent.seconds > SECONDS:
            break
        known.setdefault(_without_names(given, task), task)
    compared = {task.id: task for task in held_out}
    both: list[tuple[Task, Task]] = []
    asked = 0
    for task in list(compared.values())[:COMPARED]:
        asked += 1
        other = known.get(_without_names(given, task))
        if other is None or text_of(opening_of(family, other, 0)) == text_of(
            opening_of(family, task, 0)
        ):
            continue
        if _solution(given, task) == _solution(given, other):
            both.append((task, other))
    # Problems by their numbers: where all have the same ones, names are what is asked about.
    numbers = {own for shape in known if len(own := tuple(re.findall(r"\d+", shape))) >= 2}
    if len(numbers) > FEW and len(both) > MUCH * asked:
        one, other = both[0]
        yield Finding(
            f"{len(both)} of {asked} held-out tasks that were compared are the same problem as a training task, with another "
            f"name in it: {one.id!r} (held out) and {other.id!r} (trained on) have the same numbers and the same answer. Split "
            "by what makes the problem (its numbers), not by its wording: split_of(task) with content_split"
        )


def _without_names(given: CheckInput, task: Task) -> str:
    return NAME.sub("X", text_of(opening_of(given.family, task, 0)))


def _solution(given: CheckInput, task: Task) -> tuple[str, ...]:
    family: Any = given.family
    rng = rng_at("check-env", "solution")
    return play(family, task, 0, lambda env: family.solver_action(env, rng)).texts


# ------------------------------------------------------------------------------------------------ the easiest level


def _easiest(train: Sequence[Task], held_out: Sequence[Task]) -> Iterator[Finding]:
    """By its name a field is a level, and what is held out lies below all that is trained on."""
    names = {name for task in train for name in task.payload if LEVELS.search(name)}
    for name in sorted(names):
        trained = _numbers_under(train, name)
        held = _numbers_under(held_out, name)
        if held and len(trained) > 1 and max(held) < min(trained):
            yield Finding(
                f"held-out tasks all have {name!r} {sorted(held)}, and training has {sorted(trained)}: what is held out is "
                "easier than all that is trained on, so the held-out rate says little of it. Hold out some tasks of every "
                "level, or harder ones",
                severity=NOTE,
            )
            return


def _numbers_under(some: Sequence[Task], name: str) -> set[float]:
    """The values of a field; none at all where one of them is no number."""
    values = [task.payload.get(name) for task in some]
    return set(values) if all(map(is_number, values)) else set()
