"""Alarms that others published, each as it stands there: asked at every step, of the steps so far.

Where a tool has several rules, those that these signals can answer are asked, and any of them is an alarm. What it waits for
(warm-up, shortest run) is kept: an alarm that waits longer than a run collapses is of no use to it, and that is a result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from workbench.extensions.collapse.alarms import Scores, Steps

Alarm = Callable[[Steps], bool]


def series(steps: Steps, signal: str) -> np.ndarray:
    """A signal over the steps, NaN where it was not computed."""
    return np.array(
        [np.nan if (value := getattr(each, signal)) is None else value for each in steps], float
    )


def flat(steps: Steps) -> np.ndarray:
    """The share of groups of no spread, whichever side they are on."""
    return series(steps, "flat_won") + series(steps, "flat_lost") + series(steps, "flat_same")


def sustained(mask: np.ndarray, count: int) -> bool:
    """True where the mask holds so many times in a row somewhere."""
    run = 0
    for each in mask:
        run = run + 1 if each else 0
        if run >= count:
            return True
    return False


def ragen(steps: Steps) -> bool:
    """RAGEN (arXiv 2504.20073): reward spread inside groups falls early; it gives no number. Here: below half of the mean of
    the first five steps."""
    spread = series(steps, "reward_spread")
    return len(spread) > 5 and bool(spread[-1] < 0.5 * spread[:5].mean())


def ragen_2(steps: Steps) -> bool:
    """RAGEN-2's early stop: reward spread below a tenth of the mean of the first ten steps, ten steps in a row."""
    spread = series(steps, "reward_spread")
    return len(spread) >= 20 and bool((spread[-10:] < 0.1 * spread[:10].mean()).all())


def rlwatch(steps: Steps) -> bool:
    """rlwatch 0.5.1 with its defaults. Entropy below 1.0 in 25 steps in a row (its warning), counted after 20 steps; the norm
    of the gradient 3 standard deviations above all earlier ones, after 20 steps; variance of the reward above three times that
    of the first 20, after 50 steps; KL to the reference 3 standard deviations up, after 20."""
    entropy = series(steps, "entropy")
    alarms = [sustained(entropy[19:] < 1.0, 25)]
    for signal in ("gradient", "kl"):
        values = series(steps, signal)
        if len(values) >= 20 and np.isfinite(values).all():
            alarms.append(values[-1] > values[:-1].mean() + 3 * max(values[:-1].std(), 1e-8))
    variance = series(steps, "reward_spread") ** 2
    alarms.append(len(steps) >= 50 and variance[-1] > 3 * max(variance[:20].mean(), 1e-8))
    return any(map(bool, alarms))


def rlprobe(steps: Steps) -> bool:
    """rlprobe 0.1.0 with its defaults, which waits for 30 steps. `early`: the first quarter, `late`: the last fifth, ten steps
    at least. Entropy from above 1 to below .25; more than 40 % of groups flat, 15 steps in a row and late; clipped above 30 %,
    20 in a row and late; the gradient above ten times its median three times; repetition from below 15 to above 30 %; spread of
    the reward from three times that to below .05."""
    if len(steps) < 30:
        return False

    def ends(values: np.ndarray) -> tuple[float, float]:
        return (
            float(np.nanmean(values[: max(10, len(values) // 4)])),
            float(np.nanmean(values[-max(10, len(values) // 5) :])),
        )

    entropy, repeated, spread = (
        ends(series(steps, name)) for name in ("entropy", "repetition", "reward_spread")
    )
    clipped, gradient, groups = series(steps, "clipped"), series(steps, "gradient"), flat(steps)
    return any(
        (
            entropy[0] > 1.0 and entropy[1] < 0.25,
            sustained(groups > 0.4, 15) and ends(groups)[1] > 0.4,
            sustained(clipped > 0.3, 20) and ends(clipped)[1] > 0.3,
            np.median(gradient) > 0 and (gradient > 10 * np.median(gradient)).sum() >= 3,
            repeated[0] < 0.15 and repeated[1] > 0.3,
            spread[1] < 0.05 and spread[0] >= 3 * spread[1],
        )
    )


def rldoctor(steps: Steps) -> bool:
    """rldoctor 0.2.0 with its defaults, its warnings; it asks for 8 steps. Half of the groups flat over the last quarter (median
    of 5 steps at least); entropy at a tenth of its start or below; the gradient exactly zero in 40 % of all steps, or at 5 % of its
    start. Start: the first tenth, now: the last one, 5 and 3 steps at least."""
    if len(steps) < 8:
        return False

    def ends(signal: str) -> tuple[float, float]:
        values = series(steps, signal)
        return (
            float(np.median(values[: max(5, round(len(values) / 10))])),
            float(np.median(values[-max(3, round(len(values) / 10)) :])),
        )

    entropy, gradient, groups = ends("entropy"), ends("gradient"), flat(steps)
    return any(
        (
            np.median(groups[-max(5, round(len(groups) / 4)) :]) >= 0.5,
            entropy[1] <= 0.1 * entropy[0],
            (series(steps, "gradient") == 0).mean() >= 0.4,
            gradient[0] > 0 and gradient[1] <= 0.05 * gradient[0],
        )
    )


PUBLISHED: dict[str, Alarm] = {
    "RAGEN: spread of the reward halves": ragen,
    "RAGEN-2: spread of the reward below a tenth": ragen_2,
    "rlwatch 0.5.1": rlwatch,
    "rlprobe 0.1.0": rlprobe,
    "rldoctor 0.2.0": rldoctor,
}


def scores_of(alarm: Alarm) -> Callable[[Steps], Scores]:
    """1 at every step at which it is one, else 0."""
    return lambda steps: [float(alarm(steps[:end])) for end in range(1, len(steps) + 1)]
