"""From trajectories to better weights. With this, a whole training run is

chat, learner = PlainChat(tokenizer), PlainLearner(model, Recipe(group_relative))
for step in range(1, 9):
    groups = collect(tasks_of(step), 8, model, chat, Rollout(make_env, max_turns=10), (seed, "train", step))
    trajectories, credits, updates = learn(step, groups, learner)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn

from workbench.plain.credit import Recipe, TrajectoryCredit, credit_of, updates_per_epoch
from workbench.plain.loss import kl, logprobs, sampler_weight, shares, value_loss
from workbench.plain.rewards import TrajectoryTokens, trajectory_tokens_of
from workbench.values import Group
from workbench.values.seeds import rng_at

Update = tuple[float, float]  # its loss, and the norm of the policy's gradient


def new_critic(trunk: nn.Module, width: int) -> nn.ModuleDict:
    """Put a linear head on a trunk. It starts at zero: an untrained critic expects nothing."""
    head = nn.Linear(width, 1)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    return nn.ModuleDict({"trunk": trunk, "head": head})


def values(critic: nn.ModuleDict, ids: Tensor) -> Tensor:
    """What is to be expected before each token of a segment (NaN before the first), and after the last
    [L + 1]."""
    hidden = critic["trunk"](input_ids=ids[None], use_cache=False).last_hidden_state[0]
    after = critic["head"](hidden.float())[:, 0]
    return torch.cat([after.new_full((1,), torch.nan), after])


@dataclass
class PlainAdamW:
    """Adam with decoupled weight decay, in float64: Loshchilov and Hutter 2019 (arXiv 1711.05101), algorithm 2."""

    parameters: Sequence[nn.Parameter]
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        # Of each parameter: updates so far, the mean of its gradients, that of their squares.
        self.memory = {p: (0, 0.0, 0.0) for p in self.parameters if p.requires_grad}

    def norm(self) -> float:
        """The length of the gradient."""
        squares = []
        for parameter in self.memory:
            if parameter.grad is not None:
                squares.append(float(parameter.grad.double().square().sum()))
        return math.sqrt(sum(squares))

    @torch.no_grad()
    def step(self, lr: float, max_norm: float = 0.0) -> None:
        """Move the weights. A gradient longer than `max_norm` is shortened to it; 0: never."""
        norm = self.norm()
        scale = max_norm / norm if max_norm and norm > max_norm else 1.0
        beta1, beta2 = self.betas
        for parameter, (count, mean, square) in self.memory.items():
            # Without a gradient it would still move, by its memory alone.
            if norm == 0 or parameter.grad is None:
                continue
            gradient = parameter.grad.double() * scale
            count += 1
            mean = beta1 * mean + (1 - beta1) * gradient
            square = beta2 * square + (1 - beta2) * gradient**2
            self.memory[parameter] = count, mean, square
            # Both began at 0: the divisors undo what is still missing of them.
            deviation = (square / (1 - beta2**count)).sqrt()
            move = mean / (1 - beta1**count) / (deviation + self.eps)
            decayed = parameter.double() * (1 - lr * self.weight_decay)
            parameter.copy_(decayed - lr * move)


@dataclass(eq=False)
class PlainLearner:
    """Models, and how they are moved. `version` counts the updates of the policy."""

    policy: nn.Module
    recipe: Recipe
    reference: nn.Module | None = None
    critic: nn.ModuleDict | None = None
    lr: float = 2e-4
    critic_lr: float = 1e-3
    value_coef: float = 1.0  # of the critic's loss: below 1 where it shares the policy's trunk
    max_grad_norm: float = 1.0
    warmup_updates: int = 0
    adamw: dict[str, Any] = field(default_factory=dict)
    seed: int = 0  # of the shuffle into minibatches
    version: int = 0

    def __post_init__(self) -> None:
        self.optimizer = PlainAdamW(list(self.policy.parameters()), **self.adamw)
        critic = [] if self.critic is None else self.critic.parameters()
        # A trunk that both share is moved with the policy, and only once.
        own = [p for p in critic if p not in self.optimizer.memory]
        self.critic_optimizer = PlainAdamW(own, **self.adamw)


def learn(
    step: int, groups: Sequence[Group], learner: PlainLearner
) -> tuple[list[TrajectoryTokens], list[TrajectoryCredit], list[Update]]:
    """Make one step: what each token was worth, and the updates. Returns of each update its loss and its
    gradient's norm."""
    trajectories = [facts(trajectory, learner) for trajectory in trajectory_tokens_of(groups)]
    credits = credit_of(trajectories, learner.recipe)
    count = updates_per_epoch(trajectories, learner.recipe)
    updates = []
    for epoch in range(learner.recipe.epochs):
        # Every pass is dealt anew, by its own address.
        address = (learner.seed, "minibatch", step, epoch)
        for rows in minibatches(credits, count, address):
            own = [trajectories[n] for n in rows]
            updates.append(update(own, [credits[n] for n in rows], learner))
    return trajectories, credits, updates


def minibatches(
    credits: Sequence[TrajectoryCredit], count: int, address: tuple[int | str, ...]
) -> list[list[int]]:
    """Numbers of the trajectories of each update: those with anything to train, shuffled, dealt out one by
    one."""
    rows = []
    for n, own in enumerate(credits):
        if any(weight.any() for weight in own.weights.values()):
            rows.append(n)
    # A single update sees them all: there is nothing to shuffle.
    if count > 1:
        rows = rng_at(*address).permutation(np.array(rows, int)).tolist()
    hands = min(count, max(len(rows), 1))
    return [rows[first::count] for first in range(hands)]


@torch.no_grad()
def facts(trajectory: TrajectoryTokens, learner: PlainLearner) -> TrajectoryTokens:
    """Add what the models say at the step's beginning; ratios are taken against that, never against the
    sampler."""
    models = {"old_logp": learner.policy, "ref_logp": learner.reference, "value": learner.critic}
    known = {}
    final_value = 0.0
    for name, model in models.items():
        if model is None:
            continue
        # NaN where a segment begins: nothing predicts its first token.
        known[name] = np.full(len(trajectory.ids), np.nan)
        for at in segments_of(trajectory):
            ids = torch.from_numpy(trajectory.ids[at])
            # A critic says one number more than there are tokens: what comes behind the last one.
            if name == "value":
                expected = values(model, ids).numpy()
                known[name][at] = expected[:-1]
                final_value = float(expected[-1])
            else:
                known[name][at] = logprobs(model, ids)[0]
    return replace(trajectory, **known, final_value=final_value)


def segments_of(trajectory: TrajectoryTokens) -> list[ndarray]:
    """Which tokens of a trajectory make each of its segments."""
    return [
        np.flatnonzero(trajectory.segment == number) for number in np.unique(trajectory.segment)
    ]


def update(
    trajectories: Sequence[TrajectoryTokens],
    credits: Sequence[TrajectoryCredit],
    learner: PlainLearner,
) -> Update:
    """Make one update. Numbers that are not finite move nothing."""
    policy = learner.optimizer
    critic = learner.critic_optimizer
    for parameter in (*policy.memory, *critic.memory):
        parameter.grad = None
    loss = gradient(trajectories, credits, learner)
    norm = policy.norm()
    # A sum is finite only where each of its numbers is.
    if math.isfinite(loss + norm + critic.norm()):
        # Only the policy is warmed up: an untrained critic has to catch up.
        lr = learner.lr
        if learner.warmup_updates:
            lr *= min(1.0, (learner.version + 1) / learner.warmup_updates)
        policy.step(lr, learner.max_grad_norm)
        critic.step(learner.critic_lr, learner.max_grad_norm)
        # It counts the weights that sample: an update of the critic alone makes no other policy.
        learner.version += norm > 0
    return loss, norm


def gradient(
    trajectories: Sequence[TrajectoryTokens],
    credits: Sequence[TrajectoryCredit],
    learner: PlainLearner,
) -> float:
    """Add the gradient of the loss of these trajectories to the parameters, a segment at a time; returns the
    loss. The critic's term is a mean over tokens, whatever the reduction of the others."""
    share = {}
    for name in credits[0].weights if credits else ():
        weights = [own.weights[name] for own in credits]
        kind = "token-mean" if name == "critic" else learner.recipe.reduction
        share[name] = shares(weights, kind, learner.recipe.fixed_length)
    # A graph holds one segment at a time; their gradients add up in the parameters.
    total = 0.0
    for n, (trajectory, own) in enumerate(zip(trajectories, credits)):
        for at in segments_of(trajectory):
            # Tokens without a weight in any term are left out: a loss there need not be a number.
            used = at[np.any([weight[at] != 0 for weight in own.weights.values()], axis=0)]
            if len(used) == 0:
                continue
            losses = token_losses(trajectory, own, at, used, learner)
            # The shares hold the one denominator, so that terms and segments are simply summed.
            loss = 0
            for name in share:
                scale = torch.from_numpy(share[name][n][used])
                loss = loss + (losses[name] * scale).sum()
            loss.backward()
            total += float(loss.detach())
    return total


def token_losses(
    trajectory: TrajectoryTokens,
    own: TrajectoryCredit,
    at: ndarray,
    used: ndarray,
    learner: PlainLearner,
) -> dict[str, Tensor]:
    """Each term of the loss at the tokens `used` of the segment whose tokens are `at`."""
    recipe = learner.recipe
    ids = torch.from_numpy(trajectory.ids[at])
    place = torch.from_numpy(used - at[0])

    def known(numbers: ndarray) -> Tensor:
        """What is no function of the weights, at the tokens that are used."""
        return torch.from_numpy(numbers[used])

    logp, entropy = (output[place] for output in logprobs(learner.policy, ids))
    # Without logprobs from the step's beginning these are them: the ratio is 1, its gradient is not 0.
    old_logp = logp.detach() if trajectory.old_logp is None else known(trajectory.old_logp)
    counts = known(own.weights["policy"] != 0)
    surrogate = recipe.objective(logp, old_logp, known(own.advantage), counts, **recipe.bounds)
    losses = {"policy": surrogate.loss, "entropy": -recipe.entropy_coef * entropy}
    # Further terms, as far as the recipe has them.
    if recipe.sampler_cap:
        weight = sampler_weight(old_logp, known(trajectory.rollout_logp), recipe.sampler_cap)
        losses["policy"] = surrogate.loss * weight
    if "kl" in own.weights:
        losses["kl"] = recipe.kl_coef * kl(logp, known(trajectory.ref_logp), recipe.kl_estimator)
    # Where critic and policy share a trunk it runs twice here; what trains runs it once.
    if "critic" in own.weights:
        value = values(learner.critic, ids)[place]
        losses["critic"] = critic_loss(value, known(trajectory.value), known(own.target), learner)
    return losses


def critic_loss(value: Tensor, old_value: Tensor, target: Tensor, learner: PlainLearner) -> Tensor:
    """How far the critic is from its target. Where it is not fitted it has no share of the loss, but a
    NaN would still spoil the sum."""
    target = torch.where(target.isnan(), value.detach(), target)
    loss = value_loss(value, old_value, target, learner.recipe.value_clip)
    return learner.value_coef * loss
