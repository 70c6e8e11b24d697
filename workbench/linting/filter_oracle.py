"""Which attempts are learned from, once more by another hand: the filters by the spread of raw rewards (see
`credit_oracle`).

Axis letters: N trajectories · G groups.
"""
from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

ROUNDING = 1e-9  # the declared threshold: a spread below this share of the largest reward is none
DOUBT = 1e-4     # two ways of adding up differ by far less than this share of the threshold


class Spread(NamedTuple):
    flat: bool
    doubtful: bool


def group_spread(values: np.ndarray) -> Spread:
    """Whether all values are the same up to rounding, and whether that hangs by a rounding itself."""
    if len(values) < 2:
        return Spread(False, False)
    threshold = ROUNDING * float(np.abs(values).max())
    spread = float(values.max() - values.min())
    return Spread(spread <= threshold, threshold > 0 and abs(spread - threshold) <= DOUBT * threshold)


def expected_kept(rule: Any, reward_N: np.ndarray, group_N: np.ndarray, scored_N: np.ndarray) -> np.ndarray:
    """bool [N], by the fields of a `Filter`."""
    if not _acts(rule):
        return scored_N.copy()
    groups = int(group_N.max(initial=-1)) + 1
    std_G = np.full(groups, np.nan)
    for g in range(groups):
        own = reward_N[(group_N == g) & scored_N]
        if len(own) > 1:
            std_G[g] = 0.0 if group_spread(own).flat else own.std(ddof=1)
    if rule.zero_variance == "drop":
        std_G[std_G == 0] = np.nan
    kept_G = np.zeros(groups, bool)
    kept_G[_chosen(rule, std_G)] = True
    kept_N = kept_G[group_N] & scored_N
    if rule.keep == "within_group":
        for g in range(groups):
            at = np.flatnonzero((group_N == g) & kept_N)
            kept_N[at] = False
            kept_N[at[_widest(reward_N[at], rule.attempts)]] = True
    return kept_N


def _acts(rule: Any) -> bool:
    everything = {"all": True, "top_share": rule.share == 1, "top_p": rule.p == 1, "min_p": rule.ratio == 0,
                  "band": rule.low == 0 and rule.high == 1}.get(rule.keep, False)
    return rule.zero_variance == "drop" or not everything


def _chosen(rule: Any, std_G: np.ndarray) -> list[int]:
    """Numbers of the kept groups."""
    known = [g for g in range(len(std_G)) if not math.isnan(std_G[g])]
    largest = max((std_G[g] for g in known), default=0.0)
    unit = largest if largest > 0 else 1.0
    falling = sorted(known, key=lambda g: (-round(std_G[g] / unit, 9), g))  # equal ones in order
    if rule.keep == "top_share":
        return falling[:max(1, math.floor(rule.share * len(std_G) + 1e-9))]
    if rule.keep == "top_k":
        return falling[:rule.groups]
    if rule.keep == "min_p":
        return [g for g in known if std_G[g] >= rule.ratio * largest - ROUNDING * largest]
    if rule.keep == "band":
        rising = falling[::-1]
        return [g for r, g in enumerate(rising) if rule.low <= (r + 0.5) / len(rising) < rule.high]
    if rule.keep == "top_p" and rule.mass == "linear":
        total = sum(std_G[g] for g in falling)
        wanted = rule.p * total - rule.slack
        return _reaching(falling, [std_G[g] for g in falling], wanted) if wanted > 0 else []
    if rule.keep == "top_p":
        weights = [math.exp(std_G[g] - largest) for g in falling]
        return _reaching(falling, [weight / sum(weights) for weight in weights], rule.p)
    return known


def _reaching(order: list[int], shares: list[float], wanted: float) -> list[int]:
    """As many of `order` as it takes."""
    have, slack = 0.0, 1e-12 * sum(shares)
    for count, share in enumerate(shares, start=1):
        have += share
        if have >= wanted - slack:
            return order[:count]
    return order


def _widest(rewards: np.ndarray, count: int) -> list[int]:
    """Those attempts whose rewards have the largest variance: some of the lowest and some of the highest."""
    if len(rewards) <= count:
        return list(range(len(rewards)))
    rising = sorted(range(len(rewards)), key=lambda i: (rewards[i], i))
    values = [rewards[i] for i in rising]
    candidates = [values[:low] + values[len(values) - (count - low):] for low in range(count + 1)]
    variances = [float(np.var(candidate, ddof=1)) for candidate in candidates]
    best = next(c for c, v in zip(candidates, variances) if v >= max(variances) - ROUNDING * max(variances))
    taken: list[int] = []
    for value in best:  # of equal rewards the attempt that comes first
        taken.append(next(i for i in range(len(rewards)) if rewards[i] == value and i not in taken))
    return sorted(taken)
