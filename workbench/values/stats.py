"""Intervals: how far a number can be trusted; everything is 95 %. Runs that met the same tasks: `crossed`.

    rate             k successes of n: Wilson's score interval
    mean_interval    a mean of independent values: Student's t
    cluster_mean     a mean of values that come in clusters (several trajectories of a task): cluster-robust, Student's t
    share            a mean of shares (successes of several trajectories, task by task): Wilson's, with the spread there is
    pass_at_k        the chance that one of k trajectories succeeds, unbiased, task by task
    paired_difference     two 0/1 results on the same tasks: adjusted Wald interval for matched pairs
    clustered_difference  any two results on the same tasks, where tasks come in clusters (maps of one size, one pair)

Sources: Wilson (1927); Bonett and Price (2012), "Adjusted Wald confidence interval for a difference of binomial
proportions based on paired data"; Korn and Graubard (1998), the effective number of a clustered sample; Chen et al.
(2021, arXiv 2107.03374), pass@k; quantiles of t by scipy, imported when the first one is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt

import numpy as np

from workbench.values.errors import DataError

Z95 = 1.959963984540054


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval; prints as `0.52 [0.48, 0.56] n=512`. `n`: independent things it rests on."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.2f} [{self.low:.2f}, {self.high:.2f}] n={self.n}"


@dataclass(frozen=True)
class Difference:
    """A difference with its 95 % interval; prints as `+0.08 [+0.05, +0.11] n=512`."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}] n={self.n}"


def wilson_interval(successes: float, n: float) -> tuple[float, float]:
    """95 % interval of a success rate: within [0, 1], never of width zero; with n = 0 nothing is known: (0, 1).

    Neither number needs to be whole: see `share`.
    """
    if n < 0 or not 0 <= successes <= n:
        raise DataError(f"expected 0 <= successes <= n, got {successes} of {n}")
    if n == 0:
        return 0.0, 1.0
    p = successes / n
    z2 = Z95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    # At the ends the bound is exactly 0 or 1; say so in spite of rounding.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return low, high


def rate(successes: int, n: int) -> Estimate:
    """A success rate with Wilson's interval. n must be at least 1: there is no rate of nothing."""
    if n < 1:
        raise DataError(
            f"a rate needs at least one trajectory, got n = {n}; leave the number out where nothing was tried"
        )
    return Estimate(successes / n, *wilson_interval(successes, n), n)


def t95(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t."""
    if freedom < 1:
        raise DataError(f"Student's t needs at least one degree of freedom, got {freedom}")
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


def mean_interval(values_N: Sequence[float] | np.ndarray) -> Estimate:
    """Mean of independent values: mean +- t * s / sqrt(N). One value has no known spread: its interval is infinite."""
    values_N = _vector(values_N, "values")
    return cluster_mean(values_N, np.arange(len(values_N)))


def cluster_mean(
    values_N: Sequence[float] | np.ndarray, clusters_N: Sequence[int] | Sequence[str] | np.ndarray
) -> Estimate:
    """Mean over all values, with an interval that knows that values of one cluster (trajectories of one task) go together.

    Standard error: sqrt(C / (C - 1) * sum over clusters of (sum of deviations in it)^2) / N; t with C - 1 degrees of
    freedom; `n` is the number C of clusters. Clusters of one value each give the ordinary interval.
    """
    values_N = _vector(values_N, "values")
    if len(clusters_N) != len(values_N):
        raise DataError(
            f"expected one cluster name per value, got {len(clusters_N)} for {len(values_N)} values"
        )
    mean = float(values_N.mean())
    _, cluster_index_N = np.unique(np.asarray(clusters_N), return_inverse=True)
    sums_C = np.bincount(cluster_index_N.reshape(-1), weights=values_N - mean)
    num_clusters = len(sums_C)
    if num_clusters == 1:
        return Estimate(mean, float("-inf"), float("inf"), 1)
    sum_of_squares = float((sums_C**2).sum())
    spread = sqrt(num_clusters / (num_clusters - 1) * sum_of_squares)
    half = t95(num_clusters - 1) * spread / len(values_N)
    return Estimate(mean, mean - half, mean + half, num_clusters)


def share(values_N: Sequence[float] | np.ndarray, attempts: int = 1) -> Estimate:
    """Mean of values from 0 to 1, one for each of N independent tasks, each value from so many trajectories of its task.

    The interval is Wilson's for as many 0/1 results as would spread the mean as much as these values do: with mean p,
    p (1 - p) N^2 / sum of (value - p)^2 of them, but not more than there were trajectories. With one trajectory each that is
    N. So trajectories of one task count for as much as they tell apart from each other; the interval stays within [0, 1]
    and has no width of zero.
    """
    values_N = _vector(values_N, "shares")
    if values_N.min() < 0 or values_N.max() > 1:
        raise DataError(f"shares lie from 0 to 1, got {values_N.min()} to {values_N.max()}")
    if attempts < 1:
        raise DataError(f"a share needs at least one trajectory of each task, got {attempts}")
    n = len(values_N)
    mean = float(values_N.mean())
    spread = float(((values_N - mean) ** 2).sum())
    # Shares that are all equal say nothing of how far tasks lie apart, so they count as one result each.
    effective = float(n)
    if np.ptp(values_N) > 1e-9:
        as_wide = mean * (1 - mean) * n * n / spread
        effective = min(max(as_wide, effective), effective * attempts)
    low, high = wilson_interval(min(float(values_N.sum()) * (effective / n), effective), effective)
    return Estimate(mean, low, high, n)


def pass_at_k(successes_N: Sequence[int] | np.ndarray, attempts: int, k: int) -> np.ndarray:
    """The chance that at least one of k trajectories succeeds, for each of N tasks with so many successes of `attempts`.

    1 - C(n - c, k) / C(n, k) for c successes of n trajectories: the share of all choices of k trajectories that hold a success,
    whose mean is pass@k itself. 1 - (1 - c / n)^k is too small on average. Computed in whole numbers and rounded once,
    so neither large n nor a small c costs digits. Source: Chen et al. 2021 (arXiv 2107.03374), equation 1.
    """
    counts_N = np.asarray(successes_N)
    if not 1 <= k <= attempts:
        raise DataError(
            f"pass@{k} needs k of at least 1 and at least k trajectories of each task, got {attempts} trajectories"
        )
    if counts_N.ndim != 1 or not np.isin(counts_N, np.arange(attempts + 1)).all():
        raise DataError(
            f"expected a list of successes, each a whole number from 0 to {attempts}, got {successes_N}"
        )
    all_choices = comb(attempts, k)
    counts = counts_N.astype(int).tolist()
    chance = {c: (all_choices - comb(attempts - c, k)) / all_choices for c in set(counts)}
    return np.array([chance[c] for c in counts], dtype=np.float64)


def clustered_difference(
    a_N: Sequence[float] | np.ndarray,
    b_N: Sequence[float] | np.ndarray,
    clusters_N: Sequence[int] | Sequence[str] | np.ndarray,
) -> Difference:
    """Mean of b - a over the same tasks in the same order, where tasks of one cluster go together (`cluster_mean`).

    The values may be shares. `n` is the number of clusters; one cluster alone has an infinite interval.
    """
    a_N, b_N = _paired(a_N, b_N)
    difference = cluster_mean(b_N - a_N, clusters_N)
    return Difference(difference.mean, difference.low, difference.high, difference.n)


def paired_difference(
    a_N: Sequence[float] | np.ndarray, b_N: Sequence[float] | np.ndarray
) -> Difference:
    """Success rate of b minus that of a, over the same tasks in the same order; both hold 0 and 1 only.

    With n10 tasks that only b solved and n01 that only a solved, the mean is (n10 - n01) / N and the interval is
    d +- z * sqrt((p10 + p01 - d^2) / (N + 2)) with p = (count + 1) / (N + 2) and d = p10 - p01. The one added to each
    discordant count keeps the coverage where few tasks differ (a plain interval would have width zero). Tasks on which
    both agree matter only through N. For other values, or tasks that come in clusters, take `clustered_difference`.
    """
    a_N, b_N = _paired(a_N, b_N)
    if not np.isin(a_N, (0, 1)).all() or not np.isin(b_N, (0, 1)).all():
        raise DataError(
            "paired_difference takes results of 0 and 1; for other values take clustered_difference"
        )
    n = len(a_N)
    only_b = int((b_N > a_N).sum())
    only_a = int((a_N > b_N).sum())
    p10 = (only_b + 1) / (n + 2)
    p01 = (only_a + 1) / (n + 2)
    half = Z95 * sqrt((p10 + p01 - (p10 - p01) ** 2) / (n + 2))
    low = max(p10 - p01 - half, -1.0)
    high = min(p10 - p01 + half, 1.0)
    return Difference((only_b - only_a) / n, low, high, n)


def task_difference(
    a_N: Sequence[float] | np.ndarray, b_N: Sequence[float] | np.ndarray
) -> Difference:
    """Mean of b - a over the same tasks in the same order: `paired_difference` where all values are 0 or 1, of one trajectory
    of each task; of shares `clustered_difference`, each task a cluster of its own."""
    if np.isin([*a_N, *b_N], (0, 1)).all():
        return paired_difference(a_N, b_N)
    return clustered_difference(a_N, b_N, range(len(a_N)))


def _paired(
    a_N: Sequence[float] | np.ndarray, b_N: Sequence[float] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Both as vectors of one length. Raises DataError."""
    a_N = _vector(a_N, "a")
    b_N = _vector(b_N, "b")
    if len(a_N) != len(b_N):
        raise DataError(
            f"a paired difference needs the same tasks on both sides, got {len(a_N)} and {len(b_N)}"
        )
    return a_N, b_N


def _vector(values: Sequence[float] | np.ndarray, what: str) -> np.ndarray:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1 or not len(vector):
        raise DataError(f"{what}: expected a list of at least one number, got shape {vector.shape}")
    if not np.isfinite(vector).all():
        raise DataError(
            f"{what}: expected finite numbers; leave out what could not be scored (None is not zero)"
        )
    return vector
