"""What the learner and the plain twin are both asked about (R19): a few groups of a step, moved to where every bound
holds some tokens and frees others.

Axis letters: T tokens of the batch (flat) · N trajectories · S segments.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import TERMS, Credit, needs_critic
from workbench.learn.algorithms.twin import plain_recipe
from workbench.learn.batch import Batch
from workbench.linting.attempts import Attempts
from workbench.linting.twin import is_by_token
from workbench.plain.rewards import AttemptTokens
from workbench.types.errors import ConfigError
from workbench.types.seeds import rng_at

if TYPE_CHECKING:
    from workbench.linting.probe import LearnerProbe

RAISED = 0.3  # coefficients that are set are raised to this
BOUNDS = {
    "clip_low": 0.15,
    "clip_high": 0.3,
}  # different ones, so that one cannot stand in for the other
PARTS = 4  # micro-batches, about


@dataclass(frozen=True, eq=False)
class GradientQuestion:
    """What both sides are asked about."""

    what: str
    algorithm: Algorithm
    batch: Batch
    credit: Credit
    micro_batch_tokens: int

    @cached_property
    def has_twin(self) -> bool:
        return "objective" not in plain_recipe(self.algorithm).missing

    @cached_property
    def terms(self) -> list[str]:
        """Of the loss, those that the algorithm has."""
        algorithm = self.algorithm
        has = {
            "policy": True,
            "critic": needs_critic(algorithm),
            "entropy": bool(getattr(algorithm, "entropy_coef", 0)),
            "kl": bool(getattr(algorithm, "kl_coef", 0))
            and getattr(algorithm, "kl_in", "") == "loss",
        }
        return [term for term in TERMS if has[term]]

    def weighted(
        self, factor_T: Tensor | float = 1.0, terms: Collection[str] = TERMS
    ) -> GradientQuestion:
        """The same with weights that are multiplied, and with these terms alone."""
        weights = {
            name: self.credit.weights_of(name) * (name in terms) * factor_T for name in TERMS
        }
        return replace(
            self,
            credit=replace(
                self.credit,
                weight_T=weights["policy"],
                entropy_weight_T=weights["entropy"],
                kl_weight_T=weights["kl"],
                critic_weight_T=weights["critic"],
            ),
        )


def plain_facts(probe: LearnerProbe, attempts: Attempts) -> dict[str, Tensor]:
    """By the names of the batch's fields: what a plain pass says of every token."""
    known: list[AttemptTokens] = probe.plain_facts(attempts.each)
    found = {
        f"{name}_T": torch.from_numpy(
            np.concatenate([getattr(each, name) for each in known])
        ).float()
        for name in ("old_logp", "ref_logp", "value")
        if getattr(known[0], name) is not None
    }
    return found | {"final_value_N": torch.tensor([each.final_value for each in known])}


def without_facts(batch: Batch) -> Batch:
    """Without what models said of it."""
    return replace(batch, old_logp_T=None, ref_logp_T=None, value_T=None, final_value_N=None)


def scored_T(batch: Batch) -> Tensor:
    """bool [T]: the sampled tokens of scored attempts."""
    return batch.eligible_T & batch.scored_N[batch.trajectory_of_token_T]


def rows_with(batch: Batch, chosen_T: Tensor) -> Tensor:
    """bool [N]: which trajectories have one of these tokens."""
    return batch.trajectory_of_token_T[chosen_T].bincount(minlength=batch.num_trajectories) > 0


def few_groups(batch: Batch, tokens: int) -> Tensor:
    """Trajectories [some of N] of whole groups, as many as have about so many tokens; of a first group that is longer
    than that, its first attempts."""
    length_N = batch.trajectory_of_token_T.bincount(minlength=batch.num_trajectories)
    sampled_N = rows_with(batch, scored_T(batch))
    chosen: list[int] = []
    total = 0
    for group in batch.group_of_trajectory_N.unique().tolist():
        members = (batch.group_of_trajectory_N == group).nonzero()[:, 0]
        if not bool(sampled_N[members].any()):
            continue
        for n in sorted(members.tolist(), key=lambda n: not bool(sampled_N[n])):
            if total + int(length_N[n]) > tokens and len(chosen) >= 2:
                return torch.tensor(sorted(chosen), dtype=torch.int64)
            chosen.append(n)
            total += int(length_N[n])
    return torch.tensor(sorted(chosen), dtype=torch.int64)


def moved_question(
    algorithm: Algorithm, batch: Batch, plain: Mapping[str, Tensor]
) -> GradientQuestion:
    """Facts and credit at which every bound holds some tokens and frees others, whatever the weights are."""
    algorithm = raised(algorithm)
    rng = rng_at("lint.gradients")
    draw = lambda choices: torch.from_numpy(rng.choice(choices, batch.num_tokens)).float()  # noqa: E731
    logp_T = plain["old_logp_T"]
    old_T = logp_T - _moves(algorithm, batch, rng)
    asked_T = scored_T(batch)
    rollout_T = torch.where(asked_T, old_T - draw([-0.7, 0.1, 0.9, 1.9]), torch.nan)
    facts = {
        "old_logp_T": old_T,
        "ref_logp_T": plain["ref_logp_T"] + draw([-0.6, -0.2, 0.3, 0.5]),
        "rollout_logp_T": rollout_T,
    }
    parts = {
        name: asked_T * torch.from_numpy(rng.random(batch.num_tokens) < share).double()
        for name, share in (
            ("weight_T", 0.85),
            ("entropy_weight_T", 0.7),
            ("kl_weight_T", 0.75),
            ("critic_weight_T", 0.8),
        )
    }
    # Not zero where the weight is: it is the weight that has to keep a token out.
    advantage_T = asked_T * torch.from_numpy(rng.choice([-1.4, -0.6, 0.5, 1.2], batch.num_tokens))
    return_T = None
    if needs_critic(algorithm):
        clip = getattr(algorithm, "value_clip", 0.5) or 0.5
        facts["value_T"] = plain["value_T"] - clip * draw([-2.0, -0.5, 0.5, 2.0])
        facts["final_value_N"] = torch.zeros(batch.num_trajectories)
        return_T = torch.where(
            parts["critic_weight_T"] != 0,
            plain["value_T"].double() + draw([-3.0, -0.7, 0.8, 2.5]),
            torch.nan,
        )
    else:
        del parts["critic_weight_T"]
    longest = int(batch.segment_offsets.diff().max())
    return GradientQuestion(
        "with every bound in reach",
        algorithm,
        replace(batch, **facts),
        Credit(advantage_T, return_T=return_T, **parts),
        max(longest, batch.num_tokens // PARTS),
    )


def off_the_kink(known: Batch) -> Batch:
    """With the reference away from the policy: where both agree, |x| has no gradient, and rounding would choose one."""
    if known.ref_logp_T is None:
        return known
    away = rng_at("lint.gradients.reference").choice([-0.3, 0.2], known.num_tokens)
    return replace(known, ref_logp_T=known.ref_logp_T + torch.from_numpy(away).float())


def raised(algorithm: Algorithm) -> Algorithm:
    """The same with coefficients that nobody can overlook, and with two bounds that differ."""
    if not isinstance(algorithm, Algorithm):
        return algorithm
    changed: dict[str, Any] = {
        name: RAISED for name in ("entropy_coef", "kl_coef") if getattr(algorithm, name, 0)
    }
    changed |= {name: value for name, value in BOUNDS.items() if hasattr(algorithm, name)}
    try:
        return algorithm(**changed)
    except ConfigError:  # an algorithm of its own mind about these
        return algorithm


def _moves(algorithm: Algorithm, batch: Batch, rng: np.random.Generator) -> Tensor:
    """How far the policy has moved at each token, in nats [T]: half and twice as far as each bound."""
    below, above = (
        math.log1p(-min(getattr(algorithm, "clip_low", 0.2), 0.8)),
        math.log1p(getattr(algorithm, "clip_high", 0.2)),
    )
    choices = [2 * below, below / 2, above / 2, 2 * above]
    if getattr(algorithm, "dual_clip", 0):
        choices.append(1.3 * math.log(algorithm.dual_clip))
    twin = plain_recipe(algorithm)
    if "objective" in twin.missing or is_by_token(twin.recipe.objective):
        return torch.from_numpy(rng.choice(choices, batch.num_tokens)).float()
    # One ratio for a sequence: its tokens move together, up and down around what they have in common.
    common_S = torch.from_numpy(np.resize(choices, batch.num_segments))
    move_T = torch.repeat_interleave(common_S, batch.segment_offsets.diff())
    counted_T = scored_T(batch)
    for start, stop in zip(batch.segment_offsets.tolist(), batch.segment_offsets[1:].tolist()):
        at = start + counted_T[start:stop].nonzero()[:, 0]
        even = len(at) // 2 * 2
        move_T[at[:even]] += 0.05 * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(even // 2)
    return torch.where(counted_T, move_T, 1.0).float()
