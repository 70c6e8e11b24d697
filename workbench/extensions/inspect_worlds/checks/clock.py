"""Rewards that go by the clock (E20): the same trajectory, played while the clock runs on by minutes between any two looks at it.

The clock is another one for the environment's own modules alone (the service `another_clock`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workbench.basics.extensions import has_service, service
from workbench.basics.findings import Checked, Finding, NotChecked, RuleResult
from workbench.extensions.scripted_play.given import CheckInput
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    replay,
    same,
    unplayable,
)

SCRIPTS = 6
CLOCK = "another_clock"


def check_clock(given: CheckInput) -> Iterator[RuleResult]:
    """What a trajectory earns does not depend on when it is played, or how slowly."""
    family = given.family
    if (why := unplayable(family)) is not None:
        yield NotChecked(why)
        return
    if not has_service(CLOCK):
        yield NotChecked("the extension own_code, which has another clock")
        return
    another_clock = service(CLOCK, "a clock that runs on")
    for played in _paid_and_unpaid(given):
        base = replay(family, played.script)
        if not same(_paid(base), _paid(replay(family, played.script))):
            yield NotChecked("a trajectory that goes the same way twice (E3)")
            return
        with another_clock(family) as looks:
            later = replay(family, played.script)
        yield Checked(1)
        if looks and not same(_paid(base), _paid(later)):
            yield Finding(
                f"what task {played.task.id!r} pays for the same actions ({played.policy}) depends on the clock: "
                f"{_words(base)} now, and {_words(later)} where minutes pass between two looks at it (in "
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
