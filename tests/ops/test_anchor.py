"""Turns that stood in the same state: by hand, and what must not become credit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.learn.ops.anchor import anchor_advantage


def advantage(returns, groups, states, *, normalize_std=False) -> list[float]:
    return anchor_advantage(
        torch.tensor(returns, dtype=torch.float64),
        torch.tensor(groups),
        torch.tensor(states),
        normalize_std=normalize_std,
    ).tolist()


def test_by_hand():
    """State 7 of group 0 was left twice, for 1 and 3; the same number in group 1 is another state."""
    assert advantage([1, 3, 5, 8], [0, 0, 0, 1], [7, 7, 8, 7]) == [-1.0, 1.0, 0.0, 0.0]
    expected = 1 / (math.sqrt(2) + 1e-6)
    assert advantage([1, 3], [0, 0], [7, 7], normalize_std=True) == pytest.approx(
        [-expected, expected], rel=1e-15
    )


def test_unknown_states_are_compared_with_nobody():
    assert advantage([1, 3, 5, 7], [0, 0, 0, 0], [-1, -1, 2, 2]) == [0.0, 0.0, -1.0, 1.0]


def test_flat_states_are_exact_zeros():
    assert advantage([0.1, 0.1, 0.1], [0, 0, 0], [4, 4, 4], normalize_std=True) == [0.0, 0.0, 0.0]


def test_no_turn_at_all():
    none = torch.zeros(0, dtype=torch.int64)
    assert anchor_advantage(torch.zeros(0), none, none, normalize_std=True).tolist() == []


@given(
    st.lists(
        st.tuples(st.floats(-5, 5), st.integers(0, 2), st.integers(-1, 2)), min_size=1, max_size=20
    ),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_never_nan_sums_to_zero_in_every_state_and_order_does_not_matter(
    turns, normalize_std, random
):
    found = advantage(*zip(*turns), normalize_std=normalize_std)
    assert all(map(math.isfinite, found))
    for place in {turn[1:] for turn in turns}:
        assert sum(a for a, turn in zip(found, turns) if turn[1:] == place) == pytest.approx(
            0.0, abs=1e-8
        )
    order = list(range(len(turns)))
    random.shuffle(order)
    again = advantage(*zip(*[turns[i] for i in order]), normalize_std=normalize_std)
    assert again == pytest.approx([found[i] for i in order], rel=1e-9, abs=1e-9)
