"""R47 and `workbench bias` of one's own: what holds of any estimator holds of ours, and names those that are wrong."""

from __future__ import annotations

import pytest

from workbench.basics.findings import Finding
from workbench.extensions.bias.properties import properties_of
from workbench.learn.algorithms import ALGORITHMS
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import Advantages
from workbench.learn.algorithms.estimators import Estimator
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


def found(algorithm):
    return [each.what for each in properties_of(algorithm) if isinstance(each, Finding)]


@pytest.mark.parametrize("name", ["grpo", "remax", "gigpo", "ppo"])
def test_what_holds_of_any_estimator_holds_of_ours(name):
    assert found(ALGORITHMS[name]()) == []


def test_a_right_estimator_of_ones_own_is_passed_by():
    assert found(Algorithm("mine", Estimator(centred, compares=True, ignores_shifts=True))) == []


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (Estimator(over_the_batch, compares=True), "of which every trajectory earned 0.5"),
        (Estimator(over_the_batch, ignores_shifts=True), "more for every trajectory of a task"),
        (Estimator(turned, compares=True), "its credit goes down"),
        (Estimator(of_nothing), "its credit stays"),
    ],
)
def test_a_wrong_one_is_named(estimator, words):
    assert any(words in what for what in found(Algorithm("mine", estimator)))
