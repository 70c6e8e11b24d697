"""Zero-variance groups: those whose trajectories all earned the same, from which a comparison within groups learns nothing."""

from __future__ import annotations

from collections.abc import Sequence

# Differences below this share of the largest number come from rounding: a reward is a sum of turns, and -0.1 three times
# is not the float -0.3. Divided by a deviation, or by an optimizer that goes by the size of gradients, such a difference
# would be trained on.
ROUNDING = 1e-9
SIDES = ("all won", "all lost", "all the same")  # of a zero-variance group; "" is one that is not


def _are_equal(rewards: Sequence[float]) -> bool:
    """Whether these rewards are all the same, up to rounding."""
    return max(rewards) - min(rewards) <= ROUNDING * max(map(abs, rewards))


def flat_side(outcomes: Sequence[tuple[float | None, bool | None]]) -> str:
    """Say on which side a group is flat, by (reward, success) of its trajectories.

    "all won", "all lost" or "all the same" where every scored trajectory earned the same reward (up to rounding); "" where rewards differ,
    and where fewer than two trajectories were scored.
    """
    scored = [(reward, success) for reward, success in outcomes if reward is not None]
    if len(scored) < 2 or not _are_equal([reward for reward, _ in scored]):
        return ""
    successes = {success for _, success in scored}
    if successes == {True}:
        return "all won"
    return "all lost" if successes == {False} else "all the same"
