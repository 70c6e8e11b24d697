"""Trajectories that are made up so that every setting of an algorithm has something to act on, and what an algorithm says
of them (R13).

Axis letters: T tokens of the batch (flat) · M tokens that have a weight · N trajectories.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from workbench.basics.tensors import Tensor, torch
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import Credit, LossInputs, needs_critic, shares_of
from workbench.learn.algorithms.settings import setting_of
from workbench.learn.batch import Batch
from workbench.learn.ops.loss import masked_sum_over
from workbench.values import (
    Group,
    Message,
    Observation,
    Sampling,
    Segment,
    Source,
    Span,
    StopReason,
    Task,
    Trajectory,
    Turn,
)
from workbench.values.errors import DataError
from workbench.values.seeds import rng_at

if TYPE_CHECKING:
    from workbench.linting.probe import LearnerProbe

TASKS = 8
TRAJECTORIES = 5
TURNS = 3
SPREADS = (0.0, 0.02, 0.3, 1.0, 3.0)  # of the rewards in a group, one after the other
# Log ratios on both sides of any bound that is in use: from 3e-4 (GSPO) to 3 (the dual clip), or what was set.
RATIOS = (-1.3, -0.5, -0.25, -0.11, -1e-3, 1e-3, 0.11, 0.25, 0.5, 1.3)
STOPS = (
    StopReason.TERMINATED,
    StopReason.CONTEXT_FULL,
    StopReason.MAX_TURNS,
    StopReason.ENV_TRUNCATED,
)
SAME = 1e-7  # of the largest number: what moves less has not moved; the same computation gives the same bits
UNDONE = 1e-3  # ... where one computation undoes another: epsilons beside standard deviations are left of it


def effects(algorithm: Algorithm, batch: Batch) -> list[Tensor]:
    """Everything that an algorithm says of a batch: credit, and by token the loss and its gradient. Facts of the batch
    take the place of a model's numbers."""
    try:
        credit = algorithm.credit(batch)
    except DataError:
        return []  # no credit at all is an effect
    count = algorithm.minibatches if credit.minibatches is None else credit.minibatches
    columns = (
        credit.advantage_T,
        credit.weight_T,
        credit.return_T,
        credit.entropy_weight_T,
        credit.kl_weight_T,
        credit.critic_weight_T,
    )
    numbers = [torch.zeros(0) if c is None else c for c in columns] + [
        torch.tensor([algorithm.epochs, count]).double()
    ]
    return numbers + _gradients(algorithm, batch, credit)


def _gradients(algorithm: Algorithm, batch: Batch, credit: Credit) -> list[Tensor]:
    """d(loss) / d(logprob), d(loss) / d(entropy), d(loss) / d(value) of each token that has a weight."""
    at = credit.trained_T.nonzero()[:, 0]
    if not len(at):
        return []
    rng = rng_at("lint.knobs.model")
    logp, entropy, value = (
        torch.tensor(rng.normal(size=len(at)) * spread + mean, requires_grad=True)
        for mean, spread in ((-1.0, 0.3), (1.0, 0.3), (0.0, 1.0))
    )
    loss = _policy_loss(algorithm, batch, credit, logp, entropy)
    if needs_critic(algorithm) and credit.return_T is not None:
        fitted = credit.weights_of("critic")[at] != 0
        old_value = batch.value_T[at][fitted].double()
        error = algorithm.value_loss(value[fitted], old_value, credit.return_T[at][fitted])
        loss = loss + error.loss.sum()
    grads = torch.autograd.grad(loss, (logp, entropy, value), allow_unused=True)
    return [torch.zeros(0) if grad is None else grad for grad in grads]


def _policy_loss(
    algorithm: Algorithm, batch: Batch, credit: Credit, logp: Tensor, entropy: Tensor
) -> Tensor:
    """The loss but for the critic's, by a model that says `logp` and `entropy` [M] of the tokens that have a weight."""
    at = credit.trained_T.nonzero()[:, 0]

    def moved(values_T: Tensor) -> Tensor:
        """Where a fact of the batch stands, as seen from the made-up model."""
        return logp.detach() + values_T[at].double() - batch.plain_logp_T[at].double()

    result = algorithm.loss(
        LossInputs(
            logp,
            entropy,
            moved(batch.old_logp_T),
            credit.advantage_T[at],
            moved(batch.rollout_logp_T),
            batch.segment_of_token_T[at],
            moved(batch.ref_logp_T),
            credit.weight_T[at] != 0,
        )
    )
    terms = {"policy": result.loss_M, "entropy": result.entropy_loss_M, "kl": result.kl_loss_M}
    shares = shares_of(algorithm, batch, credit, credit.trained_T)
    loss = logp.sum() * 0.0
    for name, term_M in terms.items():
        if term_M is not None and name in shares:
            share = shares[name]
            loss = loss + masked_sum_over(term_M, share.weight_T[at], share.denominator)
    return loss


def differ(one: list[Tensor], other: list[Tensor], same: float = SAME) -> bool:
    if len(one) != len(other) or any(a.shape != b.shape for a, b in zip(one, other)):
        return True
    for a, b in zip(one, other):
        gap = (a.double() - b.double()).nan_to_num(0.0).abs()
        if bool((a.isnan() != b.isnan()).any()):
            return True
        if gap.numel() and float(gap.max()) > same * max(
            float(b.double().nan_to_num(0.0).abs().max()), 1e-30
        ):
            return True
    return False


# ------------------------------------------------------------------------------------------------ made-up trajectories


def made_up(
    ids: np.ndarray,
    probe: LearnerProbe | None = None,
    *,
    flat: bool = False,
    algorithm: Algorithm | None = None,
) -> Batch:
    """Trajectories on which every setting has something to act. `ids`: token ids that the policy knows. `flat`: in all
    groups but one, all earn the same. `algorithm`: whose bounds are to be in reach."""
    groups = []
    for task in range(TASKS):
        spread = SPREADS[0 if flat and task else task % len(SPREADS) - 1]
        members = [_trajectory(task, number, ids, spread) for number in range(TRAJECTORIES)]
        greedy = _trajectory(task, TRAJECTORIES, ids, SPREADS[0])
        groups.append(Group(tuple(members), greedy))
    return with_facts(Batch.from_groups(groups), probe, algorithm)


def with_facts(batch: Batch, probe: LearnerProbe | None, algorithm: Algorithm | None) -> Batch:
    """The batch with numbers of models that are drawn around those of the probe's policy, which `plain_logp_T` holds;
    without one, around numbers drawn."""
    rng = rng_at("lint.knobs.facts")

    def drawn(*choices: float) -> Tensor:
        return torch.from_numpy(rng.choice(choices, batch.num_tokens)).float()

    somewhere_T = batch.position_T > 0
    logp_T = drawn(-0.4, -0.9, -1.6, -2.2)
    value_T = drawn(-0.5, 0.0, 0.4, 1.1)
    if probe is not None:
        logp_T = probe.logprobs(batch, somewhere_T).nan_to_num(-1.0)
    final_N = torch.from_numpy(rng.normal(size=batch.num_trajectories)).float()
    old_T = logp_T + drawn(-_furthest(algorithm), *RATIOS)
    facts_T = {
        "old_logp_T": old_T,
        "ref_logp_T": logp_T + drawn(-0.8, -0.2, 0.3, 0.6),
        "rollout_logp_T": old_T - drawn(-0.4, 0.1, 0.8, 2.5),
        "value_T": value_T + drawn(-1.5, -0.3, 0.2, 1.0),
    }
    known_T = {
        name: torch.where(somewhere_T, fact_T, torch.nan) for name, fact_T in facts_T.items()
    }
    rollout_T = torch.where(batch.eligible_T, facts_T["rollout_logp_T"], torch.nan)
    known_T["rollout_logp_T"] = rollout_T
    return replace(batch, plain_logp_T=logp_T, final_value_N=final_N + 0.7, **known_T)


def _furthest(algorithm: Algorithm | None) -> float:
    """A log ratio beyond the dual clip, where one is set."""
    dual = setting_of(algorithm, "objective.dual_clip", 0.0)
    return max(2.3, 1.3 * float(np.log(dual)) if dual > 1 else 0.0)


def _trajectory(task: int, number: int, ids: np.ndarray, spread: float) -> Trajectory:
    rng = rng_at("lint.knobs", task, number)
    count = 1 + int(rng.integers(TURNS))
    prompt = Span(Source.PROMPT, 0, np.resize(ids, 4 + task % 2))
    spans = [prompt, *_exchanges(rng, ids, count)]
    paid = rng.normal(size=count) * spread + (0.2 if spread else 0.2 / count)
    turns = tuple(
        Turn(
            k,
            "",
            reward=round(float(paid[k]), 6) if spread else 0.5 / count,
            state_key=f"state {int(rng.integers(2))}",
        )
        for k in range(count)
    )
    stop = STOPS[int(rng.integers(4))]
    made = Task(f"made-up/{task}", "made-up", task, metadata={"tag": f"kind {task % 2}"})
    opening = Observation((Message("user", "made up"),))
    return Trajectory(made, number, number, opening, turns, (Segment(tuple(spans)),), stop)


def _exchanges(rng: np.random.Generator, ids: np.ndarray, count: int) -> Iterator[Span]:
    """The spans of each turn and of its reply, in tokens drawn."""

    def words(most: int) -> np.ndarray:
        return rng.choice(ids, int(rng.integers(1, most + 1)))

    for turn in range(count):
        mine = words(5)
        logprobs = -rng.random(len(mine))
        yield Span(
            Source.POLICY,
            turn,
            mine,
            logprobs,
            policy_version=0,
            sampling=Sampling(),
            sampled=True,
        )
        yield Span(Source.ENV, turn, words(4))
