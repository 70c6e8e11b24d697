"""Which tasks are for training and which are held out: two streams that cannot meet.

A task belongs to a split by what it *is* (`content_split` hashes the map, not the seed), so a map that is held out can
never turn up in training under another seed. Index i of a stream depends on (split, seed, i) alone: nobody has to
draw the tasks before it, and every process draws the same ones.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator

from workbench.errors import ConfigError
from workbench.seeds import seed_of
from workbench.types import Task

SPLITS = ("train", "heldout")
_HELDOUT_SHARE = 5  # one problem in five is held out
_MOST_TRIES = 10_000


def content_split(content: str) -> str:
    """The split that a problem belongs to, by its content (a map, a question): one in five is held out."""
    return "heldout" if seed_of("split", content) % _HELDOUT_SHARE == 0 else "train"


def check_split(split: str) -> str:
    if split not in SPLITS:
        raise ConfigError(f"expected a split of {SPLITS}, got {split!r}; other sets of tasks are made by their seeds")
    return split


def split_task(make: Callable[[int], Task], split_of: Callable[[Task], str], split: str, seed: int, index: int) -> Task:
    """Task number `index` of the stream (split, seed): the first draw at this address that belongs to the split."""
    check_split(split)
    for attempt in range(_MOST_TRIES):
        task = make(seed_of("task", split, seed, index, attempt))
        if split_of(task) == split:
            return task
    raise ConfigError(f"{_MOST_TRIES} draws brought no task of split {split!r}; the family has too few different tasks")


def distinct(tasks: Iterator[Task], content_of: Callable[[Task], str], count: int) -> tuple[Task, ...]:
    """The first `count` tasks whose contents differ: an evaluation set that counts no problem twice."""
    seen: dict[str, Task] = {}
    repeats = 0
    while len(seen) < count:
        task = next(tasks)
        repeats = repeats + 1 if content_of(task) in seen else 0
        seen.setdefault(content_of(task), task)
        if repeats > _MOST_TRIES:
            raise ConfigError(f"asked for {count} different tasks, but the family seems to have only {len(seen)}")
    return tuple(seen.values())
