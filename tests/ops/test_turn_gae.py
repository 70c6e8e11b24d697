"""Turns as steps: numbers by hand, a published example, and the limits in which both estimators are known sums."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.learn.ops.gae import gae
from workbench.learn.ops.turn_gae import bilevel_gae, turn_gae
from workbench.learn.ops.turns import turn_spans


def tensor(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def spans(*turns_of_rows: tuple[int, ...]):
    """spans((2, 3), (1,)): trajectory 0 has turns of 2 and 3 tokens, trajectory 1 one of 1 token."""
    flat = [
        (row, turn)
        for row, turns in enumerate(turns_of_rows)
        for turn, n in enumerate(turns)
        for _ in range(n)
    ]
    return turn_spans(*torch.tensor(flat, dtype=torch.int64).reshape(-1, 2).T)


TWO = spans((2, 2))
PAID, VALUE = tensor(0, 1, 0, 2), tensor(0.5, 9, 0.25, 9)


def test_a_turn_is_one_step():
    """gamma = .5, lam = .5: d = (1 + .125 - .5, 2 - .25); values inside a turn have no part in it."""
    found = turn_gae(PAID, VALUE, tensor(0), TWO, gamma=0.5, lam=0.5)
    first, second = 0.625 + 0.25 * 1.75, 1.75
    assert found.advantage.tolist() == [first, first, second, second]
    assert found.target[[0, 2]].tolist() == [first + 0.5, second + 0.25]
    assert (
        found.target[[1, 3]].isnan().all()
    )  # the critic is asked only where a turn begins: None is not zero


def test_it_does_not_matter_where_in_a_turn_it_is_paid():
    early = turn_gae(tensor(1, 0, 2, 0), VALUE, tensor(0), TWO, gamma=0.9, lam=0.9)
    assert torch.equal(
        early.advantage, turn_gae(PAID, VALUE, tensor(0), TWO, gamma=0.9, lam=0.9).advantage
    )


def test_a_truncated_trajectory_bootstraps_once_per_turn():
    found = turn_gae(PAID, VALUE * 0, tensor(8), TWO, gamma=0.5, lam=1.0)
    assert found.target[[0, 2]].tolist() == [1 + 0.5 * (2 + 0.5 * 8), 2 + 0.5 * 8]
    both = bilevel_gae(PAID, VALUE * 0, tensor(8), TWO, gamma=1.0, lam=1.0, gamma_turn=0.5)
    assert both.target.tolist() == [4.0, 4.0, 6.0, 6.0]


def test_bilevel_against_the_published_implementation():
    """Rewards 1 at tokens 4 and 9 of 10, values .1 .. 1, gamma = lam = 1, gamma_turn = .95: RAGEN's code gives 1.95
    five times and 1 five times."""
    reward = tensor(0, 0, 0, 0, 1, 0, 0, 0, 0, 1)
    found = bilevel_gae(
        reward,
        torch.arange(1.0, 11.0).double() / 10,
        tensor(0),
        spans((5, 5)),
        gamma=1.0,
        lam=1.0,
        gamma_turn=0.95,
    )
    assert found.target.tolist() == pytest.approx([1.95] * 5 + [1.0] * 5, abs=1e-12)
    assert found.advantage.tolist() == pytest.approx(
        [1.95 - j / 10 for j in range(1, 6)] + [1.0 - j / 10 for j in range(6, 11)], abs=1e-12
    )


def test_bilevel_by_hand_with_lam_below_1():
    """V = .5 .25 .5 .25 at two turns of two tokens, paid 1 and 2; gamma = .5, gamma_turn = .8, lam = .5.
    Turns: d2 = 2 - .25, B2 = 1.75; d1 = 1 + .8 * .25 - .25 = .95, B1 = .95 + .4 * 1.75 = 1.65."""
    found = bilevel_gae(
        PAID, tensor(0.5, 0.25, 0.5, 0.25), tensor(0), TWO, gamma=0.5, lam=0.5, gamma_turn=0.8
    )
    inside = 0.5 * 0.25 - 0.5  # d of a turn's first token
    assert found.advantage.tolist() == pytest.approx(
        [inside + 0.25 * 1.65, 1.65, inside + 0.25 * 1.75, 1.75], abs=1e-15
    )


def test_a_turn_without_a_reward_is_a_turn():
    """Where ends are guessed from rewards that are not zero, an unpaid turn melts into the next one. Here it is
    discounted like any other, and nothing at all paid is no obstacle."""
    paid = bilevel_gae(
        tensor(0, 0, 4),
        tensor(0, 0, 0),
        tensor(0),
        spans((1, 1, 1)),
        gamma=1.0,
        lam=1.0,
        gamma_turn=0.5,
    )
    assert paid.target.tolist() == [1.0, 2.0, 4.0]
    none = bilevel_gae(
        tensor(0, 0, 0),
        tensor(0, 0, 0),
        tensor(0),
        spans((1, 1, 1)),
        gamma=1.0,
        lam=1.0,
        gamma_turn=0.5,
    )
    assert none.target.tolist() == [0.0, 0.0, 0.0]


def test_no_token_at_all():
    for found in (
        turn_gae(tensor(), tensor(), tensor(0), spans(), gamma=1.0, lam=1.0),
        bilevel_gae(tensor(), tensor(), tensor(0), spans(), gamma=1.0, lam=1.0, gamma_turn=1.0),
    ):
        assert found.advantage.tolist() == [] and found.target.tolist() == []


numbers = st.floats(-3, 3, width=32)
batches = st.lists(
    st.lists(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=3), min_size=1, max_size=3),
    min_size=1,
    max_size=3,
)


def flat(batch):
    """(rewards [A], values [A], final values [N], turns) of trajectories of turns of (reward, value)."""
    tokens = [token for trajectory in batch for turn in trajectory for token in turn]
    finals = tensor(*(0.5 * n for n in range(len(batch))))
    return (
        tensor(*(r for r, _ in tokens)),
        tensor(*(v for _, v in tokens)),
        finals,
        spans(*(tuple(map(len, trajectory)) for trajectory in batch)),
    )


@given(batches)
def test_without_discounts_bilevel_is_what_is_still_to_be_paid(batch):
    """gamma = gamma_turn = lam = 1: every value in between cancels, at both levels, wherever rewards are paid (a pull
    towards a reference is paid at every token)."""
    reward, value, final, turns = flat(batch)
    found = bilevel_gae(reward, value, final, turns, gamma=1.0, lam=1.0, gamma_turn=1.0)
    expected = gae(reward, value, final, turns.row_P[turns.turn_of_A], gamma=1.0, lam=1.0)
    torch.testing.assert_close(found.target, expected.target, atol=1e-12, rtol=0)


@given(batches, st.floats(0, 1), st.floats(0, 1))
def test_with_one_token_per_turn_all_three_are_one(batch, gamma, lam):
    reward, value, final, turns = flat([[turn[:1] for turn in trajectory] for trajectory in batch])
    expected = gae(reward, value, final, turns.row_P, gamma=gamma, lam=lam)
    by_turns = turn_gae(reward, value, final, turns, gamma=gamma, lam=lam)
    by_both = bilevel_gae(reward, value, final, turns, gamma=0.3, lam=lam, gamma_turn=gamma)
    for found in (by_turns, by_both):
        torch.testing.assert_close(found.advantage, expected.advantage, atol=1e-12, rtol=0)
        torch.testing.assert_close(found.target, expected.target, atol=1e-12, rtol=0)


@given(batches, st.floats(0, 1), st.floats(0, 1))
def test_the_company_of_other_trajectories_changes_no_bit(batch, gamma, lam):
    (reward, value, final, turns), (r, v, f, t) = flat(batch), flat(batch[:1])
    for estimate in (turn_gae, lambda *a, **k: bilevel_gae(*a, gamma_turn=0.9, **k)):
        together, alone = (
            estimate(*parts, gamma=gamma, lam=lam).advantage
            for parts in ((reward, value, final, turns), (r, v, f, t))
        )
        assert torch.equal(together[: len(alone)], alone)
