"""What an attempt earns: success that agrees with the reward, rewards that are numbers within their bounds (E10, E11)."""

from __future__ import annotations

import inspect
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from workbench.envs.checks.given import CheckInput
from workbench.envs.checks.playing import PlayedAttempt, is_number, text_of
from workbench.types.findings import NOTE, Checked, Finding, RuleResult

SIGMAS = 4.0  # standard errors between the rewards of successes and failures
ENOUGH = 8  # attempts of either kind, where chance decides
NEAR = 1e-9
BOUNDS = ("reward_range", "reward_bounds")
STATED = re.compile(
    r"rewards?\b[^.\n]{0,60}?(?:between|from|in|within)\s*\[?\s*(-?\d+(?:\.\d+)?)\s*(?:to|and|,|\.\.)\s*"
    r"(-?\d+(?:\.\d+)?)",
    re.IGNORECASE,
)


def check_success(given: CheckInput) -> Iterator[RuleResult]:
    """`success` is true or false in every StepResult or in none, and stays once it is reached."""
    attempts = [each for each in given.attempts if each.results]
    said = [each.success for each in attempts if each.success is not None]
    yield Checked(len(attempts))
    for each in attempts:
        values = [result.info.get("success") for result in each.results]
        if any("success" in result.info for result in each.results):
            if (
                wrong := next(
                    (v for v, r in zip(values, each.results) if not isinstance(v, bool)), True
                )
            ) is not True:
                missing = wrong is None
                yield Finding(
                    f"info['success'] is {'missing' if missing else repr(wrong)} in a StepResult of {each.task.id!r} "
                    f"({each.policy}): expected true or false in every one, or in none"
                )
                return
            if (
                lost := next(
                    (k for k in range(1, len(values)) if values[k - 1] and not values[k]), None
                )
            ) is not None:
                yield Finding(
                    f"success is true after action {lost - 1} of {each.task.id!r} ({each.policy}) and false after "
                    f"action {lost}: it says whether the attempt has succeeded so far"
                )
                return
    if not said:
        if attempts and not callable(getattr(given.family, "score", None)):
            yield Finding(
                "no StepResult says info['success']: whether a task was solved is not known, and policies are compared "
                "by return alone",
                severity=NOTE,
            )
        return
    yield from _constant_success(given, attempts)
    yield from _disagree(attempts, given.by_chance)


def _constant_success(given: CheckInput, attempts: Sequence[PlayedAttempt]) -> Iterator[RuleResult]:
    solved = [each.success for each in given.own.get("solver", ()) if each.success is not None]
    ways = len({each.policy for each in attempts})
    if ways >= 3 and all(each.success for each in attempts if each.success is not None):
        yield Finding(
            f"all {len(attempts)} attempts succeed, by {ways} ways to play, the empty answer among them"
        )
    elif len(solved) >= 4 and not any(solved):
        others = sum(bool(each.success) for each in attempts)
        yield Finding(
            f"the best-known solver succeeds at none of {len(solved)} attempts (all other ways to play at {others}): "
            "success is not seen, or is turned"
        )
    elif len(solved) >= 4:
        chance = [each.success for each in given.own.get("random", ()) if each.success is not None]
        if chance and np.mean(solved) + 0.3 < np.mean(chance):
            yield Finding(
                f"the best-known solver succeeds at {np.mean(solved):.0%} of {len(solved)} attempts, random play at "
                f"{np.mean(chance):.0%}: success is turned, or moves are"
            )


def _disagree(attempts: Sequence[PlayedAttempt], by_chance: bool) -> Iterator[RuleResult]:
    """Who solves a task earns more than who does not."""
    scored = [each for each in attempts if each.reward is not None and each.success is not None]
    won, lost = ([each for each in scored if each.success is value] for value in (True, False))
    if not won:
        highest = max((each.reward for each in scored), default=0.0)
        lowest = min((each.reward for each in scored), default=0.0)
        best = [each for each in scored if each.reward == highest > max(lowest, 0.0)]
        if len(best) >= 4 and len(best) < len(scored) and highest >= 1.0:
            yield Finding(
                f"{len(best)} attempts earn {highest:g}, the most that is ever paid (others {lowest:g}), and success is "
                f"false in all of {len(scored)}: success is not seen"
            )
        return
    paid = np.array([each.reward for each in won])
    if (
        len(won) >= 4
        and paid.max() <= 0
        and not any(
            value > 0
            for each in won
            for result in each.results
            for value in result.reward_parts.values()
            if is_number(value)
        )
    ):
        yield Finding(
            f"{len(won)} attempts succeed, and nothing that is positive is paid to any of them (at most {paid.max():g})"
        )
        return
    if not by_chance and (found := _pair(won, lost)) is not None:
        yield found
        return
    if min(len(won), len(lost)) >= (ENOUGH if by_chance else ENOUGH // 2):
        other = np.array([each.reward for each in lost])
        error = math.sqrt(paid.var() / len(paid) + other.var() / len(other))
        if paid.mean() < other.mean() - max(SIGMAS * error, NEAR) or np.ptp([*paid, *other]) == 0:
            yield Finding(
                f"{len(won)} attempts that succeed earn {paid.mean():.4g} on average, and {len(lost)} that fail earn "
                f"{other.mean():.4g}: success and reward disagree"
            )


def _pair(won: Sequence[PlayedAttempt], lost: Sequence[PlayedAttempt]) -> Finding | None:
    """At one task, in as many turns: one that fails and earns as much as one that succeeds. Once may be chance; it is told
    where it is so at most of the tasks that can be compared."""
    by_task: dict[tuple[str, int], tuple[list[PlayedAttempt], list[PlayedAttempt]]] = defaultdict(
        lambda: ([], [])
    )
    for which, each in [*((0, e) for e in won), *((1, e) for e in lost)]:
        by_task[each.task.id, len(each.results)][which].append(each)
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
        f"at {len(wrong)} of {len(compared)} tasks an attempt that fails earns as much as one that succeeds: at "
        f"{a.task.id!r} {b.policy} fails and earns {b.reward:g}, {a.policy} succeeds and earns {a.reward:g}"
    )


# ------------------------------------------------------------------------------------------------ numbers


def check_rewards(given: CheckInput) -> Iterator[RuleResult]:
    """Finite numbers (or None: could not be scored), whose parts add up to them, within what is stated."""
    named: set[str] = set()
    totals = []
    for each in given.attempts:
        for k, result in enumerate(each.results):
            yield Checked(1)
            where = f"at {each.task.id!r} ({each.policy}), action {k}, "
            for name, value in (("reward", result.reward), *result.reward_parts.items()):
                if value is not None and not is_number(value) and "number" not in named:
                    named.add("number")
                    yield Finding(
                        f"{where}the {name} is {value!r}: expected a finite number, or None where it could not be scored"
                    )
            parts = [value for value in result.reward_parts.values() if is_number(value)]
            if (
                parts
                and is_number(result.reward)
                and abs(sum(parts) - result.reward) > 1e-6 * (1 + abs(result.reward))
                and "parts" not in named
            ):
                named.add("parts")
                yield Finding(
                    f"{where}the reward is {result.reward:g}, and its parts {dict(result.reward_parts)} make "
                    f"{sum(parts):g}"
                )
            if result.terminated and result.truncated and "both" not in named:
                named.add("both")
                yield Finding(f"{where}it is both over (terminated) and cut by a limit (truncated)")
        totals += [(each.reward, each)] if each.reward is not None else []
    yield from _bounds(given, totals)


def _bounds(
    given: CheckInput, totals: Sequence[tuple[float, PlayedAttempt]]
) -> Iterator[RuleResult]:
    for where, low, high, whole in _stated(given):
        paid = (
            totals
            if whole
            else [(float(r.reward), each) for _, each in totals for r in each.results]
        )
        outside = [(value, each) for value, each in paid if not low - NEAR <= value <= high + NEAR]
        yield Checked(len(paid))
        if outside:
            value, each = max(outside, key=lambda found: abs(found[0]))
            yield Finding(
                f"{where} states rewards from {low:g} to {high:g}, and {len(outside)} of {len(paid)} "
                f"{'attempts' if whole else 'turns'} earn something else: {value:g} at {each.task.id!r} "
                f"({each.policy})"
            )
            return


def _stated(given: CheckInput) -> Iterator[tuple[str, float, float, bool]]:
    """Where bounds are stated, the bounds, and whether they are of a whole attempt."""
    family: Any = given.family
    for name in BOUNDS:
        stated = getattr(family, name, None)
        if isinstance(stated, (tuple, list)) and len(stated) == 2 and all(map(_is_bound, stated)):
            yield f"{type(family).__name__}.{name}", float(stated[0]), float(stated[1]), True
    low, high = getattr(family, "min_reward", None), getattr(family, "max_reward", None)
    if _is_bound(low) and _is_bound(high):
        yield f"{type(family).__name__}.min_reward and max_reward", float(low), float(high), True
    texts = {
        "its prompt": text_of(next(iter(given.openings.values()), None)),
        "its docstring": (inspect.getdoc(type(family)) if type(family).__doc__ else "") or "",
    }
    for where, text in texts.items():
        if (found := STATED.search(text)) is not None and float(found[1]) < float(found[2]):
            yield where, float(found[1]), float(found[2]), False


def _is_bound(value: Any) -> bool:
    return (
        isinstance(value, (int, float, np.number))
        and not isinstance(value, bool)
        and not math.isnan(value)
    )
