"""StarPO and StarPO-S: what the presets say, what a filter does to credit and updates, and what is said at load time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from credit_data import TrajectorySpec, batch_of, credit_of, draw, same
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.learn.algorithms import ALGORITHMS, GRPO, PPO, StarPO, StarPO_S
from workbench.learn.algorithms.base import needs_critic
from workbench.learn.algorithms.liveness import remarks, updates_of_a_step
from workbench.learn.algorithms.parts import Filter
from workbench.training.config import load_config, load_config_with_warnings
from workbench.values.errors import ConfigError

CHOICES = (
    Filter("top_share", share=0.5),
    Filter("top_p", p=0.6),
    Filter("top_k", groups=2, zero_variance="drop"),
    Filter("min_p", ratio=0.7),
    Filter("band", high=0.5),
    Filter("within_group", attempts=2),
)
FLAT = ((TrajectorySpec(((1, 0.0, "s"),)),) * 4,) * 4


def test_the_presets_are_what_is_published():
    """The figures of RAGEN's paper and code. Everything else is PPO's."""
    starpo, stable = StarPO(), StarPO_S()
    assert (
        starpo.estimator.gamma,
        starpo.estimator.lam,
        starpo.estimator.whiten,
        starpo.objective.clip_low,
        starpo.objective.clip_high,
    ) == (
        1.0,
        1.0,
        True,
        0.2,
        0.2,
    )
    assert (
        starpo.objective.dual_clip,
        starpo.critic.value_clip,
        starpo.entropy_coef,
        starpo.reduction,
    ) == (
        3.0,
        0.5,
        1e-3,
        "token-mean",
    )
    assert (starpo.reference.kl_coef, starpo.reference.kl_estimator, starpo.reference.kl_in) == (
        1e-3,
        "k1",
        "reward",
    )
    assert (starpo.epochs, starpo.minibatch_size, starpo.critic.bootstrap) == (
        1,
        32,
        "never",
    ) and not starpo.filter.acts
    assert (stable.reference.kl_coef, stable.objective.clip_low, stable.objective.clip_high) == (
        0.0,
        0.2,
        0.28,
    )
    assert stable.filter == Filter("top_share", share=0.25) and stable.minibatch_size == 32
    assert (
        stable.estimator == PPO.estimator
        and needs_critic(stable)
        and "ref_logp_T" not in stable.requires
    )
    assert (
        "final_value_N" not in stable.requires
    )  # a trajectory that a limit ended is worth nothing after it


def test_the_two_differ_in_filter_reference_and_upper_bound_only():
    differ = {name for name, value in StarPO.settings.items() if StarPO_S.settings[name] != value}
    assert differ == {"filter.keep", "reference.kl_coef", "objective.clip_high"}


# ------------------------------------------------------------------------------------------------ credit


@pytest.mark.parametrize("name", ALGORITHMS)
@settings(max_examples=6)
@given(st.integers(0, 999), st.sampled_from(CHOICES))
def test_credit_with_a_filter_is_credit_of_what_it_keeps(name, seed, chosen):
    """Who is left out leaves baseline, whitening and loss, as if it had never been sampled."""
    batch = batch_of(draw(seed, tasks=4))
    algorithm = ALGORITHMS[name](filter=chosen)
    kept_N = chosen.kept(batch.reward_N, batch.group_of_trajectory_N, batch.scored_N)
    found, at = credit_of(algorithm, batch), kept_N.nonzero()[:, 0].tolist()
    alone = credit_of(replace(algorithm, filter=Filter()), batch.select(at))
    assert at and same([found[n] for n in at], alone, atol=1e-9)
    assert all(
        not advantage.any() and not weight.any() and target.isnan().all()
        for n, (advantage, weight, target) in enumerate(found)
        if n not in at
    )


def test_what_a_filter_did_is_told():
    """Four groups of two: std 0, 1/sqrt(2), none (one is not scored), 4/sqrt(2)."""
    one = TrajectorySpec(((1, 0.0, "s"),))
    groups = (
        (one, one),
        (one, replace(one, turns=((1, 1.0, "s"),))),
        (one, replace(one, scored=False)),
        (one, replace(one, turns=((1, 4.0, "s"),))),
    )
    notes = StarPO_S(minibatch_size=2).credit(batch_of(groups)).notes
    root = 2**0.5
    assert {key: notes[key] for key in notes if key.startswith("filter")} == pytest.approx(
        {
            "filter_kept": 2 / 7,
            "filter_groups_kept": 1,
            "filter_groups_left_out": 3,
            "filter_groups_flat": 1,
            "filter_std_all": (0 + 1 / root + 4 / root) / 3,
            "filter_std_kept": 4 / root,
        }
    )
    assert (
        notes["updates_removed_by_filter"] == 3
    )  # seven scored trajectories by two are four updates, two are one
    assert not any("filter" in key for key in PPO().credit(batch_of(groups)).notes)
    within = GRPO(filter=Filter("within_group", attempts=2)).credit(batch_of(draw(1))).notes
    assert (
        within["filter_std_kept"] > within["filter_std_all"]
        and within["filter_groups_left_out"] == 0
    )


@pytest.mark.parametrize(
    "settings_, made, removed",
    [
        ({"minibatch_size": 4}, 1, 3),
        ({"minibatch_size": 4, "epochs": 2}, 1, 6),
        ({"minibatch_size": 2}, 2, 6),
        ({"minibatch_size": 5}, 1, 3),
        ({"minibatch_size": 64}, 1, 0),
        ({"minibatch_size": 1}, 4, 12),
        ({"minibatches": 3}, None, 0),
        ({"minibatches": 8}, None, 4),  # of eight updates, four have a trajectory to learn from
    ],
)
def test_updates_that_a_filter_removes_and_those_that_stay_equal(settings_, made, removed):
    """Sixteen trajectories, of which four are kept."""
    batch = batch_of(draw(2, tasks=4))
    algorithm = GRPO(filter=Filter("top_k", groups=1), **settings_)
    credit = algorithm.credit(batch)
    assert credit.minibatches == made and credit.notes["updates_removed_by_filter"] == removed
    if made is not None:
        same_many = replace(algorithm, filter=replace(algorithm.filter, equal_updates=True)).credit(
            batch
        )
        whole = -(-16 // settings_["minibatch_size"])
        assert same_many.minibatches == min(whole, 4)  # an update needs a trajectory
        assert same_many.notes["updates_removed_by_filter"] == algorithm.epochs * (
            whole - min(whole, 4)
        )


@pytest.mark.parametrize(
    "algorithm",
    [
        StarPO_S(filter=Filter("top_share", zero_variance="drop")),
        GRPO(filter=Filter("top_p"), minibatch_size=4),
        GRPO(filter=Filter("all", zero_variance="drop"), minibatches=4),
    ],
    ids=["starpo_s", "size", "number"],
)
def test_an_empty_choice_gives_no_token_a_weight_and_removes_every_update(algorithm):
    credit = algorithm.credit(batch_of(FLAT))
    assert (
        not credit.trained_T.any()
        and not credit.advantage_T.any()
        and credit.notes["filter_kept"] == 0
    )
    whole = 1 if algorithm.minibatch_size == 32 else 4
    assert credit.notes["updates_removed_by_filter"] == whole and all(
        v == v for v in credit.notes.values()
    )


# ------------------------------------------------------------------------------------------------ at load time


def told(**settings_) -> list[str]:
    return load_config_with_warnings("frozenlake", {"algorithm.kind": "starpo_s"} | settings_)[1]


def test_a_filter_that_leaves_one_update_is_told_to_make_clipping_inert():
    """16 x 8 trajectories, a quarter of them: 32, one mini-batch."""
    (words,) = told()
    assert (
        "the filter (top_share, share 0.25) leaves at most 32 of 16 x 8 trajectories, one update of 32"
        in words
    )
    assert (
        "clip_high = 0.28, dual_clip = 3.0, value_clip = 0.5" in words and "can never bind" in words
    )
    assert "filter.equal_updates=true" in words
    with pytest.raises(
        ConfigError,
        match="algorithm.objective.clip_high has no effect.*at most 32 trajectories after the filter",
    ):
        told(**{"algorithm.objective.clip_high": 0.3})


def test_nothing_is_said_where_clipping_can_bind():
    for more in (
        {"algorithm.minibatch_size": 16},
        {"algorithm.filter.equal_updates": True},
        {"algorithm.epochs": 2},
        {"algorithm.filter.share": 0.5},
        {"train.tasks_per_step": 32},
        {"algorithm.kind": "starpo"},
        {"algorithm.filter.keep": "top_p"},
    ):
        assert told(**more) == []
    assert told(**{"algorithm.minibatch_size": 16, "algorithm.objective.clip_high": 0.3}) == []


def test_bounds_that_an_algorithm_brings_along_are_told_too():
    assert remarks(GRPO(), 16, 8) == [] and remarks(GRPO(filter=Filter("top_k")), 16, 8) == []
    (words,) = remarks(GRPO(objective={"clip_high": 0.28}), 16, 8)
    assert (
        words.startswith("a step makes one update, so the ratio is 1")
        and "raise algorithm.epochs" in words
    )
    assert remarks(GRPO(minibatches=2, objective={"clip_high": 0.28}), 16, 8) == []
    (words,) = remarks(GRPO(minibatch_size=32, filter=Filter("top_k", groups=4)), 16, 8)
    assert "clip_low, clip_high, dual_clip" in words


@pytest.mark.parametrize("tasks, group, updates", [(8, 16, 1), (16, 16, 2), (16, 8, 1), (4, 4, 1)])
def test_updates_of_a_step_at_most(tasks, group, updates):
    assert updates_of_a_step(StarPO_S(), tasks, group) == updates
    assert updates_of_a_step(
        StarPO_S(filter=Filter("top_share", equal_updates=True)), tasks, group
    ) == max(1, tasks * group // 32)


def test_one_trajectory_per_task_has_no_spread():
    with pytest.raises(
        ConfigError,
        match="chooses by how much the trajectories of a task differ and needs train.group_size >= 2",
    ):
        load_config("frozenlake", {"algorithm.kind": "starpo_s", "train.group_size": 1})
    assert (
        load_config("frozenlake", {"algorithm.kind": "starpo", "train.group_size": 1}).algorithm
        == StarPO()
    )


def test_the_papers_other_settings_are_a_setting_away():
    config = load_config(
        "frozenlake",
        {
            "algorithm.kind": "starpo",
            "algorithm.reduction": "seq-mean-token-mean",
            "algorithm.masks.loss_mask": False,
            "algorithm.critic.bootstrap": "truncated",
            "algorithm.reference.kl_coef": 0.0,
        },
    )
    assert config.algorithm.masks.over("loss_over") == "response"


def test_a_flat_group_is_kept_where_a_quarter_must_be_unless_it_is_dropped():
    flat = StarPO_S().credit(batch_of(FLAT))
    assert flat.notes["filter_groups_kept"] == 1 and bool(flat.trained_T.any())
    assert torch.equal(
        StarPO_S(filter=Filter("top_share", zero_variance="drop")).credit(batch_of(FLAT)).weight_T,
        torch.zeros_like(flat.weight_T),
    )
