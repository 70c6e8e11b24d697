"""What runs the jobs of a grid: processes of this machine and SLURM, both through submitit, or a Ray cluster.

A scheduler is asked for four things (`Scheduler`); `each` keeps it busy, and sends again what it lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeVar

from workbench.extensions.ablation.jobs import LOCAL, RAY, SLURM, Lost
from workbench.values.errors import ConfigError, WorkbenchError

EXTRA = {LOCAL: "lab", SLURM: "lab", RAY: "ray"}  # of pyproject.toml, that brings the package
AT_ONCE = 64  # jobs elsewhere, unless something else is asked for
MOST_LOSSES = 3  # of one job: one that ends its machine each time is not sent for ever
NOTHING = object()
Item = TypeVar("Item")


class Scheduler(AbstractContextManager, Protocol):
    """Runs functions elsewhere; a context, at whose end it lets go of what it needed."""

    def submit(self, do: Callable[..., Any], *arguments: Any) -> Any:
        """Send a call, and return a handle on it."""

    def ended(self, handles: Collection[Any]) -> Sequence[Any]:
        """Wait a moment, and return those that have ended."""

    def outcome(self, handle: Any) -> Any:
        """Return what the function returned, or Lost. Raises WorkbenchError for what it raised."""

    def cancel(self, handles: Collection[Any]) -> None:
        """End them at once; none of them runs when this returns."""


def each(
    items: Iterable[Item],
    do: Callable[..., Any],
    arguments: Sequence[Any],
    scheduler: Scheduler | None,
    at_once: int,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Item, Any]]:
    """Yield (item, do(item, *arguments)) in the order in which they end, or (item, Lost).

    An item is taken when one of `at_once` places is free. One that was lost is sent again unless it `is_over`. Where
    this is left early, by an error or Ctrl-C, what is under way is cancelled. Without a scheduler: in this process, one
    after the other."""
    if scheduler is None:
        yield from ((item, do(item, *arguments)) for item in items)
        return
    queue: Iterator[Any] = iter(items)
    running: dict[Any, Item] = {}
    losses: Counter[Item] = Counter()
    try:
        while True:
            while len(running) < at_once and (item := next(queue, NOTHING)) is not NOTHING:
                running[scheduler.submit(do, item, *arguments)] = item
            if not running:
                return
            for handle in scheduler.ended(running):
                item = running.pop(handle)
                outcome = scheduler.outcome(handle)
                if isinstance(outcome, Lost):
                    losses[item] += 1
                    is_sent_again = losses[item] < MOST_LOSSES and not is_over()
                    outcome = Lost(outcome.why, is_sent_again)
                    queue = chain([item], queue) if is_sent_again else queue
                yield item, outcome
    except BaseException:
        scheduler.cancel([*running])
        raise


def each_in_processes(
    items: Iterable[Item], do: Callable[..., Any], arguments: Sequence[Any], workers: int
) -> Iterator[tuple[Item, Any]]:
    """Yield (item, do(item, *arguments)), by so many processes of one thread at once; 0: in this one. WorkbenchError
    for an item whose process was killed MOST_LOSSES times."""
    if not workers:
        yield from each(items, do, arguments, None, 1)
        return
    with scheduler_type(LOCAL)(Path(), "items", 0, {}) as scheduler:
        for item, outcome in each(items, do, arguments, scheduler, workers):
            if not isinstance(outcome, Lost):
                yield item, outcome
            elif not outcome.is_sent_again:
                raise WorkbenchError(
                    f"{item}: {outcome.why}, {MOST_LOSSES} times; too little memory?"
                )


def scheduler_type(on: str) -> Callable[[Path, str, int, Mapping[str, Any]], Scheduler]:
    """What makes the scheduler of this name: of a folder for its files that all machines see, what its jobs are called,
    how many GPUs each has, and its own options. ConfigError where its package is missing."""
    if on not in EXTRA:
        raise ConfigError(f"jobs run on {LOCAL}, {SLURM} or {RAY}, got {on!r}")
    try:
        if on == RAY:
            from workbench.extensions.ablation.on_ray import RayCluster

            return RayCluster
        from workbench.extensions.ablation.on_submitit import LocalProcesses, Slurm

        return Slurm if on == SLURM else LocalProcesses
    except ImportError as error:
        raise ConfigError(
            f"jobs on {on} need a package that is not installed: "
            f"pip install 'agent-rl-workbench[{EXTRA[on]}]' ({error})"
        ) from error
