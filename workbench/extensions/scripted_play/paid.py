"""What both sets of rules ask of played trajectories: what success is worth, whether the solver succeeds, whether a result
contradicts itself. Each answer is None, or a sentence that says what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from workbench.extensions.scripted_play.playing import PlayedTrajectory, is_number
from workbench.values import StepResult, sum_of

SIGMAS = 4.0  # standard errors between the rewards of successes and failures
NEAR = 1e-9
BEHIND = 0.3  # of success, by which the solver may be worse than random play


def by_success(
    played: Sequence[PlayedTrajectory],
) -> tuple[list[PlayedTrajectory], list[PlayedTrajectory]]:
    """Those that succeed, and those that fail, where reward and success are known."""
    scored = [one for one in played if one.reward is not None and one.success is not None]
    return [one for one in scored if one.success], [one for one in scored if not one.success]


def known_success(played: Sequence[PlayedTrajectory]) -> list[bool]:
    return [one.success for one in played if one.success is not None]


def solver_fails(
    solver: Sequence[PlayedTrajectory], random: Sequence[PlayedTrajectory], least: int
) -> str | None:
    """The best-known solver succeeds, and not less than chance does. `least`: trajectories by which it is judged."""
    solved = known_success(solver)
    chance = known_success(random)
    if len(solved) < least:
        return None
    if not any(solved):
        return (
            f"the best-known solver succeeds at none of {len(solved)} trajectories (random play at {sum(chance)} of "
            f"{len(chance)}): success is not seen or is turned, or moves do not do what they are called"
        )
    if chance and np.mean(solved) + BEHIND < np.mean(chance):
        return (
            f"the best-known solver succeeds at {np.mean(solved):.0%} of {len(solved)} trajectories, random play at "
            f"{np.mean(chance):.0%}: success is turned, or moves are"
        )
    return None


def success_unpaid(won: Sequence[PlayedTrajectory], least: int) -> str | None:
    """Something positive is paid to who succeeds."""
    most = max((played.reward for played in won), default=0.0)
    if len(won) < least or most > 0 or any(map(_has_positive_part, won)):
        return None
    return f"{len(won)} trajectories succeed, and nothing that is positive is paid to any of them (at most {most:g})"


def _has_positive_part(played: PlayedTrajectory) -> bool:
    for result in played.results:
        if any(is_number(value) and value > 0 for value in result.reward_parts.values()):
            return True
    return False


def success_disagrees(
    won: Sequence[PlayedTrajectory], lost: Sequence[PlayedTrajectory], least: int
) -> str | None:
    """Who succeeds earns more on average than who fails. `least`: of either kind."""
    if min(len(won), len(lost)) < least:
        return None
    paid = np.array([played.reward for played in won])
    other = np.array([played.reward for played in lost])
    error = math.sqrt(paid.var() / len(paid) + other.var() / len(other))
    clear = max(SIGMAS * error, NEAR)
    if paid.mean() >= other.mean() - clear and np.ptp([*paid, *other]) > 0:
        return None
    return (
        f"{len(won)} trajectories that succeed earn {paid.mean():.4g} on average, and {len(lost)} that fail earn "
        f"{other.mean():.4g}: success and reward disagree"
    )


def contradictions(result: StepResult) -> Iterator[tuple[str, str]]:
    """(kind, sentence) of what a result says against itself."""
    parts = [value for value in result.reward_parts.values() if is_number(value)]
    if parts and is_number(result.reward):
        apart = abs(sum_of(parts) - result.reward)
        if apart > 1e-6 * (1 + abs(result.reward)):
            yield (
                "parts",
                f"the reward is {result.reward:g}, and its parts {dict(result.reward_parts)} make {sum_of(parts):g}",
            )
    if result.terminated and result.truncated:
        yield "both", "it is both over (terminated) and cut by a limit (truncated)"
