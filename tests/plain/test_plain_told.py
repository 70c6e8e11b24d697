"""The reference implementation of a critic that is told more than the policy saw: whole steps by `plain`, with a trunk that puts the words in
between by loops over spans, and by the learner."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from tests.learning_data import tiny_model
from tests.plain.recipes import recipe_of
from tests.plain.test_plain_update import EPS, ROUNDING
from tests.test_told import groups_of, plainly_told, read
from workbench.learn.algorithms import PPO, TurnPPO
from workbench.learn.batch import Batch
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.learn.learner import Learner
from workbench.plain import train
from workbench.values import Group


class ToldTrunk(nn.Module):
    """The ids of a policy's segment come in, and the state before each of its tokens comes out, as it is once what the critic
    was told stands in between. `plain.train.values` reads row t - 1 for token t, and the last row for what follows the end."""

    def __init__(self, trunk: nn.Module, groups: list[Group], *, late: int = 0) -> None:
        super().__init__()
        self.trunk, self.late = trunk, late
        segments = [segment for group in groups for t in group for segment in t.segments]
        self.told = {
            tuple(segment.token_ids.tolist()): both
            for segment, both in zip(segments, plainly_told(groups), strict=True)
        }

    def forward(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
        ids, places = self.told[tuple(input_ids[0].tolist())]
        hidden = self.trunk(input_ids=torch.tensor(ids)[None], use_cache=False).last_hidden_state[0]
        rows = [max(place - 1 - self.late, 0) for place in places[1:]] + [places[-1]]
        return SimpleNamespace(last_hidden_state=hidden[rows][None])


def weights_by_plain(algorithm, groups: list[Group], late: int = 0) -> dict[str, Tensor]:
    policy = tiny_model()
    critic = train.new_critic(ToldTrunk(copy.deepcopy(policy.base_model), groups, late=late), 32)
    plain = train.PlainLearner(
        policy, recipe_of(algorithm), tiny_model(1), critic, lr=1e-3, adamw={"eps": EPS}, seed=5
    )
    for step in (1, 2):
        train.learn(step, groups, plain)
    own = {
        f"critic.{name.replace('trunk.trunk.', 'trunk.')}": p.detach()
        for name, p in critic.named_parameters()
    }
    return {name: weight.clone() for name, weight in policy.state_dict().items()} | own


def weights_by_the_learner(algorithm, groups: list[Group]) -> dict[str, Tensor]:
    learner = Learner(
        tiny_model(),
        algorithm,
        LearnerConfig(lr=1e-3, eps=EPS, seed=5),
        reference=tiny_model(1),
        critic=CriticConfig(sees="state"),
        read=read,
    )
    for step in (1, 2):
        batch = learner.facts(Batch.from_groups(groups))
        learner.update(batch, algorithm.credit(batch), step=step)
    own = {
        f"critic.{name}": p.detach()
        for name, p in learner.models.critic.weights.module.named_parameters()
    }
    return {name: weight.clone() for name, weight in learner.weights().items()} | own


def farthest(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize(
    "algorithm, fresh",
    [
        (
            PPO(
                minibatches=2,
                estimator={"lam": 0.9},
                critic={"bootstrap": "truncated", "value_clip": 0.05},
            ),
            False,
        ),
        (TurnPPO(estimator={"lam": 0.9}), True),
    ],
    ids=["ppo", "turn ppo"],
)
def test_two_steps_leave_the_same_weights(algorithm, fresh):
    groups = groups_of(fresh)
    assert (
        farthest(weights_by_plain(algorithm, groups), weights_by_the_learner(algorithm, groups))
        < ROUNDING
    )


def test_negative_control_a_reference_implementation_that_reads_one_place_too_early_is_noticed():
    algorithm, groups = PPO(estimator={"lam": 0.9}), groups_of()
    assert (
        farthest(
            weights_by_plain(algorithm, groups, late=1), weights_by_the_learner(algorithm, groups)
        )
        > 100 * ROUNDING
    )
