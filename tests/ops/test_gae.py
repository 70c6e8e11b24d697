"""GAE by hand, its laws, and what whitening is over."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.learn.algorithms.credit import rewards_at_turn_ends
from workbench.learn.ops.gae import gae, whiten

NONE = torch.zeros(9)


def tensor(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rows(*lengths) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def test_three_tokens_by_hand():
    """r = 0 0 1, V = .5 .25 .5, gamma = .5, lam = .5: d = (0 + .125 - .5, 0 + .25 - .25, 1 + 0 - .5), and backwards."""
    found = gae(tensor(0, 0, 1), tensor(0.5, 0.25, 0.5), NONE, rows(3), gamma=0.5, lam=0.5)
    assert found.advantage.tolist() == [-0.375 + 0.25 * (0.25 * 0.5), 0.25 * 0.5, 0.5]
    assert found.target.tolist() == [0.15625, 0.375, 1.0]


def test_a_truncated_trajectory_bootstraps_and_a_terminated_one_does_not():
    """The same two trajectories; only the second goes on being worth 2 after its end, discounted once."""
    found = gae(
        tensor(0, 1, 0, 1), tensor(0, 0, 0, 0), tensor(0, 2), rows(2, 2), gamma=0.5, lam=1.0
    )
    assert found.advantage.tolist() == [0.5, 1.0, 0.5 * (1 + 0.5 * 2), 1 + 0.5 * 2]
    whole = gae(
        tensor(0, 1, 0, 1), tensor(0, 0, 0, 0), tensor(0, 2), rows(2, 2), gamma=1.0, lam=0.0
    )
    assert whole.advantage.tolist() == [0.0, 1.0, 0.0, 3.0]


def test_lam_0_is_one_step_and_lam_1_is_the_whole_return():
    reward, value, row = tensor(1, 2, 3), tensor(0.3, 0.2, 0.1), rows(3)
    one = gae(reward, value, NONE, row, gamma=1.0, lam=0.0)
    assert one.target.tolist() == pytest.approx([1 + 0.2, 2 + 0.1, 3.0], abs=1e-15)
    full = gae(reward, value, NONE, row, gamma=1.0, lam=1.0)
    assert full.target.tolist() == pytest.approx([6.0, 5.0, 3.0], abs=1e-15)


def brute_force(reward, value, final, gamma, lam) -> list[float]:
    """The definition as a double sum: A_j = sum over l of (gamma lam)^l d_{j+l}."""
    values = [*value, final]
    delta = [reward[j] + gamma * values[j + 1] - values[j] for j in range(len(reward))]
    return [
        sum((gamma * lam) ** (k - j) * delta[k] for k in range(j, len(delta)))
        for j in range(len(delta))
    ]


numbers = st.floats(-3, 3, width=32)
trajectories = st.lists(
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6), min_size=1, max_size=5
)


@given(trajectories, st.lists(numbers, min_size=5, max_size=5), st.floats(0, 1), st.floats(0, 1))
def test_it_is_the_definition_for_ragged_trajectories(batch, finals, gamma, lam):
    flat = [pair for trajectory in batch for pair in trajectory]
    found = gae(
        tensor(*(r for r, _ in flat)),
        tensor(*(v for _, v in flat)),
        tensor(*finals),
        rows(*map(len, batch)),
        gamma=gamma,
        lam=lam,
    )
    expected = [
        a
        for n, t in enumerate(batch)
        for a in brute_force([r for r, _ in t], [v for _, v in t], finals[n], gamma, lam)
    ]
    assert found.advantage.tolist() == pytest.approx(expected, abs=1e-12)
    assert found.advantage.dtype == torch.float64


@given(trajectories, st.lists(numbers, min_size=5, max_size=5))
def test_gamma_1_lam_1_telescopes(batch, finals):
    """The values in between cancel: what is left is the return, plus what the end is worth, minus the value."""
    flat = [pair for trajectory in batch for pair in trajectory]
    found = gae(
        tensor(*(r for r, _ in flat)),
        tensor(*(v for _, v in flat)),
        tensor(*finals),
        rows(*map(len, batch)),
        gamma=1.0,
        lam=1.0,
    )
    expected = [
        sum(r for r, _ in t[j:]) + finals[n] - t[j][1]
        for n, t in enumerate(batch)
        for j in range(len(t))
    ]
    assert found.advantage.tolist() == pytest.approx(expected, abs=1e-12)


@settings(max_examples=50)
@given(trajectories, st.randoms(use_true_random=False), st.floats(0, 1))
def test_the_order_of_trajectories_and_their_company_change_no_bit(batch, random, lam):
    order = list(range(len(batch)))
    random.shuffle(order)

    def run(which):
        flat = [pair for n in which for pair in batch[n]]
        found = gae(
            tensor(*(r for r, _ in flat)),
            tensor(*(v for _, v in flat)),
            torch.arange(len(which)) * 0.0 + 0.7,
            rows(*(len(batch[n]) for n in which)),
            gamma=0.9,
            lam=lam,
        )
        return dict(zip(which, found.advantage.split([len(batch[n]) for n in which])))

    straight, shuffled, alone = run(range(len(batch))), run(order), run([0])
    assert all(torch.equal(straight[n], shuffled[n]) for n in order) and torch.equal(
        straight[0], alone[0]
    )


def test_no_action_token_at_all():
    found = gae(tensor(), tensor(), NONE, torch.zeros(0, dtype=torch.int64), gamma=1.0, lam=1.0)
    assert len(found.advantage) == len(found.target) == 0


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="one number per step"):
        gae(tensor(1, 2), tensor(1), NONE, rows(2), gamma=1.0, lam=1.0)
    with pytest.raises(ValueError, match="the row number decreases"):
        gae(tensor(1, 2), tensor(1, 2), NONE, torch.tensor([1, 0]), gamma=1.0, lam=1.0)
    with pytest.raises(ValueError, match="in the order of trajectories and turns"):
        rewards_at_turn_ends(
            tensor(1, 2), torch.tensor([0, 2]), tensor(0), rows(2), torch.tensor([1, 0])
        )


# ------------------------------------------------------------------------------------------------ rewards


def test_a_turn_is_paid_at_its_last_token_and_the_outcome_at_the_very_last():
    turn_A = torch.tensor([0, 0, 1, 1, 1, 0])
    paid = rewards_at_turn_ends(
        tensor(1, 2, 4), torch.tensor([0, 2, 3]), tensor(8, torch.nan), rows(5, 1), turn_A
    )
    assert paid.tolist() == [0, 1, 0, 0, 2 + 8, 4]


def test_nothing_is_lost_where_a_turn_has_no_token_and_trajectories_without_tokens_get_nothing():
    """Turns 0 and 2 of the first trajectory have no token; the second has none at all."""
    paid = rewards_at_turn_ends(
        tensor(1, 2, 4, 16), torch.tensor([0, 3, 4]), tensor(8, 32), rows(2), torch.tensor([1, 1])
    )
    assert paid.tolist() == [1.0, 2 + 4 + 8]


# ------------------------------------------------------------------------------------------------ whitening


def test_whitening_by_hand():
    assert whiten(tensor(1, 2, 3)).tolist() == pytest.approx([-1, 0, 1], abs=1e-7)


@given(st.lists(numbers, min_size=2, max_size=20), st.floats(-5, 5))
def test_whitened_values_have_mean_0_and_do_not_feel_a_shift(values, shift):
    found = whiten(tensor(*values))
    assert bool(found.isfinite().all()) and abs(float(found.mean())) < 1e-6
    spread = float(tensor(*values).std())
    if spread > 1e-2:
        assert float(found.std()) == pytest.approx(1, abs=1e-3)
        torch.testing.assert_close(whiten(tensor(*values) + shift), found, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("values", [[], [5.0], [0.1] * 7])
def test_flat_values_are_exact_zeros(values):
    assert whiten(tensor(*values)).tolist() == [0.0] * len(values)


def test_statistics_over_other_values():
    """Mean 0, variance 4 of what it is taken over, for numbers that are not among it."""
    assert whiten(tensor(2, 4), over=tensor(-2, 0, 2)).tolist() == pytest.approx([1, 2], abs=1e-8)
    assert whiten(tensor(2, 4), over=tensor(7)).tolist() == [0.0, 0.0]
    assert whiten(tensor(0.1, 0.1), over=tensor(*[0.1] * 7)).tolist() == [0.0, 0.0]
