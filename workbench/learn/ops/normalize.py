"""Rewards put on a common scale, as an affine change per trajectory: R' = scale * R + shift. Pure: nothing is changed
in place, so whoever holds the raw rewards (the filter, the store, the metrics) goes on holding them.

An affine change, and not new totals, because a trajectory's reward may be paid turn by turn: every turn's share is
multiplied by `scale`, and `shift`, which belongs to no turn, is paid at the trajectory's last token.

Axis letters: N trajectories.
"""

from __future__ import annotations

from typing import NamedTuple

from workbench.basics.tensors import Tensor, torch
from workbench.learn.ops.group import STD_EPSILON, group_statistics

METHODS = ("none", "mean", "mean_std", "asym_clip")
ASYMMETRIC = (-1.0, 3.0)  # RAGEN's bounds, in standard deviations


class Change(NamedTuple):
    """R' = scale * R + shift, each [N] float64. Zero both where there was nothing to compare with."""

    scale_N: Tensor
    shift_N: Tensor


def normalization(reward_N: Tensor, set_N: Tensor, include_N: Tensor, method: str) -> Change:
    """How to put the included rewards of each set (numbered by `set_N` from 0) on a common scale:

        none       R' = R
        mean       R' = R - mean
        mean_std   R' = (R - mean) / (std + 1e-6)                        unbiased std
        asym_clip  R' = clamp((R - mean) / (std + 1e-6), -1, 3)          what the clamp takes or adds is part of `shift`

    A set in which all rewards are the same, or with only one included, has no scale: scale = shift = 0, for "mean" too
    where only one is included. So have trajectories that are not included.
    Source: RAGEN (arXiv 2504.20073), the reward normalisation of its code.
    """
    if method not in METHODS:
        raise ValueError(f"method is one of {', '.join(METHODS)}, got {method!r}")
    reward_N = torch.where(include_N, reward_N.double(), 0.0)
    if method == "none" or not bool(include_N.any()):
        return Change(include_N.double(), torch.zeros_like(reward_N))
    statistics = group_statistics(reward_N, set_N, include_N)
    alone_N = (statistics.count < 2)[set_N]
    flat_N = statistics.flat[set_N]
    if method == "mean":
        scale_N = torch.ones_like(reward_N)
        # The mean of equal floats may be off by a bit.
        shift_N = torch.where(flat_N, -reward_N, -statistics.mean[set_N])
        none_N = alone_N | ~include_N
    else:
        scale_N = 1.0 / (statistics.std[set_N] + STD_EPSILON)
        total_N = (reward_N - statistics.mean[set_N]) * scale_N
        if method == "asym_clip":
            total_N = total_N.clamp(*ASYMMETRIC)
        shift_N = total_N - scale_N * reward_N
        none_N = alone_N | flat_N | ~include_N
    return Change(torch.where(none_N, 0.0, scale_N), torch.where(none_N, 0.0, shift_N))
