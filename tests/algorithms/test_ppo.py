"""PPO's credit on whole batches: what a token is worth, and what can have no part in it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_data import FIRST, make_groups, span, unscore

from workbench.learn.algorithms import PPO
from workbench.learn.algorithms.base import LossInputs
from workbench.learn.batch import Batch
from workbench.training.reading import flatten
from workbench.values import Group, Segment, Source, StopReason, Task, Trajectory, Turn
from workbench.values.errors import ConfigError, DataError

PLAIN = PPO(estimator={"whiten": False})


def with_values(batch: Batch, seed: int = 0) -> Batch:
    """Random values at the sampled tokens, NaN elsewhere; random final values where a trajectory was cut short."""
    rng = torch.Generator().manual_seed(seed)
    value_T = torch.rand(batch.num_tokens, generator=rng)
    final_N = torch.rand(batch.num_trajectories, generator=rng)
    return replace(
        batch,
        value_T=torch.where(batch.eligible_T, value_T, torch.nan),
        final_value_N=torch.where(batch.truncated_N, final_N, torch.nan),
    )


def by_hand(
    stop: StopReason = StopReason.TERMINATED,
    *,
    observation: int = 2,
    fresh: bool = False,
    outcome: float | None = None,
) -> Trajectory:
    """Two turns of two sampled tokens each, paid 1 and 2; `observation` tokens of the environment between them, and a
    new segment if `fresh`."""
    rng = np.random.default_rng(0)
    first = [span(Source.PROMPT, 0, [1, 2]), span(Source.POLICY, 0, [3, 4], rng, sampled=True)]
    between = [span(Source.ENV, 0, list(range(observation)))]
    second = [span(Source.POLICY, 1, [5, 6], rng, sampled=True)]
    segments = (
        [Segment(tuple(first)), Segment((*between, span(Source.SCAFFOLD, 1, [9]), *second))]
        if fresh
        else [Segment((*first, *between, *second))]
    )
    return Trajectory(
        Task("t", "test", 0),
        0,
        0,
        FIRST,
        (Turn(0, "", reward=1.0), Turn(1, "", reward=2.0)),
        tuple(segments),
        stop,
        outcome,
    )


def batch_of(*trajectories: Trajectory, value=0.5, final=8.0) -> Batch:
    batch = Batch.from_groups(
        [Group((replace(t, task=Task(f"t{n}", "test", n)),)) for n, t in enumerate(trajectories)]
    )
    return replace(
        batch,
        value_T=torch.where(batch.eligible_T, value, torch.nan),
        final_value_N=torch.where(batch.truncated_N, final, torch.nan),
    )


def at_actions(batch: Batch, values_T: torch.Tensor) -> list[float]:
    return values_T[batch.eligible_T].tolist()


def test_two_turns_by_hand():
    """Every value is .5; gamma = .5, lam = 1: the return from each token on, minus the value before it."""
    batch = batch_of(by_hand())
    credit = PPO(estimator={"gamma": 0.5, "whiten": False}).credit(batch)
    returns = [0 + 0.5 * (1 + 0.5 * (0 + 0.5 * 2)), 1 + 0.5 * (0 + 0.5 * 2), 0 + 0.5 * 2, 2.0]
    assert at_actions(batch, credit.return_T) == returns
    assert at_actions(batch, credit.advantage_T) == [r - 0.5 for r in returns]
    assert (
        credit.advantage_T[~batch.eligible_T].abs().sum() == 0
        and credit.advantage_T.dtype == torch.float64
    )
    assert bool(credit.return_T[~batch.eligible_T].isnan().all())  # None is not zero
    assert torch.equal(credit.weight_T, batch.eligible_T.double())


def test_the_outcome_is_paid_at_the_last_token():
    credit = PPO(estimator={"gamma": 1.0, "lam": 0.0, "whiten": False}).credit(
        batch_of(by_hand(outcome=10.0), value=0.0)
    )
    assert credit.advantage_T[credit.weight_T != 0].tolist() == [0.0, 1.0, 0.0, 12.0]


@pytest.mark.parametrize("lam, gamma", [(1.0, 1.0), (0.95, 0.99), (0.0, 0.5)])
@pytest.mark.parametrize("whiten", [False, True])
def test_what_the_environment_says_takes_no_time(lam, gamma, whiten):
    """Seven more observation tokens, or a new segment: not a bit of the credit of any action changes."""
    algorithm = PPO(estimator={"gamma": gamma, "lam": lam, "whiten": whiten})
    found = [
        at_actions(batch, algorithm.credit(batch).advantage_T)
        for batch in (
            batch_of(by_hand(**changes)) for changes in ({}, {"observation": 9}, {"fresh": True})
        )
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    "stop, bootstrap, expected",
    [
        (StopReason.TERMINATED, "truncated", 2.0),
        (StopReason.ENV_TRUNCATED, "truncated", 2.0 + 8.0),
        (StopReason.MAX_TURNS, "truncated", 2.0 + 8.0),
        (StopReason.CONTEXT_FULL, "truncated", 2.0 + 8.0),
        (StopReason.ENV_TRUNCATED, "context_full", 2.0),
        (StopReason.MAX_TURNS, "context_full", 2.0),
        (StopReason.CONTEXT_FULL, "context_full", 2.0 + 8.0),
        (StopReason.CONTEXT_FULL, "never", 2.0),
    ],
)
def test_where_a_trajectory_goes_on_being_worth_something(stop, bootstrap, expected):
    batch = batch_of(by_hand(stop))
    credit = PPO(critic={"bootstrap": bootstrap}, estimator={"whiten": False}).credit(batch)
    assert at_actions(batch, credit.return_T)[-1] == expected
    assert credit.notes["trajectories_bootstrapped"] == float(expected > 2)


def test_unscored_trajectories_weigh_nothing_anywhere():
    """Not in their own advantage, not in the whitening of the others, not in what the critic is fitted to."""
    groups = make_groups(turns=3)
    full = with_values(Batch.from_groups(unscore(groups, 1, 2)))
    credit, kept = PPO().credit(full), [n for n in range(12) if n != 6]
    row_T = full.trajectory_of_token_T
    assert not credit.weight_T[row_T == 6].any() and bool(credit.return_T[row_T == 6].isnan().all())
    without = PPO().credit(full.select(kept))  # as if it had never been
    assert torch.equal(credit.advantage_T[row_T != 6], without.advantage_T)
    counted = PPO().credit(
        with_values(Batch.from_groups(groups))
    )  # negative control: had it been scored
    assert not torch.equal(credit.advantage_T[row_T != 6], counted.advantage_T[row_T != 6])


def test_a_faulty_trajectory_without_a_token_is_no_obstacle():
    empty = Trajectory(Task("t", "test", 0), 0, 0, FIRST, (), (), StopReason.ENV_ERROR)
    batch = batch_of(by_hand(), empty, by_hand(StopReason.CONTEXT_FULL))
    credit = PLAIN.credit(batch)
    assert (
        bool(credit.advantage_T.isfinite().all()) and credit.notes["trajectories_unscored"] == 1.0
    )


def test_nothing_scored_at_all_is_zeros():
    groups = make_groups(tasks=1, attempts=2)
    credit = PPO().credit(with_values(Batch.from_groups(unscore(unscore(groups, 0, 0), 0, 1))))
    assert not credit.weight_T.any() and not credit.advantage_T.any()


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(12)), st.booleans(), st.booleans())
def test_the_order_of_trajectories_does_not_matter(order, fresh, whiten):
    algorithm = PPO(estimator={"whiten": whiten, "lam": 0.9})
    batch = with_values(Batch.from_groups(unscore(make_groups(turns=2, fresh=fresh), 0, 1)))
    straight, shuffled = algorithm.credit(batch), algorithm.credit(batch.select(list(order)))
    parts = [straight.advantage_T[batch.trajectory_of_token_T == n] for n in order]
    torch.testing.assert_close(torch.cat(parts), shuffled.advantage_T, atol=1e-12, rtol=0)


def test_whitening_is_over_trained_tokens():
    batch = with_values(Batch.from_groups(make_groups()))
    trained = PPO().credit(batch).advantage_T[batch.eligible_T]
    assert abs(float(trained.mean())) < 1e-12 and float(trained.std()) == pytest.approx(1, abs=1e-6)


def test_a_perfect_critic_of_a_sure_thing_leaves_nothing_to_learn():
    batch = batch_of(by_hand(), by_hand(), value=0.0)
    returns = torch.tensor([3.0, 3, 2, 2] * 2)  # gamma = 1
    sure = replace(batch, value_T=batch.value_T.masked_scatter(batch.eligible_T, returns))
    for algorithm in (PPO(), PLAIN):
        assert not algorithm.credit(sure).advantage_T.any()


# ------------------------------------------------------------------------------------------------ the reference


def with_reference(batch: Batch) -> Batch:
    """The policy's logprobs are -1, the reference's -1.5 at every sampled token."""
    return replace(
        batch,
        old_logp_T=torch.where(batch.eligible_T, -1.0, torch.nan),
        ref_logp_T=torch.where(batch.eligible_T, -1.5, torch.nan),
    )


def test_kl_in_the_reward_is_paid_token_by_token():
    """k1 = .5 at each of four tokens, at .1 a nat: .05 less from each token on."""
    batch = with_reference(batch_of(by_hand(), value=0.0))
    plain, paid = (
        PPO(estimator={"whiten": False}, reference={"kl_coef": coef}).credit(batch)
        for coef in (0.0, 0.1)
    )
    less = np.subtract(at_actions(batch, plain.return_T), at_actions(batch, paid.return_T))
    assert less == pytest.approx([0.2, 0.15, 0.1, 0.05], abs=1e-12)


@pytest.mark.parametrize("estimator, expected", [("k1", 0.5), ("k2", 0.125), ("k3", 0.1065307)])
def test_kl_in_the_loss_is_added_there_and_not_to_credit(estimator, expected):
    algorithm = PPO(
        estimator={"whiten": False},
        reference={"kl_coef": 2.0, "kl_in": "loss", "kl_estimator": estimator},
    )
    batch = with_reference(batch_of(by_hand()))
    assert torch.equal(algorithm.credit(batch).advantage_T, PLAIN.credit(batch).advantage_T)
    logp = torch.tensor([-1.0, -1.0])
    inputs = LossInputs(
        logp,
        logp * 0,
        logp,
        torch.tensor([1.0, -1.0]),
        logp,
        torch.zeros(2),
        torch.full((2,), -1.5),
    )
    loss = algorithm.loss(inputs)
    assert loss.loss_M.tolist() == [-1.0, 1.0]
    assert loss.kl_loss_M.tolist() == pytest.approx([2 * expected] * 2, abs=1e-6)
    assert loss.figures["kl_ref"].tolist() == pytest.approx([0.1065307] * 2, abs=1e-6)


def test_what_it_requires_follows_from_its_settings():
    assert PPO().requires == ("value_T", "final_value_N") and PPO(
        critic={"bootstrap": "never"}
    ).requires == ("value_T",)
    assert set(PPO(reference={"kl_coef": 0.1}).requires) == {
        "value_T",
        "final_value_N",
        "old_logp_T",
        "ref_logp_T",
    }
    assert set(PPO(reference={"kl_coef": 0.1, "kl_in": "loss"}).requires) == {
        "value_T",
        "final_value_N",
        "ref_logp_T",
    }
    batch = Batch.from_groups(make_groups())
    with pytest.raises(DataError, match=r"ppo needs value_T, final_value_N.*Learner.facts"):
        PPO().credit(batch)


@pytest.mark.parametrize(
    "wrong",
    [
        {"estimator": {"gamma": 1.1}},
        {"estimator": {"lam": -0.1}},
        {"critic": {"bootstrap": "always"}},
        {"reference": {"kl_estimator": "k4"}},
        {"reference": {"kl_in": "advantage"}},
        {"reference": {"kl_coef": -1.0}},
        {"epochs": 0},
        {"critic": {"value_clip": -1.0}},
        {"objective": {"clip_low": 2.0}},
        {"estimator": {"gamma": float("nan")}},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(flatten(wrong)))):
        PPO(**wrong)
