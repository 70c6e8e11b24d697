"""The clipped surrogate, with numbers that can be checked by hand."""
from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.ops.clip import clipped_surrogate, probability_ratio


def surrogate(ratio: float, advantage: float, low=0.2, high=0.28):
    logp = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    old, advantage_T = torch.zeros(1, dtype=torch.float64), torch.tensor([advantage], dtype=torch.float64)
    result = clipped_surrogate(logp, old, advantage_T, low=low, high=high)
    result.loss.sum().backward()
    return result.loss.item(), result.state.item(), logp.grad.item()


@pytest.mark.parametrize("ratio, advantage, loss, state, gradient", [
    (1.0, 2.0, -2.0, 0, -2.0),     # on policy: the gradient is -A
    (1.1, 2.0, -2.2, 0, -2.2),     # inside
    (1.5, 2.0, -2.56, 1, 0.0),     # good token, already much likelier: held at 1.28
    (1.5, -2.0, 3.0, 0, 3.0),      # bad token that became likelier: pushed back at full strength
    (0.5, -2.0, 1.6, -1, 0.0),     # bad token, already much rarer: held at 0.8
    (0.5, 2.0, -1.0, 0, -1.0),     # good token that became rarer: free
    (1.5, 0.0, 0.0, 0, 0.0),       # no advantage: nothing is held, nothing moves
])
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
