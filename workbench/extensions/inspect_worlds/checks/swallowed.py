"""Scorers that fail and pay zero (E21): what they ask is made to fail while the solver's right words are played.

A handler of everything (`except Exception`, a bare `except`) around a call may take a server that does not answer for a wrong
answer. The first line of such a block that calls something is made to raise, as a connection does that is refused. What then
raises, pays None or tells the policy that something failed is right; what pays less without a word is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from workbench.basics.extensions import has_service, service
from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.scripted_play.given import CheckInput
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    replay,
    text_of,
    unplayable,
)

TELLS = re.compile(
    r"refused|error|fail|unavailable|exception|try again|could not|cannot|timed? ?out",
    re.IGNORECASE,
)
REFUSED = "refused: what is asked here"  # of what the failing call raises
GUARDS = "caught_everywhere"


def check_swallowed(given: CheckInput) -> Iterator[RuleResult]:
    """A score that could not be computed is none, and not zero."""
    family = given.family
    if (why := unplayable(family)) is not None:
        yield NotChecked(why)
        return
    paid = [
        played
        for played in given.own.get("solver", ())
        if not played.error and played.reward is not None and played.reward > 0
    ]
    if not has_service(GUARDS):
        yield NotChecked("the extension own_code, which reads what is caught")
        return
    guards = list(service(GUARDS, "blocks that catch everything")(family))
    failing = service("failing_call", "a call that fails")
    if not guards:
        yield Checked(1)  # nothing is caught that should not be
        return
    if not paid:
        yield NotChecked("a solver that is paid, whose words are played while something fails")
        return
    example = min(paid, key=lambda played: len(played.texts))
    base = replay(family, example.script)
    for guard in guards:
        with failing(guard) as raised:
            played = replay(family, example.script)
            reward = played.reward  # a score afterwards is asked here
        yield Checked(1)
        if raised and _without_a_word(base, played, reward):
            where = f"{guard.path.rpartition('/')[2]} line {guard.line}"
            yield Finding(
                f"where what {where} asks does not answer (ConnectionError), the solver's right words at "
                f"{example.task.id!r} are paid {reward:g} in place of {base.reward:g}, and nobody is told: {guard.catches} "
                f"in line {guard.handler} takes the failure for a wrong answer. Expected that it raises, or that the reward "
                "is None: then the trajectory is left out. Catch what a wrong answer raises (ValueError), and nothing else",
                severity=ERROR if guard.severe else NOTE,
            )


def _without_a_word(base: PlayedTrajectory, played: PlayedTrajectory, reward: float | None) -> bool:
    if played.error or reward is None or base.reward is None or reward >= base.reward:
        return False
    shown = " ".join(map(text_of, played.shown))
    before = " ".join(map(text_of, base.shown))
    policy_knows = TELLS.search(shown) is not None and TELLS.search(before) is None
    noted = [repr(dict(result.info)) for result in played.results]
    return not policy_knows and REFUSED not in " ".join(noted)
