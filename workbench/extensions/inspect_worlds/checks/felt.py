"""Rewards that land on the turn after the one that earned them, and parts of a reward that nobody can feel (E29)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.inspect_worlds.checks.given import SLOW_S, CheckInput
from workbench.extensions.inspect_worlds.checks.late import ANNOUNCED
from workbench.extensions.inspect_worlds.paid import NEAR
from workbench.extensions.inspect_worlds.playing import (
    PlayedTrajectory,
    Spent,
    is_number,
    replay,
    unplayable,
)

TASKS = 6  # whose solver's turns are changed
LEAST = 4
TURNS = 5  # of each
NONSENSE = "zq ??"
OFTEN = 0.5  # of the turns that were changed
ENOUGH = 60  # turns by which a part is called constant
WAYS = 4  # to play
UNFELT = 0.01  # of what another part moves the reward by
PENALTY = re.compile(r"format|penalt|valid|illegal", re.IGNORECASE)  # whose weight may be zero
WHOLE = "the reward"
EARLIER = "what the turns before the last pay"
LAST = "what the last turn pays"
# What a prompt says where a turn is paid by what was there before it.
STANDING = re.compile(
    r"\b(?:each|every|per) (?:\w+ )?(?:turn|step|day|round|week|month|year|move)|income|interest|upkeep|profit|invest\w*|"
    r"\b(?:buy|sell|stock|hold\w*|bet|position|market)\b",
    re.IGNORECASE,
)


def check_felt(given: CheckInput) -> Iterator[RuleResult]:
    """What one action less earns, in its own turn and in the next; and by how much each part moves what is earned."""
    if (why := unplayable(given.family)) is not None:
        yield NotChecked(why)
        return
    if not given.baselines or given.step_s > SLOW_S:
        yield NotChecked("random play or a solver, in steps that are fast")
        return
    yield from _a_turn_late(given)
    yield from _unfelt(given)


# ------------------------------------------------------------------------------------------------ a turn late


def _a_turn_late(given: CheckInput) -> Iterator[RuleResult]:
    """A part of the reward that never goes by its own turn's action, and often by the one before."""
    solver = [one for one in given.own.get("solver", ()) if len(one.texts) >= 3 and not one.error]
    by_task = {one.task.id: one for one in reversed(solver) if one.success is not False}
    trajectories = list(by_task.values())[:TASKS]
    if len(trajectories) < LEAST or given.by_chance:
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
                own[name] += name != EARLIER or k < last
            if k < last:
                asked += 1
                for name in _moved(played, before, played.texts[k], k, NONSENSE):
                    late[name] += 1
    yield Checked(asked, "what an action earns in its own turn and in the next")
    if ANNOUNCED.search(given.first_prompt) or STANDING.search(given.first_prompt):
        return
    parts = [name for name in late if name not in (WHOLE, EARLIER)]
    for name in (WHOLE, *parts, EARLIER):
        if asked and late[name] >= OFTEN * asked and not own[name]:
            where = name if name in (WHOLE, EARLIER) else f"the part {name!r} of the reward"
            yield Finding(
                f"{where} is paid one turn late: of {asked} actions of the solver that were replaced by {NONSENSE!r}, "
                f"{late[name]} change it in the next turn, whatever is done there, and none in its own; expected that a turn "
                "is paid for what its own action did, since credit by the turn goes to the wrong one. Compute it after the state "
                "has changed, from the state before and after this action",
                severity=NOTE if name == EARLIER else ERROR,
            )
            return


def _moved(
    played: PlayedTrajectory, before: tuple[str, ...], text: str, k: int, *after: str
) -> set[str]:
    """The parts of the last turn's reward that depend on the action of turn k. `after`: an action that follows it."""
    paid: list[Mapping[str, float]] = []
    for action in (text, NONSENSE):
        script = played.script._replace(texts=(*before, action, *after))
        again = replay(played.family, script)
        if again.error or len(again.results) != len(script.texts):
            return set()
        paid.append(_paid_in(again, len(script.texts) - 1))
    one, other = paid
    return {name for name in one if abs(one[name] - other.get(name, 0.0)) > NEAR}


def _paid_in(played: PlayedTrajectory, turn: int) -> dict[str, float]:
    result = played.results[turn]
    parts = {name: float(value) for name, value in result.reward_parts.items() if is_number(value)}
    whole = float(result.reward) if is_number(result.reward) else 0.0
    return parts | {WHOLE: whole, EARLIER: whole}


# ------------------------------------------------------------------------------------------------ what nobody feels


def _unfelt(given: CheckInput) -> Iterator[RuleResult]:
    """A part that is the same in every turn by every way to play, or moves what is earned by next to nothing."""
    trajectories = [one for one in given.played if one.reward is not None and one.results]
    ways = {one.policy for one in trajectories}
    turns = sum(len(one.results) for one in trajectories)
    if len(ways) < WAYS or "solver" not in given.own:
        return
    sums = _sums(trajectories)
    yield Checked(len(trajectories), "parts of the reward")
    spread = {name: float(np.ptp(values)) for name, values in sums.items()}
    most = max(spread, key=spread.get, default="")
    if not most or spread[most] <= NEAR:
        return
    for name, moved in spread.items():
        by_turn = _by_turn(trajectories, name)
        constant = len(by_turn) == 1 and name not in (EARLIER, LAST)
        if turns >= ENOUGH and constant and not PENALTY.search(name):
            yield Finding(
                f"the part {name!r} of the reward is {by_turn.pop():g} in all {turns} turns, by {len(ways)} ways to play, the "
                "solver among them: it is flat, and nothing is learned of it. A division of whole numbers, a scale or a bound "
                "may have made it so",
                severity=NOTE,
            )
            return
        if NEAR * 1e-3 < moved < UNFELT * spread[most]:
            yield Finding(
                f"{_named(name)} moves what a trajectory earns by {moved:.3g} at most, and {_named(most)} by "
                f"{spread[most]:.3g}, of {len(trajectories)} trajectories by {len(ways)} ways to play: the smaller one is not "
                f"felt beside the larger ({moved / spread[most]:.2%}). One of the two may have another scale than was meant",
                severity=NOTE,
            )
            return


def _named(name: str) -> str:
    return name if name in (EARLIER, LAST) else f"the part {name!r}"


def _sums(trajectories: Sequence[PlayedTrajectory]) -> dict[str, list[float]]:
    """Part -> what it pays in each trajectory; where no parts are named, the last turn and those before it."""
    names = {name for one in trajectories for result in one.results for name in result.reward_parts}
    if len(names) > 1:
        return {name: [sum(_values(one, name)) for one in trajectories] for name in sorted(names)}
    long = [one for one in trajectories if len(one.results) > 1]
    paid = [[float(result.reward or 0.0) for result in one.results] for one in long]
    if not any(any(of_one[:-1]) for of_one in paid):
        return {}
    return {EARLIER: [sum(of_one[:-1]) for of_one in paid], LAST: [of_one[-1] for of_one in paid]}


def _values(played: PlayedTrajectory, name: str) -> list[float]:
    values = [result.reward_parts.get(name, 0.0) for result in played.results]
    return [float(value) if is_number(value) else 0.0 for value in values]


def _by_turn(trajectories: Sequence[PlayedTrajectory], name: str) -> set[float]:
    return {value for one in trajectories for value in _values(one, name)}
