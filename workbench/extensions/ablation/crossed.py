"""A mean over runs (training seeds) that all met the same tasks: an interval that speaks for other seeds and other tasks.

    parts_of             mean, its error and degrees of freedom, and what seeds, tasks and the rest contribute
    crossed_mean         the same as an `Estimate` with its 95 % interval
    crossed_difference   of two arms, run by run and task by task
    detectable           the smallest true difference that a test of so many runs and tasks finds with 80 % power
    chance_found, chance_equal   how likely a true difference is found, or the lack of one shown

The model is y[r, n] = mean + seed[r] + task[n] + rest[r, n], all three random. Mean squares of the two-way table give
the variance of the mean, (MS_seeds + MS_tasks - MS_rest) / (R N), and Satterthwaite's degrees of freedom. Two things are
ours, both because a seed is expensive and R small. The variance is at least FLOOR times that of the tasks' means alone:
by chance MS_seeds comes out far too small. And the seeds' part of the degrees of freedom is made smaller, by
(1 + 5 / (R - 1)^2) (0.05 / level)^(1.8 / (R - 1)), where (0.05 / level) is at least 1: a few seeds say little of their
own spread, and the tails, on which families and looks rest, feel it most. Without it three seeds cover 92 % where they
differ much, and at a level of 1 % err in 3 %. Both are fitted to simulations; others bear them out: `make statistics`.

Sources: Satterthwaite (1946); Searle, Casella and McCulloch (1992), two-way random model without replication; Bonett
and Price (2012) for what is known where no task differs; quantiles by scipy.special.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from workbench.values.errors import DataError
from workbench.values.stats import Difference, Estimate

FLOOR = 0.4
POWER = 0.8
Values = Sequence[Sequence[float]] | np.ndarray


@dataclass(frozen=True)
class MeanParts:
    """Means of one or many tables [runs, tasks] at once: every array has the shape of the tables' leading axes.

    error_X: standard error of the mean, never zero; infinite for a single run. One task: runs alone.
    by_seeds_X, by_others_X: what one over the degrees of freedom is made of (`freedom`).
    seed_X, task_X, rest_X: variances, estimated and not below zero.
    """

    runs: int
    tasks: int
    mean_X: np.ndarray
    error_X: np.ndarray
    by_seeds_X: np.ndarray
    by_others_X: np.ndarray
    seed_X: np.ndarray
    task_X: np.ndarray
    rest_X: np.ndarray

    def freedom(self, level: float | np.ndarray) -> np.ndarray:
        """Degrees of freedom of a two-sided statement that errs with probability `level`, at least 1."""
        return freedom_of(self.by_seeds_X, self.by_others_X, self.runs, level)

    def half_width(self, level: float | np.ndarray) -> np.ndarray:
        """Half the width of the two-sided interval that errs with probability `level`."""
        return self.error_X * quantile(self.freedom(level), 1 - np.asarray(level) / 2)

    def p_value(self) -> np.ndarray:
        """Two-sided, of a true mean of zero: the level at which the interval ends at zero, by bisection; 1e-12 for
        everything below."""
        t_X = -np.abs(self.mean_X) / self.error_X
        low_X = np.full(t_X.shape, -12.0)
        high_X = np.zeros(t_X.shape)
        for _ in range(30):
            middle_X = (low_X + high_X) / 2
            clear_X = 2 * special.stdtr(self.freedom(10**middle_X), t_X) <= 10**middle_X
            low_X = np.where(clear_X, low_X, middle_X)
            high_X = np.where(clear_X, middle_X, high_X)
        return 10**high_X


def freedom_of(
    by_seeds: float | np.ndarray,
    by_others: float | np.ndarray,
    runs: int,
    level: float | np.ndarray,
) -> np.ndarray:
    """See the module's text; at least 1, at most what counts are for."""
    few = max(runs - 1, 1)
    less = (1 + 5 / few**2) * np.maximum(0.05 / np.asarray(level), 1.0) ** (1.8 / few)
    return np.maximum(1 / (less * by_seeds + by_others), 1.0)


def quantile(freedom_X: float | np.ndarray, probability: float | np.ndarray) -> np.ndarray:
    """Of Student's t with any degrees of freedom of at least 1."""
    return special.stdtrit(freedom_X, probability)


def parts_of(values_XRN: Values) -> MeanParts:
    """Of tables [..., runs, tasks]. DataError for other shapes and for what is not finite."""
    values_XRN = np.asarray(values_XRN)
    values_XRN = values_XRN if values_XRN.dtype == np.float32 else values_XRN.astype(np.float64)
    if values_XRN.ndim < 2 or not values_XRN.size:
        raise DataError(
            f"values: expected at least one run with one number per task, got shape {values_XRN.shape}"
        )
    runs, tasks = values_XRN.shape[-2:]
    run_XR = values_XRN.mean(axis=-1, dtype=np.float64)
    mean_X = run_XR.mean(axis=-1)
    if not np.isfinite(mean_X).all():
        raise DataError(
            "values: expected finite numbers; leave out what could not be scored (None is not zero)"
        )
    if runs == 1:
        return _of_one_run(mean_X, tasks)
    if tasks == 1:
        return _by_seeds_alone(run_XR)
    task_XN = values_XRN.mean(axis=-2, dtype=np.float64)
    ms_run_X = tasks * run_XR.var(axis=-1, ddof=1)
    ms_task_X = runs * task_XN.var(axis=-1, ddof=1)
    square_X = np.einsum("...rn,...rn->...", values_XRN, values_XRN, dtype=np.float64)
    whole_X = square_X - runs * tasks * mean_X**2
    left_X = whole_X - (runs - 1) * ms_run_X - (tasks - 1) * ms_task_X
    ms_rest_X = np.maximum(left_X / ((runs - 1) * (tasks - 1)), 0.0)
    variance_X, *by_X = _variance(ms_run_X, ms_task_X, ms_rest_X, runs, tasks)
    unit_X: float | np.ndarray = 1.0  # of successes, and of differences of successes
    if np.abs(values_XRN).max() > 1:
        deviation_X = np.sqrt(np.abs(whole_X) / (runs * tasks))
        unit_X = np.where(whole_X > 1e-12 * square_X, deviation_X, np.abs(mean_X))
    error_X = np.maximum(np.sqrt(variance_X / (runs * tasks)), least_error(tasks, unit_X))
    seed_X = np.maximum(ms_run_X - ms_rest_X, 0) / tasks
    task_X = np.maximum(ms_task_X - ms_rest_X, 0) / runs
    return MeanParts(runs, tasks, mean_X, error_X, *by_X, seed_X, task_X, ms_rest_X)


def _of_one_run(mean_X: np.ndarray, tasks: int) -> MeanParts:
    """Nothing is known of the spread of runs."""
    infinite_X = np.full(mean_X.shape, np.inf)
    one_X = np.ones(mean_X.shape)
    zero_X = np.zeros(mean_X.shape)
    unknown_X = np.full(mean_X.shape, np.nan)
    return MeanParts(1, tasks, mean_X, infinite_X, one_X, zero_X, unknown_X, unknown_X, unknown_X)


def _by_seeds_alone(run_XR: np.ndarray) -> MeanParts:
    """Of one number a run: Student's t over the runs. Where all are alike nothing is known of their spread."""
    runs = run_XR.shape[-1]
    mean_X = run_XR.mean(axis=-1)
    variance_X = run_XR.var(axis=-1, ddof=1)
    known_X = variance_X > 1e-24 * (1 + mean_X**2)
    error_X = np.where(known_X, np.sqrt(variance_X / runs), np.inf)
    zero_X = np.zeros(mean_X.shape)
    by_seeds_X = zero_X + 1 / (runs - 1)
    return MeanParts(runs, 1, mean_X, error_X, by_seeds_X, zero_X, variance_X, zero_X, zero_X)


def _variance(
    ms_run_X: np.ndarray, ms_task_X: np.ndarray, ms_rest_X: np.ndarray, runs: int, tasks: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Runs times tasks times the variance of the mean; and Satterthwaite's sum, by seeds and by the others. Where nothing
    varies: that of tasks alone."""
    variance_X = np.maximum(ms_run_X + ms_task_X - ms_rest_X, FLOOR * ms_task_X)
    seeds_X = ms_run_X**2 / (runs - 1)
    others_X = ms_task_X**2 / (tasks - 1) + ms_rest_X**2 / ((runs - 1) * (tasks - 1))
    known_X = variance_X > 0
    # Where seeds (or tasks) differ less than by chance, the variance is below that of tasks (of seeds) alone; what these
    # say of it is not less.
    for_seeds_X = np.maximum(variance_X, ms_run_X) ** 2
    for_others_X = np.maximum(variance_X, ms_task_X) ** 2
    by_seeds_X = np.zeros_like(variance_X)
    by_others_X = np.full_like(variance_X, 1 / (tasks - 1))
    np.divide(seeds_X, for_seeds_X, out=by_seeds_X, where=known_X)
    np.divide(others_X, for_others_X, out=by_others_X, where=known_X)
    return variance_X, by_seeds_X, by_others_X


def least_error(tasks: int, unit: float | np.ndarray) -> np.ndarray:
    """The error that is left where no task tells two arms apart: as if one more task had spoken for either of them,
    sqrt(2) / (N + 2) in units of one success; of returns, in units of their deviation. Where no unit is known (returns
    that are all zero) it is infinite."""
    unit = np.asarray(unit, dtype=np.float64)
    return np.where(unit > 0, unit * np.sqrt(2) / (tasks + 2), np.inf)


def crossed_mean(values_RN: Values) -> Estimate:
    """Mean of values [runs, tasks], where every run met the same tasks in the same order, with its 95 % interval. `n` is
    the number of runs. One run alone has no known spread of runs: its interval is infinite."""
    if np.ndim(values_RN) != 2:
        raise DataError(
            f"values: expected one row of numbers per run, got shape {np.shape(values_RN)}"
        )
    parts = parts_of(values_RN)
    mean = float(parts.mean_X)
    half = float(parts.half_width(0.05))
    return Estimate(mean, mean - half, mean + half, parts.runs)


def paired_values(a_RN: Values, b_RN: Values) -> np.ndarray:
    """b - a, run by run and task by task. DataError unless both have the same runs and tasks."""
    a_RN = np.asarray(a_RN, dtype=np.float64)
    b_RN = np.asarray(b_RN, dtype=np.float64)
    if a_RN.shape != b_RN.shape:
        raise DataError(
            f"a paired difference needs the same runs and tasks on both sides, got {a_RN.shape} and "
            f"{b_RN.shape}"
        )
    return b_RN - a_RN


def crossed_difference(a_RN: Values, b_RN: Values) -> Difference:
    """Mean of b - a [runs, tasks], run by run and task by task (`crossed_mean`); `n` is the number of runs."""
    mean = crossed_mean(paired_values(a_RN, b_RN))
    return Difference(mean.mean, mean.low, mean.high, mean.n)


def detectable(
    seed: float, task: float, rest: float, runs: int, tasks: int, level: float = 0.05
) -> float:
    """The true difference that is found with probability POWER by a two-sided test at `level`, for these variances of
    seeds, tasks and the rest. Infinite for a single run. One task: by the runs alone. By the noncentral t, whose
    parameter is searched for: scipy's own inverse (`nctdtrinc`) is good to 1e-8 only."""
    from scipy.optimize import brentq

    if runs < 2:
        return float("inf")
    if seed + task + rest == 0:
        return 0.0
    error, freedom, limit = _test_of(seed, task, rest, runs, tasks, level)

    def power_above_target(noncentrality: float) -> float:
        return 1 - special.nctdtr(freedom, noncentrality, limit) - POWER

    return brentq(power_above_target, 0.0, 2 * limit + 10, xtol=1e-14) * error


def _test_of(
    seed: float, task: float, rest: float, runs: int, tasks: int, level: float
) -> tuple[float, float, float]:
    """Standard error of the mean, degrees of freedom, and the t value from which a difference is found."""
    if tasks < 2:
        error = float(np.sqrt((seed + task + rest) / runs))
        by_seeds = 1 / (runs - 1)
        by_others = 0.0
    else:
        ms_run = np.asarray(rest + tasks * seed, dtype=np.float64)
        ms_task = np.asarray(rest + runs * task, dtype=np.float64)
        ms_rest = np.asarray(rest, dtype=np.float64)
        variance, by_seeds, by_others = _variance(ms_run, ms_task, ms_rest, runs, tasks)
        error = max(float(np.sqrt(variance / (runs * tasks))), float(least_error(tasks, 1.0)))
    freedom = float(freedom_of(float(by_seeds), float(by_others), runs, level))
    return error, freedom, float(quantile(freedom, 1 - level / 2))


def chance_found(
    effect: float, seed: float, task: float, rest: float, runs: int, tasks: int, level: float = 0.05
) -> float:
    """The probability that a true difference of `effect` is found, on its side, by a two-sided test at `level`; 0 for a
    single run. As `detectable`, the other way round."""
    if runs < 2:
        return 0.0
    if seed + task + rest == 0:
        return float(effect != 0)  # without any variance the smallest difference is seen
    error, freedom, limit = _test_of(seed, task, rest, runs, tasks, level)
    return float(1 - special.nctdtr(freedom, abs(effect) / error, limit))


def chance_equal(
    margin: float, seed: float, task: float, rest: float, runs: int, tasks: int, level: float = 0.05
) -> float:
    """The probability that the interval at `level` lies within the margin where there is no difference at all, taking the
    interval to be as wide as it is on average."""
    if runs < 2:
        return 0.0
    if seed + task + rest == 0:
        return float(margin > 0)
    error, freedom, limit = _test_of(seed, task, rest, runs, tasks, level)
    return float(max(2 * special.stdtr(freedom, margin / error - limit) - 1, 0.0))
