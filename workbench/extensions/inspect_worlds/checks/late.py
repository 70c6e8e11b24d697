"""Replies that show the state before the action (E23), and state keys that name two states (E24).

Both compare trajectories that differ in one place: in one action, or in the way to one state.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from workbench.basics.extensions import has_service, service
from workbench.basics.findings import (
    NOTE,
    Checked,
    Finding,
    NotChecked,
    RuleResult,
)
from workbench.extensions.scripted_play.given import SLOW_S, CheckInput
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Script,
    Spent,
    is_number,
    is_over,
    play,
    replay,
    text_of,
    unplayable,
)
from workbench.values import Task
from workbench.values.errors import shortened
from workbench.values.seeds import rng_at
from workbench.worlds.shared import made

ACTIONS = 4  # that are compared in a turn
ENOUGH = 3  # tasks, each of which must answer late
ANNOUNCED = re.compile(
    r"\b(?:delay\w*|late|later|ago|previous\w*|before|last turn|next|tomorrow|overnight|arriv\w*|behind|(?:day|turn|step|round|week|hour) after)\b",
    re.IGNORECASE,
)
WALKS = 10  # trajectories of a task, among which two meet in a state
STEPS = 12  # of each
PAIRS = 24  # of a task that are compared
KEYED_TASKS = 6


# ------------------------------------------------------------------------------------------------ one action late


def _late_parts(given: CheckInput) -> Iterator[RuleResult]:
    """A part of a reply that is old, where replies are inspected."""
    if has_service("reply_checks"):
        yield from service("reply_checks", "workbench check-env")["E23"](given)


def check_replies(given: CheckInput) -> Iterator[RuleResult]:
    """A reply shows what came of the action that it answers."""
    family = given.family
    if (why := unplayable(family)) is not None:
        yield NotChecked(why)
        return
    actions = given.common_actions(ACTIONS)
    if family.max_turns < 3 or len(actions) < 2 or given.step_s > SLOW_S:
        yield NotChecked("three turns in which two actions can be compared")
        return
    late: list[Task] = []
    spent = Spent()
    for task in given.tasks:
        if spent.seconds > given.budget_s:
            break
        answer = _lag_of(given, task, actions)
        if answer is False:
            yield Checked(1)
            yield from _late_parts(given)
            return
        if answer is True:
            late.append(task)
    yield Checked(len(late))
    announced = ANNOUNCED.search(given.first_prompt) is not None
    if len(late) >= ENOUGH and not announced:
        yield Finding(
            f"replies are one action late at {len(late)} tasks, {late[0].id!r} for one: whatever is done in a turn, its "
            "reply is the same, and the reply after the next action goes by it; expected that a reply shows the state "
            "after the action, and not the one before the move. Build the observation after the state has changed (or "
            "say in the prompt that replies are delayed)"
        )
    else:
        yield from _late_parts(given)


def _lag_of(given: CheckInput, task: Task, actions: Sequence[str]) -> bool | None:
    """True: the replies of two turns go by the action before and not by their own. False: one goes by its own. None:
    trajectories that end too early, or replies that go by nothing."""
    lagged = 0
    start: tuple[str, ...] = ()
    for _ in range(2):
        now = {_reply(given, task, (*start, text)) for text in actions} - {None}
        if len(now) > 1:
            return False
        after = {
            text: {_reply(given, task, (*start, text, other)) for other in actions} - {None}
            for text in actions
        }
        if any(len(replies) > 1 for replies in after.values()):
            return False
        shown = {next(iter(replies)) for replies in after.values() if replies}
        lagged += len(shown) > 1
        goes_on = [text for text in actions if after[text]]
        if not goes_on:
            return None
        start = (*start, goes_on[0])
    return True if lagged == 2 else None


def _reply(given: CheckInput, task: Task, texts: tuple[str, ...]) -> str | None:
    """What is answered to the last action; None where the trajectory has ended."""
    played = replay(given.family, Script(task, 0, texts))
    if played.error or not played.results or any(map(is_over, played.results)):
        return None
    return text_of(played.results[-1].observation)


# ------------------------------------------------------------------------------------------------ one key, two states


def check_keys(given: CheckInput) -> Iterator[RuleResult]:
    """Who comes to a state by two ways, in as many turns, goes on alike by the same actions."""
    family = given.family
    if (why := unplayable(family)) is not None:
        yield NotChecked(why)
        return
    if not callable(getattr(made(family), "state_key", None)) or not given.baselines:
        yield NotChecked(
            "a state_key(), and random play or a solver that comes to a state by two ways"
        )
        return
    if given.step_s <= SLOW_S:
        yield from _told_apart(given)
    if given.by_chance or given.step_s > SLOW_S:
        yield NotChecked(
            "an environment without chance, whose steps are fast: it can be played to one state by two ways"
        )
        return
    spent = Spent()
    compared = 0
    for task, walks in _all_walks(given):
        for one, other, k in _meetings(walks):
            if spent.seconds > given.budget_s:
                break
            compared += 1
            apart = _goes_on_otherwise(given, one, other, k)
            if apart is not None:
                yield Checked(compared)
                yield _two_states(one, other, k, apart)
                return
    yield Checked(compared)


def _told_apart(given: CheckInput) -> Iterator[RuleResult]:
    """One key of states that `info["state"]`, which is for people, tells apart."""
    seen: dict[tuple[str, str], str] = {}
    for task, walks in _all_walks(given):
        for played in walks:
            for result, reading in zip(played.results, played.readings[1:]):
                state = result.info.get("state")
                key = reading.get("state_key")
                if not isinstance(state, str) or not isinstance(key, str) or is_over(result):
                    continue
                other = seen.setdefault((task.id, key), state)
                if other != state:
                    yield Checked(len(seen), "keys beside info['state']")
                    yield Finding(
                        f"state_key() is {shortened(key, 60)!r} in two states of {task.id!r} that info['state'] tells apart: "
                        f"{shortened(other, 60)!r} and {shortened(state, 60)!r}. Where what comes next depends on what they "
                        "differ in, put it into the key, since turns are compared by it (GiGPO)",
                        severity=NOTE,
                    )
                    return
    yield Checked(len(seen), "keys beside info['state']")


def _all_walks(given: CheckInput) -> list[tuple[Task, list[PlayedTrajectory]]]:
    """Of each task that states are looked for at, made once for both looks."""

    def make() -> list[tuple[Task, list[PlayedTrajectory]]]:
        spent = Spent()
        return [(task, list(_walks(given, task, spent))) for task in given.tasks[:KEYED_TASKS]]

    return given.once("walks", make)


def _walks(given: CheckInput, task: Task, spent: Spent) -> Iterator[PlayedTrajectory]:
    """Some turns of random play, and the solver to the end."""
    family: Any = given.family
    most = min(family.max_turns, STEPS)
    for number in range(WALKS):
        if spent.seconds > given.budget_s:
            return
        rng = rng_at("check-env", "walks", task.id, number)
        turns = iter(range(most))

        def act(env: Any, turns: Iterator[int] = turns, rng: Any = rng, first: int = number) -> str:
            name = given.baselines[0 if next(turns) < first else -1]
            return getattr(family, f"{name}_action")(env, rng)

        played = play(family, task, 0, act, most=most)
        if not played.error and played.results:
            yield played


def _meetings(
    walks: Sequence[PlayedTrajectory],
) -> Iterator[tuple[PlayedTrajectory, PlayedTrajectory, int]]:
    """Pairs of trajectories that have the same state key after k actions, which they came to by other ones."""
    by_state: dict[tuple[int, str], list[PlayedTrajectory]] = defaultdict(list)
    count = 0
    for played in walks:
        for k in range(1, len(played.texts)):
            key = repr(played.readings[k].get("state_key"))
            for other in by_state[k, key]:
                if other.texts[:k] != played.texts[:k] and count < PAIRS:
                    count += 1
                    yield other, played, k
            by_state[k, key].append(played)


def _goes_on_otherwise(
    given: CheckInput, one: PlayedTrajectory, other: PlayedTrajectory, k: int
) -> int | None:
    """The turn in which the actions of either, from turn k on, end or lead elsewhere than where the other one does."""
    for here, there in ((one, other), (other, one)):
        crossed = replay(
            given.family, here.script._replace(texts=(*there.texts[:k], *here.texts[k:]))
        )
        for turn in range(k, min(len(here.results), len(crossed.results))):
            if _state_after(here, turn) != _state_after(crossed, turn):
                return turn
    return None


def _state_after(played: PlayedTrajectory, turn: int) -> tuple[Any, ...]:
    result = played.results[turn]
    key = repr(played.readings[turn + 1].get("state_key"))
    paid = round(result.reward, 9) if is_number(result.reward) else None
    return result.terminated, result.info.get("success"), paid, None if is_over(result) else key


def _two_states(one: PlayedTrajectory, other: PlayedTrajectory, k: int, turn: int) -> Finding:
    key = shortened(repr(one.readings[k].get("state_key")), 60)
    ways = " and ".join(shortened(", ".join(played.texts[:k]), 90) for played in (one, other))
    return Finding(
        f"state_key() is {key} in two different states of {one.task.id!r}: after {k} actions each ({ways}) the same "
        f"actions lead elsewhere, in turn {turn}; expected that equal keys mean the same state, since turns are compared "
        "by them (GiGPO). Put into the key all that what comes next depends on"
    )
