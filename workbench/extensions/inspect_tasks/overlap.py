"""Held-out tasks that are a training task under another payload (E2): they show the same, and answer alike whatever is said."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.basics.findings import NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.scripted_play.given import SEEDLIKE, CheckInput
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Script,
    Spent,
    opening_of,
    play,
    replay,
    same,
    shown_results,
    text_of,
    unplayable,
)
from workbench.values import Task
from workbench.values.errors import WorkbenchError
from workbench.values.seeds import rng_at
from workbench.worlds.splits import SPLITS, tasks

DRAWN = (32, 256)  # tasks of each split: at least, and at most
SECONDS = 1.0  # of drawing them
COMPARED = 16  # held-out tasks that show what a training task shows
FURTHER_CHANCES = 24  # under which a pair that is played alike is played again
THIRD_TASKS = 4  # whose values are put in the place of what two tasks differ in
FEW_PROBLEMS = 8
SURE = 3  # held-out tasks that are training tasks
MOST = 0.5  # of those that were compared
LEAST = 0.1  # of all held-out problems
ALIKE = "tasks that show the same and are played alike"


def check_overlap(given: CheckInput) -> Iterator[RuleResult]:
    """Compare what is shown and what comes of the same words, since a payload may hold a running number."""
    family: Any = given.family
    if hasattr(family, "task_seeds"):
        return
    if (why := unplayable(family)) is not None:
        yield NotChecked(why, ALIKE)
        return
    if not given.baselines:
        yield NotChecked("a solver or random play, whose words are tried at both", ALIKE)
        return
    count = _as_many_as_time_allows(given)
    try:
        drawn = [tasks(family, split, count) for split in SPLITS]
    except WorkbenchError:  # E2 says which split has none
        return
    train, held_out = (_by_opening(given, some) for some in drawn)
    yield Checked(sum(map(len, drawn)), ALIKE)
    both = [opening for opening in held_out if opening and opening in train]
    alike: list[tuple[Task, Task]] = []
    compared = 0
    for opening in both[:COMPARED]:
        one = held_out[opening][0]
        compared += 1
        other = next((task for task in train[opening][:4] if _is_the_same(given, one, task)), None)
        if other is not None:
            alike.append((one, other))
    if alike:
        # Where nothing is hidden, what is shown is the problem.
        few = len(train.keys() | held_out.keys()) <= FEW_PROBLEMS and len(alike) == len(held_out)
        share = len(both) / len(held_out) * len(alike) / compared
        yield _finding(alike, compared, few or _by_coincidence(given, alike, compared, share))


def _by_coincidence(
    given: CheckInput, alike: list[tuple[Task, Task]], compared: int, share: float
) -> bool:
    """A small world has some tasks that are played alike by the words that were tried; most are so where the split is wrong."""
    some = len(alike) < max(SURE, MOST * compared) or share < LEAST
    return some and not any(_share_a_problem(given, *pair) for pair in alike)


def _share_a_problem(given: CheckInput, one: Task, other: Task) -> bool:
    """Whether their payloads agree in something that tells other tasks apart: then what they differ in is no part of the problem."""
    agree = set(one.payload) - set(_different_fields(one, other))
    return any(len({repr(task.payload.get(name)) for task in given.tasks}) > 1 for name in agree)


def _finding(alike: list[tuple[Task, Task]], compared: int, few: bool) -> Finding:
    one, other = alike[0]
    differ = _different_fields(one, other)
    only = " and ".join(map(repr, differ)) or "nothing"
    # A simulator of others' that is told a seed: where it begins is all that there is to split.
    seeds = bool(differ) and all(name.lower() in SEEDLIKE for name in differ)
    return Finding(
        f"{len(alike)} of {compared} held-out tasks that were compared are training tasks: {one.id!r} (held out) and "
        f"{other.id!r} (trained on) show the same and answer alike to the words of every way to play; expected that "
        f"what is held out is never trained on. Their payloads differ in {only}, which the problem does not depend "
        "on. Give the family split_of(task) that goes by what makes the problem: content_split(text of it)",
        severity=NOTE if few or seeds else "error",
    )


def _as_many_as_time_allows(given: CheckInput) -> int:
    began = time.perf_counter()
    for task in given.tasks[:4]:
        given.family.task(task.task_seed)
        opening_of(given.family, task, 0)
    per_task = (time.perf_counter() - began) / max(len(given.tasks[:4]), 1)
    least, most = DRAWN
    # A held-out task takes five draws, on average.
    return int(np.clip(SECONDS / max(6 * per_task, 1e-9), least, most))


def _by_opening(given: CheckInput, drawn: list[Task]) -> dict[str, list[Task]]:
    spent = Spent()
    shown: dict[str, list[Task]] = defaultdict(list)
    for task in drawn:
        if spent.seconds > 2 * SECONDS:
            break
        shown[text_of(opening_of(given.family, task, 0))].append(task)
    return shown


def _is_the_same(given: CheckInput, one: Task, other: Task) -> bool:
    return _played_alike(given, one, other) and not _decides(given, one, other)


def _decides(given: CheckInput, one: Task, other: Task) -> bool:
    """Whether what the payloads differ in changes what comes of the same words when it is a third task's: a hidden map, say.
    Then the two were alike by the words that happened to be tried."""
    differ = _different_fields(one, other)
    if not all(name in one.payload for name in differ):
        return False
    mixed = []
    for third in given.tasks[:THIRD_TASKS]:
        changed = {name: third.payload[name] for name in differ if name in third.payload}
        mixed.append(replace(one, payload={**one.payload, **changed}))
    for name in given.baselines:
        for played in (given.own[name][0], _first_at(given, one, name)):
            script = played.script._replace(task=one)
            here = shown_results(replay(given.family, script))
            for task in mixed:
                there = shown_results(replay(given.family, script._replace(task=task)))
                if not same(here, there):
                    return True
    return False


def _first_at(given: CheckInput, task: Task, name: str) -> PlayedTrajectory:
    act = getattr(given.family, f"{name}_action")
    rng = rng_at("check-env", "decides", name)
    return play(given.family, task, 0, lambda env: act(env, rng))


def _played_alike(given: CheckInput, one: Task, other: Task) -> bool:
    """Whether the words of each way to play, found at either task, come to the same at both; under further chances too, where
    an opponent or dice may hide for a few turns what tells the tasks apart."""
    asked = 0
    for task in (one, other):
        for name in given.baselines:
            played = _alike_once(given, (one, other), task, name, 0)
            if played is None:
                return False
            asked += played
    spent = Spent()
    for chance in range(1, FURTHER_CHANCES):
        if spent.seconds > SECONDS / COMPARED:
            break
        if _alike_once(given, (one, other), one, given.baselines[0], chance) is None:
            return False
    return asked > 0


def _alike_once(
    given: CheckInput, pair: tuple[Task, Task], task: Task, name: str, chance: int
) -> int | None:
    """How many words were tried, found at one task under one chance; None: they do not come to the same at both."""
    family: Any = given.family
    act = getattr(family, f"{name}_action")
    rng = (
        rng_at("check-env", "alike", name, chance) if chance else rng_at("check-env", "alike", name)
    )
    played = play(family, task, chance, lambda env: act(env, rng))
    here, there = (shown_results(replay(family, Script(one, chance, played.texts))) for one in pair)
    return len(played.texts) if same(here, there) else None


def _different_fields(one: Task, other: Task) -> list[str]:
    names = {*one.payload, *other.payload}
    return sorted(name for name in names if one.payload.get(name) != other.payload.get(name))
