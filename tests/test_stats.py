"""Intervals: numbers that can be checked by hand, and coverage as promised."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.values.errors import DataError
from workbench.values.stats import (
    cluster_mean,
    clustered_difference,
    mean_interval,
    paired_difference,
    pass_at_k,
    rate,
    share,
    t95,
    wilson_interval,
)


def is_clear(difference):
    """Whether the interval excludes zero."""
    return difference.low > 0 or difference.high < 0


def test_wilson_by_hand():
    # z^2 = 3.8415. 5 of 10: centre 0.5, half = 1.96 * sqrt(0.025 + 3.8415/400) / 1.38415 = 0.2634
    assert wilson_interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    # 0 of n: upper end is z^2 / (n + z^2) = 3.8415 / 13.8415
    assert wilson_interval(0, 10) == (0.0, pytest.approx(3.8415 / 13.8415, abs=1e-4))
    assert wilson_interval(10, 10) == (pytest.approx(10 / 13.8415, abs=1e-4), 1.0)
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert str(rate(266, 512)) == "0.52 [0.48, 0.56] n=512"


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_rate_stays_in_range_and_mirrors(case):
    successes, n = case
    low, high = wilson_interval(successes, n)
    assert 0 <= low <= successes / n <= high <= 1 and low < high
    assert wilson_interval(n - successes, n) == pytest.approx((1 - high, 1 - low))
    assert (
        high - low
        > wilson_interval(4 * successes, 4 * n)[1] - wilson_interval(4 * successes, 4 * n)[0]
    )


def test_wilson_covers_as_promised():
    """Exactly, by summing the binomial distribution: on average over rates 95 %, and never far below."""
    n = 40
    intervals = [wilson_interval(k, n) for k in range(n + 1)]
    choose = np.cumprod([1.0, *[(n - k) / (k + 1) for k in range(n)]])
    coverage = []
    for p in np.linspace(0.02, 0.98, 97):
        chances = choose * p ** np.arange(n + 1) * (1 - p) ** (n - np.arange(n + 1))
        coverage.append(sum(c for c, (low, high) in zip(chances, intervals) if low <= p <= high))
    assert 0.945 < np.mean(coverage) < 0.96 and min(coverage) > 0.90


def test_student_t_against_the_printed_tables():
    for freedom, value in (
        (1, 12.706),
        (2, 4.303),
        (10, 2.228),
        (11, 2.201),
        (15, 2.131),
        (30, 2.042),
        (120, 1.980),
    ):
        assert t95(freedom) == pytest.approx(value, abs=6e-4)
    # Exact: of one degree tan(0.475 pi), of two 2 * 0.475 * sqrt(2 / (1 - 0.95^2)), by their distributions.
    assert t95(1) == pytest.approx(np.tan(0.475 * np.pi), rel=1e-12)
    assert t95(2) == pytest.approx(0.95 * np.sqrt(2 / (1 - 0.95**2)), rel=1e-12)


def test_mean_interval_by_hand():
    # 1, 2, 3: mean 2, s = 1, half = 4.3027 / sqrt(3) = 2.4842
    estimate = mean_interval([1, 2, 3])
    assert (estimate.mean, estimate.low, estimate.high, estimate.n) == (
        2,
        pytest.approx(-0.4842, abs=1e-4),
        pytest.approx(4.4842, abs=1e-4),
        3,
    )
    alone = mean_interval([0.7])
    assert (alone.mean, alone.low, alone.high) == (0.7, float("-inf"), float("inf"))


def test_clusters_by_hand():
    # Two tasks, two trajectories each, trajectories agree: deviations sum to -1 and +1, so SE = sqrt(2/1 * 2) / 4 = 0.5.
    estimate = cluster_mean([0, 0, 1, 1], [7, 7, 9, 9])
    assert (estimate.mean, estimate.n) == (0.5, 2) and estimate.high - 0.5 == pytest.approx(
        12.7062 * 0.5
    )
    # Trajectories of a task that agree carry no more than one of them does: the width is that of the tasks alone.
    tasks_C = np.arange(30) % 3 == 0
    repeated = cluster_mean(np.repeat(tasks_C, 8), np.repeat(np.arange(30), 8))
    single = mean_interval(tasks_C.astype(float))
    assert (repeated.low, repeated.high) == pytest.approx((single.low, single.high))
    assert repeated.high - repeated.low > 2 * (
        wilson_interval(80, 240)[1] - wilson_interval(80, 240)[0]
    )


def test_paired_difference_by_hand():
    # 100 tasks: b alone solves 12, a alone 4. p10 = 13/102, p01 = 5/102, d = 8/102 = 0.0784;
    # half = 1.96 * sqrt((18/102 - 0.0784^2) / 102) = 0.0801
    a = np.array([0] * 12 + [1] * 4 + [1] * 50 + [0] * 34)
    b = np.array([1] * 12 + [0] * 4 + [1] * 50 + [0] * 34)
    difference = paired_difference(a, b)
    assert difference.mean == pytest.approx(0.08) and difference.n == 100
    assert (difference.low, difference.high) == pytest.approx(
        (0.0784 - 0.0801, 0.0784 + 0.0801), abs=1e-4
    )
    assert not is_clear(difference) and str(difference) == "+0.08 [-0.00, +0.16] n=100"
    swapped = paired_difference(b, a)
    assert (swapped.mean, swapped.low, swapped.high) == pytest.approx(
        (-0.08, -difference.high, -difference.low)
    )
    assert is_clear(paired_difference([0] * 300, [1] * 30 + [0] * 270))


def test_pairing_is_what_narrows_the_interval():
    """The same two rates with the tasks shuffled: the interval widens, so the order of tasks is really used."""
    a = np.arange(400) < 200
    b = np.arange(400) < 230
    paired = paired_difference(a, b)
    shuffled = paired_difference(a, np.random.default_rng(0).permutation(b))
    assert paired.mean == pytest.approx(shuffled.mean) == pytest.approx(0.075)
    assert is_clear(paired) and (shuffled.high - shuffled.low) > 2 * (paired.high - paired.low)


@pytest.mark.parametrize(
    ("p10", "p01", "n"), [(0.1, 0.02, 512), (0.05, 0.05, 100), (0.3, 0.2, 60), (0.02, 0.0, 200)]
)
def test_paired_difference_covers_as_promised(p10, p01, n):
    rng = np.random.default_rng(1)
    trials, covered = 2000, 0
    for _ in range(trials):
        u = rng.random(n)
        a, b = (u < p01).astype(int), ((u >= p01) & (u < p01 + p10)).astype(int)
        difference = paired_difference(a, b)
        covered += difference.low <= p10 - p01 <= difference.high
    assert covered / trials > 0.935


# ------------------------------------------------------------------------------------------------ several trajectories


def test_a_share_of_zeros_and_ones_is_wilsons_to_the_last_bit():
    for wins in (0, 1, 247, 512):
        values_N = np.arange(512) < wins
        assert (share(values_N).low, share(values_N).high) == wilson_interval(wins, 512)
        assert share(values_N).mean == values_N.mean()


def test_shares_by_hand():
    # 1/4 and 3/4: mean 1/2, squares about it sum to 1/8; so they count for 1/4 * 4 / (1/8) = 8 results, 4 of them won
    found = share([0.25, 0.75], 4)
    assert (found.mean, found.n) == (0.5, 2) and (found.low, found.high) == pytest.approx(
        wilson_interval(4, 8)
    )
    assert (
        share([0.25, 0.75], 2).low == wilson_interval(2, 4)[0]
    )  # no more results than there were trajectories
    # trajectories that agree count once; that all tasks are equally hard is no knowledge of the other tasks
    assert share([0, 1, 1], 9).low == pytest.approx(wilson_interval(2, 3)[0])
    assert share([0.5] * 3, 2).low == wilson_interval(1.5, 3)[0]
    assert share([1.0] * 4, 8).low < 0.6 and share([1.0] * 4, 8).high == 1


@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n), min_size=1, max_size=60))
    )
)
def test_a_share_stays_in_range_mirrors_and_is_never_wider_than_one_trajectory_each(case):
    attempts, counts = case
    found, mirrored = (
        share([c / attempts for c in kind], attempts)
        for kind in (counts, [attempts - c for c in counts])
    )
    assert (
        0 <= found.low <= found.mean + 1e-12
        and found.mean - 1e-12 <= found.high <= 1
        and found.low < found.high
    )
    assert (mirrored.low, mirrored.high) == pytest.approx((1 - found.high, 1 - found.low), abs=1e-9)
    single = wilson_interval(found.mean * found.n, found.n)
    assert found.high - found.low <= single[1] - single[0] + 1e-9


@pytest.mark.parametrize(
    ("tasks", "attempts", "alpha"), [(100, 8, 0.5), (60, 4, 3.0), (200, 2, 0.2)]
)
def test_a_share_covers_as_promised_where_trajectories_of_a_task_go_together(
    tasks, attempts, alpha
):
    """Tasks of very different difficulty; the negative control counts every trajectory as independent."""
    rng, trials, covered, naive = np.random.default_rng(0), 1000, 0, 0
    for _ in range(trials):
        wins_N = rng.binomial(attempts, rng.beta(alpha, alpha, tasks))
        found = share(wins_N / attempts, attempts)
        low, high = wilson_interval(int(wins_N.sum()), tasks * attempts)
        covered += found.low <= 0.5 <= found.high
        naive += low <= 0.5 <= high
    assert covered / trials > 0.93 and naive < covered


@pytest.mark.parametrize("attempts", range(1, 9))
def test_pass_at_k_is_the_share_of_all_choices_of_k_trajectories_that_hold_a_success(attempts):
    for successes in range(attempts + 1):
        won = [True] * successes + [False] * (attempts - successes)
        for k in range(1, attempts + 1):
            held = [any(choice) for choice in combinations(won, k)]
            assert pass_at_k([successes], attempts, k)[0] == pytest.approx(
                sum(held) / len(held), abs=1e-15
            )


@given(
    st.integers(1, 60).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n), min_size=1, max_size=20))
    )
)
def test_pass_at_k_begins_with_the_mean_success_and_rises_with_k(case):
    attempts, counts = case
    assert pass_at_k(counts, attempts, 1) == pytest.approx(np.array(counts) / attempts)
    rows_KN = np.array([pass_at_k(counts, attempts, k) for k in range(1, attempts + 1)])
    assert (np.diff(rows_KN, axis=0) >= 0).all() and rows_KN.min() >= 0 and rows_KN.max() <= 1
    assert rows_KN[-1].tolist() == [float(count > 0) for count in counts]


def test_pass_at_k_is_unbiased_and_the_plug_in_is_not():
    """Exactly, over the binomial distribution of successes; the negative control is what papers warn of."""
    attempts, k = 8, 4
    for p in (0.05, 0.3, 0.7):
        chances = [
            comb(attempts, c) * p**c * (1 - p) ** (attempts - c) for c in range(attempts + 1)
        ]
        estimate = sum(w * pass_at_k([c], attempts, k)[0] for c, w in enumerate(chances))
        plug_in = sum(w * (1 - (1 - c / attempts) ** k) for c, w in enumerate(chances))
        truth = 1 - (1 - p) ** k
        assert estimate == pytest.approx(truth, abs=1e-12) and plug_in < truth - 0.005


def test_pass_at_k_keeps_its_digits_with_many_trajectories():
    assert (
        pass_at_k([1], 100_000, 3)[0] == 3 / 100_000
    )  # one success: k of n choices of the last place hold it
    assert pass_at_k([5000], 10_000, 5000)[0] == 1.0


def test_tasks_of_one_cluster_go_together_in_a_difference():
    # two pairs of names, all trajectories of a pair agree: b wins everything in the one and loses half in the other
    a_N, b_N = np.zeros(8), np.array([1, 1, 1, 1, 0, 0, 0, 0])
    by_pair = clustered_difference(a_N, b_N, ["x"] * 4 + ["y"] * 4)
    assert (by_pair.mean, by_pair.n) == (0.5, 2) and by_pair.low == pytest.approx(
        0.5 - 12.7062 * 0.5
    )
    alone = clustered_difference(a_N, b_N, range(8))
    assert alone.n == 8 and is_clear(alone) and not is_clear(by_pair)
    plain = mean_interval(b_N - a_N)
    assert (alone.low, alone.high) == (plain.low, plain.high)


def test_what_cannot_be_counted_is_refused():
    for call in (
        lambda: share([0.5, 1.5]),
        lambda: share([]),
        lambda: share([1], 0),
        lambda: pass_at_k([1], 2, 3),
        lambda: pass_at_k([1], 2, 0),
        lambda: pass_at_k([3], 2, 1),
        lambda: pass_at_k([0.5], 2, 1),
        lambda: pass_at_k([], 0, 1),
        lambda: clustered_difference([1], [1, 0], [0]),
        lambda: clustered_difference([1, 0], [1, 0], [0]),
        lambda: wilson_interval(3, 2),
        lambda: rate(0, 0),
        lambda: mean_interval([]),
        lambda: t95(0),
        lambda: mean_interval([1.0, float("nan")]),
        lambda: paired_difference([1], [1, 0]),
        lambda: paired_difference([0.5], [1]),
        lambda: cluster_mean([1, 2], [1]),
    ):
        with pytest.raises(DataError):
            call()
