"""The walk from right to left, by hand and against its definition as a double sum."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.learn.ops.returns import discounted_return, value_after


def tensor(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rows(*lengths) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def test_by_hand():
    """gamma = 1/2: rewards 1 0 4 give 1 + 0/2 + 4/4, 4/2, 4; the second trajectory goes on being worth 8."""
    found = discounted_return(tensor(1, 0, 4, 0, 1), rows(3, 2), gamma=0.5, after_N=tensor(0, 8))
    assert found.tolist() == [2.0, 2.0, 4.0, 2.5, 5.0] and found.dtype == torch.float64


def test_over_turns_it_discounts_once_per_turn_however_long_they_are():
    """Two turns paid 1 and 2, of 3 and 2 tokens. Per turn: 1 + 2/2. Per token, two tokens lie between the payments."""
    assert discounted_return(tensor(1, 2), rows(2), gamma=0.5).tolist() == [2.0, 2.0]
    assert discounted_return(tensor(0, 0, 1, 0, 2), rows(5), gamma=0.5)[2].item() == 1 + 2 / 4


numbers = st.floats(-3, 3, width=32)


@given(
    st.lists(st.lists(numbers, min_size=1, max_size=6), min_size=1, max_size=5),
    st.floats(0, 1),
    st.lists(numbers, min_size=5, max_size=5),
)
def test_it_is_the_definition_for_ragged_trajectories(batch, gamma, after):
    found = discounted_return(
        tensor(*(r for t in batch for r in t)),
        rows(*map(len, batch)),
        gamma=gamma,
        after_N=tensor(*after),
    )
    expected = [
        sum(gamma ** (k - j) * r for k, r in enumerate([*t, after[n]]) if k >= j)
        for n, t in enumerate(batch)
        for j in range(len(t))
    ]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


def test_what_comes_after():
    """Rows 1 and 3 of a batch: the first and the third have no step."""
    found = value_after(tensor(1, 2, 3), torch.tensor([1, 1, 3]), tensor(10, 20, 30, 40))
    assert found.tolist() == [2.0, 20.0, 40.0]


def test_no_step_at_all():
    none = torch.zeros(0, dtype=torch.int64)
    assert discounted_return(tensor(), none, gamma=0.9).tolist() == []
    assert value_after(tensor(), none, tensor(1)).tolist() == []


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="one number per step"):
        discounted_return(tensor(1), rows(2), gamma=1.0)
    with pytest.raises(ValueError, match="the row number decreases"):
        discounted_return(tensor(1, 2), torch.tensor([1, 0]), gamma=1.0)
