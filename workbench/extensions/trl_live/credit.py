"""Rewards and advantages of a generation (R6 R16 R29): from what reward functions returned to what the loss is handed.

Advantages are computed once more from the rewards and the settings alone, in float64, by their definition in TRL's
documentation: rewards weighted and summed, less the mean of their group, divided as `scale_rewards` says; or each reward
normalized in its group, summed, normalized over the batch (`multi_objective_aggregation="normalize_then_sum"`).
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked
from workbench.basics.tensors import torch
from workbench.extensions.trl_live.rows import SampledRows
from workbench.linting.rule import RuleResult

TINY = 1e-4  # TRL adds it to a standard deviation before it divides
SLACK = 2e-3  # of advantages, which TRL computes in float32
SOON = 0.2  # seconds that a reward function may take to be asked again


@dataclass(frozen=True)
class CreditSettings:
    """How rewards become advantages."""

    group: int
    scale: str  # "group" | "batch" | "none"
    together: str  # "sum_then_normalize" | "normalize_then_sum"
    weights: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class RowCredit:
    """What the rewards come to [rows of all processes]. NaN: no reward function scored it.

    earned      the weighted sum, in the order of which advantages lie
    advantages  None where the settings are not known here
    """

    earned: np.ndarray
    advantages: np.ndarray | None


def expected_credit(rewards_NK: np.ndarray, shares: CreditSettings) -> RowCredit:
    """Rewards of all rows by reward function -> what each row earned and is credited with."""
    rewards_NK = rewards_NK.astype(np.float64)
    if shares.together == "normalize_then_sum":
        parts = [_normalized(column, shares.group) for column in rewards_NK.T]
        earned = _weighted(np.stack(parts, axis=1), shares.weights)
        credit = (earned - _mean(earned)) / (_spread(earned) + TINY)
        return RowCredit(earned, np.nan_to_num(credit))
    earned = _weighted(rewards_NK, shares.weights)
    if shares.together != "sum_then_normalize" or len(earned) % shares.group:
        return RowCredit(earned, None)
    groups = earned.reshape(-1, shares.group)
    credit = groups - np.array([[_mean(group)] for group in groups])
    if shares.scale == "group":
        credit = credit / (np.array([[_spread(group)] for group in groups]) + TINY)
    elif shares.scale == "batch":
        credit = credit / (_spread(earned) + TINY)
    elif shares.scale != "none":
        return RowCredit(earned, None)
    return RowCredit(earned, np.nan_to_num(credit.reshape(-1)))


def _weighted(rewards_NK: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """The weighted sum of those that are known; NaN where none is."""
    earned = np.nansum(rewards_NK * np.array(weights, np.float64), axis=1)
    return np.where(np.isnan(rewards_NK).all(axis=1), np.nan, earned)


def _normalized(column: np.ndarray, group: int) -> np.ndarray:
    parts = column.reshape(-1, group)
    return np.concatenate([(part - _mean(part)) / (_spread(part) + TINY) for part in parts])


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def _spread(values: np.ndarray) -> float:
    """The standard deviation over n - 1; NaN of fewer than two."""
    known = values[~np.isnan(values)]
    return float(known.std(ddof=1)) if len(known) > 1 else float("nan")


# ------------------------------------------------------------------------------------------------ R6


def advantages_follow(
    generated: SampledRows, expected: RowCredit, own_method: bool
) -> Iterator[RuleResult]:
    """R6: the advantages are those that rewards and settings come to. `own_method`: a class of the user's own computes
    them, so another number may be meant."""
    used = generated.padded.get("advantages")
    if used is None or used.ndim != 1 or expected.advantages is None:
        yield NotChecked("one advantage for each row, by settings that are known here")
        return
    first = generated.settings.first
    wanted = expected.advantages[first : first + len(used)]
    if len(wanted) != len(used):
        yield Finding(f"{len(used)} advantages for {len(wanted)} rewards", generated.place(0))
        return
    wrong = np.abs(used - wanted) > SLACK * np.maximum(1.0, np.abs(wanted))
    yield Checked(len(used))
    if not wrong.any():
        return
    row = int(wrong.argmax())
    words = (
        f"its advantage is {used[row]:+.4g}, and its rewards and the trainer's settings come to {wanted[row]:+.4g} "
        f"({int(wrong.sum())} of {len(used)} rows)"
    )
    others = np.flatnonzero(np.abs(wanted - used[row]) <= SLACK * max(1.0, abs(float(used[row]))))
    mixed = np.allclose(np.sort(used), np.sort(wanted), atol=SLACK) and len(others)
    if mixed:
        words += f": that is the advantage of {generated.name(int(others[0]))}"
    severity = NOTE if own_method and not mixed else ERROR
    yield Finding(words, generated.place(row), severity, int(wrong.sum()))


# ------------------------------------------------------------------------------------------------ R16, R29


@dataclass(frozen=True, eq=False)
class RewardsReturned:
    """What one reward function returned [rows of this process], and what it was asked with."""

    name: str
    column: int  # of the trainer's rewards
    function: Callable[..., Any]
    asked: Mapping[str, Any]
    values: Sequence[float | None]
    seconds: float

    @property
    def numbers(self) -> np.ndarray:
        return _numbers(self.values)


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else float(value) for value in values], np.float64)


def rewards_arrive(
    generated: SampledRows, rewards_NK: np.ndarray, returned: Sequence[RewardsReturned]
) -> Iterator[RuleResult]:
    """R16: what a reward function returned for a row is what the trainer has for it."""
    first = generated.settings.first
    looked = 0
    for one in returned:
        gave = one.numbers
        has = rewards_NK[first : first + len(gave), one.column]
        looked += len(gave)
        same = np.isclose(has, gave, rtol=1e-4, atol=1e-5, equal_nan=True)
        if same.all() and len(has) == len(gave):
            continue
        row = int((~same).argmax())
        gave_words = "None" if np.isnan(gave[row]) else f"{gave[row]:.4g}"
        words = f"{one.name} returned {gave_words}, and the trainer has {has[row]:.4g}"
        others = np.flatnonzero(np.isclose(gave, has[row], rtol=1e-4, atol=1e-5))
        if np.isnan(gave[row]):
            words += ": unscored is not zero"
        elif len(others):
            words += f", which it returned for {generated.name(int(others[0]))}"
        yield Finding(words, generated.place(row), ERROR, int((~same).sum()))
    yield Checked(looked)
    if not looked:
        yield NotChecked(
            "what a reward function returned (models and asynchronous functions are not listened to)"
        )


def rewards_by_row(
    generated: SampledRows, returned: Sequence[RewardsReturned]
) -> Iterator[RuleResult]:
    """R29: a row's reward is its own: asked again with the rows in reverse order, a function pays each row the same.

    Functions that took longer than 0.2 s are not asked again; those that return other numbers when asked again as they
    were cannot be judged.
    """
    looked = 0
    for one in returned:
        if one.seconds > SOON or len(one.values) < 2:
            yield NotChecked(
                f"{one.name} again: it took {one.seconds:.2g} s, so it is not asked twice"
            )
            continue
        again = ask_again(one, range(len(one.values)))
        if again is None or not _same(again, one.numbers):
            yield NotChecked(
                f"{one.name} again: asked twice with the same rows, it does not return the same"
            )
            continue
        turned = ask_again(one, range(len(one.values))[::-1])
        looked += len(one.values)
        if turned is None or len(turned) != len(one.values):
            yield NotChecked(f"{one.name} with its rows in reverse order: it raised an error")
            continue
        turned = turned[::-1]
        wrong = ~np.isclose(turned, one.numbers, rtol=1e-4, atol=1e-5, equal_nan=True)
        if wrong.any():
            row = int(wrong.argmax())
            yield Finding(
                f"{one.name} pays it {one.numbers[row]:.4g}, and {turned[row]:.4g} when the rows are handed over in reverse "
                f"order ({int(wrong.sum())} of {len(turned)} rows): the reward goes by a row's place, so rows are paid for "
                "what others did",
                generated.place(row),
                ERROR,
                int(wrong.sum()),
            )
    yield Checked(looked)
    if not returned:
        yield NotChecked("a reward function that can be asked again")


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return len(one) == len(other) and bool(
        np.isclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True).all()
    )


def ask_again(one: RewardsReturned, order: Sequence[int]) -> np.ndarray | None:
    """What the function returns for the rows in this order; None where it raises. Random states are put back, and nothing
    is logged."""
    count = len(one.values)
    asked: dict[str, Any] = {}
    for name, value in one.asked.items():
        if name in ("log_extra", "log_metric"):
            asked[name] = _log_nothing
        elif isinstance(value, list) and len(value) == count:
            rows = [value[row] for row in order]
            asked[name] = rows if name == "environments" else copy.deepcopy(rows)
        else:
            asked[name] = value
    states = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    try:
        values = one.function(**asked)
        return _numbers(list(values))
    except Exception:
        return None
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.random.set_rng_state(states[2])


def _log_nothing(*args: Any, **named: Any) -> None:
    """In the place of TRL's loggers."""


def listening(
    function: Callable[..., Any], column: int, name: str, heard: list[RewardsReturned]
) -> Callable[..., Any]:
    """The reward function, which notes in `heard` what it is asked and returns."""

    def asked(**given: Any) -> Any:
        began = time.perf_counter()
        values = function(**given)
        seconds = time.perf_counter() - began
        if isinstance(values, (list, tuple, np.ndarray)):
            heard.append(RewardsReturned(name, column, function, given, list(values), seconds))
        return values

    return asked
