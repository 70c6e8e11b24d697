"""Rewards on a common scale, turn by turn: where they land in every algorithm, by hand, and that raw ones stay raw."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import pytest
import torch
from credit_data import TrajectorySpec, draw
from credit_data import batch_of as made_of
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_data import make_groups

from workbench.learn.algorithms import (
    ALGORITHMS,
    GRPO,
    PPO,
    RLOO,
    BilevelPPO,
    GiGPO,
    Reinforce,
    StarPO,
    TurnPPO,
)
from workbench.learn.algorithms.base import CreditInputs
from workbench.learn.algorithms.parts import Filter, Rewards
from workbench.learn.batch import Batch
from workbench.training.config import load_config, load_config_with_warnings
from workbench.values import Group, Task
from workbench.values.errors import ConfigError

# Two trajectories of one task: 1 for a turn of two tokens and 2 for one of three; 0 for one token and 1 for two.
PAIR = [
    [TrajectorySpec(((2, 1.0, "s"), (3, 2.0, "t"))), TrajectorySpec(((1, 0.0, "s"), (2, 1.0, "u")))]
]
S = 1 / (math.sqrt(2) + 1e-6)  # totals 3 and 1: mean 2, unbiased std sqrt(2)
every = pytest.mark.parametrize("name", ALGORITHMS)


def batch_of(groups, **settings_) -> Batch:
    return made_of(tuple(map(tuple, groups)), **settings_)


def without_critic_and_reference(batch: Batch) -> Batch:
    """A critic that expects nothing, and a reference that is the policy itself."""
    nothing_T = torch.zeros(batch.num_tokens)
    return replace(
        batch,
        value_T=nothing_T,
        final_value_N=torch.zeros(batch.num_trajectories),
        old_logp_T=nothing_T,
        ref_logp_T=nothing_T,
    )


def seen_by(algorithm, batch: Batch) -> CreditInputs:
    """What an estimator is handed."""
    seen = []

    @functools.wraps(algorithm.estimator.function)
    def spy(inputs, **settings):
        seen.append(inputs)
        return algorithm.estimator.function(inputs, **settings)

    replace(algorithm, estimator=replace(algorithm.estimator, function=spy)).credit(batch)
    return seen[0]


def near(values: torch.Tensor, expected) -> bool:
    return torch.allclose(values, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


@every
@pytest.mark.parametrize("fresh", [False, True], ids=["append", "segment-per-turn"])
def test_a_turns_reward_lands_on_its_last_token_and_the_shift_on_the_trajectories_last(name, fresh):
    batch = without_critic_and_reference(batch_of(PAIR, fresh=fresh))
    plain = ALGORITHMS[name](filter=Filter())
    assert near(seen_by(plain, batch).reward_A, [0, 1, 0, 0, 2, 0, 0, 1])
    inputs = seen_by(replace(plain, rewards=Rewards("mean_std")), batch)
    assert near(inputs.reward_A, [0, S, 0, 0, 2 * S - 2 * S, 0, 0, S - 2 * S])
    assert near(inputs.reward_N, [S, -S]) and near(inputs.reward_P, [S, 0, 0, -S])


@pytest.mark.parametrize(
    "algorithm, expected",
    [
        (PPO(estimator={"whiten": False}), [S, S, 0, 0, 0, -S, -S, -S]),
        (StarPO(estimator={"whiten": False}), [S, S, 0, 0, 0, -S, -S, -S]),
        (TurnPPO(estimator={"whiten": False}), [S, S, 0, 0, 0, -S, -S, -S]),
        (
            BilevelPPO(estimator={"whiten": False, "gamma_turn": 0.5}),
            [S, S, 0, 0, 0, -S / 2, -S, -S],
        ),
        (Reinforce(estimator={"baseline": "none", "gamma": 0.5}), [S, S, 0, 0, 0, -S / 2, -S, -S]),
        (RLOO(), [2 * S] * 5 + [-2 * S] * 3),
        (GRPO(estimator={"normalize_std": False}), [S] * 5 + [-S] * 3),
        (
            GiGPO(estimator={"normalize_std": False, "gamma": 1.0}),
            [2 * S] * 2 + [S] * 3 + [-2 * S] + [-S] * 2,
        ),  # both begin in state s
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_credit_of_normalised_turn_rewards_by_hand(algorithm, expected):
    batch = without_critic_and_reference(batch_of(PAIR))
    credit = replace(algorithm, rewards=Rewards("mean_std")).credit(batch)
    assert near(credit.advantage_T[batch.eligible_T], expected)


def test_the_asymmetric_clamp_is_paid_at_the_end():
    """Eleven trajectories earn 0, one 5 and then 7: mean 1, std sqrt(12). Its total of 3.18 deviations is held at 3."""
    one, scale = (1, 0.0, "s"), 1 / (math.sqrt(12) + 1e-6)
    groups = [[TrajectorySpec((one, one))] * 11 + [TrajectorySpec(((1, 5.0, "s"), (1, 7.0, "s")))]]
    batch = without_critic_and_reference(batch_of(groups))
    inputs = seen_by(PPO(rewards=Rewards("asym_clip")), batch)
    assert near(inputs.reward_A[-2:], [5 * scale, 3 - 5 * scale]) and near(
        inputs.reward_N[-1:], [3.0]
    )
    assert near(inputs.reward_A[:2], [0, -scale])
    unheld = seen_by(PPO(rewards=Rewards("mean_std")), batch)
    assert near(unheld.reward_A[-2:], [5 * scale, 6 * scale])


def test_normalising_over_the_batch_and_over_tags():
    """Two tasks of one environment, one of another: 0 2 | 4 6 | 100 300."""
    groups = [
        [TrajectorySpec(((1, reward, "s"),)) for reward in pair]
        for pair in ((0.0, 2.0), (4.0, 6.0), (100.0, 300.0))
    ]
    batch = without_critic_and_reference(batch_of(groups))
    batch = replace(batch, tag_N=torch.tensor([0, 0, 0, 0, 1, 1]))

    def totals(over: str) -> torch.Tensor:
        return seen_by(PPO(rewards=Rewards("mean", over)), batch).reward_N

    assert near(totals("group"), [-1, 1, -1, 1, -100, 100]) and near(
        totals("tag"), [-3, -1, 1, 3, -100, 100]
    )
    assert near(totals("batch"), [r - 412 / 6 for r in (0, 2, 4, 6, 100, 300)])


def test_tags_are_named_by_the_tasks():
    """metadata["tag"], else the environment."""
    (group,) = make_groups(tasks=1, attempts=1)
    tasks = [
        Task("a", "lake", 0),
        Task("b", "bandit", 0),
        Task("c", "lake", 1),
        Task("d", "lake", 2, {}, {"tag": "hard"}),
    ]
    tag_N = Batch.from_groups([Group((replace(group[0], task=task),)) for task in tasks]).tag_N
    assert tag_N[0] == tag_N[2] and len({int(tag_N[0]), int(tag_N[1]), int(tag_N[3])}) == 3


@every
@settings(max_examples=6)
@given(
    st.integers(0, 999),
    st.sampled_from(["mean", "mean_std", "asym_clip"]),
    st.sampled_from(["group", "batch", "tag"]),
    st.sampled_from([Filter(), Filter("top_share", share=0.5), Filter("within_group", attempts=2)]),
)
def test_raw_rewards_stay_as_they_are_bit_for_bit(name, seed, normalize, over, chosen):
    """Tensors of the batch, and the choice of the filter: that of the raw rewards, whatever they are normalised to."""
    batch = without_critic_and_reference(batch_of(draw(seed)))
    before = {
        key: value.clone() for key, value in vars(batch).items() if isinstance(value, torch.Tensor)
    }
    plain = ALGORITHMS[name](filter=chosen)
    credit = replace(plain, rewards=Rewards(normalize, over)).credit(batch)
    for key, value in before.items():
        found = getattr(batch, key)
        assert found.dtype == value.dtype and torch.equal(
            found.nan_to_num(7.5), value.nan_to_num(7.5)
        ), key
    assert torch.equal(credit.weight_T, plain.credit(batch).weight_T)


def test_the_filter_never_sees_normalised_rewards():
    """The published code normalised in place before it filtered. Here the group that differs most by raw rewards is
    kept; by normalised ones all groups differ about the same, and another would be."""
    earned = ((0.0, 0.1, 0.0), (0.0, 9.0, 9.0), (0.0, 0.2, 0.0))
    batch = batch_of([[TrajectorySpec(((1, r, "s"),)) for r in rewards] for rewards in earned])
    algorithm = GRPO(filter=Filter("top_share", share=1 / 3), rewards=Rewards("asym_clip"))
    kept_T = algorithm.credit(batch).weight_T != 0
    assert batch.trajectory_of_token_T[kept_T].unique().tolist() == [3, 4, 5]
    normalised_N = seen_by(GRPO(rewards=Rewards("asym_clip")), batch).reward_N
    std = [float(some.std()) for some in normalised_N.split(3)]
    assert max(std) < 1.1 * min(std) and std[1] == min(
        std
    )  # the trap is real: the clamp alone decides


# ------------------------------------------------------------------------------------------------ in a config


def test_settings_that_cannot_act_are_refused():
    for settings_, words in (
        (
            {"algorithm.rewards.over": "batch"},
            "algorithm.rewards.over has no effect.*normalize is 'none'",
        ),
        (
            {"algorithm.rewards.normalize": "mean"},
            "no effect: grpo takes the mean of the group off",
        ),
        *(
            (
                {"algorithm.rewards.normalize": "mean_std", "algorithm.rewards.over": over},
                "no effect: grpo takes any shift and scale of these rewards off again",
            )
            for over in ("group", "batch", "tag")
        ),
        (
            {"algorithm.rewards.normalize": "std"},
            "one of none, mean, mean_std, asym_clip; got 'std'",
        ),
        (
            {"algorithm.filter.keep": "top_p", "algorithm.filter.share": 0.5},
            "filter.keep is 'top_p', not 'top_share'",
        ),
        (
            {"algorithm.filter.keep": "top_k", "algorithm.filter.groups": 16},
            "a step has only 16 groups",
        ),
        (
            {"algorithm.filter.keep": "within_group", "algorithm.filter.attempts": 8},
            "a group has only 8 trajectories",
        ),
        (
            {"algorithm.filter.keep": "top_k", "algorithm.filter.equal_updates": True},
            "minibatch_size",
        ),
        (
            {"algorithm.filter.keeps": "top_k"},
            "no setting 'algorithm.filter.keeps'; did you mean 'algorithm.filter.keep'",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            load_config("frozenlake", settings_)
    with pytest.raises(
        ConfigError, match="chooses by how much the trajectories of a task differ and needs"
    ):
        load_config(
            "frozenlake",
            {"algorithm.kind": "ppo", "algorithm.filter.keep": "min_p", "train.group_size": 1},
        )
    config = load_config(
        "frozenlake",
        {
            "algorithm.kind": "rloo",
            "algorithm.rewards.normalize": "mean_std",
            "algorithm.rewards.over": "batch",
        },
    )
    assert config.algorithm.rewards == Rewards("mean_std", "batch")
    assert load_config_with_warnings("frozenlake")[1] == []
