"""One interval over seeds and tasks: by hand, against scipy where one of them is all there is, and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as textbook

from workbench.extensions.ablation.crossed import (
    crossed_difference,
    crossed_mean,
    detectable,
    least_error,
    parts_of,
    quantile,
)
from workbench.values.errors import DataError
from workbench.values.stats import mean_interval


def tables(seed, runs, tasks, draws, rng, task=0.2, rest=0.42):
    return (
        rng.normal(0, task, (draws, 1, tasks))
        + rng.normal(0, max(seed, 1e-12), (draws, runs, 1))
        + rng.normal(0, rest, (draws, runs, tasks))
    )


def test_variances_and_error_by_hand():
    # Runs' means 1, 3; tasks' means 1, 2, 3; all of it is their sum: MS_runs = 3 * 2 = 6, MS_tasks = 2 * 1 = 2, rest 0.
    found = parts_of([[0, 1, 2], [2, 3, 4]])
    assert (found.mean_X, found.seed_X, found.task_X, found.rest_X) == pytest.approx((2, 2, 1, 0))
    assert found.error_X == pytest.approx(np.sqrt((6 + 2) / 6))
    # Degrees of freedom: 8^2 / ((1 + 5) * 6^2 / 1 + 2^2 / 2) < 1, and at least 1.
    assert found.freedom(0.05) == 1
    three = parts_of([[0, 1, 2], [2, 3, 4], [4, 5, 6]])  # MS_runs 12, MS_tasks 3
    assert three.freedom(0.05) == pytest.approx(15**2 / ((1 + 5 / 4) * 12**2 / 2 + 3**2 / 2))
    assert three.freedom(0.01) == pytest.approx(
        max(15**2 / ((1 + 5 / 4) * 5**0.9 * 12**2 / 2 + 3**2 / 2), 1)
    )
    level = float(three.p_value())
    assert three.half_width(level) == pytest.approx(three.mean_X, rel=1e-6), (
        "the p-value is where the interval ends at 0"
    )


def test_where_only_tasks_differ_it_is_students_interval_over_tasks():
    task_N = np.random.default_rng(0).normal(0.1, 0.3, 60)
    found, alone = crossed_mean(np.tile(task_N, (4, 1))), mean_interval(task_N)
    assert (found.low, found.high) == pytest.approx(
        (alone.low, alone.high), abs=1e-4
    ) and found.n == 4


def test_quantiles_are_scipys_for_broken_degrees_too():
    assert quantile(2.7, 0.975) == pytest.approx(textbook.t.ppf(0.975, 2.7))


def test_one_run_is_no_spread_and_alike_runs_are_no_certainty():
    alone = crossed_mean([[0, 1, 1]])
    assert (alone.low, alone.high, alone.n) == (float("-inf"), float("inf"), 1)
    same = crossed_difference(np.ones((5, 32)), np.ones((5, 32)))
    assert (
        same.mean == 0
        and same.high == pytest.approx(textbook.t.ppf(0.975, 31) * np.sqrt(2) / 34) == -same.low
    )
    for wrong in ([], [1, 0], [[]], [[1, float("nan")]]):
        with pytest.raises(DataError):
            crossed_mean(wrong)
    with pytest.raises(DataError, match="same runs and tasks"):
        crossed_difference([[0, 1]], [[0, 1], [1, 1]])


def test_returns_that_are_all_zero_say_nothing_not_even_in_what_unit():
    assert least_error(10, 0.0) == np.inf
    assert crossed_mean(np.full((5, 8), 3.0)).high == pytest.approx(
        3 + textbook.t.ppf(0.975, 7) * 3 * np.sqrt(2) / 10
    )


def test_many_tables_at_once_are_each_as_alone():
    values = tables(0.05, 5, 40, 3, np.random.default_rng(1))
    together = parts_of(values)
    for at, table in enumerate(values):
        alone = parts_of(table)
        assert together.error_X[at] == pytest.approx(alone.error_X) and together.p_value()[
            at
        ] == pytest.approx(alone.p_value())


def test_an_interval_over_tasks_alone_promises_too_much_where_seeds_differ():
    rng = np.random.default_rng(0)
    values = tables(0.05, 3, 200, 1500, rng)
    parts = parts_of(values)
    held = (np.abs(parts.mean_X) <= parts.half_width(0.05)).mean()
    alone = values.mean(axis=1).std(axis=1, ddof=1) / np.sqrt(200) * textbook.t.ppf(0.975, 199)
    assert 0.93 < held < 0.975 and (np.abs(parts.mean_X) <= alone).mean() < 0.85


@pytest.mark.parametrize(("runs", "times"), [(3, 1), (20, 8)])
def test_it_covers_what_it_says_at_few_seeds_and_at_many(runs, times):
    """The wider of the two intervals, which stood here before, covers 87 % at 20 seeds where both matter alike."""
    values = tables(
        np.sqrt(times * (0.2**2 + 0.42**2) / 64), runs, 64, 2000, np.random.default_rng(runs)
    )
    parts = parts_of(values)
    assert 0.935 < (np.abs(parts.mean_X) <= parts.half_width(0.05)).mean() < 0.965
    sides = [
        values.mean(axis=axis).std(axis=1, ddof=1) / np.sqrt(n) * textbook.t.ppf(0.975, n - 1)
        for axis, n in ((1, 64), (2, runs))
    ]
    if runs == 20:
        assert (np.abs(parts.mean_X) <= np.maximum(*sides)).mean() < 0.92


def test_the_stated_effect_is_found_four_times_in_five():
    effect = detectable(0.02**2, 0.2**2, 0.42**2, 5, 256)
    parts = parts_of(tables(0.02, 5, 256, 1500, np.random.default_rng(2)) + effect)
    assert 0.75 < (parts.p_value() <= 0.05).mean() < 0.85
    assert detectable(0.02**2, 0.2**2, 0.42**2, 1, 256) == float("inf")


def test_tasks_that_differ_less_than_by_chance_take_no_degrees_of_freedom_from_the_seeds():
    """Seeds that differ, tasks that do not: what seeds say is that of four degrees of freedom, as if there were no tasks."""
    rng = np.random.default_rng(3)
    for _ in range(4):
        values = rng.normal(0, 1, (5, 40))
        values += rng.normal(0, 0.5, (5, 1)) - values.mean(axis=0)  # every task has the same mean
    found = parts_of(values)
    of_seeds = 40 * values.mean(axis=1).var(ddof=1)
    assert found.error_X**2 * 5 * 40 < of_seeds, (
        "the case in question: the variance is below that of the seeds"
    )
    assert found.by_seeds_X == pytest.approx(1 / 4) and found.freedom(0.05) > 2.5
