"""What R47 and R48 ask of trajectories that differ in one thing: each kind of wrong estimator is named, right ones are passed by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from workbench.basics.findings import Finding
from workbench.extensions.bias.properties import properties_of
from workbench.extensions.bias.pulls import objective_properties
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import Advantages
from workbench.learn.algorithms.estimators import GROUP_RELATIVE, Estimator
from workbench.learn.algorithms.objectives import Clipped, probability_ratio
from workbench.learn.ops.group import leave_one_out


def _above(inputs):
    above_N = leave_one_out(inputs.reward_N, inputs.group_N, inputs.kept_N).double()
    return torch.where(inputs.kept_N, above_N, 0.0)


def _sizes(inputs):
    return inputs.row_A.bincount(minlength=len(inputs.reward_N)).clamp(min=1).double()


def plain(inputs):
    return Advantages(inputs.of_rows(_above(inputs)))


def by_a_constant(inputs):
    return Advantages(inputs.of_rows(_above(inputs) / 8.0))


def by_own_length(inputs):
    return Advantages(inputs.of_rows(_above(inputs) / _sizes(inputs)))


def times_own_length(inputs):
    return Advantages(inputs.of_rows(_above(inputs) * _sizes(inputs)))


def guarded(inputs):
    return Advantages(inputs.of_rows(_above(inputs).clamp(min=0.0)))


def winners(inputs):
    """Winners only, as in rejection sampling: what earned less than the others is left alone."""
    return guarded(inputs)


def whole_numbers(inputs):
    return Advantages(inputs.of_rows(_above(inputs).round()))


def without_the_last(inputs):
    credit_A = inputs.of_rows(_above(inputs)).clone()
    last_A = torch.ones(len(credit_A), dtype=torch.bool)
    last_A[:-1] = inputs.row_A[1:] != inputs.row_A[:-1]
    return Advantages(torch.where(last_A, 0.0, credit_A))


WRONG = {
    by_own_length: "length that a trajectory happened to have",
    times_own_length: "length that a trajectory happened to have",
    guarded: "nobody is credited below zero",
    whole_numbers: "rewards or advantages are cut or rounded",
    without_the_last: "tokens of a trajectory get no credit",
}


def named(results):
    return [each.what for each in results if isinstance(each, Finding)]


def of_estimator(function):
    return named(properties_of(Algorithm("mine", Estimator(function, compares=True))))


@pytest.mark.parametrize("function", WRONG, ids=lambda function: function.__name__)
def test_a_wrong_estimator_is_named(function):
    found = of_estimator(function)
    assert any(WRONG[function] in what for what in found), found


@pytest.mark.parametrize(
    "function", [plain, by_a_constant, winners], ids=lambda function: function.__name__
)
def test_a_right_estimator_is_passed_by(function):
    assert of_estimator(function) == []


@dataclass(frozen=True)
class Sized:
    """The clipped surrogate, of an advantage as it is or of something else by name."""

    bug: str = ""
    name: ClassVar[str] = "sized"
    plain: ClassVar[None] = None

    def loss(self, inputs):
        advantage_M = inputs.advantage_M.sign() if self.bug else inputs.advantage_M
        ratio_M = probability_ratio(inputs.logp_M, inputs.old_logp_M)
        held_M = ratio_M.clamp(0.8, 1.2)
        loss_M = -torch.minimum(ratio_M * advantage_M, held_M * advantage_M)
        return Clipped(loss_M, ratio_M, torch.zeros_like(ratio_M).char())


def test_an_objective_that_loses_the_size_of_an_advantage_is_named():
    wrong = named(objective_properties(Algorithm("sized", GROUP_RELATIVE, objective=Sized("lost"))))
    right = named(objective_properties(Algorithm("sized", GROUP_RELATIVE, objective=Sized())))
    assert any("its size is lost" in what for what in wrong), wrong
    assert right == []
