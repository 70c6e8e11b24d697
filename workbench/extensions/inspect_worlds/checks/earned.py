"""What a trajectory earns: success that agrees with the reward, rewards that are numbers within their bounds (E10, E11)."""

from __future__ import annotations

import inspect
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import CheckInput
from workbench.extensions.scripted_play.paid import (
    NEAR,
    by_success,
    contradictions,
    known_success,
    solver_fails,
    success_disagrees,
    success_unpaid,
)
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Spent,
    is_number,
    play,
    text_of,
)
from workbench.values.seeds import seed_of
from workbench.worlds.shared import made
from workbench.worlds.tool_env import ToolEnv

ENOUGH = 8  # trajectories of either kind, where chance decides
SOME = 3  # that are paid, and that are not
CHANCES = 4  # dynamics seeds at which actions are played once more
BOUNDS = ("reward_range", "reward_bounds")
STATED = re.compile(
    r"rewards?\b[^.\n]{0,60}?(?:between|from|in|within)\s*\[?\s*(-?\d+(?:\.\d+)?)\s*(?:to|and|,|\.\.)\s*"
    r"(-?\d+(?:\.\d+)?)",
    re.IGNORECASE,
)
# Against whom plays perfectly nobody wins.
MAY_BE_DRAWN = re.compile(r"\b(?:draws?|drawn|ties?|tied|opponent|adversary)\b", re.IGNORECASE)


def check_success(given: CheckInput) -> Iterator[RuleResult]:
    """`success` is true or false in every StepResult or in none, and stays once it is reached."""
    trajectories = [played for played in given.played if played.results]
    successes = [played.success for played in trajectories if played.success is not None]
    env = made(given.family)
    at_the_end = isinstance(env, ToolEnv) and env.reward is not None  # its reward says it then
    yield Checked(len(trajectories))
    for played in trajectories:
        judged = played.results[-1:] if at_the_end else played.results
        values = [result.info.get("success") for result in judged]
        if any("success" in result.info for result in judged):
            wrong = next((value for value in values if not isinstance(value, bool)), True)
            if wrong is not True:
                missing = wrong is None
                yield Finding(
                    f"info['success'] is {'missing' if missing else repr(wrong)} in a StepResult of {played.task.id!r} "
                    f"({played.policy}): expected true or false in every one, or in none"
                )
                return
            if (
                lost := next(
                    (k for k in range(1, len(values)) if values[k - 1] and not values[k]), None
                )
            ) is not None:
                yield Finding(
                    f"success is true after action {lost - 1} of {played.task.id!r} ({played.policy}) and false after "
                    f"action {lost}: it says whether the trajectory has succeeded so far"
                )
                return
    if not successes:
        if trajectories and not callable(getattr(given.family, "score", None)):
            yield Finding(
                "no StepResult says info['success']: whether a task was solved is not known, and policies are compared "
                "by return alone",
                severity=NOTE,
            )
        return
    yield from _constant_success(given, trajectories)
    results = list(_disagree(given, trajectories))
    yield from results
    if not results:
        yield from _said_early(trajectories)
    if given.by_chance and not results:
        yield from _paid_as_failures_are(given)


def _said_early(trajectories: Sequence[PlayedTrajectory]) -> Iterator[RuleResult]:
    """Success is true for a part of what is paid: most of it is earned afterwards, by who goes on."""
    early: list[tuple[PlayedTrajectory, int, float, float]] = []
    won = 0
    for played in trajectories:
        successes = [result.info.get("success") is True for result in played.results]
        if not any(successes) or not all(is_number(result.reward) for result in played.results):
            continue
        won += 1
        first = successes.index(True)
        until = sum(result.reward for result in played.results[: first + 1])
        later = max(
            float(sum(result.reward for result in played.results[first + 1 : last + 1]))
            for last in range(first, len(successes))
        )
        if later > max(until, 0.0) + NEAR and until > NEAR:
            early.append((played, first, until, later))
    yield Checked(won, "when success is said")
    if len(early) >= SOME:
        played, first, until, later = early[0]
        yield Finding(
            f"success is true from action {first} of {played.task.id!r} ({played.policy}) on, where {until:.3g} was earned, and who goes on earns "
            f"{later:.3g} more; so in {len(early)} of {won} trajectories that succeed: a part of the task counts as all of it (any reward above zero, "
            "the first of several goals), and the share of successes is larger than that of solved tasks. Say success where the task is solved",
            severity=NOTE,
        )


def _constant_success(
    given: CheckInput, trajectories: Sequence[PlayedTrajectory]
) -> Iterator[RuleResult]:
    ways = len({played.policy for played in trajectories})
    if ways >= 3 and all(known_success(trajectories)):
        yield Finding(
            f"all {len(trajectories)} trajectories succeed, by {ways} ways to play, the empty answer among them"
        )
        return
    solver, random = (given.own.get(name, ()) for name in ("solver", "random"))
    if (wrong := solver_fails(solver, random, least=4)) is not None:
        drawn = MAY_BE_DRAWN.search(given.first_prompt) is not None
        yield Finding(wrong, severity=NOTE if drawn else ERROR)


def _disagree(given: CheckInput, trajectories: Sequence[PlayedTrajectory]) -> Iterator[RuleResult]:
    """Who solves a task earns more than who does not."""
    by_chance = given.by_chance
    won, lost = by_success(trajectories)
    if not won:
        yield from _most_of_all(lost, "solver" in given.own)
    elif (unpaid := success_unpaid(won, least=4)) is not None:
        yield Finding(unpaid, severity=NOTE if _costs_least(won, lost) else ERROR)
    elif not by_chance and (pair := _pair(won, lost)) is not None:
        yield pair
    else:
        least = ENOUGH if by_chance else ENOUGH // 2
        if (wrong := success_disagrees(won, lost, least)) is not None:
            yield Finding(wrong)


def _costs_least(won: Sequence[PlayedTrajectory], lost: Sequence[PlayedTrajectory]) -> bool:
    """Whether all is paid below zero, each step say, and success costs less than failing does."""
    if not lost:
        return True
    return np.mean([one.reward for one in won]) > np.mean([one.reward for one in lost]) + NEAR


def _most_of_all(lost: Sequence[PlayedTrajectory], solver: bool) -> Iterator[RuleResult]:
    """Where nobody succeeds, several earn the most that is ever paid. Without a solver it may be a part of what solves it."""
    paid = [played.reward for played in lost]
    highest = max(paid, default=0.0)
    lowest = min(paid, default=0.0)
    best = paid.count(highest) if highest > max(lowest, 0.0) else 0
    if 4 <= best < len(lost) and highest >= 1.0:
        yield Finding(
            f"{best} trajectories earn {highest:g}, the most that is ever paid (others {lowest:g}), and success is "
            f"false in all of {len(lost)}: success is not seen",
            severity=ERROR if solver else NOTE,
        )


def _pair(won: Sequence[PlayedTrajectory], lost: Sequence[PlayedTrajectory]) -> Finding | None:
    """At one task, in as many turns: one that fails and earns as much as one that succeeds. Once may be chance; it is told
    where it is so at most of the tasks that can be compared."""
    by_task: dict[tuple[str, int], tuple[list[PlayedTrajectory], list[PlayedTrajectory]]] = (
        defaultdict(lambda: ([], []))
    )
    for which, played in [*((0, e) for e in won), *((1, e) for e in lost)]:
        by_task[played.task.id, len(played.results)][which].append(played)
    compared = [(ours, theirs) for ours, theirs in by_task.values() if ours and theirs]
    wrong = [
        (min(ours, key=lambda e: e.reward), max(theirs, key=lambda e: e.reward))
        for ours, theirs in compared
    ]
    wrong = [(a, b) for a, b in wrong if b.reward >= a.reward - NEAR]
    if len(wrong) < 2 or 2 * len(wrong) <= len(compared):
        return None
    a, b = wrong[0]
    return Finding(
        f"at {len(wrong)} of {len(compared)} tasks a trajectory that fails earns as much as one that succeeds: at "
        f"{a.task.id!r} {b.policy} fails and earns {b.reward:g}, {a.policy} succeeds and earns {a.reward:g}"
    )


def _paid_as_failures_are(given: CheckInput) -> Iterator[RuleResult]:
    """Where chance decides, too: of as many turns, some successes pay what every failure pays, and others more. Not where
    the same actions succeed under every chance and are paid by luck, as arms of a bandit are."""
    played: list[PlayedTrajectory] = []
    spent = Spent()
    for one in [one for trajectories in given.own.values() for one in trajectories]:
        if spent.seconds < given.budget_s and not one.error:
            played += _at_chances(given, one)
    won, lost = by_success(played)
    if min(len(won), len(lost)) < ENOUGH:
        return
    yield Checked(len(won), "success and reward where chance decides")
    most = max(one.reward for one in lost)
    by_turns: dict[int, set[float]] = defaultdict(set)
    for one in lost:
        by_turns[len(one.results)].add(round(one.reward, 9))
    like = [one for one in won if by_turns[len(one.results)] == {round(one.reward, 9)}]
    paid = [one for one in won if one.reward > most + NEAR]
    if len(like) < SOME or len(paid) < SOME or len(like) + len(paid) < len(won):
        return
    unpaid = [one for one in like if not _by_luck(given, one)]
    if len(unpaid) < SOME:
        return
    one = unpaid[0]
    yield Finding(
        f"{len(unpaid)} of {len(won)} trajectories that succeed are paid {one.reward:g}, as all {len(lost)} that fail are "
        f"after as many turns, and the others more, up to {max(one.reward for one in paid):g}; expected that success is "
        f"paid. So at {one.task.id!r} ({one.policy}) after {len(one.results)} turns: info['success'] and the reward ask "
        "for different things. Compute both from one and the same test"
    )


def _at_chances(given: CheckInput, one: PlayedTrajectory) -> list[PlayedTrajectory]:
    """The same actions at several dynamics seeds, until the environment says that it is over."""
    again = [one]
    for number in range(CHANCES):
        texts = iter(one.texts)
        seed = seed_of("check-env", "success", one.seed, number)
        played = play(
            given.family,
            one.task,
            seed,
            lambda env, texts=texts: next(texts),
            policy=one.policy,
            most=len(one.texts),
        )
        again += [] if played.error else [played]
    return [other for other in again if other.ended or len(other.texts) == given.family.max_turns]


def _by_luck(given: CheckInput, one: PlayedTrajectory) -> bool:
    """Whether these actions succeed under every chance, and are not always paid alike."""
    again = _at_chances(given, one)
    return all(known_success(again)) and len({other.reward for other in again}) > 1


# ------------------------------------------------------------------------------------------------ numbers


def check_rewards(given: CheckInput) -> Iterator[RuleResult]:
    """Finite numbers (or None: could not be scored), whose parts add up to them, within what is stated."""
    named: set[str] = set()
    totals = []
    for played in given.played:
        for k, result in enumerate(played.results):
            yield Checked(1)
            where = f"at {played.task.id!r} ({played.policy}), action {k}, "
            for name, value in (("reward", result.reward), *result.reward_parts.items()):
                if value is not None and not is_number(value) and "number" not in named:
                    named.add("number")
                    yield Finding(
                        f"{where}the {name} is {value!r}: expected a finite number, or None where it could not be scored"
                    )
            for kind, what in contradictions(result):
                if kind not in named:
                    named.add(kind)
                    yield Finding(f"{where}{what}")
        totals += [(played.reward, played)] if played.reward is not None else []
    yield from _bounds(given, totals)


def _bounds(
    given: CheckInput, totals: Sequence[tuple[float, PlayedTrajectory]]
) -> Iterator[RuleResult]:
    by_turn: list[tuple[float, PlayedTrajectory]] = []
    for _, played in totals:
        by_turn += [(float(result.reward), played) for result in played.results]
    for where, low, high, whole in _stated(given):
        paid = totals if whole else by_turn
        outside = [pair for pair in paid if not low - NEAR <= pair[0] <= high + NEAR]
        yield Checked(len(paid))
        if outside:
            value, played = max(outside, key=lambda pair: abs(pair[0]))
            yield Finding(
                f"{where} states rewards from {low:g} to {high:g}, and {len(outside)} of {len(paid)} "
                f"{'trajectories' if whole else 'turns'} earn something else: {value:g} at {played.task.id!r} "
                f"({played.policy})",
                severity=ERROR if whole else NOTE,
            )
            return


def _stated(given: CheckInput) -> Iterator[tuple[str, float, float, bool]]:
    """Where bounds are stated, the bounds, and whether they are of a whole trajectory."""
    family: Any = given.family
    for name in BOUNDS:
        stated = getattr(family, name, None)
        if isinstance(stated, (tuple, list)) and len(stated) == 2 and all(map(_is_bound, stated)):
            yield f"{type(family).__name__}.{name}", float(stated[0]), float(stated[1]), True
    low = getattr(family, "min_reward", None)
    high = getattr(family, "max_reward", None)
    if _is_bound(low) and _is_bound(high):
        yield f"{type(family).__name__}.min_reward and max_reward", float(low), float(high), True
    texts = {
        "its prompt": text_of(next(iter(given.openings.values()), None)),
        "its docstring": (inspect.getdoc(type(family)) if type(family).__doc__ else "") or "",
    }
    for where, text in texts.items():
        if (match := STATED.search(text)) is not None and float(match[1]) < float(match[2]):
            yield where, float(match[1]), float(match[2]), False


def _is_bound(value: Any) -> bool:
    return (
        isinstance(value, (int, float, np.number))
        and not isinstance(value, bool)
        and not math.isnan(value)
    )
