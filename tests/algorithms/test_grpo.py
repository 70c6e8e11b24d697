"""GRPO over whole trajectories: who gets credit, who gets none, and what the loss is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from learning_data import make_groups, unscore

from workbench.learn.algorithms import ALGORITHMS, GRPO, LossInputs
from workbench.learn.batch import Batch
from workbench.values.errors import ConfigError, DataError


@pytest.mark.parametrize("fresh", [False, True], ids=["append", "segment-per-turn"])
def test_a_trajectorys_advantage_lands_on_all_its_sampled_tokens_in_all_its_segments(fresh):
    batch = Batch.from_groups(
        make_groups(rewards=[[0.0, 1.0]], tasks=1, attempts=2, turns=3, fresh=fresh)
    )
    assert batch.num_segments == (6 if fresh else 2)
    credit = GRPO(estimator={"normalize_std": False}).credit(batch)
    expected = torch.where(batch.trajectory_of_token_T == 1, 0.5, -0.5) * batch.eligible_T
    assert torch.equal(credit.advantage_T, expected.double())
    assert torch.equal(credit.weight_T, batch.eligible_T.double())
    assert credit.advantage_T.dtype == torch.float64 and credit.advantage_T.device.type == "cpu"
    for turn in range(
        3
    ):  # no turn is forgotten, as happens where the last segment's mask is used for all
        assert (credit.advantage_T[(batch.turn_T == turn) & batch.eligible_T] != 0).all()


def test_history_does_not_change_the_credit_of_a_trajectory():
    """Append-only or a segment per turn: the same rewards give the same advantage (the tokens differ)."""
    rewards = [[0.0, 1.0, 0.5]]
    values = []
    for fresh in (False, True):
        batch = Batch.from_groups(make_groups(rewards=rewards, tasks=1, attempts=3, fresh=fresh))
        credit = GRPO().credit(batch)
        sampled_N = [batch.eligible_T & (batch.trajectory_of_token_T == n) for n in range(3)]
        values.append([credit.advantage_T[sampled_T].unique().item() for sampled_T in sampled_N])
    assert values[0] == values[1]


def test_an_unscored_trajectory_leaves_baseline_and_loss():
    rewards = [[0.0, 1.0, 9.0, 0.5], [1.0, 0.0, 0.0, 0.0]]
    full = Batch.from_groups(unscore(make_groups(rewards=rewards, tasks=2), 0, 2))
    credit = GRPO().credit(full)
    gone = full.trajectory_of_token_T == 2
    assert (credit.weight_T[gone] == 0).all() and (credit.advantage_T[gone] == 0).all()
    without = GRPO().credit(full.select([0, 1, 3, 4, 5, 6, 7]))  # as if it had never been
    assert torch.equal(credit.advantage_T[~gone], without.advantage_T)
    assert credit.notes["trajectories_unscored"] == 1.0


def test_negative_control_counting_an_unscored_one_as_zero_changes_the_credit():
    groups = make_groups(rewards=[[0.0, 1.0, 0.5]], tasks=1, attempts=3)
    unscored = GRPO().credit(Batch.from_groups(unscore(groups, 0, 2)))
    as_zero = GRPO().credit(
        Batch.from_groups(make_groups(rewards=[[0.0, 1.0, 0.0]], tasks=1, attempts=3))
    )
    assert not torch.allclose(unscored.advantage_T, as_zero.advantage_T)


def test_groups_that_teach_nothing_are_named():
    credit = GRPO().credit(
        Batch.from_groups(unscore(make_groups(rewards=[[1, 1], [0, 1], [0, 1]], attempts=2), 2, 0))
    )
    assert credit.notes["groups_flat"] == 1.0 and credit.notes["groups_without_baseline"] == 1.0
    assert credit.advantage_T.isfinite().all()


def test_one_trajectory_per_task_is_an_error_not_a_run_without_learning():
    with pytest.raises(DataError, match="at least 2 trajectories per task"):
        GRPO().credit(Batch.from_groups(make_groups(attempts=1)))


def test_nobody_scored_gives_no_credit_and_no_nan():
    groups = make_groups(tasks=1, attempts=2)
    batch = Batch.from_groups(unscore(unscore(groups, 0, 0), 0, 1))
    credit = GRPO().credit(batch)
    assert not credit.weight_T.any() and not credit.advantage_T.any()
    assert all(
        value == value for value in credit.notes.values()
    )  # a figure that does not exist is absent


@given(st.integers(0, 1000), st.permutations(range(6)), st.booleans(), st.booleans())
def test_the_order_of_trajectories_and_groups_does_not_matter(seed, order, fresh, normalize_std):
    batch = Batch.from_groups(make_groups(seed, tasks=2, attempts=3, fresh=fresh))
    straight = GRPO(estimator={"normalize_std": normalize_std}).credit(batch)
    shuffled_batch = batch.select(list(order))
    shuffled = GRPO(estimator={"normalize_std": normalize_std}).credit(shuffled_batch)
    for row, n in enumerate(order):
        a = straight.advantage_T[batch.trajectory_of_token_T == n]
        b = shuffled.advantage_T[shuffled_batch.trajectory_of_token_T == row]
        torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)


@given(st.integers(0, 1000), st.booleans())
def test_weight_is_eligibility_times_the_weight_of_the_row(seed, fresh):
    batch = Batch.from_groups(unscore(make_groups(seed, fresh=fresh), 0, 0))
    credit = GRPO().credit(batch)
    row_T = batch.scored_N[batch.trajectory_of_token_T]
    assert torch.equal(credit.weight_T, (batch.eligible_T & row_T).double())


def inputs(logp, old, advantage, entropy=1.0) -> LossInputs:
    one = torch.full_like(logp, entropy)
    return LossInputs(logp, one, old, advantage, old, torch.zeros_like(logp, dtype=torch.int64))


def test_on_policy_the_gradient_is_minus_the_advantage():
    logp = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    advantage = torch.tensor([1.0, -2.0, 0.0])
    result = GRPO().loss(inputs(logp, logp.detach(), advantage))
    result.loss_M.sum().backward()
    assert torch.equal(logp.grad, -advantage)
    assert result.ratio_M.tolist() == [1.0, 1.0, 1.0] and result.clip_state_M.tolist() == [0, 0, 0]
    assert not result.ratio_M.requires_grad


def test_entropy_bonus_by_hand():
    logp = torch.tensor([-1.0])
    plain = GRPO().loss(inputs(logp, logp, torch.tensor([1.0]), entropy=2.0))
    bonus = GRPO(entropy_coef=0.1).loss(inputs(logp, logp, torch.tensor([1.0]), entropy=2.0))
    assert bonus.entropy_loss_M.item() == pytest.approx(-0.2) and torch.equal(
        bonus.loss_M, plain.loss_M
    )
    assert plain.entropy_loss_M is None


def test_bounds_are_separate():
    old, advantage = torch.zeros(2), torch.tensor([1.0, -1.0])
    logp = torch.tensor([1.25, 0.75]).log()
    assert GRPO(objective={"clip_low": 0.2, "clip_high": 0.28}).loss(
        inputs(logp, old, advantage)
    ).clip_state_M.tolist() == [0, -1]
    assert GRPO(objective={"clip_low": 0.3, "clip_high": 0.2}).loss(
        inputs(logp, old, advantage)
    ).clip_state_M.tolist() == [1, 0]


def test_table_and_fields():
    assert all(algorithm().name == name for name, algorithm in ALGORITHMS.items())
    assert GRPO(epochs=2, minibatches=3).updates_per_step == 6
    for wrong in (
        {"objective": {"clip_low": 1.5}},
        {"objective": {"clip_high": -0.1}},
        {"epochs": 0},
        {"minibatches": 0},
    ):
        with pytest.raises(ConfigError):
            GRPO(**wrong)


def test_kl_in_the_reward_lowers_what_a_trajectory_earned():
    """Two trajectories of equal reward; the one that strayed further from the reference has done worse."""
    batch = Batch.from_groups(make_groups(tasks=1, attempts=2, rewards=[[1.0, 1.0]]))
    away_T = torch.where(batch.trajectory_of_token_T == 0, 0.5, 0.0)
    batch = replace(
        batch, old_logp_T=torch.full((batch.num_tokens,), -1.0), ref_logp_T=-1.0 - away_T
    )
    algorithm = GRPO(
        reference={"kl_coef": 0.1, "kl_in": "reward", "kl_estimator": "k1"},
        estimator={"normalize_std": False},
    )
    credit, first_T = algorithm.credit(batch), batch.eligible_T & (batch.trajectory_of_token_T == 0)
    expected = -0.1 * 0.5 * int(first_T.sum()) / 2  # half of it above the mean, half below
    assert credit.advantage_T[first_T].tolist() == pytest.approx(
        [expected] * int(first_T.sum()), abs=1e-9
    )
    assert (
        not GRPO(reference={"kl_coef": 0.1}).credit(batch).advantage_T.any()
    )  # in the loss it is no credit
    assert algorithm.requires == ("old_logp_T", "ref_logp_T") and GRPO(
        reference={"kl_coef": 0.1}
    ).requires == ("ref_logp_T",)
    assert GRPO().requires == ()
    with pytest.raises(ConfigError, match="divides the pull by its own std.*normalize_std=false"):
        GRPO(reference={"kl_coef": 0.1, "kl_in": "reward"})
