"""Filters by the spread of raw rewards: golden vectors worked out by hand, and what must not change the choice."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.learn.ops.filters import (
    at_least,
    descending,
    nucleus,
    quantile_band,
    reward_std,
    top_k,
    top_mass,
    top_share,
    widest_trajectories,
)

NAN = float("nan")


def numbers(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def chosen(mask: torch.Tensor) -> list[int]:
    return mask.nonzero()[:, 0].tolist()


def std_of(*groups: list[float]) -> list[float]:
    values = numbers([r for group in groups for r in group])
    group_N = torch.tensor([g for g, group in enumerate(groups) for _ in group])
    return reward_std(values, group_N, values.isfinite()).tolist()


# ------------------------------------------------------------------------------------------------ by hand


def test_std_by_hand():
    """0 0 1 1: 4 * (1/4) / 3 = 1/3. 1 and 4: 2 * (9/4) / 1 = 9/2. A zero-variance group is exactly 0, whatever its mean."""
    found = std_of([0, 0, 1, 1], [1, 4], [0.1, 0.1, 0.1])
    assert found == [
        pytest.approx(math.sqrt(1 / 3), rel=1e-15),
        pytest.approx(math.sqrt(4.5), rel=1e-15),
        0.0,
    ]


def test_std_leaves_unscored_trajectories_out_and_is_unknown_for_one():
    assert std_of([1, NAN, 4], [7, NAN])[0] == pytest.approx(math.sqrt(4.5), rel=1e-15)
    assert math.isnan(std_of([7, NAN])[0]) and math.isnan(std_of([NAN, NAN], [1, 2])[0])


def test_rounding_is_no_variance():
    """Three moves at -0.1 paid in one turn or in three: the same reward, another float."""
    assert -0.1 - 0.1 - 0.1 != -0.3  # the trap is real
    assert std_of([-0.1 - 0.1 - 0.1, -0.3]) == [0.0]
    assert std_of([1e-8, 0.0])[0] > 0  # small is not rounding


STD = numbers(
    [0.1, 0.5, 0.0, 0.3, 0.5, NAN, 0.2, 0.4]
)  # eight groups; one flat, one that has no std


def test_order_is_stable():
    assert descending(STD).tolist() == [1, 4, 7, 3, 6, 0, 2]
    assert descending(numbers([0.3, 0.1 + 0.2, 0.3])).tolist() == [
        0,
        1,
        2,
    ]  # 0.1 + 0.2 > 0.3 by rounding alone


@pytest.mark.parametrize(
    "share, kept",
    [
        (0.25, [1, 4]),  # 2 of 8, also where one of the 8 has no std
        (0.37, [1, 4]),  # 2.96: rounded down
        (0.375, [1, 4, 7]),
        (0.01, [1]),  # at least one; of equal ones the first
        (1.0, [0, 1, 2, 3, 4, 6, 7]),
    ],
)
def test_top_share(share, kept):
    assert chosen(top_share(STD, share)) == kept


def test_top_share_of_binary_fractions():
    """0.29 * 100 is 28.999999999999996: a floor that does not know it keeps one group too few."""
    assert int(top_share(torch.arange(100, dtype=torch.float64), 0.29).sum()) == 29


@pytest.mark.parametrize(
    "k, kept", [(1, [1]), (2, [1, 4]), (4, [1, 3, 4, 7]), (99, [0, 1, 2, 3, 4, 6, 7])]
)
def test_top_k(k, kept):
    assert chosen(top_k(STD, k)) == kept


@pytest.mark.parametrize(
    "p, slack, kept",
    [
        (0.5, 0.0, [1, 4]),  # 0.5 + 0.5 = 1.0 of 2.0: reached exactly
        (0.5, 0.01, [1, 4]),  # 0.99
        (0.51, 0.0, [1, 4, 7]),  # 1.02
        (0.51, 0.03, [1, 4]),  # 0.99 again
        (0.9, 0.01, [1, 3, 4, 7, 6]),  # 1.79: 0.5 0.5 0.4 0.3 0.2 is 1.9, without the 0.2 it is 1.7
        (1.0, 0.0, [0, 1, 3, 4, 6, 7]),  # all of the mass; the zero-variance group has none
        (0.4, 0.8, []),  # nothing left to reach
    ],
)
def test_top_mass(p, slack, kept):
    assert chosen(top_mass(STD, p, slack)) == sorted(kept)


def test_top_mass_of_nothing():
    assert chosen(top_mass(numbers([0, 0, 0]), 0.9, 0.01)) == []
    assert chosen(top_mass(numbers([NAN, NAN]), 0.9, 0.01)) == []
    assert chosen(top_mass(numbers([0.001, 0.002]), 0.9, 0.01)) == []  # less than the slack


def test_nucleus_by_hand():
    """softmax(log 1, log 2, log 5) = 1/8, 2/8, 5/8."""
    std = numbers([math.log(1), math.log(2), math.log(5), NAN])
    assert chosen(nucleus(std, 0.6)) == [2] and chosen(nucleus(std, 0.625)) == [2]
    assert chosen(nucleus(std, 0.63)) == [1, 2] and chosen(nucleus(std, 0.9)) == [0, 1, 2]
    assert chosen(nucleus(numbers([NAN]), 0.5)) == []
    assert chosen(nucleus(numbers([0, 0, 0, 0]), 0.5)) == [
        0,
        1,
    ]  # zero-variance groups have mass in a softmax


@pytest.mark.parametrize(
    "ratio, kept",
    [(1.0, [1, 4]), (0.6, [1, 3, 4, 7]), (0.61, [1, 4, 7]), (0.0, [0, 1, 2, 3, 4, 6, 7])],
)
def test_min_p(ratio, kept):
    assert chosen(at_least(STD, ratio)) == kept


def test_min_p_of_flat_groups_and_of_none():
    assert (
        chosen(at_least(numbers([0, NAN, 0]), 0.5)) == [0, 2]
        and chosen(at_least(numbers([NAN]), 0.5)) == []
    )


def test_quartiles_share_no_group_and_leave_none_out():
    std = numbers([3, 1, 2, 4, 7, 5, 6, 8])
    quarters = [chosen(quantile_band(std, q / 4, (q + 1) / 4)) for q in range(4)]
    assert quarters == [[1, 2], [0, 3], [5, 6], [4, 7]]
    assert (
        chosen(quantile_band(numbers([1, NAN]), 0, 1)) == [0]
        and chosen(quantile_band(numbers([NAN]), 0, 1)) == []
    )


def test_widest_trajectories_by_hand():
    """Of 0 1 1 5 the widest pair is 0 5; the widest three are 0 1 5 (the first of the ones). Of equal rewards the first
    come first, and a group of two has no three."""
    rewards, groups = (
        numbers([0, 1, 1, 5, 2, 2, 2, 2, 9, 8]),
        torch.tensor([0] * 4 + [1] * 4 + [2] * 2),
    )
    every = torch.ones(10, dtype=torch.bool)
    assert chosen(widest_trajectories(rewards, groups, every, 2)) == [0, 3, 4, 5, 8, 9]
    assert chosen(widest_trajectories(rewards, groups, every, 3)) == [0, 1, 3, 4, 5, 6, 8, 9]
    every[0] = False
    assert chosen(widest_trajectories(rewards, groups, every, 2)) == [1, 3, 4, 5, 8, 9]


# ------------------------------------------------------------------------------------------------ properties

SHARES = st.sampled_from([0.1, 0.25, 0.5, 0.9, 1.0])
rewards_of_groups = st.lists(
    st.lists(st.integers(-8, 8).map(lambda n: n / 4), min_size=1, max_size=6),
    min_size=1,
    max_size=7,
)


def all_choices(std_G: torch.Tensor, p: float) -> list[torch.Tensor]:
    return [
        top_share(std_G, p),
        top_k(std_G, 1 + int(4 * p)),
        top_mass(std_G, p, 0.01),
        nucleus(std_G, p),
        at_least(std_G, p),
        quantile_band(std_G, 1 - p, 1.0),
    ]


@given(
    st.lists(
        st.one_of(st.just(NAN), st.integers(0, 9).map(lambda n: n / 8)), min_size=1, max_size=12
    ),
    SHARES,
)
def test_the_least_kept_is_no_less_spread_than_the_most_left_out(std, p):
    std_G = numbers(std)
    for kept_G in all_choices(std_G, p):
        assert not bool((kept_G & std_G.isnan()).any())
        left = std_G[~kept_G & ~std_G.isnan()]
        if bool(kept_G.any()) and len(left):
            assert float(std_G[kept_G].min()) >= float(left.max()) - 1e-9


@given(
    st.lists(st.integers(0, 999), min_size=1, max_size=12, unique=True),
    SHARES,
    st.randoms(use_true_random=False),
)
def test_permuted_groups_are_chosen_alike(std, p, random):
    order = list(range(len(std)))
    random.shuffle(order)
    for before, after in zip(all_choices(numbers(std), p), all_choices(numbers(std)[order], p)):
        assert after.tolist() == before[order].tolist()


@given(rewards_of_groups, st.integers(-40, 40), st.randoms(use_true_random=False))
def test_neither_a_constant_nor_the_order_of_trajectories_changes_the_order_of_groups(
    groups, constant, random
):
    moved = [random.sample([r + constant / 10 for r in group], len(group)) for group in groups]
    before, after = numbers(std_of(*groups)), numbers(std_of(*moved))
    assert descending(before).tolist() == descending(after).tolist()
    assert (before == 0).tolist() == (after == 0).tolist()


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=8), st.integers(2, 7))
def test_widest_trajectories_are_those_that_brute_force_finds(rewards, k):
    values, every = numbers(rewards), torch.ones(len(rewards), dtype=torch.bool)
    kept = chosen(
        widest_trajectories(values, torch.zeros(len(rewards), dtype=torch.int64), every, k)
    )
    size = min(k, len(rewards))
    best = max(
        float(values[list(some)].var())
        for some in itertools.combinations(range(len(rewards)), size)
    )
    assert len(kept) == size
    assert float(values[kept].var()) == pytest.approx(best, rel=1e-7, abs=1e-15)
