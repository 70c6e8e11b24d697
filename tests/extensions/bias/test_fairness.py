"""What R47 and R48 ask of trajectories that differ in one thing: each kind of wrong estimator is named, right ones are passed by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from workbench.basics.findings import NOTE, Finding
from workbench.extensions.bias.cell import bias_bench
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


def _mean_of_group(inputs, reward_A, member_A):
    """Of each trajectory's group: the mean of what is handed in with the trajectories it is of."""
    group_A = inputs.group_N[member_A]
    size = int(inputs.group_N.max()) + 1
    total = torch.zeros(size, dtype=torch.float64).index_add(0, group_A, reward_A.double())
    count = torch.zeros(size, dtype=torch.float64).index_add(
        0, group_A, torch.ones(len(group_A)).double()
    )
    return (total / count.clamp(min=1))[inputs.group_N]


def _less_a_mean_over_tokens(inputs):
    kept_A = inputs.kept_N[inputs.row_A]
    member_A = inputs.row_A[kept_A]
    mean_N = _mean_of_group(inputs, inputs.reward_N[member_A], member_A)
    worth_N = torch.where(inputs.kept_N, inputs.reward_N - mean_N, 0.0)
    return Advantages(inputs.of_rows(worth_N))


def mean_over_what_was_written(inputs):
    return _less_a_mean_over_tokens(inputs)


def on_purpose(inputs):
    """Less the group's mean over tokens, so that a long trajectory counts more in it."""
    return _less_a_mean_over_tokens(inputs)


def zero_for_none(inputs):
    reward_N = inputs.reward_N.nan_to_num(0.0).double()
    everybody = torch.arange(len(reward_N))
    above_N = reward_N - _mean_of_group(inputs, reward_N, everybody)
    alone_N = leave_one_out(inputs.reward_N, inputs.group_N, inputs.kept_N)
    differs_N = inputs.kept_N & (alone_N.nan_to_num(0.0) != 0)
    return Advantages(inputs.of_rows(torch.where(differs_N, above_N, 0.0)))


MEANS = []


def running_mean(inputs):
    MEANS.append(float(inputs.reward_N[inputs.kept_N].double().mean()))
    above_N = inputs.reward_N.double() - sum(MEANS) / len(MEANS)
    return Advantages(inputs.of_rows(torch.where(inputs.kept_N, above_N, 0.0)))


def on_one_scale(inputs):
    above_N = _above(inputs)
    return Advantages(inputs.of_rows(above_N / above_N.abs().mean().clamp(min=0.05)))


WRONG = {
    mean_over_what_was_written: "weighs trajectories by the length",
    zero_for_none: "moves credit by up to",
    running_mean: "when they are asked for again",
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
    "function", [plain, by_a_constant, winners, on_purpose], ids=lambda function: function.__name__
)
def test_a_right_estimator_is_passed_by(function):
    assert of_estimator(function) == []


def test_a_scale_of_the_whole_batch_is_a_note_and_no_fault():
    """It moves the credit of other tasks by one factor, and pushes no token another way."""
    results = properties_of(Algorithm("mine", Estimator(on_one_scale, compares=True)))
    found = [each for each in results if isinstance(each, Finding)]
    assert [each.severity for each in found] == [NOTE] and "by one factor" in found[0].what
    report = bias_bench(
        {"own": Algorithm("own", Estimator(on_one_scale, compares=True))}, traps=False
    )
    assert any("by one factor" in what for what in report.notes)
    assert not any("by one factor" in what for what in report.faults)


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
