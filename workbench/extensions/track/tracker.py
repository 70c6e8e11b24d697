"""What a tracker is to this package, and what it is told of a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol

from workbench.extensions.track.cursor import TrackerCursor
from workbench.extensions.track.items import Item
from workbench.values.errors import ConfigError


@dataclass(frozen=True)
class TrackedRun:
    """Where a run goes.

    name: of the run, as the tracker shows it.
    project: that the tracker keeps it in.
    dest: a folder or an address of the tracker's own kind; None: where the tracker writes by itself.
    settings: of the run, one per dotted name.
    cursor: what was sent before.
    """

    name: str
    project: str
    dest: str | None
    settings: Mapping[str, bool | int | float | str]
    cursor: TrackerCursor


class Tracker(Protocol):
    """One tracker, with a run of its own in it."""

    def pause_s(self, elapsed_s: float) -> float:
        """Seconds between two batches of a run that has been followed for `elapsed_s`."""

    def held(self, item: Item) -> Collection[str] | None:
        """Which parts of an item it has, asked after a batch that may have arrived or not; None: it cannot tell."""

    def send(self, items: Sequence[tuple[int, Item]]) -> None:
        """Hand over items, each with its number among all of the run; return once it keeps them. Raises whatever its package
        raises."""

    def close(self) -> None:
        """Say that nothing more comes."""


def require(package: str, tracker: str) -> None:
    """Raises ConfigError where the package of a tracker is not installed."""
    if find_spec(package) is None:
        raise ConfigError(
            f"sending a run to {tracker} needs the package {package}, which is not installed here: "
            f"pip install {package}"
        )
