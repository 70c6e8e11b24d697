"""Measuring: enumeration against brute force and against sampling; units that are said to stand alone do."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.extensions.bias.bench import estimator_of, loss_estimator_of
from workbench.extensions.bias.measure import (
    Unit,
    all_units,
    demand_alone,
    enumerated,
    estimates,
    number_of_units,
    sampled,
    units_needed,
)
from workbench.extensions.bias.tasks import bandit, lengths, stop_continue, three_turns
from workbench.extensions.bias.trajectories import (
    state_values,
    templates,
    true_gradient,
    with_critic,
)
from workbench.learn.algorithms import GRPO, PPO
from workbench.values.errors import DataError


@given(st.lists(st.floats(0.05, 1), min_size=2, max_size=4), st.integers(1, 4), st.integers(1, 2))
@settings(max_examples=25)
def test_units_are_all_there_are_with_their_probabilities(weights, attempts, groups):
    probability_O = np.array(weights) / sum(weights)
    unit = Unit(attempts, groups)
    outcome_UN, probability_U = all_units(probability_O, unit)
    assert outcome_UN.shape == (number_of_units(len(weights), unit), unit.size)
    assert probability_U.sum() == pytest.approx(1, abs=1e-12)
    counts_UO = np.stack([(outcome_UN == o).sum(1) for o in range(len(weights))], axis=1)
    assert np.allclose(
        probability_U @ counts_UO, unit.size * probability_O
    )  # each outcome as often as it comes


@pytest.mark.parametrize("task", [bandit(0.1), lengths()], ids=lambda task: task.name)
def test_multisets_give_what_all_sequences_give(task):
    """All 27 sequences of three trajectories, each with its plain probability, against 10 multisets."""
    source, estimator = templates(task), estimator_of(GRPO())
    sequences = np.array(list(product(range(3), repeat=3)))
    probability = np.array(
        [prod(source.probability_O[o] for o in sequence) for sequence in sequences]
    )
    estimate_UD = estimates(source, estimator, Unit(3), sequences).numpy()
    found = enumerated(source, estimator, Unit(3))
    assert found.units == 10
    assert np.allclose(found.mean_D, probability @ estimate_UD, rtol=1e-12, atol=1e-15)
    assert np.allclose(
        found.variance_D, probability @ (estimate_UD - found.mean_D) ** 2, rtol=1e-10, atol=1e-15
    )


def test_a_group_by_hand():
    """Two trajectories, safe (0.1) and risky (1), policy 0.3: advantages -+0.45; g = 1/2 (-0.45 * -0.3 + 0.45 * 0.7)."""
    source = templates(bandit(0.1))
    found = estimates(
        source, estimator_of(GRPO(estimator={"normalize_std": False})), Unit(2), np.array([[0, 1]])
    )
    assert found.tolist() == [[pytest.approx(0.225)]]


def test_sampling_agrees_with_enumeration_and_is_addressed():
    source, estimator, unit = templates(three_turns()), estimator_of(GRPO()), Unit(4)
    exact, drawn = (
        enumerated(source, estimator, unit),
        sampled(source, estimator, unit, 4_000, "test"),
    )
    assert (np.abs(drawn.mean_D - exact.mean_D) < 4 * drawn.error_D).all()
    assert np.allclose(drawn.variance_D, exact.variance_D, rtol=0.2)
    again = sampled(source, estimator, unit, 4_000, "test")
    assert (again.mean_D == drawn.mean_D).all()
    assert (sampled(source, estimator, unit, 4_000, "other").mean_D != drawn.mean_D).all()
    needed = units_needed(exact.variance_D, true_gradient(source, 1.0).numpy(), 0.02)
    assert np.sqrt(exact.variance_D.max() / needed) <= 0.02 * np.linalg.norm(
        true_gradient(source, 1.0).numpy()
    )
    with pytest.raises(DataError, match="at least 2"):
        sampled(source, estimator, unit, 1, "test")


def test_negative_control_whitening_does_not_stand_alone():
    source = templates(bandit(0.1))
    source = with_critic(source, state_values(source))
    with pytest.raises(DataError, match="alone=False"):
        demand_alone(source, estimator_of(PPO()), Unit(4))
    demand_alone(source, estimator_of(PPO(estimator={"whiten": False})), Unit(4))
    demand_alone(source, estimator_of(PPO()), Unit(4, alone=False))


def test_a_batch_of_two_groups_is_two_groups():
    """An estimator that acts per group gives the same mean however many groups a unit has."""
    source, estimator = templates(stop_continue()), estimator_of(GRPO())
    one, two = (enumerated(source, estimator, Unit(3, groups)) for groups in (1, 2))
    assert np.allclose(one.mean_D, two.mean_D) and np.allclose(one.variance_D, 2 * two.variance_D)


@pytest.mark.parametrize("objective", ["clip", "cispo"])
@pytest.mark.parametrize("reduction", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_the_loss_as_a_whole_is_credit_times_score_by_its_reduction(reduction, objective):
    """On the first update ratios are one, so the gradient is known from the credit alone."""
    source = templates(lengths())
    algorithm = GRPO(
        reduction=reduction, objective={"kind": objective}, estimator={"normalize_std": False}
    )
    group = np.array([[0, 1, 1, 2]])  # 1, 4, 4 and 4 tokens
    seen = {}

    def estimator(batch):
        seen["whole"] = loss_estimator_of(algorithm, source)(batch)
        credit = algorithm.credit(batch)
        length_T = torch.bincount(batch.trajectory_of_token_T[batch.eligible_T])[
            batch.trajectory_of_token_T
        ]
        share_T = {
            "token-mean": 4 / 13,
            "seq-mean-token-mean": 1 / length_T,
            "seq-mean-token-sum": 1.0,
        }[reduction]
        seen["by hand"] = credit.advantage_T * credit.weight_T * share_T
        return seen["whole"]

    estimates(source, estimator, Unit(4, alone=False), group)
    assert torch.allclose(seen["whole"], seen["by hand"], atol=1e-12) and seen["whole"].any()
