"""Another clock for an environment's own modules: a day later, and minutes between any two looks at it.

It stands in the place of `time`, `datetime` and what the modules import from them; nobody else's clock changes.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from workbench.extensions.own_code.modules import own_modules

LATER_S = 100_000.0  # of the first look: another hour of another day
BETWEEN_S = 90.0  # two looks
CLOCKS = ("time", "monotonic", "perf_counter", "process_time")


@contextmanager
def another_clock(family: Any) -> Iterator[list[str]]:
    """For a while, whoever looks at the clock in a module of the family's author sees another one. Yields where it was looked
    at."""
    looks: list[str] = []
    passed = [LATER_S]

    def moved(clock: Callable[[], float], name: str, module: str, unit: float) -> Callable[[], Any]:
        def look() -> Any:
            looks.append(f"{name} of {module}")
            passed[0] += BETWEEN_S
            return type(clock())(clock() + passed[0] * unit)

        return look

    changed: list[tuple[ModuleType, str, Any]] = []
    for module in own_modules(family):
        instead = _instead_of(module.__name__, moved)
        for name, value in list(vars(module).items()):
            other = instead.get(id(value))
            if other is not None:
                changed.append((module, name, value))
                setattr(module, name, other)
    try:
        yield looks
    finally:
        for module, name, value in changed:
            setattr(module, name, value)


def _instead_of(module: str, moved: Callable[..., Callable[[], Any]]) -> dict[int, Any]:
    """Id of a clock, or of a module that has it -> what stands in for it."""
    clocks: dict[str, Callable[[], Any]] = {}
    for name in CLOCKS:
        clocks[name] = moved(getattr(time, name), f"time.{name}", module, 1.0)
        clocks[f"{name}_ns"] = moved(getattr(time, f"{name}_ns"), f"time.{name}_ns", module, 1e9)
    instead: dict[int, Any] = {id(getattr(time, name)): clock for name, clock in clocks.items()}
    instead[id(time)] = _stand_in(time, clocks)
    seconds = clocks["time"]

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return datetime.datetime.fromtimestamp(seconds(), tz)

        @classmethod
        def utcnow(cls) -> datetime.datetime:
            return datetime.datetime.fromtimestamp(seconds(), datetime.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> datetime.datetime:
            return datetime.datetime.fromtimestamp(seconds())

    instead[id(datetime.datetime)] = Later
    instead[id(datetime)] = _stand_in(datetime, {"datetime": Later})
    return instead


def _stand_in(module: ModuleType, other: dict[str, Any]) -> ModuleType:
    """A module like this one, with other values under some names."""
    copy = ModuleType(module.__name__)
    vars(copy).update({**vars(module), **other})
    return copy
