"""The seven mask switches on the credit side: what each changes, what it cannot change, and where nothing is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_data import make_groups, unscore

from workbench.learn.algorithms import GRPO, PPO
from workbench.learn.algorithms.parts import ADVANTAGE_MASK, LOSS_MASK, Masks
from workbench.learn.batch import Batch
from workbench.learn.ops.gae import whiten
from workbench.training.config import load_config
from workbench.values.errors import ConfigError

PLAIN = PPO(estimator={"whiten": False}, critic={"bootstrap": "never"})


def batch_of(seed: int = 0, **settings) -> Batch:
    batch = Batch.from_groups(unscore(make_groups(seed, turns=3, **settings), 0, 1))
    generator = torch.Generator().manual_seed(seed)

    def drawn() -> torch.Tensor:
        return torch.where(
            batch.position_T > 0, torch.randn(batch.num_tokens, generator=generator), torch.nan
        )

    return replace(
        batch,
        value_T=drawn(),
        old_logp_T=drawn(),
        ref_logp_T=drawn(),
        final_value_N=torch.randn(batch.num_trajectories, generator=generator),
    )


def on_actions(algorithm, batch: Batch) -> torch.Tensor:
    scored_T = batch.scored_N[batch.trajectory_of_token_T]
    return algorithm.credit(batch).advantage_T[batch.eligible_T & scored_T]


def wide(*names: str) -> Masks:
    return Masks(**dict.fromkeys(names, "response"))


# ------------------------------------------------------------------------------------------------ the one that matters


@settings(max_examples=15)
@given(st.integers(0, 1000), st.booleans(), st.sampled_from(["never", "truncated"]))
def test_undiscounted_unwhitened_advantages_of_actions_do_not_depend_on_the_advantage_mask(
    seed, fresh, bootstrap
):
    """At gamma = lambda = 1 the sum telescopes: what was paid from here on, minus the value here."""
    batch, ppo = batch_of(seed, fresh=fresh), PLAIN(critic={"bootstrap": bootstrap})
    batch = replace(batch, truncated_N=torch.ones_like(batch.truncated_N))
    without = replace(ppo, masks=Masks(advantage_mask=False))
    assert torch.allclose(on_actions(ppo, batch), on_actions(without, batch), atol=1e-12)


def test_with_a_lambda_below_one_they_do():
    """By hand: three tokens of a reply between two actions, lambda = 1/2, values 0, 1 paid at the end: 1/2 and 1/16."""
    batch = batch_of()
    on, off = (
        PLAIN(estimator={"lam": 0.5}, masks=Masks(advantage_mask=mask)) for mask in (True, False)
    )
    assert not torch.allclose(on_actions(on, batch), on_actions(off, batch))
    batch = replace(batch, value_T=torch.zeros_like(batch.value_T))
    between = batch.response_T & ~batch.eligible_T
    first = int((batch.eligible_T & (batch.trajectory_of_token_T == 0)).nonzero()[0])
    reward = float(batch.reward_N[0])  # all of it is paid in the last turn
    acts = (batch.eligible_T & (batch.trajectory_of_token_T == 0)).nonzero()[:, 0]
    waits = int((between & (batch.trajectory_of_token_T == 0))[first : int(acts[-1])].sum())
    assert on.credit(batch).advantage_T[first].item() == pytest.approx(
        reward * 0.5 ** (len(acts) - 1)
    )
    assert off.credit(batch).advantage_T[first].item() == pytest.approx(
        reward * 0.5 ** (len(acts) - 1 + waits)
    )


# ------------------------------------------------------------------------------------------------ each switch alone


def test_whitening_over_the_response_is_whitening_with_zeros_in_between():
    batch = batch_of()
    plain = on_actions(PLAIN, batch)
    scored_T = batch.scored_N[batch.trajectory_of_token_T]
    strangers = int((batch.response_T & scored_T).sum()) - len(plain)
    found = on_actions(PLAIN(estimator={"whiten": True}, masks=wide("whiten_over")), batch)
    assert torch.allclose(found, whiten(plain, over=torch.cat([plain, torch.zeros(strangers)])))
    assert not torch.allclose(found, on_actions(PLAIN(estimator={"whiten": True}), batch))


@pytest.mark.parametrize("fresh", [False, True], ids=["append", "segment-per-turn"])
def test_what_observations_pay_for_leaving_the_reference_is_not_lost(fresh):
    """It leaks into the returns of the actions before it, as in the published runs without a mask."""
    batch = batch_of(fresh=fresh)
    paid = PLAIN(reference={"kl_coef": 0.1})
    narrow, leaky = paid.credit(batch), replace(paid, masks=wide("kl_reward_over")).credit(batch)
    scored_T = batch.scored_N[batch.trajectory_of_token_T]
    others_T = batch.response_T & ~batch.eligible_T & scored_T
    penalty_T = 0.1 * (batch.old_logp_T - batch.ref_logp_T).double()
    for n in batch.scored_N.nonzero()[:, 0].tolist():
        mine_T = batch.trajectory_of_token_T == n
        first = int((batch.eligible_T & mine_T).nonzero()[0])
        expected = narrow.advantage_T[first] - penalty_T[others_T & mine_T].sum()
        assert leaky.advantage_T[first].item() == pytest.approx(expected.item())


def test_a_critic_over_the_response_is_fitted_beside_the_actions_to_what_the_next_one_is_worth():
    batch = batch_of()
    narrow, broad = PLAIN.credit(batch), replace(PLAIN, masks=wide("critic_over")).credit(batch)
    assert torch.equal(narrow.advantage_T, broad.advantage_T) and torch.equal(
        narrow.weight_T, broad.weight_T
    )
    acts = batch.eligible_T
    assert torch.equal(narrow.return_T[acts].nan_to_num(7), broad.return_T[acts].nan_to_num(7))
    fitted = broad.critic_weight_T != 0
    assert torch.equal(fitted, ~broad.return_T.isnan())
    scored_T = batch.scored_N[batch.trajectory_of_token_T]
    assert torch.equal(fitted, batch.response_T & scored_T)
    for token in (fitted & ~acts).nonzero()[:, 0].tolist():
        later = (
            acts & (batch.trajectory_of_token_T == batch.trajectory_of_token_T[token])
        ).nonzero()[:, 0]
        later = later[later > token]
        expected = narrow.return_T[later[0]].item() if len(later) else 0.0
        assert broad.return_T[token].item() == pytest.approx(expected)


@pytest.mark.parametrize(
    "algorithm",
    [
        GRPO(entropy_coef=0.1, reference={"kl_coef": 0.1}),
        PPO(entropy_coef=0.1, reference={"kl_coef": 0.1, "kl_in": "loss"}),
    ],
)
@pytest.mark.parametrize(
    "switch, field",
    [
        ("entropy_over", "entropy_weight_T"),
        ("kl_loss_over", "kl_weight_T"),
        ("loss_over", "weight_T"),
    ],
)
def test_a_switch_of_the_loss_mask_widens_its_own_term_and_no_other(algorithm, switch, field):
    batch = batch_of()
    scored_T = batch.scored_N[batch.trajectory_of_token_T]
    credit = replace(algorithm, masks=wide(switch)).credit(batch)
    narrow, broad = batch.eligible_T & scored_T, batch.response_T & scored_T
    for term, name in (
        ("policy", "loss_over"),
        ("entropy", "entropy_over"),
        ("kl", "kl_loss_over"),
    ):
        assert torch.equal(credit.weights_of(term) != 0, broad if name == switch else narrow), term
    assert credit.widened == f"masks: {switch} = response" and getattr(credit, field) is not None
    assert torch.equal(
        on_actions(algorithm, batch), on_actions(replace(algorithm, masks=wide(switch)), batch)
    )


def test_without_a_loss_mask_a_trajectorys_credit_falls_on_replies_too():
    batch = batch_of()
    credit = GRPO(masks=Masks(loss_mask=False)).credit(batch)
    scored_T = batch.scored_N[batch.trajectory_of_token_T]
    replies = batch.response_T & ~batch.eligible_T & scored_T
    assert (
        bool((credit.advantage_T[replies] != 0).all())
        and not credit.advantage_T[~batch.response_T].any()
    )


# ------------------------------------------------------------------------------------------------ words


def test_groups_and_their_exceptions():
    off = Masks(advantage_mask=False, critic_over="actions")
    assert [off.over(name) for name in ADVANTAGE_MASK] == [
        "response",
        "response",
        "response",
        "actions",
    ]
    assert {off.over(name) for name in LOSS_MASK} == {"actions"} and Masks().widened() is None
    with pytest.raises(ConfigError, match="masks.gae_over is actions or response"):
        Masks(gae_over="all")


@pytest.mark.parametrize(
    "written, words",
    [
        (
            {"algorithm.masks.gae_over": "response"},
            "gives all tokens of a trajectory, or of a turn, the same credit",
        ),
        ({"algorithm.masks.advantage_mask": False}, "none of its four switches can act"),
        ({"algorithm.masks.entropy_over": "response"}, "entropy_coef is 0"),
        (
            {"algorithm.kind": "ppo", "algorithm.masks.gae_over": "response"},
            "at gamma = lambda = 1 the advantages of actions",
        ),
        (
            {"algorithm.kind": "ppo", "algorithm.masks.kl_reward_over": "response"},
            "nothing is paid",
        ),
        (
            {
                "algorithm.kind": "ppo",
                "algorithm.estimator.whiten": False,
                "algorithm.masks.whiten_over": "response",
            },
            "whitens nothing",
        ),
        (
            {"collect.history": "fresh", "algorithm.masks.loss_mask": False},
            "the response is the actions and nothing else",
        ),
        (
            {"algorithm.rewards.normalize": "mean", "algorithm.rewards.over": "batch"},
            "the same for all of a group",
        ),
        ({"algorithm.minibatch_size": 128, "learner.seed": 3}, "nothing is shuffled"),
        (
            {"algorithm.kind": "ppo", "algorithm.masks.gae": "response"},
            "did you mean 'algorithm.masks.gae_over'",
        ),
    ],
)
def test_a_setting_that_can_do_nothing_is_refused(written, words):
    with pytest.raises(ConfigError, match=words):
        load_config("frozenlake", written)


@pytest.mark.parametrize(
    "written",
    [
        {"algorithm.masks.loss_mask": False},
        {"algorithm.kind": "ppo", "algorithm.masks.advantage_mask": False},
        {
            "algorithm.kind": "ppo",
            "algorithm.estimator.lam": 0.9,
            "algorithm.masks.gae_over": "response",
        },
        {
            "algorithm.kind": "ppo",
            "algorithm.masks.gae_over": "response",
            "algorithm.masks.loss_over": "response",
        },
        {
            "algorithm.kind": "ppo",
            "algorithm.masks.gae_over": "response",
            "algorithm.masks.loss_mask": False,
        },
        {
            "algorithm.kind": "ppo",
            "algorithm.reference.kl_coef": 0.1,
            "algorithm.masks.advantage_mask": False,
            "algorithm.masks.gae_over": "response",
        },
        {"algorithm.kind": "gigpo", "algorithm.rewards.normalize": "mean"},
        {
            "algorithm.kind": "reinforce",
            "algorithm.rewards.normalize": "mean",
            "algorithm.estimator.baseline": "none",
        },
    ],
)
def test_those_that_act_are_not(written):
    load_config("frozenlake", written)
