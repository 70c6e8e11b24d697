"""The clipped surrogate, with numbers that can be checked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.learn.algorithms.objectives import (
    clipped_surrogate,
    probability_ratio,
    sampler_weight,
    sequence_surrogate,
    weighted_logprob,
)


def surrogate(ratio: float, advantage: float, low=0.2, high=0.28):
    logp = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    old, advantage_T = (
        torch.zeros(1, dtype=torch.float64),
        torch.tensor([advantage], dtype=torch.float64),
    )
    result = clipped_surrogate(logp, old, advantage_T, low=low, high=high)
    result.loss.sum().backward()
    return result.loss.item(), result.state.item(), logp.grad.item()


@pytest.mark.parametrize(
    "ratio, advantage, loss, state, gradient",
    [
        (1.0, 2.0, -2.0, 0, -2.0),  # on policy: the gradient is -A
        (1.1, 2.0, -2.2, 0, -2.2),  # inside
        (1.5, 2.0, -2.56, 1, 0.0),  # good token, already much likelier: held at 1.28
        (1.5, -2.0, 3.0, 0, 3.0),  # bad token that became likelier: pushed back at full strength
        (0.5, -2.0, 1.6, -1, 0.0),  # bad token, already much rarer: held at 0.8
        (0.5, 2.0, -1.0, 0, -1.0),  # good token that became rarer: free
        (1.5, 0.0, 0.0, 0, 0.0),  # no advantage: nothing is held, nothing moves
    ],
)
def test_by_hand(ratio, advantage, loss, state, gradient):
    assert surrogate(ratio, advantage) == (pytest.approx(loss), state, pytest.approx(gradient))


@given(st.floats(0.05, 5.0), st.floats(-3, 3), st.floats(0, 0.9), st.floats(0, 2))
def test_state_says_exactly_where_the_gradient_is_cut(ratio, advantage, low, high):
    loss, state, gradient = surrogate(ratio, advantage, low, high)
    if abs(ratio - 1 + low) < 1e-9 or abs(ratio - 1 - high) < 1e-9 or abs(advantage) < 1e-9:
        return
    assert (gradient == 0) == (state != 0)
    assert loss >= -ratio * advantage - 1e-12  # the bound is pessimistic


def test_an_absurd_log_ratio_stays_finite():
    ratio = probability_ratio(torch.tensor([0.0, -1e4]), torch.tensor([-1e4, 0.0]))
    assert ratio.tolist() == pytest.approx([math.exp(20), math.exp(-20)])


def test_not_a_number_is_not_hidden():
    bad = torch.tensor([float("nan")])
    assert clipped_surrogate(bad, torch.zeros(1), torch.ones(1), low=0.2, high=0.2).loss.isnan()


# ------------------------------------------------------------------------------------------------ dual clip


@pytest.mark.parametrize(
    "ratio, advantage, loss, state, gradient",
    [
        (2.9, -2.0, 5.8, 0, 5.8),  # below c: free
        (
            5.0,
            -2.0,
            6.0,
            2,
            0.0,
        ),  # a bad token that became five times likelier costs no more than three times
        (5.0, 2.0, -2.56, 1, 0.0),  # good tokens know no dual clip
        (0.5, -2.0, 1.6, -1, 0.0),  # nor does the lower bound
    ],
)
def test_dual_clip_by_hand(ratio, advantage, loss, state, gradient):
    logp = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    found = clipped_surrogate(
        logp,
        torch.zeros(1).double(),
        torch.tensor([advantage]).double(),
        low=0.2,
        high=0.28,
        dual=3,
    )
    found.loss.sum().backward()
    assert (found.loss.item(), found.state.item(), logp.grad.item()) == (
        pytest.approx(loss),
        state,
        pytest.approx(gradient),
    )


# ------------------------------------------------------------------------------------------------ GSPO


def test_a_sequence_has_one_ratio_the_geometric_mean_of_its_tokens():
    old, sequence = torch.zeros(5).double(), torch.tensor([0, 0, 0, 1, 1])
    logp = torch.tensor([0.3, -0.1, 0.1, -0.5, -0.1]).double().requires_grad_()
    counts, advantage = torch.tensor([True] * 5), torch.tensor([2.0, 2, 2, -1, -1]).double()
    found = sequence_surrogate(logp, old, advantage, sequence, counts, low=0.2, high=0.2)
    assert found.ratio.tolist() == pytest.approx([math.exp(0.1)] * 3 + [math.exp(-0.3)] * 2)
    assert found.state.tolist() == [
        0,
        0,
        0,
        -1,
        -1,
    ]  # the second is held as a whole, its milder token too
    found.loss.sum().backward()
    # of -L s A with s = exp(mean log r): each token a third of L s A, and L = 3
    assert logp.grad.tolist() == pytest.approx([-2 * math.exp(0.1)] * 3 + [0, 0])


def test_tokens_that_do_not_count_have_no_say_in_the_ratio():
    found = sequence_surrogate(
        torch.tensor([0.1, 5.0]),
        torch.zeros(2),
        torch.ones(2),
        torch.tensor([0, 0]),
        torch.tensor([True, False]),
        low=0.2,
        high=0.2,
    )
    assert found.ratio[0].item() == pytest.approx(math.exp(0.1))


# ------------------------------------------------------------------------------------------------ CISPO


def test_a_bounded_weight_goes_on_teaching_where_a_clip_is_silent():
    old, advantage = torch.zeros(3).double(), torch.tensor([1.0, -1.0, 1.0]).double()
    logp = torch.tensor([1.5, 0.5, 1.0]).double().log().requires_grad_()
    found = weighted_logprob(logp, old, advantage, low=0.2, high=0.28)
    found.loss.sum().backward()
    assert found.state.tolist() == [1, -1, 0] and logp.grad.tolist() == pytest.approx(
        [-1.28, 0.8, -1.0]
    )
    clip = clipped_surrogate(logp.detach().requires_grad_(), old, advantage, low=0.2, high=0.28)
    assert clip.state.tolist() == [1, -1, 0]  # there, these two have no gradient


# ------------------------------------------------------------------------------------------------ another sampler


def test_a_samplers_weight_is_the_ratio_held_at_the_cap():
    old = torch.tensor([-1.0, -1.0, -1.0, -1.0], requires_grad=True)
    rollout = torch.tensor([-1.0, -2.0, -0.5, float("nan")])
    weight = sampler_weight(old, rollout, cap=2.0)
    assert (
        weight.tolist() == pytest.approx([1.0, 2.0, math.exp(-0.5), 1.0])
        and not weight.requires_grad
    )


@given(st.integers(0, 2**32 - 1), st.floats(0.5, 2.0))
def test_without_a_cap_the_weights_make_a_bent_sampler_unbiased(seed, temperature):
    """Over all tokens of a small vocabulary, exactly: the mean of w f under the sampler is that of f under the policy."""
    generator = torch.Generator().manual_seed(seed)
    logits, f = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    policy, sampler = logits.log_softmax(-1), (logits / temperature).log_softmax(-1)
    weight = sampler_weight(policy, sampler, cap=math.inf)
    assert (sampler.exp() * weight * f).sum().item() == pytest.approx(
        (policy.exp() * f).sum().item()
    )
    held = sampler_weight(policy, sampler, cap=1e-3)
    assert (held <= 1e-3).all()
