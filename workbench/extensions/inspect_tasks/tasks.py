"""Tasks: functions of their seed, told apart by their content, and held out where they are said to be (E1, E2)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator

from workbench.basics.canonical_json import plain
from workbench.basics.findings import NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.inspect_tasks.kin import check_kin
from workbench.extensions.inspect_tasks.overlap import check_overlap
from workbench.extensions.scripted_play.given import CheckInput, problem_of
from workbench.extensions.scripted_play.playing import (
    Script,
    Spent,
    global_dice,
    opening_of,
    replay,
    same,
    text_of,
)
from workbench.values import Task
from workbench.values.errors import WorkbenchError, shortened
from workbench.values.seeds import seed_of
from workbench.worlds.splits import SPLITS, split_of, tasks

DRAWN = 32  # tasks of each split
FEW_PROBLEMS = 8  # of which a family has no more: then held-out tasks cannot be others
SOME = 0.2  # of the held-out problems: less may be chance, of seeds that are kept apart
PATIENCE_S = 3.0
SHARED = 100  # tasks whose split is asked
EXCHANGED = 0.65  # of them that are held out


def check_tasks(given: CheckInput) -> Iterator[RuleResult]:
    family = given.family
    contents = defaultdict(set)
    for task, seed in zip(given.tasks, given.seeds):
        with global_dice(seed % 1000):
            again = family.task(seed)
        yield Checked(1)
        if not same(_content(task), _content(again)):
            yield Finding(
                f"task({seed}) is another one each time: {shortened(dict(task.payload))} and "
                f"{shortened(dict(again.payload))}"
            )
            return
        if task.env != family.name:
            yield Finding(
                f"task({seed}) says env = {task.env!r}, and the family is called {family.name!r}"
            )
            return
        if task.task_seed != seed:
            yield Finding(
                f"task({seed}) says task_seed = {task.task_seed!r}: it could not be made again from what is stored"
            )
            return
        try:
            stored = plain(task.payload, "the payload")
        except WorkbenchError as error:
            yield Finding(f"the payload of task {task.id!r} cannot be stored: {error}")
            return
        contents[task.id].add(json.dumps(stored, sort_keys=True))
    for name, payloads in contents.items():
        if len(payloads) > 1:
            yield Finding(
                f"{len(payloads)} different tasks have the id {name!r}, which is all that a trajectory is known by"
            )
            return
    yield from _from_its_payload(given)


def _content(task: Task) -> str:
    return json.dumps([task.id, dict(task.payload)], sort_keys=True, default=repr)


def _from_its_payload(given: CheckInput) -> Iterator[RuleResult]:
    """What an environment plays is made of the task that it is handed, stored and read again."""
    shown = defaultdict(set)
    for task in given.tasks[:4]:
        stored = Task(
            task.id,
            task.env,
            task.task_seed,
            json.loads(json.dumps(dict(task.payload))),
            dict(task.metadata),
        )
        one, other = (replay(given.family, Script(version, 0, ())) for version in (task, stored))
        if one.opening is not None and (
            other.opening is None or text_of(one.opening) != text_of(other.opening)
        ):
            yield Finding(
                f"task {task.id!r}, stored as JSON and read again, begins otherwise: "
                f"{shortened(text_of(one.opening)[-120:])} and "
                f"{shortened(other.error or text_of(other.opening)[-120:])}"
            )
            return
        shown[json.dumps(stored.payload, sort_keys=True)].add(text_of(one.opening))
    if any(len(openings) > 1 for openings in shown.values()):
        yield Finding(
            "tasks of equal payloads begin otherwise: what makes the problem is not in the payload, by which "
            "training and held-out tasks are told apart"
        )


# ------------------------------------------------------------------------------------------------ splits


def check_splits(given: CheckInput) -> Iterator[RuleResult]:
    family = given.family
    if not hasattr(family, "split_of") and not hasattr(family, "task_seeds"):
        yield NotChecked("split_of(task): one payload in five is held out, by its hash")
        yield from check_overlap(given)
        yield from check_kin(given)
        return
    for task in given.tasks:
        one = split_of(family, task)
        other = split_of(family, family.task(task.task_seed))
        yield Checked(1)
        if one not in SPLITS or one != other:
            yield Finding(
                f"split_of says {one!r}, then {other!r}, of task {task.id!r}: expected one of {SPLITS}, always the "
                "same"
            )
            return
    yield from _mostly_held_out(given)
    spent = Spent()
    family.task(given.seeds[0])
    if spent.seconds * 10_000 > 100:  # so many draws are made for a split that has no task
        yield NotChecked(f"tasks that take less than {spent.seconds:.2f} s to make")
        return
    try:
        problems = {split: _problems(given, tasks(family, split, DRAWN)) for split in SPLITS}
    except WorkbenchError as error:
        yield Finding(str(error))
        return
    results = list(_problems_in_both(problems))
    yield from results
    if not any(isinstance(result, Finding) for result in results):
        yield from check_overlap(given)
        yield from check_kin(given)


def _mostly_held_out(given: CheckInput) -> Iterator[RuleResult]:
    """Most of what is drawn is held out: the two splits may be exchanged."""
    if not hasattr(given.family, "split_of"):
        return
    spent = Spent()
    held_out: list[bool] = []
    for number in range(SHARED):
        if spent.seconds > PATIENCE_S / 10:
            break
        task = given.family.task(seed_of("check-env", "share", number))
        held_out.append(split_of(given.family, task) == "held-out")
    yield Checked(len(held_out), "the share that is held out")
    if len(held_out) >= DRAWN and sum(held_out) >= EXCHANGED * len(held_out):
        yield Finding(
            f"{sum(held_out)} of {len(held_out)} tasks are held out, and the rest is left to train on; usually one in five is (content_split). The two "
            "names may be exchanged in split_of",
            severity=NOTE,
        )


def _problems(given: CheckInput, drawn: list[Task]) -> dict[str, Task]:
    """Each problem, with a task that asks it."""
    spent = Spent()
    problems: dict[str, Task] = {}
    for task in drawn:
        if spent.seconds > PATIENCE_S:
            break
        problems[problem_of(task, opening_of(given.family, task, 0))] = task
    return problems


def _problems_in_both(problems: dict[str, dict[str, Task]]) -> Iterator[RuleResult]:
    train, held_out = (problems[split] for split in SPLITS)
    both = sorted(train.keys() & held_out.keys())
    yield Checked(len(train) + len(held_out))
    if both:
        few = len(train.keys() | held_out.keys()) <= FEW_PROBLEMS
        yield Finding(
            f"{len(both)} of {len(held_out)} problems that are held out are trained on, under other seeds: "
            f"{held_out[both[0]].id!r} asks what {train[both[0]].id!r} asks"
            + (
                f". There are no more than {len(train.keys() | held_out.keys())} problems in all"
                if few
                else ""
            ),
            severity=NOTE if few or len(both) < SOME * len(held_out) else "error",
        )
