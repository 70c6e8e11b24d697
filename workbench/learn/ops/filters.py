"""Which groups to learn from, by how much the *raw* rewards of a group's trajectories differ.

A prompt whose trajectories all earn the same teaches nothing about which of them was good; one whose trajectories differ most
is where the policy is least sure of itself. RAGEN's StarPO-S keeps the most uncertain quarter of the prompts.

Nothing here knows of normalised rewards: after division by its standard deviation every group would look alike, and a
filter would choose by chance. All arithmetic in float64; nothing is changed in place.

Axis letters: N trajectories · G *groups* (`group_N` numbers them from 0). `std_G` is 0 for a zero-variance group and NaN for one
without a standard deviation; NaN is never chosen. Where groups are equal, the one that comes first is chosen first.
"""

from __future__ import annotations

import math

from workbench.basics.tensors import Tensor, torch
from workbench.learn.ops.group import ROUNDING, group_statistics

TIE_DIGITS = 9  # standard deviations that agree in so many digits of the largest are equal, as ROUNDING has it


def reward_std(reward_N: Tensor, group_N: Tensor, include_N: Tensor) -> Tensor:
    """U(group) = std over its trajectories of R, unbiased (n - 1) [G], float64; exactly 0 where all rewards are the same
    (up to rounding), NaN where fewer than two trajectories are included.

    Source: RAGEN (arXiv 2504.20073), StarPO-S, the "uncertainty" of an initial state.
    """
    statistics = group_statistics(reward_N, group_N, include_N)
    return torch.where(statistics.flat, 0.0, statistics.std)


def top_share(std_G: Tensor, share: float) -> Tensor:
    """bool [G]: the `share` of all groups (0 < share <= 1) with the largest std, rounded down, at least one.

    The count is of all groups, those without a std included, so that it is known before anything was sampled.
    Source: RAGEN (arXiv 2504.20073), StarPO-S; the rounding is that of its code.
    """
    return top_k(std_G, count_of_share(len(std_G), share))


def count_of_share(groups: int, share: float) -> int:
    """How many groups `top_share` keeps at most."""
    return max(1, math.floor(share * groups + 1e-9))  # 0.29 * 100 is 28.999999999999996


def top_k(std_G: Tensor, k: int) -> Tensor:
    """bool [G]: the k groups with the largest std; all that have one, where those are fewer."""
    return _chosen(std_G, descending(std_G)[:k])


def top_mass(std_G: Tensor, p: float, slack: float) -> Tensor:
    """bool [G]: the fewest groups, largest std first, that reach the share p of all std:

        sum of kept std >= p * (sum of all std) - slack

    None where the right side is not above zero: there is no mass to speak of. `slack`, in units of reward, forgives
    rounding and a tail of groups that hardly differ. Source: RAGEN-2's reward-variance filter, "linear".
    """
    order = descending(std_G)
    mass = std_G[order].cumsum(0)
    threshold = p * float(mass[-1]) - slack if len(order) else 0.0
    if threshold <= 0:
        return torch.zeros_like(std_G, dtype=torch.bool)
    return _chosen(std_G, order[: _reaching(mass, threshold)])


def nucleus(std_G: Tensor, p: float) -> Tensor:
    """bool [G]: the same over the softmax of the std, as in nucleus sampling: sum of kept softmax(std) >= p.

    Softmax of numbers that differ by tenths is nearly flat, so this keeps close to the share p of all groups; a flat
    group has mass too. Source: RAGEN-2's reward-variance filter, "softmax".
    """
    order = descending(std_G)
    return _chosen(std_G, order[: _reaching(std_G[order].softmax(0).cumsum(0), p)])


def at_least(std_G: Tensor, ratio: float) -> Tensor:
    """bool [G]: std >= ratio * (largest std), as in min-p sampling. Where the largest is 0, every group that has a std."""
    known_G = ~std_G.isnan()
    if not bool(known_G.any()):
        return known_G
    largest = float(std_G[known_G].max())
    return known_G & (std_G >= ratio * largest - ROUNDING * largest)


def quantile_band(std_G: Tensor, low: float, high: float) -> Tensor:
    """bool [G]: groups whose place by std lies in low..high: of n groups with a std, the r-th from below (from 0) has
    the place (r + 0.5) / n. So neighbouring bands share no group and leave none out, and 0.75..1 is the top quarter.

    Source: the quartile ablation in RAGEN's experiments.
    """
    order = descending(std_G).flip(0)
    inside = places_in_band(len(order), low, high)
    return _chosen(std_G, order[inside.start : inside.stop])


def places_in_band(groups: int, low: float, high: float) -> range:
    """Which of so many groups, in ascending order of their std, have their place in low..high."""
    inside = [place for place in range(groups) if low <= (place + 0.5) / groups < high]
    return range(inside[0], inside[-1] + 1) if inside else range(0)


def widest_trajectories(reward_N: Tensor, group_N: Tensor, include_N: Tensor, k: int) -> Tensor:
    """bool [N]: of each group the k included trajectories (k >= 2) whose rewards have the largest variance; all included
    ones of a group with no more than k.

    Those are always the j lowest and the k - j highest for some j, so k + 1 candidates are looked at instead of
    (G choose k): moving one kept value away from the mean of the others never makes the variance smaller.
    The smaller j where candidates are equal, and the trajectory that comes first where rewards are.
    Source: RAGEN's `within_group` experiment; Xu et al. 2025, "Not All Rollouts are Useful" (arXiv 2504.13818).
    """
    kept_N = torch.zeros_like(include_N)
    for group in group_N[include_N].unique().tolist():
        at = ((group_N == group) & include_N).nonzero()[:, 0]
        kept_N[at[_widest(reward_N[at].double(), k)]] = True
    return kept_N


def descending(std_G: Tensor) -> Tensor:
    """Numbers of the groups that have a std, the largest std first; equal ones (up to rounding) in order."""
    at = (~std_G.isnan()).nonzero()[:, 0]
    largest = float(std_G[at].max()) if len(at) else 0.0
    scale = largest if largest > 0 else 1.0
    return at[(std_G[at] / scale).round(decimals=TIE_DIGITS).argsort(descending=True, stable=True)]


def _widest(reward: Tensor, k: int) -> Tensor:
    """Indices of the k of `reward` with the largest variance, ascending."""
    if len(reward) <= k:
        return torch.arange(len(reward))
    rising = reward.sort().values
    candidates = [torch.cat([rising[:j], rising[len(rising) - (k - j) :]]) for j in range(k + 1)]
    variances = [float(candidate.var()) for candidate in candidates]
    tolerance = ROUNDING * max(variances)
    best = next(
        c for c, variance in zip(candidates, variances) if variance >= max(variances) - tolerance
    )
    values, counts = best.unique(return_counts=True)
    places = [(reward == value).nonzero()[:count, 0] for value, count in zip(values, counts)]
    return torch.cat(places).sort().values


def _reaching(mass: Tensor, threshold: float) -> int:
    """How many terms it takes until the running sum reaches the threshold (all, where rounding alone is missing)."""
    enough = mass >= threshold - 1e-12 * float(mass[-1]) if len(mass) else mass.bool()
    return int(enough.nonzero()[0, 0]) + 1 if bool(enough.any()) else len(mass)


def _chosen(std_G: Tensor, at: Tensor) -> Tensor:
    return torch.zeros_like(std_G, dtype=torch.bool).index_fill(0, at, True)
