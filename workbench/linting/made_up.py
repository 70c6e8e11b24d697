"""Attempts that are made up so that every setting of an algorithm has something to act on, and what an algorithm says
of them (R13).

Axis letters: T tokens of the batch (flat) · M tokens that have a weight · N trajectories.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import Credit, LossInputs, needs_critic, shares_of
from workbench.learn.batch import Batch
from workbench.learn.ops.loss import masked_sum_over
from workbench.types import (
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
from workbench.types.errors import DataError
from workbench.types.seeds import rng_at

if TYPE_CHECKING:
    from workbench.linting.probe import LearnerProbe

TASKS, ATTEMPTS, TURNS = 8, 5, 3
SPREADS = (0.0, 0.02, 0.3, 1.0, 3.0)  # of the rewards in a group, one after the other
SAME = 1e-7  # of the largest number: what moves less has not moved; the same computation gives the same bits


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
    said = [torch.zeros(0) if c is None else c for c in columns] + [
        torch.tensor([algorithm.epochs, count]).double()
    ]
    return said + _gradients(algorithm, batch, credit)


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

    def moved(values_T: Tensor) -> Tensor:
        """Where a fact of the batch stands, as seen from the made-up model."""
        return logp.detach() + values_T[at].double() - batch.plain_logp_T[at].double()

    found = algorithm.loss(
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
    terms = {"policy": found.loss_M, "entropy": found.entropy_loss_M, "kl": found.kl_loss_M}
    shares, loss = shares_of(algorithm, batch, credit, credit.trained_T), logp.sum() * 0.0
    for name, term_M in terms.items():
        if term_M is not None and name in shares:
            loss = loss + masked_sum_over(
                term_M, shares[name].weight_T[at], shares[name].denominator
            )
    if needs_critic(algorithm) and credit.return_T is not None:
        fitted = credit.weights_of("critic")[at] != 0
        error = algorithm.value_loss(
            value[fitted], batch.value_T[at][fitted].double(), credit.return_T[at][fitted]
        )
        loss = loss + error.loss.sum()
    grads = torch.autograd.grad(loss, (logp, entropy, value), allow_unused=True)
    return [torch.zeros(0) if grad is None else grad for grad in grads]


def differ(one: list[Tensor], other: list[Tensor]) -> bool:
    if len(one) != len(other) or any(a.shape != b.shape for a, b in zip(one, other)):
        return True
    for a, b in zip(one, other):
        gap = (a.double() - b.double()).nan_to_num(0.0).abs()
        if bool((a.isnan() != b.isnan()).any()):
            return True
        if gap.numel() and float(gap.max()) > SAME * max(
            float(b.double().nan_to_num(0.0).abs().max()), 1e-30
        ):
            return True
    return False


# ------------------------------------------------------------------------------------------------ made-up attempts


def made_up(
    ids: np.ndarray,
    probe: LearnerProbe | None = None,
    *,
    flat: bool = False,
    algorithm: Algorithm | None = None,
) -> Batch:
    """Attempts on which every setting has something to act. `ids`: token ids that the policy knows. `flat`: in all
    groups but one, all earn the same. `algorithm`: whose bounds are to be in reach."""
    groups = [
        Group(
            tuple(
                _attempt(
                    task, number, ids, SPREADS[0 if flat and task else task % len(SPREADS) - 1]
                )
                for number in range(ATTEMPTS)
            ),
            _attempt(task, ATTEMPTS, ids, SPREADS[0]),
        )
        for task in range(TASKS)
    ]
    return with_facts(Batch.from_groups(groups), probe, algorithm)


def with_facts(batch: Batch, probe: LearnerProbe | None, algorithm: Algorithm | None) -> Batch:
    """The batch with numbers of models that are drawn around those of the probe's policy, which `plain_logp_T` holds;
    without one, around numbers drawn."""
    rng = rng_at("lint.knobs.facts")

    def drawn(*choices: float) -> Tensor:
        return torch.from_numpy(rng.choice(choices, batch.num_tokens)).float()

    somewhere_T = batch.position_T > 0
    logp_T, value_T = drawn(-0.4, -0.9, -1.6, -2.2), drawn(-0.5, 0.0, 0.4, 1.1)
    if probe is not None:
        logp_T = probe.logprobs(batch, somewhere_T).nan_to_num(-1.0)
    final_N = torch.from_numpy(rng.normal(size=batch.num_trajectories)).float()
    # Ratios on both sides of any bound that is in use: from 3e-4 (GSPO) to 3 (the dual clip), or what was set.
    dual = getattr(algorithm, "dual_clip", 0.0)
    furthest = max(2.3, 1.3 * float(np.log(dual)) if dual > 1 else 0.0)
    old_T = logp_T + drawn(-furthest, -1.3, -0.5, -0.25, -0.11, -1e-3, 1e-3, 0.11, 0.25, 0.5, 1.3)
    nan = torch.nan
    return replace(
        batch,
        plain_logp_T=logp_T,
        old_logp_T=torch.where(somewhere_T, old_T, nan),
        ref_logp_T=torch.where(somewhere_T, logp_T + drawn(-0.8, -0.2, 0.3, 0.6), nan),
        rollout_logp_T=torch.where(batch.eligible_T, old_T - drawn(-0.4, 0.1, 0.8, 2.5), nan),
        value_T=torch.where(somewhere_T, value_T + drawn(-1.5, -0.3, 0.2, 1.0), nan),
        final_value_N=final_N + 0.7,
    )


def _attempt(task: int, number: int, ids: np.ndarray, spread: float) -> Trajectory:
    rng = rng_at("lint.knobs", task, number)
    count = 1 + int(rng.integers(TURNS))

    def words(low: int, high: int) -> np.ndarray:
        return rng.choice(ids, int(rng.integers(low, high + 1)))

    spans = [Span(Source.PROMPT, 0, np.resize(ids, 4 + task % 2))]
    for turn in range(count):
        mine = words(1, 5)
        spans += [
            Span(
                Source.POLICY,
                turn,
                mine,
                -rng.random(len(mine)),
                policy_version=0,
                sampling=Sampling(),
                sampled=True,
            ),
            Span(Source.ENV, turn, words(1, 4)),
        ]
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
    stops = (
        StopReason.TERMINATED,
        StopReason.CONTEXT_FULL,
        StopReason.MAX_TURNS,
        StopReason.ENV_TRUNCATED,
    )
    made = Task(f"made-up/{task}", "made-up", task, metadata={"tag": f"kind {task % 2}"})
    return Trajectory(
        made,
        number,
        number,
        Observation((Message("user", "made up"),)),
        turns,
        (Segment(tuple(spans)),),
        stops[int(rng.integers(4))],
    )
