"""Baselines over a group of trajectories of the same task.

Axis letters: N trajectories. `group_N` numbers each trajectory's group from 0; `include_N` says which ones count (an
unscored trajectory does not: it leaves the baseline as well as the loss, invariant 5). All arithmetic in float64.
"""

from __future__ import annotations

from typing import NamedTuple

from workbench.basics.tensors import Tensor, torch

# As in values/spreads.py, which needs no torch; a test holds them together.
ROUNDING = 1e-9

# Added to the standard deviation, as in the published implementations of GRPO.
STD_EPSILON = 1e-6


class GroupStatistics(NamedTuple):
    """Per *group*, over the included trajectories only."""

    count: Tensor  # int64
    mean: Tensor  # float64; NaN where count is 0
    std: Tensor  # float64, unbiased (n - 1); NaN where count is below 2
    flat: Tensor  # bool: at least two trajectories, all with the same value (up to rounding)


def group_statistics(value_N: Tensor, group_N: Tensor, include_N: Tensor) -> GroupStatistics:
    """Count, mean, unbiased standard deviation and flatness of each group."""
    groups = int(group_N.max()) + 1 if len(group_N) else 0
    value_N = value_N[include_N].double()
    group_N = group_N[include_N]
    zeros = torch.zeros(groups, dtype=torch.float64)
    count = torch.zeros(groups, dtype=torch.int64).index_add(0, group_N, torch.ones_like(group_N))
    mean = zeros.index_add(0, group_N, value_N) / count
    squares = zeros.index_add(0, group_N, (value_N - mean[group_N]) ** 2)
    std = torch.where(count > 1, (squares / (count - 1)).sqrt(), torch.nan)
    highest = torch.full_like(zeros, -torch.inf).scatter_reduce(0, group_N, value_N, "amax")
    lowest = torch.full_like(zeros, torch.inf).scatter_reduce(0, group_N, value_N, "amin")
    size = torch.maximum(highest.abs(), lowest.abs())
    return GroupStatistics(count, mean, std, (count > 1) & (highest - lowest <= ROUNDING * size))


def comparable(statistics: GroupStatistics, group_N: Tensor, include_N: Tensor) -> Tensor:
    """bool [N]: included, with another included one in its group, and not in a zero-variance group. Nothing else says
    anything about which trajectories were good."""
    return include_N & ((statistics.count > 1) & ~statistics.flat)[group_N]


def group_advantage(
    value_N: Tensor, group_N: Tensor, include_N: Tensor, *, normalize_std: bool
) -> Tensor:
    """How much better a trajectory did than its group [N], float64, never NaN:

        A_i = (R_i - mean R) / (std R + 1e-6)        normalize_std=True   (GRPO)
        A_i =  R_i - mean R                          normalize_std=False  (Dr. GRPO)

    with mean and unbiased std over the included trajectories of the group. A zero-variance group gives exact zeros (a mean of equal
    floats may be off by one bit, which must not become credit). A group in which only one trajectory is included has no
    baseline, so that trajectory gets zero: it says nothing about which of its tokens were good. So do trajectories left out.
    Source: Shao et al. 2024, "DeepSeekMath" (arXiv 2402.03300), section 4.1.2; without division: Liu et al. 2025,
    "Understanding R1-Zero-Like Training" (arXiv 2503.20783).
    """
    statistics = group_statistics(value_N, group_N, include_N)
    advantage_N = value_N.double() - statistics.mean[group_N]
    if normalize_std:
        advantage_N = advantage_N / (statistics.std[group_N] + STD_EPSILON)
    return torch.where(comparable(statistics, group_N, include_N), advantage_N, 0.0)


def leave_one_out(value_N: Tensor, group_N: Tensor, include_N: Tensor) -> Tensor:
    """How much better a trajectory did than the *others* of its group on average [N], float64, never NaN:

        A_i = R_i - (sum over j != i of R_j) / (n - 1) = n / (n - 1) * (R_i - mean R)

    over the n included trajectories. The others know nothing of what was drawn in this one, so that the baseline takes
    away variance and adds no bias. Zero-variance groups, groups in which one trajectory is included and trajectories left out get
    exact zeros, as in `group_advantage`.
    Source: Ahmadian et al. 2024, "Back to Basics" (arXiv 2402.14740), section 3.3 (RLOO); Kool et al. 2019.
    """
    count_N = group_statistics(value_N, group_N, include_N).count.clamp(min=2)[group_N]
    return (
        group_advantage(value_N, group_N, include_N, normalize_std=False) * count_N / (count_N - 1)
    )
