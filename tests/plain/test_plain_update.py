"""A step's updates by `plain` and by the learner: the gradient of every objective, term and mask, and the weights after
several updates, with and without a critic."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.counts import reduced
from tests.learning_data import make_groups, tiny_model, unscore
from tests.plain.recipes import credits_of, recipe_of, trajectories_with_facts
from tests.test_learner import distance, gradient
from tests.test_learner_terms import CASES, with_facts
from workbench.learn.algorithms import ALGORITHMS, DAPO, GRPO, PPO, BilevelPPO, ReinforcePP, TurnPPO
from workbench.learn.algorithms.parts import Filter
from workbench.learn.batch import Batch
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.learn.learner import Learner
from workbench.plain import loss, train
from workbench.plain.credit import credit_of
from workbench.values import Group

NEAR = 2e-5  # of the gradient's norm: float32 sums in another order


def groups_of(fresh: bool = False) -> list[Group]:
    return unscore(make_groups(turns=3, fresh=fresh), 1, 2)


def plain_gradient(batch: Batch, groups: list[Group], algorithm, recipe=None) -> dict[str, Tensor]:
    """Of the very credit that the learner is handed."""
    trajectories = trajectories_with_facts(groups, batch)
    plain = train.PlainLearner(tiny_model(), recipe or recipe_of(algorithm))
    train.gradient(
        trajectories, credits_of(trajectories, algorithm.credit(batch), algorithm), plain
    )
    return {name: p.grad for name, p in plain.policy.named_parameters()}


QUICK_CASES = (
    "clip-token-mean",
    "clip-fixed-length",
    "gspo-seq-mean-token-sum",
    "cispo-token-mean",
    "all-terms",
    "all-terms-every-mask-off",
    "weights-for-the-sampler",
)


@pytest.mark.parametrize("case", reduced(CASES, QUICK_CASES))
def test_the_gradient_of_every_term_and_mask(case):
    fresh = bool(list(CASES).index(case) % 2)  # every case with one history or the other
    groups, algorithm = groups_of(fresh), CASES[case]
    batch = with_facts(Batch.from_groups(groups))
    theirs = gradient(batch, algorithm.credit(batch), algorithm)
    assert distance(theirs, plain_gradient(batch, groups, algorithm)) < NEAR


def moved_by_one(logp, old, advantage, counts, **bounds):
    return loss.clip(logp.roll(1), old, advantage, counts, **bounds)


@pytest.mark.parametrize(
    "wrong",
    [
        {"objective": moved_by_one},
        {"objective": loss.cispo, "bounds": {}},
        {"reduction": "seq-mean-token-mean"},
        {"kl_estimator": "k3"},
        {"entropy_coef": 0.1},
        {"kl_coef": 0.1},
        {"bounds": {"low": 0.0, "high": 0.0}},
    ],
)
def test_a_wrong_recipe_is_noticed(wrong):
    groups, algorithm = groups_of(), CASES["all-terms"]
    batch = with_facts(Batch.from_groups(groups))
    theirs = gradient(batch, algorithm.credit(batch), algorithm)
    recipe = replace(recipe_of(algorithm), **wrong)
    assert distance(theirs, plain_gradient(batch, groups, algorithm, recipe)) > 100 * NEAR


# ------------------------------------------------------------------------------------------------ whole steps

EPS = 1e-3  # so large that a weight moves by its gradient, not by the sign of its rounding
ROUNDING = 6e-7  # five units in the last place of a weight of one, in float32; measured up to 3.6e-7 in six updates
STEPS = {
    "grpo": (GRPO(), {}, {}),
    "grpo in three minibatches, twice": (GRPO(minibatches=3, epochs=2), {}, {}),
    "with warm-up, decay and short gradients": (
        GRPO(minibatches=2),
        {"warmup_updates": 3, "weight_decay": 0.1, "max_grad_norm": 0.05},
        {},
    ),
    "with a reference in the loss": (
        GRPO(entropy_coef=0.1, minibatches=2, reference={"kl_coef": 0.2}),
        {},
        {},
    ),
    "with a reference in the reward": (ReinforcePP(reference={"kl_coef": 0.2}), {}, {}),
    "dapo": (DAPO(minibatches=2), {}, {}),
    "so many trajectories an update": (
        GRPO(minibatch_size=5, filter=Filter("top_k", groups=2)),
        {},
        {},
    ),
    "a filter that removes no update": (
        GRPO(minibatch_size=5, filter=Filter("top_k", groups=2, equal_updates=True)),
        {},
        {},
    ),
    "ppo": (
        PPO(
            minibatches=2,
            estimator={"lam": 0.9},
            critic={"value_clip": 0.05},
            reference={"kl_coef": 0.1},
        ),
        {},
        {},
    ),
    "ppo on the policy's trunk": (
        PPO(minibatches=2, critic={"bootstrap": "truncated"}),
        {},
        {"trunk": "policy", "value_coef": 0.3},
    ),
    "turn ppo": (TurnPPO(estimator={"lam": 0.9}), {}, {}),
    "bilevel ppo": (BilevelPPO(minibatches=2), {}, {}),
    "starpo-s": (ALGORITHMS["starpo_s"](), {}, {}),
}


def learned(
    algorithm, config, critic, groups, steps: int = 2
) -> tuple[dict[str, Tensor], list[float]]:
    """Weights after so many steps of the learner on the same groups, and the norm of every gradient."""
    learner = Learner(
        tiny_model(),
        algorithm,
        LearnerConfig(**({"lr": 1e-3, "eps": EPS, "seed": 5} | config)),
        critic=CriticConfig(**critic),
        reference=tiny_model(1),
    )
    norms = []
    for step in range(1, steps + 1):
        batch = learner.facts(Batch.from_groups(groups))
        norms += [
            report.metrics["grad_norm"]
            for report in learner.update(batch, algorithm.credit(batch), step=step)
        ]
    weights = {name: weight.clone() for name, weight in learner.weights().items()}
    if learner.models.critic is not None:
        weights |= {
            f"critic.{name}": p.detach()
            for name, p in learner.models.critic.weights.module.named_parameters()
        }
    return weights, norms


def learner_of(algorithm, config, critic) -> train.PlainLearner:
    policy, head = tiny_model(), None
    if "value_T" in algorithm.requires:
        shared = critic.get("trunk") == "policy"
        head = train.new_critic(
            policy.base_model if shared else copy.deepcopy(policy.base_model), 32
        )
    adamw = {"eps": EPS, "weight_decay": config.get("weight_decay", 0.0)}
    return train.PlainLearner(
        policy,
        recipe_of(algorithm),
        tiny_model(1),
        head,
        lr=1e-3,
        adamw=adamw,
        seed=5,
        value_coef=critic.get("value_coef", 1.0),
        warmup_updates=config.get("warmup_updates", 0),
        max_grad_norm=config.get("max_grad_norm", 1.0),
    )


def plainly_learned(
    algorithm, config, critic, groups, steps: int = 2
) -> tuple[dict[str, Tensor], list[float]]:
    plain, norms = learner_of(algorithm, config, critic), []
    for step in range(1, steps + 1):
        norms += [norm for _, norm in train.learn(step, groups, plain)[2]]
    weights = {name: weight.detach() for name, weight in plain.policy.state_dict().items()}
    if plain.critic is not None:
        own = plain.critic["head"] if critic.get("trunk") == "policy" else plain.critic
        weights |= {f"critic.{name}": p.detach() for name, p in own.named_parameters()}
    return weights, norms


def farthest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


QUICK_STEPS = (
    ("grpo in three minibatches, twice", "append"),
    ("with warm-up, decay and short gradients", "fresh"),
    ("with a reference in the loss", "append"),
    ("with a reference in the reward", "fresh"),
    ("a filter that removes no update", "append"),
    ("ppo", "append"),
    ("ppo on the policy's trunk", "fresh"),
    ("starpo-s", "fresh"),
)


@pytest.mark.parametrize(
    "case", reduced(product(STEPS, ("append", "fresh")), QUICK_STEPS), ids=" ".join
)
def test_the_weights_after_two_steps(case):
    name, fresh = case[0], case[1] == "fresh"
    theirs, norms = learned(*STEPS[name], groups_of(fresh))
    mine, own_norms = plainly_learned(*STEPS[name], groups_of(fresh))
    start = dict(tiny_model().state_dict().items())
    assert own_norms == pytest.approx(norms, rel=1e-4) and max(norms) > 0
    assert max(float((theirs[name] - start[name]).abs().max()) for name in start) > 1e-4
    assert farthest(mine, theirs) < ROUNDING


@pytest.mark.parametrize(
    "other",
    [
        {"lr": 1.01e-3},
        {"betas": (0.9, 0.999)},
        {"weight_decay": 0.1},
        {"seed": 6},
        {"warmup_updates": 2},
        {"max_grad_norm": 0.05},
    ],
)
def test_another_setting_moves_the_weights_elsewhere(other):
    algorithm = GRPO(minibatches=2)
    theirs, _ = learned(algorithm, other, {}, groups_of())
    mine, _ = plainly_learned(algorithm, {}, {}, groups_of())
    assert farthest(mine, theirs) > 3 * ROUNDING


def test_a_gradient_of_zero_moves_nothing_though_the_optimizer_remembers():
    plain = learner_of(GRPO(), {}, {})
    train.learn(1, groups_of(), plain)
    before = {name: weight.clone() for name, weight in plain.policy.state_dict().items()}
    flat = make_groups(rewards=[[1.0] * 4] * 3)
    *_, updates = train.learn(2, flat, plain)
    assert (
        updates == [(0.0, 0.0)]
        and farthest(before, plain.policy.state_dict()) == 0
        and plain.version == 1
    )


def test_numbers_that_are_not_finite_move_nothing():
    plain = learner_of(GRPO(), {}, {})
    trajectories = [
        train.facts(trajectory, plain) for trajectory in train.trajectory_tokens_of(groups_of())
    ]
    credits = credit_of(trajectories, plain.recipe)
    broken = [replace(own, advantage=own.advantage + np.inf) for own in credits]
    before = {name: weight.clone() for name, weight in plain.policy.state_dict().items()}
    assert not np.isfinite(train.update(trajectories, broken, plain)[0]) and plain.version == 0
    assert farthest(before, plain.policy.state_dict()) == 0


def test_adamw_is_the_one_of_torch():
    torch.manual_seed(0)
    mine = torch.nn.Parameter(torch.randn(20))
    theirs = torch.nn.Parameter(mine.detach().clone())
    plain = train.PlainAdamW([mine], (0.8, 0.9), 1e-6, 0.1)
    other = torch.optim.AdamW([theirs], lr=0.01, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1)
    for _ in range(5):
        mine.grad = torch.randn(20)
        theirs.grad = mine.grad.clone()
        plain.step(0.01)
        other.step()
    assert torch.allclose(mine, theirs, atol=1e-6)
