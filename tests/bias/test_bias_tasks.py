"""Exact tasks: three independent ways to the true gradient agree, and a batch of outcomes is the batch of training."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.bias.closed_forms import (
    bandit_gradient,
    gradient_by_autograd,
    lengths_gradient,
    stop_continue_gradient,
    three_turns_gradient,
)
from workbench.extensions.bias.tasks import TASKS, Node, bandit, lengths, stop_continue, three_turns
from workbench.extensions.bias.trajectories import (
    batch_of,
    state_values,
    templates,
    trajectory,
    true_gradient,
    with_critic,
    wrong_values,
)
from workbench.learn.batch import Batch
from workbench.values import Group
from workbench.values.errors import DataError

chances = st.floats(0.03, 0.97)


CLOSED_FORMS = {
    "stop_continue": stop_continue_gradient,
    "bandit-0.1": partial(bandit_gradient, safe_payout=0.1),
    "bandit-0.15": partial(bandit_gradient, safe_payout=0.15),
    "three_turns": three_turns_gradient,
    "lengths": lengths_gradient,
}


def agree(task, gamma, closed_form):
    source = templates(task)
    enumerated, derived = true_gradient(source, gamma), gradient_by_autograd(source, gamma)
    assert torch.allclose(enumerated, derived, rtol=1e-10, atol=1e-13)
    assert torch.allclose(
        torch.tensor(closed_form, dtype=torch.float64), derived, rtol=1e-10, atol=1e-13
    )


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.3])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_closed_form_enumeration_and_autograd_are_one_gradient(task, gamma):
    agree(task, gamma, CLOSED_FORMS[task.name](gamma))


@given(chances, chances, st.floats(0, 1))
def test_so_they_are_at_any_policy(p, q, gamma):
    agree(stop_continue(p), gamma, stop_continue_gradient(gamma, p))
    agree(bandit(0.1, p, q), gamma, bandit_gradient(gamma, 0.1, p, q))
    agree(lengths(p, q, gamma), gamma, lengths_gradient(gamma, p, q, gamma))
    agree(three_turns(p, q), gamma, three_turns_gradient(gamma, p, q))


def test_the_numbers_of_the_known_tasks():
    found = {
        (name, gamma): true_gradient(templates(TASKS[name]), gamma).tolist()
        for name, gamma in (
            ("stop_continue", 1.0),
            ("bandit-0.1", 1.0),
            ("bandit-0.15", 1.0),
            ("three_turns", 1.0),
            ("three_turns", 0.2),
        )
    }
    assert found["stop_continue", 1.0] == pytest.approx([0.2444583], abs=1e-7)  # a logit of 0.3
    assert found["bandit-0.1", 1.0] == pytest.approx([0.3 * 0.7 * 0.15])
    assert found["bandit-0.15", 1.0] == pytest.approx([0.3 * 0.7 * 0.1])
    assert (
        found["three_turns", 1.0][0] > 0 > found["three_turns", 0.2][0]
    )  # climbing pays only later


def test_an_outcome_that_is_missing_is_noticed():
    task = bandit(0.1)
    with pytest.raises(DataError, match="sum to 0.7"):
        templates(replace(task, outcomes=task.outcomes[:1]))
    with pytest.raises(DataError, match="2 choices, so 1 free"):
        Node("n", ("a", "b"))


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_repeated_templates_are_the_batch_that_training_makes(task):
    """Every field, maps of states included, equals `Batch.from_groups` of the same trajectories."""
    source = templates(task)
    outcome_UG = np.random.default_rng(0).integers(0, len(task.outcomes), (5, 4))
    built = batch_of(
        source, torch.from_numpy(outcome_UG).reshape(-1), torch.arange(5).repeat_interleave(4)
    )
    groups = [
        Group(tuple(trajectory(source.policy, task.outcomes[o], a, g) for a, o in enumerate(row)))
        for g, row in enumerate(outcome_UG)
    ]
    made = Batch.from_groups(groups)
    for field in fields(Batch):
        left, right = getattr(built, field.name), getattr(made, field.name)
        if isinstance(left, torch.Tensor):
            assert left.dtype == right.dtype and left.shape == right.shape, field.name
            assert torch.equal(left.double().nan_to_num(7e7), right.double().nan_to_num(7e7)), (
                field.name
            )
        else:
            assert left == right, field.name


def test_logprobs_of_the_batch_are_those_of_the_table():
    source = templates(three_turns())
    batch, logp_V = source.batch, source.policy.logp_V(source.policy.logits_D)
    sampled = batch.eligible_T
    assert torch.allclose(
        batch.rollout_logp_T[sampled].double(), logp_V[batch.token_ids_T[sampled]], atol=1e-7
    )


def test_what_the_critics_say_by_hand():
    source = templates(lengths(0.4, 0.6, 0.4))
    # short | long careful more more | long careless more more: 0.6 * 0.4 + 0.4 * 0.6 before the first, then as chosen
    expected = [0.48, 0.48, 0.6, 1, 1, 0.48, 0.6, 0, 0]
    said = state_values(source)[source.batch.eligible_T]
    assert torch.allclose(said, torch.tensor(expected, dtype=torch.float64))
    assert not torch.allclose(wrong_values(source)[source.batch.eligible_T], said, atol=0.05)
    assert with_critic(source, state_values(source)).batch.value_T.dtype == torch.float64
