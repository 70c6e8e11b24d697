"""Turns on a timeline, by hand and as they were built."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.learn.ops.turns import sum_over_turns, turn_spans


def test_by_hand():
    """Trajectory 0 has turns 0 and 2 (turn 1 said nothing), trajectory 1 has none, trajectory 2 one token of turn 2."""
    turns = turn_spans(torch.tensor([0, 0, 0, 2]), torch.tensor([0, 0, 2, 2]))
    assert turns.row_P.tolist() == [0, 0, 2] and turns.turn_P.tolist() == [0, 2, 2]
    assert turns.first_P.tolist() == [0, 2, 3] and turns.last_P.tolist() == [1, 2, 3]
    assert turns.turn_of_A.tolist() == [0, 0, 1, 2]
    assert sum_over_turns(torch.tensor([1.0, 2, 4, 8]), turns).tolist() == [3.0, 4.0, 8.0]


def test_no_token_at_all():
    turns = turn_spans(torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    assert all(part.tolist() == [] for part in turns)
    assert sum_over_turns(torch.zeros(0), turns).tolist() == []


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 4)),
        max_size=8,
        unique_by=lambda t: t[:2],
    )
)
def test_every_turn_is_found_with_its_tokens(built):
    built.sort()
    row_A = torch.tensor(
        [row for row, _, length in built for _ in range(length)], dtype=torch.int64
    )
    turn_A = torch.tensor(
        [turn for _, turn, length in built for _ in range(length)], dtype=torch.int32
    )
    turns = turn_spans(row_A, turn_A)
    found = zip(
        turns.row_P.tolist(), turns.turn_P.tolist(), (turns.last_P - turns.first_P + 1).tolist()
    )
    assert list(found) == built
    assert torch.equal(turns.row_P[turns.turn_of_A], row_A) and torch.equal(
        turns.turn_P[turns.turn_of_A], turn_A.long()
    )


@pytest.mark.parametrize("row, turn", [([1, 0], [0, 0]), ([0, 0], [1, 0])])
def test_an_order_that_is_no_order_of_time_is_refused(row, turn):
    with pytest.raises(ValueError, match="in the order of trajectories and turns"):
        turn_spans(torch.tensor(row), torch.tensor(turn))
    with pytest.raises(ValueError, match="one number per token each"):
        turn_spans(torch.tensor(row), torch.tensor(turn[:1]))
