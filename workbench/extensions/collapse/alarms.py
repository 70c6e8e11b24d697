"""From the signals of a run to alarms, step by step: scores, each compared with a threshold, and the three
alarms that name a kind of collapse.

A score at a step knows the steps up to it and no later one. None: nothing to say yet. How early the alarms come, and how
often for nothing, is measured: docs/evidence/collapse.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.extensions.collapse.step_signals import StepSignals

BASE = 3  # first steps, whose mean is the start of a signal
SMOOTH = 3  # last steps, whose mean is its present value
FLOOR = 1e-3  # of a start that is divided by

Steps = Sequence[StepSignals]
Scores = list[float | None]


@dataclass(frozen=True)
class AlarmRule:
    """How ill a run looks, by one sign. `names`: the kind of collapse that it is a sign of; "": none."""

    name: str
    scores: Callable[[Steps], Scores]
    names: str = ""


def means(steps: Steps, signal: str) -> Scores:
    """The mean over the last steps; None where one of them has no value, and before there are as many."""
    values = [getattr(record, signal) for record in steps]
    values_by_step: Scores = []
    for end in range(1, len(values) + 1):
        last = values[end - SMOOTH : end] if end >= SMOOTH else [None]
        values_by_step.append(None if None in last else float(np.mean(last)))
    return values_by_step


def fall(signal: str) -> Callable[[Steps], Scores]:
    """The share of its start that a signal has lost; all of it where there was next to nothing."""
    return lambda steps: _beside_start(steps, signal, lambda now, start: 1 - now / start)


def rise(signal: str) -> Callable[[Steps], Scores]:
    """How many times its start a signal is."""
    return lambda steps: _beside_start(steps, signal, lambda now, start: now / start)


def _beside_start(steps: Steps, signal: str, compare: Callable[[float, float], float]) -> Scores:
    now = means(steps, signal)
    first = [getattr(record, signal) for record in steps[:BASE]]
    if len(first) < BASE or None in first:
        return [None] * len(steps)
    start = max(float(np.mean(first)), FLOOR)
    return [
        None if value is None or at < BASE else compare(value, start)
        for at, value in enumerate(now)
    ]


def below_best(signal: str) -> Callable[[Steps], Scores]:
    """How far a signal lies below the best that it was before."""

    def scores(steps: Steps) -> Scores:
        best = None
        distances = []
        for value in means(steps, signal):
            if value is None:
                distances.append(None)
                continue
            best = value if best is None else max(best, value)
            distances.append(best - value)
        return distances

    return scores


def level(signal: str) -> Callable[[Steps], Scores]:
    """The signal itself."""
    return lambda steps: means(steps, signal)


def minus(signal: str) -> Callable[[Steps], Scores]:
    """How far the signal is below zero."""
    return lambda steps: [None if value is None else -value for value in means(steps, signal)]


def both(
    first: AlarmRule, second: AlarmRule, thresholds: tuple[float, float]
) -> Callable[[Steps], Scores]:
    """1 or more where both are beyond their thresholds in the same step: the smaller of the two shares."""

    def scores(steps: Steps) -> Scores:
        shares: Scores = []
        for one, other in zip(first.scores(steps), second.scores(steps), strict=True):
            if one is None or other is None:
                shares.append(None)
            else:
                shares.append(min(one / thresholds[0], other / thresholds[1]))
        return shares

    return scores


# Kind of collapse -> the two signs that must come together.
PAIRS: Mapping[str, tuple[AlarmRule, AlarmRule]] = {
    "echo": (
        AlarmRule("valid format falls below its best", below_best("valid")),
        AlarmRule("success falls below its best", below_best("success")),
    ),
    "retreat": (
        AlarmRule("turns fall", fall("turns")),
        AlarmRule("success falls", fall("success")),
    ),
    "risk-aversion": (
        AlarmRule("entropy falls", fall("entropy")),
        AlarmRule("success falls", fall("success")),
    ),
}


def paired_rule(kind: str, thresholds: tuple[float, float]) -> AlarmRule:
    """The alarm of a kind: at 1 or more, both of its signs are beyond their thresholds."""
    first, second = PAIRS[kind]
    return AlarmRule(
        f"{kind.replace('-', ' ')}: {first.name}, and {second.name}",
        both(first, second, thresholds),
        kind,
    )


# Kind -> the thresholds of its two signs, as the collapse bench chose them: docs/evidence/collapse.md.
THRESHOLDS: Mapping[str, tuple[float, float]] = {
    "echo": (0.25, 0.18),
    "retreat": (0.057, 1),
    "risk-aversion": (0.12, 0.37),
}


def alarms_of(steps: Steps) -> tuple[str, ...]:
    """The kinds of collapse that the last of these steps looks like; mostly none."""
    named = []
    for kind, limits in THRESHOLDS.items():
        scores = paired_rule(kind, limits).scores(steps)
        if scores and scores[-1] is not None and scores[-1] >= 1:
            named.append(kind)
    return tuple(named)
