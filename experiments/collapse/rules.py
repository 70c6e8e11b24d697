"""From the signals of a run to how ill it looks, step by step: one score each, to be held against a threshold.

A score at a step knows the steps up to it and no later one. None: nothing to say yet. Scores were written down before any
run of the bench was looked at; only thresholds are chosen, and on half of the seeds.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.types.monitored import StepSignals

BASE = 3    # first steps, whose mean is the start of a signal
SMOOTH = 3  # last steps, whose mean is its present value
FLOOR = 1e-3  # of a start that is divided by

Steps = Sequence[StepSignals]
Scores = list[float | None]


@dataclass(frozen=True)
class Rule:
    """How ill a run looks, by one sign. `names`: the kind of collapse that it is a sign of; "": none."""

    name: str
    scores: Callable[[Steps], Scores]
    names: str = ""


def means(steps: Steps, signal: str, width: int = SMOOTH) -> Scores:
    """The mean over the last `width` steps; None where a step has no value, and before there are as many."""
    values = [getattr(each, signal) for each in steps]
    found: Scores = []
    for end in range(1, len(values) + 1):
        last = values[end - width:end] if end >= width else [None]
        found.append(None if None in last else float(np.mean(last)))
    return found


def fall(signal: str) -> Callable[[Steps], Scores]:
    """The share of its start that a signal has lost."""
    return lambda steps: _beside_start(steps, signal, lambda now, start: 1 - now / start)


def rise(signal: str) -> Callable[[Steps], Scores]:
    """How many times its start a signal is."""
    return lambda steps: _beside_start(steps, signal, lambda now, start: now / start)


def _beside_start(steps: Steps, signal: str, compare: Callable[[float, float], float]) -> Scores:
    now = means(steps, signal)
    first = [getattr(each, signal) for each in steps[:BASE]]
    if len(first) < BASE or None in first:
        return [None] * len(steps)
    start = max(float(np.mean(first)), FLOOR)
    return [None if value is None or at < BASE else compare(value, start) for at, value in enumerate(now)]


def below_best(signal: str) -> Callable[[Steps], Scores]:
    """How far a signal lies below the best that it was before."""
    def scores(steps: Steps) -> Scores:
        best, found = None, []
        for value in means(steps, signal):
            best = value if best is None else best if value is None else max(best, value)
            found.append(None if value is None else best - value)
        return found
    return scores


def level(signal: str) -> Callable[[Steps], Scores]:
    """The signal itself."""
    return lambda steps: means(steps, signal)


def both(first: Rule, second: Rule, thresholds: tuple[float, float]) -> Callable[[Steps], Scores]:
    """1 or more where both are beyond their thresholds in the same step: the smaller of the two shares."""
    def scores(steps: Steps) -> Scores:
        pairs = zip(first.scores(steps), second.scores(steps), strict=True)
        return [None if None in pair else min(value / limit for value, limit in zip(pair, thresholds, strict=True))
                for pair in pairs]
    return scores


def largest(rules: Sequence[Rule]) -> Callable[[Steps], Scores]:
    """Whatever says most, of rules whose threshold is 1."""
    def scores(steps: Steps) -> Scores:
        rows = zip(*(rule.scores(steps) for rule in rules), strict=True)
        return [max((value for value in row if value is not None), default=None) for row in rows]
    return scores


SINGLE: tuple[Rule, ...] = (
    Rule("success falls below its best", below_best("success")),
    Rule("success falls", fall("success")),
    Rule("valid format falls below its best", below_best("valid")),
    Rule("spread of the reward falls", fall("reward_spread")),
    Rule("spread of success falls", fall("success_spread")),
    Rule("spread of format rises", rise("format_spread")),
    Rule("groups flat, all lost", level("flat_lost")),
    Rule("groups flat, all won", level("flat_won")),
    Rule("repetition inside replies", level("repetition")),
    Rule("replies alike", level("commonest")),
    Rule("turns fall", fall("turns")),
    Rule("turns rise", rise("turns")),
    Rule("tokens fall", fall("tokens")),
    Rule("tokens rise", rise("tokens")),
    Rule("entropy falls", fall("entropy")),
    Rule("entropy rises", rise("entropy")),
    Rule("gradient rises", rise("gradient")),
    Rule("KL of an update rises", rise("update_kl")),
    Rule("clipped share", level("clipped")),
    Rule("largest ratio", level("ratio_max")))
BY_NAME: Mapping[str, Rule] = {rule.name: rule for rule in SINGLE}

# Kind of collapse -> the two signs that must come together.
PAIRS: Mapping[str, tuple[str, str]] = {
    "echo": ("valid format falls below its best", "success falls below its best"),
    "retreat": ("turns fall", "success falls"),
    "risk-aversion": ("entropy falls", "success falls")}


def paired_rule(kind: str, thresholds: tuple[float, float]) -> Rule:
    first, second = (BY_NAME[name] for name in PAIRS[kind])
    return Rule(f"{kind.replace('-', ' ')}: {first.name}, and {second.name}", both(first, second, thresholds), kind)
