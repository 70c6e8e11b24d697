"""From trajectories to better weights. With this, a whole training run is

chat, learner = PlainChat(tokenizer), PlainLearner(model, Recipe(group_relative))
for step in range(1, 9):
    groups = collect(tasks_of(step), 8, model, chat, Rollout(make_env, max_turns=10), (seed, "train", step))
    attempts, credits, updates = learn(step, groups, learner)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.plain.credit import AttemptCredit, Recipe, credit_of, updates_per_epoch
from workbench.plain.loss import kl, logprobs, sampler_weight, shares, value_loss
from workbench.plain.rewards import AttemptTokens, attempts_of
from workbench.types.seeds import rng_at
from workbench.types import Group


def new_critic(trunk: nn.Module, width: int) -> nn.ModuleDict:
    """A linear head on a trunk. It starts at zero: an untrained critic expects nothing."""
    head = nn.Linear(width, 1)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    return nn.ModuleDict({"trunk": trunk, "head": head})


def values(critic: nn.ModuleDict, ids: Tensor) -> Tensor:
    """What is to be expected before each token of a segment (NaN before the first), and after the last [L + 1]."""
    after = critic["head"](
        critic["trunk"](input_ids=ids[None], use_cache=False).last_hidden_state[0].float()
    )[:, 0]
    return torch.cat([after.new_full((1,), torch.nan), after])


class PlainAdamW:
    """Adam with decoupled weight decay, in float64: Loshchilov and Hutter 2019 (arXiv 1711.05101), algorithm 2."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        # Of each parameter: updates so far, the mean of its gradients, that of their squares.
        self.memory = {
            parameter: (0, 0.0, 0.0) for parameter in parameters if parameter.requires_grad
        }

    def norm(self) -> float:
        """The length of the gradient."""
        return math.sqrt(
            sum(float(p.grad.double().square().sum()) for p in self.memory if p.grad is not None)
        )

    @torch.no_grad()
    def step(self, lr: float, max_norm: float = 0.0) -> None:
        """Move the weights. A gradient longer than `max_norm` is shortened to it; 0: never."""
        norm, (beta1, beta2) = self.norm(), self.betas
        scale = max_norm / norm if max_norm and norm > max_norm else 1.0
        for parameter, (count, mean, square) in self.memory.items():
            if norm == 0 or parameter.grad is None:  # by its memory alone it would move on
                continue
            gradient, count = parameter.grad.double() * scale, count + 1
            mean, square = (
                beta1 * mean + (1 - beta1) * gradient,
                beta2 * square + (1 - beta2) * gradient**2,
            )
            self.memory[parameter] = count, mean, square
            move = mean / (1 - beta1**count) / ((square / (1 - beta2**count)).sqrt() + self.eps)
            parameter.copy_(parameter.double() * (1 - lr * self.weight_decay) - lr * move)


@dataclass(eq=False)
class PlainLearner:
    """Models, and how they are moved. `version` counts the updates of the policy."""

    policy: nn.Module
    recipe: Recipe
    reference: nn.Module | None = None
    critic: nn.ModuleDict | None = None
    lr: float = 2e-4
    critic_lr: float = 1e-3
    value_coef: float = (
        1.0  # what the critic's loss counts: less than 1 where it shares the policy's trunk
    )
    max_grad_norm: float = 1.0
    warmup_updates: int = 0
    adamw: dict[str, Any] = field(default_factory=dict)
    seed: int = 0  # of the shuffle into minibatches
    version: int = 0

    def __post_init__(self) -> None:
        self.optimizer = PlainAdamW(list(self.policy.parameters()), **self.adamw)
        critic = [] if self.critic is None else self.critic.parameters()
        self.critic_optimizer = PlainAdamW(
            [p for p in critic if p not in self.optimizer.memory], **self.adamw
        )


def learn(
    step: int, groups: Sequence[Group], learner: PlainLearner
) -> tuple[list[AttemptTokens], list[AttemptCredit], list[tuple[float, float]]]:
    """One step: what each token was worth, and the updates. Returns of each update its loss and its gradient's norm."""
    attempts = [facts(attempt, learner) for attempt in attempts_of(groups)]
    credits = credit_of(attempts, learner.recipe)
    updates, count = [], updates_per_epoch(attempts, learner.recipe)
    for epoch in range(learner.recipe.epochs):
        for rows in minibatches(credits, count, (learner.seed, "minibatch", step, epoch)):
            updates.append(update([attempts[n] for n in rows], [credits[n] for n in rows], learner))
    return attempts, credits, updates


def minibatches(
    credits: Sequence[AttemptCredit], count: int, address: tuple[int | str, ...]
) -> list[list[int]]:
    """Numbers of the attempts of each update: those with anything to train, shuffled, dealt out one by one."""
    rows = [
        n for n, own in enumerate(credits) if any(weight.any() for weight in own.weights.values())
    ]
    shuffled = rng_at(*address).permutation(np.array(rows, int)).tolist() if count > 1 else rows
    return [shuffled[first::count] for first in range(min(count, max(len(rows), 1)))]


@torch.no_grad()
def facts(attempt: AttemptTokens, learner: PlainLearner) -> AttemptTokens:
    """With what the models say at the step's beginning; ratios are taken against that, never against the sampler."""
    models = {"old_logp": learner.policy, "ref_logp": learner.reference, "value": learner.critic}
    found = {
        name: np.full(len(attempt.ids), np.nan)
        for name, model in models.items()
        if model is not None
    }
    final_value = 0.0
    for at in segments_of(attempt):
        ids = torch.from_numpy(attempt.ids[at])
        for name in found.keys() - {"value"}:
            found[name][at] = logprobs(models[name], ids)[0]
        if "value" in found:
            said = values(
                learner.critic, ids
            ).numpy()  # one more than there are tokens: behind the last one
            found["value"][at], final_value = said[:-1], float(said[-1])
    return replace(attempt, **found, final_value=final_value)


def segments_of(attempt: AttemptTokens) -> list[np.ndarray]:
    """Which tokens of an attempt make each of its segments."""
    return [np.flatnonzero(attempt.segment == number) for number in np.unique(attempt.segment)]


def update(
    attempts: Sequence[AttemptTokens], credits: Sequence[AttemptCredit], learner: PlainLearner
) -> tuple[float, float]:
    """(loss, norm of the policy's gradient). Numbers that are not finite move nothing."""
    policy, critic = learner.optimizer, learner.critic_optimizer
    for parameter in (*policy.memory, *critic.memory):
        parameter.grad = None
    loss, norms = gradient(attempts, credits, learner), (policy.norm(), critic.norm())
    if all(map(math.isfinite, (loss, *norms))):
        warm = (
            min(1.0, (learner.version + 1) / learner.warmup_updates)
            if learner.warmup_updates
            else 1.0
        )
        policy.step(learner.lr * warm, learner.max_grad_norm)  # only the policy is warmed up
        critic.step(learner.critic_lr, learner.max_grad_norm)
        learner.version += (
            norms[0] > 0
        )  # of the weights that sample: a critic's update makes no other policy
    return loss, norms[0]


def gradient(
    attempts: Sequence[AttemptTokens], credits: Sequence[AttemptCredit], learner: PlainLearner
) -> float:
    """Adds the gradient of the loss of these attempts to the parameters, a segment at a time; returns the loss. The
    critic's term is a mean over tokens, whatever the reduction of the others."""
    weights, share, total = [own.weights for own in credits], {}, 0.0
    for name in weights[0] if weights else ():
        kind = "token-mean" if name == "critic" else learner.recipe.reduction
        share[name] = shares([own[name] for own in weights], kind, learner.recipe.fixed_length)
    for n, (attempt, own) in enumerate(zip(attempts, credits)):
        for at in segments_of(attempt):
            used = at[np.any([share[name][n][at] != 0 for name in share], axis=0)]
            if len(used):
                losses = token_losses(attempt, own, at, used, learner)
                loss = sum(
                    (losses[name] * torch.from_numpy(share[name][n][used])).sum() for name in share
                )
                loss.backward()
                total += float(loss.detach())
    return total


def token_losses(
    attempt: AttemptTokens,
    own: AttemptCredit,
    at: np.ndarray,
    used: np.ndarray,
    learner: PlainLearner,
) -> dict[str, Tensor]:
    """Each term of the loss at the tokens `used` of the segment whose tokens are `at`."""

    def known(numbers: np.ndarray) -> Tensor:
        return torch.from_numpy(numbers[used])

    recipe, ids, place = (
        learner.recipe,
        torch.from_numpy(attempt.ids[at]),
        torch.from_numpy(used - at[0]),
    )
    logp, entropy = (each[place] for each in logprobs(learner.policy, ids))
    old_logp = logp.detach() if attempt.old_logp is None else known(attempt.old_logp)
    counts = known(own.weights["policy"] != 0)
    surrogate = recipe.objective(logp, old_logp, known(own.advantage), counts, **recipe.bounds)
    losses = {"policy": surrogate.loss, "entropy": -recipe.entropy_coef * entropy}
    if recipe.sampler_cap:
        losses["policy"] = surrogate.loss * sampler_weight(
            old_logp, known(attempt.rollout_logp), recipe.sampler_cap
        )
    if "kl" in own.weights:
        losses["kl"] = recipe.kl_coef * kl(logp, known(attempt.ref_logp), recipe.kl_estimator)
    if "critic" in own.weights:
        value, target = values(learner.critic, ids)[place], known(own.target)
        target = torch.where(
            target.isnan(), value.detach(), target
        )  # not fitted there: no share, and no NaN either
        losses["critic"] = learner.value_coef * value_loss(
            value, known(attempt.value), target, recipe.value_clip
        )
    return losses
