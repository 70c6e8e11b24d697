"""R47 and `workbench bias` of one's own: what holds of any estimator holds of ours, and names those that are wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from workbench.basics.findings import Finding
from workbench.extensions.bias.properties import properties_of
from workbench.extensions.bias.pulls import objective_properties
from workbench.learn.algorithms import ALGORITHMS
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import Advantages
from workbench.learn.algorithms.estimators import GROUP_RELATIVE, Estimator
from workbench.learn.algorithms.objectives import Clipped, probability_ratio
from workbench.learn.ops.group import group_advantage


def centred(inputs):
    return Advantages(
        inputs.of_rows(
            group_advantage(inputs.reward_N, inputs.group_N, inputs.kept_N, normalize_std=False)
        )
    )


def over_the_batch(inputs):
    return Advantages(inputs.of_rows(inputs.reward_N - inputs.reward_N.nanmean()))


def turned(inputs):
    return Advantages(-centred(inputs).advantage_A)


def of_nothing(inputs):
    return Advantages(0 * centred(inputs).advantage_A + 1.0)


def by_the_best(inputs):
    """Minus the best of the group, itself among them."""
    advantage_N = torch.zeros_like(inputs.reward_N, dtype=torch.float64)
    for group in inputs.group_N.unique():
        mine_N = inputs.group_N == group
        advantage_N[mine_N] = (inputs.reward_N[mine_N] - inputs.reward_N[mine_N].max()).double()
    return Advantages(inputs.of_rows(advantage_N))


def failures_alone(inputs):
    """Who earned more than its group is left alone: a method that learns from failures."""
    return Advantages(centred(inputs).advantage_A.clamp(max=0.0))


def _faded(inputs, from_the_front):
    credit_A = centred(inputs).advantage_A.double().clone()
    for row in inputs.row_A.unique():
        at = inputs.row_A == row
        place_A = torch.arange(int(at.sum()), dtype=torch.float64)
        credit_A[at] *= 0.9 ** (place_A if from_the_front else place_A.flip(0))
    return Advantages(credit_A)


def faded(inputs):
    return _faded(inputs, from_the_front=False)


def from_the_front(inputs):
    return _faded(inputs, from_the_front=True)


@dataclass(frozen=True)
class Bent:
    """A clipped surrogate, with one thing bent by name."""

    bug: str = ""
    name: ClassVar[str] = "bent"
    plain: ClassVar[None] = None

    def loss(self, inputs):
        ratio_M = probability_ratio(inputs.logp_M, inputs.old_logp_M)
        if self.bug == "upside down":
            ratio_M = probability_ratio(inputs.old_logp_M, inputs.logp_M.detach()) * (
                ratio_M / ratio_M.detach()
            )
        held_M = ratio_M.clamp(0.8, 1.2)
        smaller = torch.maximum if self.bug == "larger" else torch.minimum
        loss_M = -smaller(ratio_M * inputs.advantage_M, held_M * inputs.advantage_M)
        back_M = inputs.old_logp_M - inputs.logp_M
        away_M = -back_M if self.bug == "k1" else back_M.exp() - 1 - back_M
        share = inputs.counts_M.sum() if self.bug == "cut" else 16
        if "length" in self.bug:  # in the twin by a constant
            length_S = inputs.segment_M.bincount().double()
            typical = length_S.mean() if self.bug == "mean length" else 24.0
            loss_M = loss_M * (typical / length_S)[inputs.segment_M]
        return Clipped((loss_M + 0.1 * away_M) / share, ratio_M, torch.zeros_like(ratio_M).char())


def of_objective(objective):
    algorithm = Algorithm("bent", GROUP_RELATIVE, objective=objective)
    return [each.what for each in objective_properties(algorithm) if isinstance(each, Finding)]


@pytest.mark.parametrize("name", ["grpo", "gspo", "cispo", "ppo"])
def test_what_holds_of_any_objective_holds_of_ours(name):
    properties = objective_properties(ALGORITHMS[name]())
    assert [each for each in properties if isinstance(each, Finding)] == []


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        ("larger", "takes the larger of the two gains"),
        ("k1", "a penalty without a pull"),
        ("cut", "depends on how the batch is cut"),
        ("upside down", "is upside down"),
        ("mean length", "depends on how the batch is cut"),
    ],
)
def test_a_wrong_objective_is_named_and_the_right_one_passed_by(bug, words):
    assert any(words in what for what in of_objective(Bent(bug)))
    assert of_objective(Bent()) == of_objective(Bent("own length")) == []


def found(algorithm):
    return [each.what for each in properties_of(algorithm) if isinstance(each, Finding)]


@pytest.mark.parametrize("name", ["grpo", "remax", "gigpo", "ppo"])
def test_what_holds_of_any_estimator_holds_of_ours(name):
    assert found(ALGORITHMS[name]()) == []


def test_a_right_estimator_of_ones_own_is_passed_by():
    assert found(Algorithm("mine", Estimator(centred, compares=True, ignores_shifts=True))) == []
    assert found(Algorithm("mine", Estimator(failures_alone, compares=True))) == []
    late = Estimator(faded, per="token", compares=True)
    assert found(Algorithm("mine", late)) == []


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (Estimator(over_the_batch, compares=True), "of which every trajectory earned 0.5"),
        (Estimator(over_the_batch, ignores_shifts=True), "more for every trajectory of a task"),
        (Estimator(turned, compares=True), "its credit goes down"),
        (Estimator(of_nothing), "its credit stays"),
        (Estimator(by_the_best, compares=True), "no trajectory is credited above zero"),
        (Estimator(from_the_front, per="token"), "counts from the front"),
    ],
)
def test_a_wrong_one_is_named(estimator, words):
    assert any(words in what for what in found(Algorithm("mine", estimator)))
