"""Rewards that go by the clock (E20): the same trajectory, played while the clock runs on by minutes between any two looks at it.

The clock is another one for the environment's own modules alone: `time`, `datetime` and what they import from them.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from workbench.basics.findings import Checked, Finding, NotChecked, RuleResult
from workbench.extensions.inspect_worlds.checks.given import CheckInput
from workbench.extensions.inspect_worlds.own_code import own_modules
from workbench.extensions.inspect_worlds.playing import (
    PlayedTrajectory,
    replay,
    same,
    unplayable,
)

LATER_S = 100_000.0  # of the first look: another hour of another day
BETWEEN_S = 90.0  # two looks
SCRIPTS = 6
CLOCKS = ("time", "monotonic", "perf_counter", "process_time")


def check_clock(given: CheckInput) -> Iterator[RuleResult]:
    """What a trajectory earns does not depend on when it is played, or how slowly."""
    family = given.family
    if (why := unplayable(family)) is not None:
        yield NotChecked(why)
        return
    modules = own_modules(family)
    if not modules:
        yield NotChecked("modules of its own, in this process")
        return
    for played in _paid_and_unpaid(given):
        base = replay(family, played.script)
        if not same(_paid(base), _paid(replay(family, played.script))):
            yield NotChecked("a trajectory that goes the same way twice (E3)")
            return
        with _another_clock(modules) as looks:
            later = replay(family, played.script)
        yield Checked(1)
        if looks and not same(_paid(base), _paid(later)):
            yield Finding(
                f"what task {played.task.id!r} pays for the same actions ({played.policy}) depends on the clock: "
                f"{_words(base)} now, and {_words(later)} where {BETWEEN_S:g} s pass between two looks at it (in "
                f"{looks[0]}); expected the same. A machine that is busy teaches something else then: pay for turns, "
                "moves or tokens in place of seconds, or give the time in the task"
            )
            return


def _paid_and_unpaid(given: CheckInput) -> list[PlayedTrajectory]:
    chosen: list[PlayedTrajectory] = []
    for trajectories in given.plays.values():
        chosen += [played for played in trajectories if played.texts and not played.error][:2]
    return chosen[:SCRIPTS]


def _paid(played: PlayedTrajectory) -> list[Any]:
    """What is paid in each turn and afterwards, success and ends."""
    turns = [
        (result.reward, result.terminated, result.truncated, result.info.get("success"))
        for result in played.results
    ]
    return [*turns, played.reward, played.success, played.error.partition(":")[0]]


def _words(played: PlayedTrajectory) -> str:
    if played.error:
        return f"an exception ({played.error})"
    paid = "no number" if played.reward is None else f"{played.reward:g}"
    return f"{paid} in {len(played.results)} turns"


# ------------------------------------------------------------------------------------------------ another clock


@contextmanager
def _another_clock(modules: list[ModuleType]) -> Iterator[list[str]]:
    """For a while, whoever looks at the clock in these modules sees another one. Yields where it was looked at."""
    looks: list[str] = []
    passed = [LATER_S]

    def moved(clock: Callable[[], float], name: str, module: str, unit: float) -> Callable[[], Any]:
        def look() -> Any:
            looks.append(f"{name} of {module}")
            passed[0] += BETWEEN_S
            return type(clock())(clock() + passed[0] * unit)

        return look

    changed: list[tuple[ModuleType, str, Any]] = []
    for module in modules:
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
