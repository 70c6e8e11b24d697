"""What the learner and the reference implementation are both asked about (R19): a few groups of a step, moved to where every bound
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

from workbench.basics.tensors import Tensor, torch
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import TERMS, Credit, needs_critic
from workbench.learn.algorithms.plain_recipe import plain_recipe
from workbench.learn.algorithms.settings import setting_of, with_settings
from workbench.learn.batch import Batch
from workbench.linting.expected import is_by_token
from workbench.linting.plain_trajectories import TrajectoryTable
from workbench.plain.rewards import TrajectoryTokens
from workbench.values.errors import ConfigError
from workbench.values.seeds import rng_at

if TYPE_CHECKING:
    from workbench.linting.probe import LearnerProbe

RAISED = 0.3  # coefficients that are set are raised to this
BOUNDS = {
    "objective.clip_low": 0.15,
    "objective.clip_high": 0.3,
}  # different ones, so that one cannot stand in for the other
PARTS = 4  # micro-batches, about
# How many of the tokens have a weight in each term.
WEIGHT_SHARES = {
    "weight_T": 0.85,
    "entropy_weight_T": 0.7,
    "kl_weight_T": 0.75,
    "critic_weight_T": 0.8,
}


@dataclass(frozen=True, eq=False)
class GradientQuestion:
    """A batch with its facts and credit, which both sides are asked about."""

    what: str
    algorithm: Algorithm
    batch: Batch
    credit: Credit
    micro_batch_tokens: int

    @cached_property
    def has_plain_form(self) -> bool:
        return "objective" not in plain_recipe(self.algorithm).missing

    @cached_property
    def terms(self) -> list[str]:
        """The terms of the loss that the algorithm has."""
        algorithm = self.algorithm
        has = {
            "policy": True,
            "critic": needs_critic(algorithm),
            "entropy": bool(getattr(algorithm, "entropy_coef", 0)),
            "kl": bool(setting_of(algorithm, "reference.kl_coef", 0))
            and setting_of(algorithm, "reference.kl_in", "") == "loss",
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


def plain_facts(probe: LearnerProbe, trajectories: TrajectoryTable) -> dict[str, Tensor]:
    """By the names of the batch's fields: what a plain pass says of every token."""
    known: list[TrajectoryTokens] = probe.plain_facts(trajectories.each)
    facts = {"final_value_N": torch.tensor([trajectory.final_value for trajectory in known])}
    for name in ("old_logp", "ref_logp", "value"):
        if getattr(known[0], name) is not None:
            values_T = np.concatenate([getattr(trajectory, name) for trajectory in known])
            facts[f"{name}_T"] = torch.from_numpy(values_T).float()
    return facts


def without_facts(batch: Batch) -> Batch:
    """Without what models said of it."""
    return replace(batch, old_logp_T=None, ref_logp_T=None, value_T=None, final_value_N=None)


def scored_T(batch: Batch) -> Tensor:
    """bool [T]: the sampled tokens of scored trajectories."""
    return batch.eligible_T & batch.scored_N[batch.trajectory_of_token_T]


def rows_with(batch: Batch, chosen_T: Tensor) -> Tensor:
    """bool [N]: which trajectories have one of these tokens."""
    return batch.trajectory_of_token_T[chosen_T].bincount(minlength=batch.num_trajectories) > 0


def few_groups(batch: Batch, tokens: int) -> Tensor:
    """Trajectories [some of N] of whole groups, as many as have about so many tokens; of a first group that is longer
    than that, its first trajectories."""
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

    def draw(*choices: float) -> Tensor:
        return torch.from_numpy(rng.choice(choices, batch.num_tokens))

    old_T = plain["old_logp_T"] - _moves(algorithm, batch, rng)
    asked_T = scored_T(batch)
    rollout_T = old_T - draw(-0.7, 0.1, 0.9, 1.9).float()
    facts = {
        "old_logp_T": old_T,
        "rollout_logp_T": torch.where(asked_T, rollout_T, torch.nan),
        "ref_logp_T": plain["ref_logp_T"] + draw(-0.6, -0.2, 0.3, 0.5).float(),
    }
    weights = _random_weights(asked_T, rng)
    # Not zero where the weight is: it is the weight that has to keep a token out.
    advantage_T = asked_T * draw(-1.4, -0.6, 0.5, 1.2)
    return_T = None
    if needs_critic(algorithm):
        clip = setting_of(algorithm, "critic.value_clip", 0.5) or 0.5
        value_T = plain["value_T"]
        facts["value_T"] = value_T - clip * draw(-2.0, -0.5, 0.5, 2.0).float()
        facts["final_value_N"] = torch.zeros(batch.num_trajectories)
        target_T = value_T.double() + draw(-3.0, -0.7, 0.8, 2.5).float()
        return_T = torch.where(weights["critic_weight_T"] != 0, target_T, torch.nan)
    else:
        del weights["critic_weight_T"]
    longest = int(batch.segment_offsets.diff().max())
    return GradientQuestion(
        "with every bound in reach",
        algorithm,
        replace(batch, **facts),
        Credit(advantage_T, return_T=return_T, **weights),
        max(longest, batch.num_tokens // PARTS),
    )


def _random_weights(asked_T: Tensor, rng: np.random.Generator) -> dict[str, Tensor]:
    """Weights of each term, 0 or 1, so that each has tokens of its own."""
    weights: dict[str, Tensor] = {}
    for name, share in WEIGHT_SHARES.items():
        chosen_T = torch.from_numpy(rng.random(len(asked_T)) < share)
        weights[name] = asked_T * chosen_T.double()
    return weights


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
        name: RAISED
        for name in ("entropy_coef", "reference.kl_coef")
        if algorithm.settings.get(name)
    }
    changed |= {name: value for name, value in BOUNDS.items() if name in algorithm.settings}
    try:
        return with_settings(algorithm, changed)
    except ConfigError:  # an algorithm of its own mind about these
        return algorithm


def _moves(algorithm: Algorithm, batch: Batch, rng: np.random.Generator) -> Tensor:
    """How far the policy has moved at each token, in nats [T]: half and twice as far as each bound."""
    below = math.log1p(-min(setting_of(algorithm, "objective.clip_low", 0.2), 0.8))
    above = math.log1p(setting_of(algorithm, "objective.clip_high", 0.2))
    choices = [2 * below, below / 2, above / 2, 2 * above]
    if setting_of(algorithm, "objective.dual_clip", 0):
        choices.append(1.3 * math.log(algorithm.objective.dual_clip))
    recipe_of_parts = plain_recipe(algorithm)
    if "objective" in recipe_of_parts.missing or is_by_token(recipe_of_parts.recipe.objective):
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
