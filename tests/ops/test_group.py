"""Group baselines: hand-computed numbers, and what must not depend on order."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.learn.ops.group import group_advantage, group_statistics, leave_one_out


def advantage(values, groups, include=None, *, normalize_std=True) -> list[float]:
    values = torch.tensor(values, dtype=torch.float64)
    include = (
        torch.ones(len(values), dtype=torch.bool) if include is None else torch.tensor(include)
    )
    return group_advantage(
        values, torch.tensor(groups), include, normalize_std=normalize_std
    ).tolist()


def test_by_hand():
    """Rewards 0, 0, 1, 1: mean 1/2, unbiased variance 4 * (1/4) / 3 = 1/3."""
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert advantage([0, 0, 1, 1], [0] * 4) == pytest.approx(
        [-expected, -expected, expected, expected], rel=1e-15
    )
    assert advantage([0, 0, 1, 1], [0] * 4, normalize_std=False) == [-0.5, -0.5, 0.5, 0.5]


def test_against_a_published_implementation():
    """Two rewards, 0.104 and -1: the GRPO outcome advantage of verl 0.9.1 in float64."""
    assert advantage([0.104, -1.0], [0, 0])[0] == pytest.approx(0.7071058753906064, abs=1e-15)
    assert advantage([0.104, -1.0], [0, 0], normalize_std=False)[0] == pytest.approx(
        0.552, abs=1e-15
    )


def test_a_flat_group_is_exactly_zero():
    """(0.1 + 0.1 + 0.1) / 3 is not 0.1 in binary: without care this would become credit."""
    assert advantage([0.1, 0.1, 0.1], [0, 0, 0]) == [0.0, 0.0, 0.0]
    naive = torch.tensor([0.1] * 3, dtype=torch.float64)
    assert (naive - naive.sum() / 3).abs().max() > 0  # the trap is real


def test_a_group_of_one_has_no_baseline():
    assert advantage([3.0, 1.0, 2.0], [0, 1, 1], normalize_std=False) == [0.0, -0.5, 0.5]
    statistics = group_statistics(torch.tensor([3.0]), torch.tensor([0]), torch.tensor([True]))
    assert (
        statistics.std.isnan().all()
        and statistics.count.tolist() == [1]
        and not statistics.flat.any()
    )


def test_an_unscored_trajectory_leaves_the_baseline():
    """With the third left out, the mean is of 0 and 1. Taken as zero it would be 1/3: None is not zero (invariant 5)."""
    assert advantage([0, 1, float("nan")], [0, 0, 0], [True, True, False], normalize_std=False) == [
        -0.5,
        0.5,
        0.0,
    ]


def test_a_group_with_nobody_scored():
    values, include = [float("nan")] * 2 + [0, 1], [False, False, True, True]
    assert advantage(values, [0, 0, 1, 1], include, normalize_std=False) == [0, 0, -0.5, 0.5]


def others(values, groups, include=None) -> list[float]:
    include = (
        torch.ones(len(values), dtype=torch.bool) if include is None else torch.tensor(include)
    )
    return leave_one_out(
        torch.tensor(values, dtype=torch.float64), torch.tensor(groups), include
    ).tolist()


def test_leave_one_out_by_hand():
    """Rewards 0, 1, 5: each against the mean of the other two. Flat, alone and left out: nothing to compare with."""
    assert others([0, 1, 5], [0, 0, 0]) == [-3.0, -1.5, 4.5]
    assert others([0.1, 0.1, 0.1, 7], [0, 0, 0, 1]) == [0.0] * 4
    assert others([0, 1, float("nan")], [0, 0, 0], [True, True, False]) == [-1.0, 1.0, 0.0]


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8))
def test_leave_one_out_is_the_mean_of_the_others_and_centring_times_n_over_n_minus_1(values):
    found, count = others(values, [0] * len(values)), len(values)
    plain = [
        value - sum(values[:i] + values[i + 1 :]) / (count - 1) for i, value in enumerate(values)
    ]
    centred = advantage(values, [0] * count, normalize_std=False)
    assert found == pytest.approx(plain, abs=1e-9)
    assert found == pytest.approx([a * count / (count - 1) for a in centred], abs=1e-12)


def test_no_trajectory_at_all():
    none = torch.zeros(0, dtype=torch.int64)
    assert len(group_advantage(torch.zeros(0), none, none.bool(), normalize_std=True)) == 0
    assert len(leave_one_out(torch.zeros(0), none, none.bool())) == 0


values_and_groups = st.lists(
    st.tuples(st.floats(-5, 5), st.integers(0, 3), st.booleans()), min_size=1, max_size=24
)


@given(values_and_groups, st.booleans(), st.randoms(use_true_random=False))
def test_order_does_not_matter(rows, normalize_std, random):
    """Permuting trajectories permutes advantages; renaming groups changes nothing."""
    order = list(range(len(rows)))
    random.shuffle(order)
    straight = advantage(*zip(*rows), normalize_std=normalize_std)
    shuffled = advantage(
        *zip(*[(rows[i][0], 3 - rows[i][1], rows[i][2]) for i in order]),
        normalize_std=normalize_std,
    )
    assert shuffled == pytest.approx([straight[i] for i in order], rel=1e-9, abs=1e-9)


@given(values_and_groups, st.booleans())
def test_never_nan_and_sums_to_zero_in_every_group(rows, normalize_std):
    result = advantage(*zip(*rows), normalize_std=normalize_std)
    assert all(map(math.isfinite, result))
    for group in range(4):
        members = [a for a, (_, g, _) in zip(result, rows) if g == group]
        assert sum(members) == pytest.approx(0.0, abs=1e-8)
    assert all(a == 0.0 for a, (_, _, include) in zip(result, rows) if not include)


@given(st.lists(st.integers(-20, 20), min_size=2, max_size=8), st.integers(-100, 100))
def test_a_constant_added_to_every_reward_changes_nothing(rewards, constant):
    groups = [0] * len(rewards)
    assert advantage([r + constant for r in rewards], groups) == pytest.approx(
        advantage(rewards, groups), abs=1e-9
    )


def test_sums_in_another_order_are_the_same_reward():
    """Found on Sokoban, which really pays -1.6 and -1.5999999999999999: no credit, at any scale."""
    from workbench.learn.ops.group import ROUNDING
    from workbench.values import spreads

    assert spreads.ROUNDING == ROUNDING
    for scale in (1.0, 1e-6, 1e6):
        value = (
            torch.tensor([-1.6, -1.5999999999999999 - 2**-52, -1.6], dtype=torch.float64) * scale
        )
        group, include = torch.zeros(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool)
        assert bool(group_statistics(value, group, include).flat.all())
        assert not group_advantage(value, group, include, normalize_std=True).any()
        apart = value + torch.tensor([0.0, 1e-6, 0.0], dtype=torch.float64) * scale
        assert group_advantage(apart, group, include, normalize_std=True).any()
