"""Rewards that land on the turn after the one that earned them, and parts of a reward that nobody can feel (E29)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from workbench.basics.findings import NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.inspect_worlds.checks.late import ANNOUNCED
from workbench.extensions.inspect_worlds.checks.once_more import check_amounts
from workbench.extensions.inspect_worlds.checks.totals import check_totals
from workbench.extensions.scripted_play.given import NONSENSE, CheckInput
from workbench.extensions.scripted_play.paid import NEAR
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Spent,
    is_number,
    replay,
)

TASKS = 6  # whose solver's turns are changed
LEAST = 4
TURNS = 5  # of each
OFTEN = 0.5  # of the turns that were changed
ENOUGH = 60  # turns by which a part is called constant
WAYS = 4  # to play
UNFELT = 0.01  # of what another part moves the reward by
PENALTY = re.compile(r"format|penalt|valid|illegal", re.IGNORECASE)  # whose weight may be zero
WHOLE = "the reward"
# What a prompt says where a turn is paid by what was there before it.
STANDING = re.compile(
    r"\b(?:each|every|per) (?:\w+ )?(?:turn|step|day|round|week|month|year|move)|income|interest|upkeep|profit|invest\w*|"
    r"\b(?:buy|sell|stock|hold\w*|bet|position|market)\b",
    re.IGNORECASE,
)


def check_felt(given: CheckInput) -> Iterator[RuleResult]:
    """What one action less earns, in its own turn and in the next; and by how much each part moves what is earned."""
    if (why := given.why_not_played(baselines=True)) is not None:
        yield NotChecked(why)
        return
    yield from _a_turn_late(given)
    yield from _unfelt(given)
    yield from check_amounts(given)
    yield from check_totals(given)


# ------------------------------------------------------------------------------------------------ a turn late


def _a_turn_late(given: CheckInput) -> Iterator[RuleResult]:
    """A part of the reward that never goes by its own turn's action, and often by the one before."""
    trajectories = given.solved_once(least_turns=3)[:TASKS]
    if len(trajectories) < LEAST:
        return
    own: dict[str, int] = defaultdict(int)
    late: dict[str, int] = defaultdict(int)
    asked = 0
    spent = Spent()
    for played in trajectories:
        last = len(played.texts) - 1
        for k in {*range(min(last, TURNS)), last}:
            if spent.seconds > given.budget_s:
                break
            before = played.texts[:k]
            for name in _moved(played, before, played.texts[k], k):
                own[name] += 1
            if k < last:
                asked += 1
                for name in _moved(played, before, played.texts[k], k, NONSENSE):
                    late[name] += 1
    yield Checked(asked, "what an action earns in its own turn and in the next")
    if ANNOUNCED.search(given.first_prompt) or STANDING.search(given.first_prompt):
        return
    parts = [name for name in late if name != WHOLE]
    for name in (WHOLE, *parts):
        if asked and late[name] >= OFTEN * asked and not own[name]:
            where = name if name == WHOLE else f"the part {name!r} of the reward"
            yield Finding(
                f"{where} is paid one turn late: of {asked} actions of the solver that were replaced by {NONSENSE!r}, "
                f"{late[name]} change it in the next turn, whatever is done there, and none in its own; expected that a turn "
                "is paid for what its own action did, since credit by the turn goes to the wrong one. Compute it after the state "
                "has changed, from the state before and after this action"
            )
            return


def _moved(
    played: PlayedTrajectory, before: tuple[str, ...], text: str, k: int, *after: str
) -> set[str]:
    """The parts of the last turn's reward that depend on the action of turn k. `after`: an action that follows it."""
    paid: list[Mapping[str, Any]] = []
    for action in (text, NONSENSE):
        script = played.script._replace(texts=(*before, action, *after))
        again = replay(played.family, script)
        if again.error or len(again.results) != len(script.texts):
            return set()
        result = again.results[-1]
        paid.append({**result.reward_parts, WHOLE: result.reward or 0.0})
    one, other = paid
    return {name for name in one if abs(one[name] - other.get(name, 0.0)) > NEAR}


# ------------------------------------------------------------------------------------------------ what nobody feels


def _unfelt(given: CheckInput) -> Iterator[RuleResult]:
    """A part that is zero in every turn by every way to play, or moves what is earned by next to nothing."""
    trajectories = [one for one in given.played if one.reward is not None and one.results]
    ways = {one.policy for one in trajectories}
    turns = sum(len(one.results) for one in trajectories)
    if len(ways) < WAYS or "solver" not in given.own:
        return
    by_part = _by_part(trajectories)
    yield Checked(len(trajectories), "parts of the reward")
    spread = {name: float(np.ptp([*map(sum, paid)])) for name, paid in by_part.items()}
    most = max(spread, key=spread.get, default="")
    if not most or spread[most] <= NEAR:
        return
    for name, moved in spread.items():
        flat = not any(chain.from_iterable(by_part[name]))  # what a turn costs is the same in each
        if turns >= ENOUGH and flat and not PENALTY.search(name):
            yield Finding(
                f"the part {name!r} of the reward is 0 in all {turns} turns, by {len(ways)} ways to play, the "
                "solver among them: it is flat, and nothing is learned of it. A division of whole numbers, a scale or a bound "
                "may have made it so",
                severity=NOTE,
            )
            return
        if NEAR * 1e-3 < moved < UNFELT * spread[most]:
            yield Finding(
                f"the part {name!r} moves what a trajectory earns by {moved:.3g} at most, and the part {most!r} by "
                f"{spread[most]:.3g}, of {len(trajectories)} trajectories by {len(ways)} ways to play: the smaller one is not "
                f"felt beside the larger ({moved / spread[most]:.2%}). One of the two may have another scale than was meant",
                severity=NOTE,
            )
            return


def _by_part(trajectories: Sequence[PlayedTrajectory]) -> dict[str, list[list[float]]]:
    """Part -> its values by turn, of each trajectory."""
    by_part: dict[str, list[list[float]]] = defaultdict(list)
    for played in trajectories:
        values: dict[str, list[float]] = defaultdict(list)
        for result in played.results:
            for name, value in result.reward_parts.items():
                values[name].append(float(value) if is_number(value) else 0.0)
        for name, paid in values.items():
            by_part[name].append(paid)
    return by_part
