"""Which tasks are for training and which are held out: two streams that cannot meet.

A task belongs to a split by what it *is* (`family.split_of`: the hash of a map, the pair of names), not by its seed, so
a map that is held out can never turn up in training under another seed. Every task of a stream has an address
(split, seed, step, index): it can be drawn without those before it, and every process draws the same ones.
"""

from __future__ import annotations

import json
from itertools import count as integers

from workbench.values import Task
from workbench.values.errors import ConfigError
from workbench.values.seeds import seed_of
from workbench.worlds.base import EnvFamily

SPLITS = ("train", "held-out")
_HELD_OUT_SHARE = 5  # one problem in five is held out
_MOST_DRAWS = 10_000  # for one task of a split
_PATIENCE = 100  # repeated problems in a row, after which a family is taken to have no more of them


def content_split(content: str) -> str:
    """The split that a problem belongs to, by its content (a map, a question): one in five is held out."""
    return "held-out" if seed_of("split", content) % _HELD_OUT_SHARE == 0 else "train"


def split_of(family: EnvFamily, task: Task) -> str:
    """ "train" or "held-out": as the family says; if it does not say, one payload in five by its
    hash (of a dozen different ones it may be none)."""
    if hasattr(family, "split_of"):
        return family.split_of(task)
    return content_split(content_of(task))


def tasks(
    family: EnvFamily, split: str, count: int, *, seed: int = 0, step: int = 0, per_step: int = 0
) -> list[Task]:
    """`count` tasks of a split: the same ones in every process. Raises ConfigError for an unknown split.

    "train": the tasks of one step (`seed` is the run's). "held-out": different problems as far as the family has
    enough of them, so that no problem counts twice; a longer list begins with the shorter one. `per_step`: how many a step
    of the run has (0: `count`), where one step goes on after the other (a data set's epochs).
    """
    if split not in SPLITS:
        raise ConfigError(
            f"expected a split of {SPLITS}, got {split!r}; make any other set with family.task(seed)"
        )
    if hasattr(family, "task_seeds"):
        return _in_order(family, split, count, seed, max(step - 1, 0) * (per_step or count))
    if split == "train":
        return [_draw(family, split, seed, step, index) for index in range(count)]
    distinct: list[Task] = []
    seen: set[str] = set()
    repeats = 0
    for index in integers():
        if len(distinct) == count:
            return distinct
        task = _draw(family, split, seed, step, index)
        if content_of(task) not in seen:
            repeats = 0
        elif repeats < _PATIENCE:
            repeats += 1
            continue
        seen.add(content_of(task))
        distinct.append(task)
    raise AssertionError("unreachable: the integers do not end")


def _in_order(family: EnvFamily, split: str, count: int, seed: int, first: int) -> list[Task]:
    """Draws of a family that says itself which come one after another: those of step 1 come first."""
    first = first if split == "train" else 0
    task_seeds = family.task_seeds(split, first, count, seed)
    return [family.task(task_seed) for task_seed in task_seeds]


def _draw(family: EnvFamily, split: str, seed: int, step: int, index: int) -> Task:
    """The first draw at this address that belongs to the split."""
    for attempt in range(_MOST_DRAWS):
        task = family.task(seed_of("task", split, seed, step, index, attempt))
        if split_of(family, task) == split:
            return task
    raise _none_of(family, split)


def _none_of(family: EnvFamily, split: str) -> ConfigError:
    """The error that says what is missing."""
    different = len({content_of(family.task(seed)) for seed in range(_PATIENCE)})
    if hasattr(family, "split_of"):
        how = "its split_of(task) never says so; it returns 'train' or 'held-out' for every task"
    else:
        how = "it has no split_of(task), so that one payload in five is held out by its hash"
    return ConfigError(
        f"{_MOST_DRAWS} draws brought no task of split {split!r}: {_PATIENCE} seeds of {family.name!r} "
        f"make {different} different payloads, and {how}. Make more different tasks (what tells two apart "
        f"belongs in Task.payload), or define split_of(self, task), which says 'train' or 'held-out'"
    )


def content_of(task: Task) -> str:
    """The payload of a task as text: two with the same are one problem."""
    return json.dumps(dict(task.payload), sort_keys=True)
