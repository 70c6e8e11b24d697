"""What an estimator makes of an exact task: mean and spread of its gradient, by enumeration or by sampling.

The estimate of a *unit* (a trajectory, a group, a whole batch: whatever the estimator looks at together) is

    g = 1/m  sum over its m trajectories, sum over their tokens, of  credit(token) * d logp(token) / d logits

with the credit that `algorithm.credit(batch)` gives, which is what training uses. Nothing of an estimator is written
down a second time here. Trajectories are exchangeable, so units are enumerated as multisets: 45 groups of eight trajectories
with three outcomes, each with its multinomial probability, are all there are.

Axis letters: U units · m trajectories of a unit · O outcomes · N trajectories (U * m) · T tokens · D parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb, factorial, prod

import numpy as np
import torch
from torch import Tensor

from workbench.extensions.bias.trajectories import Templates, batch_of
from workbench.learn.batch import Batch
from workbench.values.errors import DataError
from workbench.values.seeds import rng_at

# batch -> what each token is worth [T], float64, zero where nothing is trained
Estimator = Callable[[Batch], Tensor]
CHUNK = 32_768  # trajectories that are made into one batch at a time


@dataclass(frozen=True)
class Unit:
    """What an estimator looks at together: `groups` groups of `attempts` trajectories.

    `alone`: nothing outside the unit changes its estimate, so that many units may stand in one batch. Estimators that
    whiten or filter over the batch do not have that: each of their units must be a batch of its own.
    """

    attempts: int
    groups: int = 1
    alone: bool = True

    @property
    def size(self) -> int:
        return self.attempts * self.groups

    def __str__(self) -> str:
        if self.size == 1:
            return "1 trajectory"
        many = f"{self.groups} x {self.attempts}" if self.groups > 1 else str(self.attempts)
        return f"{'group' if self.alone else 'batch'} of {many}"


@dataclass(frozen=True, eq=False)
class Measured:
    """Mean of the estimate [D], its variance from unit to unit [D], and the standard error of the mean [D] (zero where
    all `units` were enumerated)."""

    mean_D: np.ndarray
    variance_D: np.ndarray
    error_D: np.ndarray
    units: int
    exact: bool


def enumerated(source: Templates, estimator: Estimator, unit: Unit) -> Measured:
    """Every unit there can be, each with its probability: no error but rounding."""
    outcome_UN, probability_U = all_units(source.probability_O, unit)
    estimate_UD = estimates(source, estimator, unit, outcome_UN).numpy()
    mean_D = probability_U @ estimate_UD
    variance_D = probability_U @ (estimate_UD - mean_D) ** 2
    return Measured(mean_D, variance_D, np.zeros_like(mean_D), len(outcome_UN), True)


def sampled(
    source: Templates, estimator: Estimator, unit: Unit, units: int, *address: int | str
) -> Measured:
    """`units` units drawn independently, from the seed at `address`."""
    if units < 2:
        raise DataError(f"a standard error needs at least 2 sampled units, got {units}")
    draws = rng_at("bias", source.task.name, *address).choice(
        len(source.probability_O), size=(units, unit.size), p=source.probability_O
    )
    estimate_UD = estimates(source, estimator, unit, draws).numpy()
    variance_D = estimate_UD.var(axis=0, ddof=1)
    return Measured(estimate_UD.mean(axis=0), variance_D, np.sqrt(variance_D / units), units, False)


def units_needed(
    variance_D: np.ndarray, truth_D: np.ndarray, error: float, *, least: int = 2_000
) -> int:
    """So many units that every parameter's standard error is at most `error` times the length of the true gradient; an
    eighth more than by the variance, because the sample will have another one."""
    wanted = error * float(np.linalg.norm(truth_D))
    needed = np.ceil(1.125 * float(variance_D.max()) / wanted**2)
    return max(least, int(needed))


# ------------------------------------------------------------------------------------------------ units


def number_of_units(outcomes: int, unit: Unit) -> int:
    """How many different units there are: multisets of trajectories in a group, multisets of groups in a batch."""
    groups = comb(unit.attempts + outcomes - 1, unit.attempts)
    return comb(unit.groups + groups - 1, unit.groups)


def all_units(probability_O: np.ndarray, unit: Unit) -> tuple[np.ndarray, np.ndarray]:
    """The outcomes of every unit [U, m], group after group, and the units' probabilities [U], which sum to 1."""
    groups, of_group = _multisets(probability_O, unit.attempts)
    units, of_unit = _multisets(of_group, unit.groups)
    group_GN = np.array(groups)
    outcome_UN = group_GN[np.array(units)].reshape(len(units), unit.size)
    return outcome_UN, np.array(of_unit)


def _multisets(
    probabilities: Sequence[float], size: int
) -> tuple[list[tuple[int, ...]], list[float]]:
    """All ways to draw so many with repetition, their order aside, and the probability of each."""
    multisets = list(combinations_with_replacement(range(len(probabilities)), size))
    chances = []
    for members in multisets:
        in_one_order = prod(probabilities[member] for member in members)
        chances.append(_arrangements(members) * in_one_order)
    return multisets, chances


def _arrangements(multiset: tuple[int, ...]) -> int:
    """In how many orders its members can stand."""
    repeated = prod(factorial(count) for count in Counter(multiset).values())
    return factorial(len(multiset)) // repeated


# ------------------------------------------------------------------------------------------------ estimates


def estimates(
    source: Templates, estimator: Estimator, unit: Unit, outcome_UN: np.ndarray
) -> Tensor:
    """The gradient estimate of every unit [U, D]."""
    outcome_UN = np.ascontiguousarray(outcome_UN)
    per_batch = max(1, CHUNK // unit.size) if unit.alone else 1
    parts = []
    for first in range(0, len(outcome_UN), per_batch):
        of_batch = outcome_UN[first : first + per_batch]
        parts.append(_estimates_of_one_batch(source, estimator, unit, of_batch))
    return torch.cat(parts)


def demand_alone(source: Templates, estimator: Estimator, unit: Unit) -> None:
    """Raises DataError where a unit that is said to stand alone gets another estimate beside others than by itself."""
    if not unit.alone:
        return
    outcome_UN = rng_at("bias", source.task.name, "alone").choice(
        len(source.probability_O), size=(6, unit.size), p=source.probability_O
    )
    together_UD = estimates(source, estimator, unit, outcome_UN)
    apart = [estimates(source, estimator, unit, outcome_N[None]) for outcome_N in outcome_UN]
    apart_UD = torch.cat(apart)
    if not torch.allclose(together_UD, apart_UD, rtol=1e-9, atol=1e-12):
        raise DataError(
            f"{source.task.name}: {unit} gets other estimates beside others ({together_UD.tolist()}) than "
            f"by itself ({apart_UD.tolist()}); what looks at the whole batch is measured with alone=False"
        )


def _estimates_of_one_batch(
    source: Templates, estimator: Estimator, unit: Unit, outcome_UN: np.ndarray
) -> Tensor:
    units = len(outcome_UN)
    unit_N = torch.arange(units).repeat_interleave(unit.size)
    group_N = torch.arange(units * unit.groups).repeat_interleave(unit.attempts)
    batch = batch_of(source, torch.from_numpy(outcome_UN).reshape(-1), group_N)
    worth_T = estimator(batch)
    trained = worth_T.nonzero()[:, 0]
    pushed_AD = worth_T[trained, None] * source.policy.score_VD[batch.token_ids_T[trained]]
    unit_A = unit_N[batch.trajectory_of_token_T[trained]]
    total_UD = torch.zeros(units, len(source.policy.logits_D), dtype=torch.float64)
    return total_UD.index_add(0, unit_A, pushed_AD) / unit.size
