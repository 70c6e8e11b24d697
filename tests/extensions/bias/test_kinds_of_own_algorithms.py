"""Kinds of bugs in an algorithm of one's own that `workbench bias` and R47, R48 name; each beside the same without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from workbench.basics.findings import Finding
from workbench.extensions.bias.properties import properties_of
from workbench.extensions.bias.pulls import objective_properties
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import Advantages
from workbench.learn.algorithms.estimators import GROUP_RELATIVE, Estimator
from workbench.learn.algorithms.objectives import Clipped, probability_ratio

# ------------------------------------------------------------------------------------------------ estimators


def _by_group(inputs, of_group):
    advantage_N = torch.zeros_like(inputs.reward_N, dtype=torch.float64)
    for group in inputs.group_N.unique():
        at = (inputs.group_N == group) & inputs.kept_N
        advantage_N[at] = of_group(inputs.reward_N[at].double())
    return Advantages(inputs.of_rows(advantage_N))


def centred(inputs):
    """Minus the mean of the group."""
    return _by_group(inputs, lambda paid: paid - paid.mean())


def missing_is_zero(inputs):
    paid_N = inputs.reward_N.nan_to_num(0.0).double()
    advantage_N = torch.zeros_like(paid_N)
    for group in inputs.group_N.unique():
        at = inputs.group_N == group
        advantage_N[at] = paid_N[at] - paid_N[at].mean()
    return Advantages(inputs.of_rows(torch.where(inputs.kept_N, advantage_N, 0.0)))


def missing_is_nan(inputs):
    advantage_N = torch.zeros_like(inputs.reward_N, dtype=torch.float64)
    for group in inputs.group_N.unique():
        at = inputs.group_N == group
        advantage_N[at] = inputs.reward_N[at].double() - inputs.reward_N[at].double().mean()
    return Advantages(inputs.of_rows(advantage_N))


def distances(inputs):
    return _by_group(inputs, lambda paid: (paid - paid.mean()).abs() - 0.0)


def others(inputs):
    """Leave one out: minus the mean of the others of the group."""
    return _by_group(inputs, lambda paid: paid - (paid.sum() - paid) / max(len(paid) - 1, 1))


def not_left_out(inputs):
    """Leave one out: minus the mean of the others of the group."""
    return centred(inputs)


def _returns(inputs, from_the_front):
    turns = inputs.turns
    return_P = torch.zeros_like(inputs.reward_P, dtype=torch.float64)
    for row in turns.row_P.unique():
        at = turns.row_P == row
        paid = inputs.reward_P[at].double()
        return_P[at] = paid.cumsum(0) if from_the_front else paid.flip(0).cumsum(0).flip(0)
    return Advantages(return_P[turns.turn_of_A])


def returns_to_go(inputs):
    return _returns(inputs, from_the_front=False)


def returns_so_far(inputs):
    return _returns(inputs, from_the_front=True)


def times_the_spread(inputs):
    return _by_group(inputs, lambda paid: (paid - paid.mean()) * (paid.std() + 1e-6))


def twice_over_the_spread(inputs):
    return _by_group(inputs, lambda paid: (paid - paid.mean()) / (paid.var(unbiased=False) + 1e-6))


def over_the_spread(inputs):
    return _by_group(inputs, lambda paid: (paid - paid.mean()) / (paid.std(unbiased=False) + 1e-6))


def to_whole_numbers(inputs):
    return _by_group(inputs, lambda paid: paid.mul(2).floor() - paid.mul(2).floor().mean())


def _discounted(inputs, before, anew=True):
    """`before(paid, later)`: of a turn, by what it was paid and what the next one is worth."""
    row_P, worth_P, later = inputs.turns.row_P, torch.zeros_like(inputs.reward_P).double(), 0.0
    for turn in reversed(range(len(worth_P))):
        last = turn + 1 == len(worth_P) or row_P[turn + 1] != row_P[turn]
        later = 0.0 if last and anew else later
        later = before(float(inputs.reward_P[turn]), later)
        worth_P[turn] = later
    return Advantages(worth_P[inputs.turns.turn_of_A])


def discounted_returns(inputs):
    return _discounted(inputs, lambda paid, later: paid + 0.9 * later)


def returns_that_grow(inputs):
    return _discounted(inputs, lambda paid, later: paid + later / 0.9)


def returns_that_run_on(inputs):
    return _discounted(inputs, lambda paid, later: paid + 0.9 * later, anew=False)


def returns_of_one_turn(inputs):
    return _discounted(inputs, lambda paid, later: paid)


def _above_the_median(inputs, counts):
    """`counts(inputs)` -> bool [N]: who is compared with. A missing score is no number."""
    paid_N = inputs.reward_N.nan_to_num(0.0).double()
    advantage_N = torch.zeros_like(paid_N)
    for n in inputs.kept_N.nonzero()[:, 0].tolist():
        others_N = (inputs.group_N == inputs.group_N[n]) & counts(inputs)
        others_N[n] = False
        if bool(others_N.any()):
            advantage_N[n] = paid_N[n] - float(np.median(paid_N[others_N].numpy()))
    return Advantages(inputs.of_rows(advantage_N))


def above_the_median(inputs):
    return _above_the_median(inputs, lambda inputs: inputs.kept_N)


def above_the_median_of_all(inputs):
    return _above_the_median(inputs, lambda inputs: torch.ones_like(inputs.kept_N))


def _above_value(inputs, whitened_target):
    """What is earned from the beginning on, above the critic's value."""
    value_A = inputs.value_A.double()
    above_A = inputs.reward_N.double()[inputs.row_A] - value_A
    white_A = inputs.whitened(above_A)
    return Advantages(white_A, (white_A if whitened_target else above_A) + value_A)


def above_value(inputs):
    return _above_value(inputs, whitened_target=False)


def above_value_and_whitened(inputs):
    return _above_value(inputs, whitened_target=True)


COMPARED = {"compares": True, "ignores_shifts": True}
CRITIC = {"per": "token", "critic": True, "whitens": True}
ESTIMATORS = {
    "a missing score is zero": (missing_is_zero, COMPARED, "is counted as a number"),
    "a missing score is NaN": (missing_is_nan, COMPARED, "tokens' credit NaN"),
    "a sign is lost": (distances, COMPARED, "loses a sign"),
    "itself in its baseline": (not_left_out, COMPARED, "the mean with itself in it"),
    "times the spread": (times_the_spread, COMPARED, "give 16 times the credit"),
    "over the variance": (twice_over_the_spread, COMPARED, "give 0.25 times the credit"),
    "whole numbers": (to_whole_numbers, {"compares": True}, "expected one factor"),
    "divided by the discount": (returns_that_grow, {"per": "turn"}, "divides by its discount"),
    "into the next trajectory": (returns_that_run_on, {"per": "turn"}, "goes on from one"),
    "no turn before": (returns_of_one_turn, {"per": "turn"}, "of no turn before it"),
    "a missing score is in the median": (
        above_the_median_of_all,
        COMPARED,
        "was not played at all",
    ),
    "whitened targets": (above_value_and_whitened, CRITIC, "four times what the critic"),
    "summed from the front": (returns_so_far, {"per": "turn"}, "sums from the front"),
}
RIGHT = {
    "centred": (centred, COMPARED),
    "others": (others, COMPARED),
    "over the spread": (over_the_spread, COMPARED),
    "discounted": (discounted_returns, {"per": "turn"}),
    "to go": (returns_to_go, {"per": "turn"}),
    "above the median": (above_the_median, COMPARED),
    "above value": (above_value, CRITIC),
}


def found(results):
    return [each.what for each in results if isinstance(each, Finding)]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_kind_of_wrong_estimator_is_named(name):
    function, facts, words = ESTIMATORS[name]
    named = found(properties_of(Algorithm("mine", Estimator(function, **facts))))
    assert any(words in what for what in named), named


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_estimator_is_passed_by(name):
    function, facts = RIGHT[name]
    assert found(properties_of(Algorithm("mine", Estimator(function, **facts)))) == []


# ------------------------------------------------------------------------------------------------ objectives


@dataclass(frozen=True)
class Mine:
    """The clipped surrogate of PPO, one thing bent by name. The sum over a sequence holds trained tokens alone."""

    bug: str = ""
    clip_low: float = 0.2
    clip_high: float = 0.2

    name: ClassVar[str] = "mine"
    plain: ClassVar[None] = None

    def loss(self, inputs):
        old_M = inputs.rollout_logp_M if self.bug == "sampled" else inputs.old_logp_M
        ratio_M = probability_ratio(inputs.logp_M, old_M)
        if self.bug == "inverted":
            ratio_M = probability_ratio(old_M, inputs.logp_M)
        if self.bug == "difference":
            ratio_M = inputs.logp_M - old_M
        if self.bug == "probability":
            ratio_M = inputs.logp_M.exp()
        if self.bug == "detached":
            ratio_M = ratio_M.detach()
        low, high = 1 - self.clip_low, 1 + self.clip_high
        if self.bug == "swapped":
            low, high = 1 - self.clip_high, 1 + self.clip_low
        if self.bug == "order":
            low, high = high, low
        held_M = ratio_M.clamp(low, high)
        loss_M = -torch.minimum(ratio_M * inputs.advantage_M, held_M * inputs.advantage_M)
        loss_M = -loss_M if self.bug == "sign" else loss_M
        if self.bug == "dual clip":
            loss_M = torch.minimum(loss_M, -3 * inputs.advantage_M)
        loss_M = loss_M * self._of_sampler(inputs)
        away_M = (inputs.ref_logp_M - inputs.logp_M) * (-1 if self.bug == "reference" else 1)
        loss_M = loss_M + 0.1 * (away_M.exp() - 1 - away_M if self.bug != "reference" else -away_M)
        loss_M = loss_M * self._of_sequence(inputs)
        entropy_M = 0.01 * inputs.entropy_M
        loss_M = loss_M + (entropy_M if self.bug == "entropy" else -entropy_M)
        return Clipped(loss_M, ratio_M, torch.zeros_like(ratio_M).char())

    def _of_sampler(self, inputs):
        """What the sampler had rarer weighs more."""
        rarer_M = (inputs.old_logp_M.detach() - inputs.rollout_logp_M).nan_to_num(0.0)
        if self.bug == "not detached":
            rarer_M = (inputs.logp_M - inputs.rollout_logp_M).nan_to_num(0.0)
        return (-rarer_M if self.bug == "upside down" else rarer_M).exp().clamp(max=2.0)

    def _of_sequence(self, inputs):
        """A factor by how far a whole segment has moved."""
        moved_M = (inputs.logp_M - inputs.old_logp_M).detach()
        if self.bug != "uncounted":
            moved_M = torch.where(inputs.counts_M, moved_M, 0.0)
        sum_S = moved_M.new_zeros(int(inputs.segment_M.max()) + 1)
        return 1 + 0.1 * sum_S.index_add(0, inputs.segment_M, moved_M)[inputs.segment_M].abs()


@dataclass(frozen=True)
class Forks:
    """Learns from the tokens with the highest entropy."""

    bug: str = ""
    name: ClassVar[str] = "forks"
    plain: ClassVar[None] = None

    def loss(self, inputs):
        ratio_M = probability_ratio(inputs.logp_M, inputs.old_logp_M)
        entropy_M = inputs.entropy_M.detach()
        used_M = entropy_M <= 0.5 if self.bug else entropy_M >= 0.5
        loss_M = torch.where(used_M, -ratio_M * inputs.advantage_M, 0.0 * ratio_M)
        return Clipped(loss_M, ratio_M, torch.zeros_like(ratio_M).char())


OBJECTIVES = {
    ("Mine", "sampled"): "is taken against the sampler's logprobs",
    ("Mine", "inverted"): "makes good tokens rarer",
    ("Mine", "difference"): "the difference of logprobs is taken for the ratio",
    ("Mine", "probability"): "goes by its probability",
    ("Mine", "dual clip"): "is applied to both",
    ("Mine", "reference"): "is made likelier still",
    ("Mine", "not detached"): "counts a factor twice",
    ("Mine", "upside down"): "is upside down",
    ("Mine", "detached"): "no advantage has a gradient",
    ("Mine", "swapped"): "the two bounds are swapped",
    ("Mine", "sign"): "makes good tokens rarer",
    ("Mine", "uncounted"): "tokens that are not trained",
    ("Mine", "entropy"): "grows with entropy",
    ("Forks", "lowest"): "the comparison or the quantile is turned round",
}
BY_NAME = {"Mine": Mine, "Forks": Forks}


def of_objective(objective):
    return found(objective_properties(Algorithm("mine", GROUP_RELATIVE, objective=objective)))


@pytest.mark.parametrize("kind", OBJECTIVES, ids=" ".join)
def test_a_kind_of_wrong_objective_is_named(kind):
    name, bug = kind
    named = of_objective(BY_NAME[name](bug))
    assert any(OBJECTIVES[kind] in what for what in named), named


@pytest.mark.parametrize("name", BY_NAME)
def test_a_right_objective_is_passed_by(name):
    assert of_objective(BY_NAME[name]()) == []
