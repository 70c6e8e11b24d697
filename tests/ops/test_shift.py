"""The one autoregressive shift: logits at t-1 score token t (invariant 3)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.learning_data import token_entropy, token_logprobs
from workbench.learn.ops.loss import entropy_of, logprobs_of, scoring_position


def test_by_hand():
    """Three tokens, two words. Logits (log 3, 0) give probabilities 3/4 and 1/4."""
    logits = torch.tensor([[[math.log(3.0), 0.0], [0.0, 0.0], [50.0, -50.0]]])
    logp = token_logprobs(logits, torch.tensor([[1, 1, 0]]))
    assert logp[0, 0].isnan()  # nothing predicts the first token
    assert logp[0, 1].item() == pytest.approx(math.log(1 / 4))  # scored by the logits at position 0
    assert logp[0, 2].item() == pytest.approx(
        math.log(1 / 2)
    )  # ... at position 1; those at 2 score nothing here
    entropy = token_entropy(logits, torch.tensor([[1, 1, 0]]))
    assert entropy[0, 0].isnan()
    assert entropy[0, 1].item() == pytest.approx(math.log(4) - 0.75 * math.log(3))
    assert entropy[0, 2].item() == pytest.approx(math.log(2))


def chain(transition: torch.Tensor, ids: list[int]) -> tuple[torch.Tensor, float]:
    """A Markov chain as a 'model': its output at t depends on token t alone. Its logprob of a sequence is known."""
    logits = transition[torch.tensor(ids)].unsqueeze(0)
    known = sum(
        torch.log_softmax(transition[a].double(), 0)[b].item() for a, b in zip(ids, ids[1:])
    )
    return logits, known


@given(st.lists(st.integers(0, 4), min_size=2, max_size=12), st.integers(0, 100))
def test_a_markov_chain_is_scored_as_it_is_known(ids, seed):
    transition = torch.randn(5, 5, generator=torch.Generator().manual_seed(seed))
    logits, known = chain(transition, ids)
    assert token_logprobs(logits, torch.tensor([ids]))[0, 1:].sum().item() == pytest.approx(
        known, abs=1e-4
    )


@pytest.mark.parametrize("shift", [-1, 1])
def test_negative_control_a_shift_that_is_off_by_one_is_noticed(shift):
    transition = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
    logits, known = chain(transition, [0, 1, 2, 3, 4, 0, 2])
    wrong = token_logprobs(logits.roll(shift, 1), torch.tensor([[0, 1, 2, 3, 4, 0, 2]]))
    assert abs(wrong[0, 1:].sum().item() - known) > 0.1


def test_what_stands_to_the_right_has_no_part():
    logits = torch.randn(1, 6, 7, generator=torch.Generator().manual_seed(1))
    ids = torch.tensor([[1, 2, 3, 4, 5, 6]])
    changed = logits.clone()
    changed[:, 3:] = 99.0
    assert torch.equal(token_logprobs(logits, ids)[:, 1:4], token_logprobs(changed, ids)[:, 1:4])


def test_position_zero_is_refused():
    assert scoring_position(torch.tensor([1, 5])).tolist() == [0, 4]
    with pytest.raises(ValueError, match="position 0"):
        scoring_position(torch.tensor([3, 0]))


def test_entropy_is_between_zero_and_log_vocabulary():
    logits = torch.tensor(
        [[0.0, 0.0, 0.0, 0.0], [200.0, 0.0, 0.0, 0.0], [float("-inf"), 0.0, 0.0, float("-inf")]]
    )
    assert entropy_of(logits).tolist() == pytest.approx([math.log(4), 0.0, math.log(2)], abs=1e-6)


def test_half_precision_logits_are_summed_in_single():
    logits = torch.randn(4, 1000, generator=torch.Generator().manual_seed(2)).bfloat16()
    exact = torch.log_softmax(logits.double(), -1)[:, 0]
    assert (logprobs_of(logits, torch.zeros(4, dtype=torch.int64)) - exact).abs().max() < 1e-5


def test_gradient_of_a_logprob_is_onehot_minus_softmax():
    logits = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    logprobs_of(logits, torch.tensor([0])).sum().backward()
    expected = torch.tensor([[1.0, 0.0, 0.0]]) - torch.softmax(torch.tensor([[1.0, 2.0, 3.0]]), -1)
    torch.testing.assert_close(logits.grad, expected)
