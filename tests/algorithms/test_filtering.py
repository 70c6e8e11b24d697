"""The filter of a config: what it keeps, what it refuses, and that it looks at raw rewards alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.learn.algorithms.liveness import inert_of_filter, most_kept
from workbench.learn.algorithms.parts import READS, Filter, Rewards
from workbench.values.errors import ConfigError

NAN = float("nan")


def kept(rule: Filter, *groups: list[float]) -> list[list[int]]:
    """Per group, the trajectories that are kept."""
    reward_N = torch.tensor([r for group in groups for r in group], dtype=torch.float64)
    group_N = torch.tensor([g for g, group in enumerate(groups) for _ in group])
    before = reward_N.clone()
    kept_N = rule.kept(reward_N, group_N, reward_N.isfinite())
    assert kept_N.dtype == torch.bool and torch.equal(
        reward_N.nan_to_num(-9.0), before.nan_to_num(-9.0)
    )
    parts = iter(kept_N.tolist())
    return [[i for i in range(len(group)) if next(parts)] for group in groups]


LAKE = ([0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0], [0, NAN, NAN, NAN], [2, NAN, 2, 2])
EVERY = [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [0], [0, 2, 3]]


@pytest.mark.parametrize(
    "rule",
    [
        Filter(),
        Filter("top_share", share=1.0),
        Filter("top_p", p=1.0),
        Filter("band", low=0.0, high=1.0),
    ],
)
def test_what_keeps_everything_keeps_every_scored_trajectory(rule):
    assert not rule.acts and kept(rule, *LAKE) == EVERY


@pytest.mark.parametrize(
    "rule, expected",
    [
        (Filter("top_share", share=0.4), [0, 2]),
        (Filter("top_share", share=0.6), [0, 1, 2]),  # the zero-variance group is one like others
        (Filter("top_share", share=0.6, zero_variance="drop"), [0, 2]),
        (Filter("all", zero_variance="drop"), [0, 2]),
        (Filter("top_share", share=1.0, zero_variance="drop"), [0, 2]),
        (Filter("top_k", groups=1), [0]),
        (Filter("top_k", groups=4), [0, 1, 2, 4]),  # four groups have a std
        (Filter("top_p", p=0.5), [0]),
        (Filter("top_p", p=0.9), [0, 2]),
        (Filter("top_p", p=0.9, mass="softmax"), [0, 1, 2, 4]),
        (Filter("top_p", p=0.9, mass="softmax", zero_variance="drop"), [0, 2]),
        (Filter("min_p", ratio=0.8), [0, 2]),
        (Filter("min_p", ratio=0.9), [0]),
        (Filter("band", low=0.0, high=0.5), [1, 4]),
        (Filter("band", low=0.0, high=0.5, zero_variance="drop"), [2]),
    ],
)
def test_groups_by_hand(rule, expected):
    """std: 0.58, 0, 0.5, none (one scored trajectory), 0."""
    assert rule.acts
    assert kept(rule, *LAKE) == [EVERY[g] if g in expected else [] for g in range(5)]


def test_trajectories_within_groups_by_hand():
    assert kept(Filter("within_group", attempts=2), *LAKE) == [[0, 1], [0, 1], [0, 3], [], [0, 2]]
    assert kept(Filter("within_group", attempts=2, zero_variance="drop"), *LAKE) == [
        [0, 1],
        [],
        [0, 3],
        [],
        [],
    ]
    assert kept(Filter("within_group", attempts=3), *LAKE) == [
        [0, 1, 3],
        [0, 1, 2],
        [0, 1, 3],
        [],
        [0, 2, 3],
    ]


def test_nothing_at_all_may_be_kept():
    flat = ([0, 0], [1, 1])
    assert kept(Filter("top_share", zero_variance="drop"), *flat) == [[], []]
    assert kept(Filter("top_p"), *flat) == [[], []]  # no mass
    assert kept(Filter("top_share"), [NAN, NAN], [3, NAN]) == [[], []]


@pytest.mark.parametrize("keep", READS)
def test_at_most_is_reached_and_never_exceeded(keep):
    rule = Filter(
        keep, share=0.3, groups=3, attempts=3, low=0.25, high=0.75, p=0.9, ratio=0.0, slack=0.0
    )
    different = [[i, 2 * i, 3 * i, 4 * i] for i in range(1, 11)]
    found = sum(len(group) for group in kept(rule, *different))
    assert (
        found == most_kept(rule, 10, 4) or keep == "top_p" and 0 < found <= most_kept(rule, 10, 4)
    )


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"keep": "top"}, "filter.keep is one of all, top_share"),
        ({"mass": "flat"}, "filter.mass is linear or softmax"),
        ({"zero_variance": True}, "filter.zero_variance is drop or keep"),
        ({"share": 25}, "share is above 0 and at most 1; got 25 .0.25 is a quarter."),
        ({"share": 0.0}, "filter.share"),
        ({"p": 1.5}, "filter.p"),
        ({"p": NAN}, "filter.p"),
        ({"ratio": -0.1}, "filter.ratio"),
        ({"slack": -1.0}, "filter.slack"),
        ({"slack": float("inf")}, "filter.slack"),
        ({"low": 0.5, "high": 0.5}, "0 <= low < high <= 1; got 0.5, 0.5"),
        ({"groups": 0}, "filter.groups is at least 1"),
        ({"attempts": 1}, "nothing to be compared with"),
    ],
)
def test_settings_without_a_meaning_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        Filter(**settings)


def test_each_number_belongs_to_one_strategy():
    dead = {
        name
        for name, inert, why in inert_of_filter(Filter("top_p", mass="softmax"), 16, 8)
        if inert
    }
    assert dead == {"share", "slack", "groups", "ratio", "low", "high", "attempts"}
    assert ("equal_updates", True, "nothing is filtered") in inert_of_filter(Filter(), 16, 8)
    why = {name: why for name, inert, why in inert_of_filter(Filter("top_k"), 16, 8) if inert}
    assert "groups" not in why and "groups" in {
        name for name, inert, _ in inert_of_filter(Filter("top_k"), 4, 8) if inert
    }
    dead = inert_of_filter(Filter("within_group"), 16, 4)
    assert ("attempts", True, "a group has only 4 trajectories, so all are kept") in dead
    assert why["share"] == "algorithm.filter.keep is 'top_k', not 'top_share'"


four_rewards = st.lists(st.integers(-8, 8).map(lambda n: n / 4), min_size=4, max_size=4)
some_groups = st.lists(four_rewards, min_size=2, max_size=8)
rules = st.builds(
    Filter,
    keep=st.sampled_from(list(READS)),
    share=st.sampled_from([0.25, 0.5, 1.0]),
    attempts=st.just(2),
    groups=st.just(2),
    zero_variance=st.sampled_from(["drop", "keep"]),
)


@given(
    some_groups,
    rules,
    st.sampled_from(["mean", "mean_std", "asym_clip"]),
    st.sampled_from(["group", "batch"]),
)
def test_normalised_rewards_are_never_filtered_on(groups, rule, normalize, over):
    """The published code normalised in place before it filtered: every group that is not flat then has the standard
    deviation 1, and which quarter is kept is up to rounding. Here neither the choice nor the raw tensor changes."""
    raw_N = torch.tensor(groups, dtype=torch.float64).flatten()
    group_N = torch.arange(len(groups)).repeat_interleave(4)
    every, before = torch.ones_like(raw_N, dtype=torch.bool), raw_N.clone()
    first = rule.kept(raw_N, group_N, every)
    change = Rewards(normalize, over).change(raw_N, group_N, group_N, every)
    change.scale_N.mul_(raw_N).add_(change.shift_N)  # whatever becomes of the change
    assert torch.equal(raw_N, before) and torch.equal(rule.kept(raw_N, group_N, every), first)


def test_filtering_on_normalised_rewards_would_choose_others():
    """The trap is real: normalised within groups, the most uncertain group is no longer the first."""
    raw_N = torch.tensor([0, 0.1, 0, 0.1, 0, 1, 0, 1], dtype=torch.float64)
    group_N, every = torch.tensor([0] * 4 + [1] * 4), torch.ones(8, dtype=torch.bool)
    change = Rewards("mean_std").change(raw_N, group_N, group_N, every)
    rule = Filter("top_share", share=0.5)
    assert rule.kept(raw_N, group_N, every).tolist() == [False] * 4 + [True] * 4
    normalised_N = change.scale_N * raw_N + change.shift_N
    assert torch.allclose(
        normalised_N[:4], normalised_N[4:], atol=1e-4
    )  # nothing tells them apart any more


@given(
    st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.4, 1.0]), min_size=1, max_size=8),
    st.floats(0.05, 0.99),
)
def test_a_flat_group_is_never_kept_for_its_share_of_the_spread(stds, p):
    """So leaving zero-variance groups out first is a setting that does nothing, and loading a config says so."""
    rewards = torch.tensor(
        [value for std in stds for value in (0.5 - std, 0.5 + std)], dtype=torch.float64
    )
    group_N, scored_N = (
        torch.arange(len(stds)).repeat_interleave(2),
        torch.ones(2 * len(stds), dtype=torch.bool),
    )
    keep, drop = (Filter("top_p", p=p, zero_variance=word) for word in ("keep", "drop"))
    assert torch.equal(keep.kept(rewards, group_N, scored_N), drop.kept(rewards, group_N, scored_N))
    assert "zero_variance" in {name for name, dead, _ in inert_of_filter(drop, 8, 2) if dead}
    assert "zero_variance" not in {name for name, dead, _ in inert_of_filter(keep, 8, 2) if dead}
