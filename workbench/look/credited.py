"""The credit of a batch as arrays, and where two of them differ.

Axis letters: N trajectories, all groups end to end · T tokens, all their segments end to end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from workbench.values import Trajectory

ROUNDING = (
    1e-12  # of the largest value: below it, sums that were added up in another order are the same
)


@dataclass(frozen=True, eq=False)
class Credited:
    """What `Algorithm.credit` gave for a batch, as arrays. `reward_N`: what was paid in all, NaN where not scored.
    `kept_N`: scored, and left in by the filter. `inert`: settings that could not have changed any of it, with why."""

    advantage_T: np.ndarray
    weight_T: np.ndarray
    return_T: np.ndarray | None
    reward_N: np.ndarray
    kept_N: np.ndarray
    notes: Mapping[str, float] = field(default_factory=dict)
    inert: Mapping[str, str] = field(default_factory=dict)


def tokens_of(trajectories: Sequence[Trajectory]) -> list[slice]:
    """Where in T the tokens of each trajectory stand."""
    spans = []
    start = 0
    for trajectory in trajectories:
        end = start + sum(map(len, trajectory.segments))
        spans.append(slice(start, end))
        start = end
    return spans


def changed_tokens(now_T: np.ndarray, was_T: np.ndarray) -> np.ndarray:
    """bool [T]: another value, by more than the rounding of sums that were added up in another order. NaN (none) and a
    number differ."""
    differs_T = ~((now_T == was_T) | (np.isnan(now_T) & np.isnan(was_T)))
    largest = np.nanmax(np.abs(np.concatenate([now_T, was_T])), initial=0.0) if len(now_T) else 0.0
    with np.errstate(invalid="ignore"):
        close_T = np.abs(now_T - was_T) <= ROUNDING * largest
    return differs_T & ~close_T


def largest_change(now_T: np.ndarray, was_T: np.ndarray, where_T: np.ndarray) -> float:
    """The largest difference among these tokens; one that is not finite on one side only is infinite."""
    now = now_T[where_T]
    was = was_T[where_T]
    known = np.isfinite(now) & np.isfinite(was)
    if (np.isfinite(now) != np.isfinite(was)).any():
        return float("inf")
    return float(np.abs(now[known] - was[known]).max(initial=0.0))


def same_where_close(was_T: np.ndarray, now_T: np.ndarray) -> np.ndarray:
    """`was_T`, but the present values where only rounding differs."""
    return np.where(changed_tokens(now_T, was_T), was_T, now_T)
