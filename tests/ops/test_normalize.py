"""Rewards on a common scale: RAGEN's three methods by hand, over groups, a batch and tags; nothing raw is touched."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.learn.algorithms import GRPO
from workbench.learn.algorithms.liveness import inert_settings
from workbench.learn.algorithms.parts import Rewards
from workbench.learn.ops.normalize import METHODS, normalization
from workbench.values.errors import ConfigError

NAN = float("nan")


def totals(values, sets, method, include=None) -> list[float]:
    reward_N = torch.tensor(values, dtype=torch.float64)
    include_N = reward_N.isfinite() if include is None else torch.tensor(include)
    change = normalization(reward_N, torch.tensor(sets), include_N, method)
    return (change.scale_N * reward_N.nan_to_num() + change.shift_N).tolist()


def test_by_hand():
    """0 0 1 1 has mean 1/2 and unbiased std sqrt(1/3); 0 and 8 have mean 4 and std sqrt(32)."""
    values, sets = [0, 0, 1, 1, 0, 8], [0, 0, 0, 0, 1, 1]
    assert totals(values, sets, "none") == values
    assert totals(values, sets, "mean") == [-0.5, -0.5, 0.5, 0.5, -4, 4]
    a, b = 0.5 / (math.sqrt(1 / 3) + 1e-6), 4 / (math.sqrt(32) + 1e-6)
    assert totals(values, sets, "mean_std") == pytest.approx([-a, -a, a, a, -b, b], rel=1e-14)
    assert totals(values, sets, "asym_clip") == pytest.approx(
        [-a, -a, a, a, -b, b], rel=1e-14
    )  # none beyond -1..3


def test_the_clamp_by_hand():
    """Eleven zeros and 12: mean 1, std sqrt(12). Upwards 11 / 3.4641 = 3.1754 is held at 3; the other way at -1."""
    up = totals([0] * 11 + [12], [0] * 12, "asym_clip")
    assert up[-1] == pytest.approx(3.0) and up[0] == pytest.approx(-1 / math.sqrt(12), rel=1e-6)
    down = totals([0] * 11 + [-12], [0] * 12, "asym_clip")
    assert down[-1] == pytest.approx(-1.0) and down[0] == pytest.approx(1 / math.sqrt(12), rel=1e-6)


@pytest.mark.parametrize("method", METHODS[1:])
def test_flat_sets_and_single_trajectories_give_zero(method):
    assert totals([0.1, 0.1, 0.1, 5.0, NAN], [0, 0, 0, 1, 1], method) == [0, 0, 0, 0, 0]


def test_no_scale_where_there_is_nothing_to_compare_with():
    """Else turns that cancel out (+1, -1) would be blown up a million times in a zero-variance group."""
    change = normalization(
        torch.zeros(3, dtype=torch.float64),
        torch.zeros(3, dtype=torch.int64),
        torch.ones(3, dtype=torch.bool),
        "mean_std",
    )
    assert change.scale_N.tolist() == [0, 0, 0] and change.shift_N.tolist() == [0, 0, 0]


def test_who_is_not_included_has_no_part_in_it():
    """Neither a NaN nor a number that a filter left out moves the mean of the others."""
    assert totals([0, 1, NAN], [0, 0, 0], "mean") == [-0.5, 0.5, 0]
    assert totals([0, 1, 100], [0, 0, 0], "mean", [True, True, False]) == [-0.5, 0.5, 0]
    assert totals([0, 1, 100], [0, 0, 0], "none", [True, True, False]) == [0, 1, 0]
    assert totals([NAN, NAN], [0, 0], "mean_std") == [0, 0]


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="one of none, mean, mean_std, asym_clip, got 'median'"):
        totals([0, 1], [0, 0], "median")


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 3)), min_size=2, max_size=16),
    st.floats(-9, 9),
    st.sampled_from(METHODS[1:]),
    st.randoms(use_true_random=False),
)
def test_neither_a_constant_nor_the_order_changes_it(rows, constant, method, random):
    values, sets = zip(*[(round(value, 2), each) for value, each in rows])
    before = totals(values, sets, method)
    assert totals([value + constant for value in values], sets, method) == pytest.approx(
        before, abs=1e-6
    )
    order = random.sample(range(len(values)), len(values))
    after = totals([values[i] for i in order], [sets[i] for i in order], method)
    assert after == pytest.approx([before[i] for i in order], abs=1e-9)


# ------------------------------------------------------------------------------------------------ the setting


def test_over_group_batch_and_tag():
    """Three groups, the last with another tag; and the raw rewards are what they were, bit for bit."""
    raw_N = torch.tensor([0, 2, 4, 6, 100, 300], dtype=torch.float64)
    group_N, tag_N = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 0, 0, 0, 1, 1])
    every, before = torch.ones(6, dtype=torch.bool), raw_N.clone()

    def shifts(over: str) -> list[float]:
        return Rewards("mean", over).change(raw_N, group_N, tag_N, every).shift_N.tolist()

    assert shifts("group") == [-1, -1, -5, -5, -200, -200]
    assert shifts("tag") == [-3, -3, -3, -3, -200, -200]
    assert shifts("batch") == pytest.approx([-412 / 6] * 6)
    assert torch.equal(raw_N, before)


def test_settings():
    dead, alive = (
        {
            name: why
            for name, dead, why in inert_settings(GRPO(rewards=Rewards(normalize)), 4, 4)
            if dead
        }
        for normalize in ("none", "mean")
    )
    assert (
        dead["rewards.over"] == "algorithm.rewards.normalize is 'none'"
        and "rewards.over" not in alive
    )
    with pytest.raises(
        ConfigError, match="rewards.normalize is one of none, mean, mean_std, asym_clip; got 'std'"
    ):
        Rewards("std")
    with pytest.raises(ConfigError, match="rewards.over is one of group, batch, tag; got 'task'"):
        Rewards("mean", "task")
