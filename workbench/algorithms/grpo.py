"""GRPO: an attempt is worth what it earned above its siblings, and every token of it gets that."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from workbench.algorithms.base import Credit, LossInputs, TokenLoss, demand_facts
from workbench.algorithms.reference import check_reference, reference_facts, reward_penalty, with_reference
from workbench.batch import Batch
from workbench.errors import ConfigError, DataError
from workbench.ops.clip import clipped_surrogate
from workbench.ops.group import group_advantage, group_statistics


@dataclass(frozen=True)
class GRPO:
    """Group-relative policy optimisation, over whole trajectories of several turns and segments.

    Source: Shao et al. 2024 (arXiv 2402.03300), with the token mean of DAPO (arXiv 2503.14476) instead of a mean per
    answer. `normalize_std=False` is the baseline of Dr. GRPO (arXiv 2503.20783). The pull towards a reference policy is
    off unless `kl_coef` is set; in the reward it lowers what an attempt earned before attempts are compared.
    """

    normalize_std: bool = True   # divide by the group's standard deviation
    clip_low: float = 0.2        # the ratio is held above 1 - clip_low
    clip_high: float = 0.2       # ... and below 1 + clip_high
    entropy_coef: float = 0.0    # nats of entropy are worth this much loss
    kl_coef: float = 0.0         # what a nat away from the reference policy costs
    kl_estimator: str = "k3"     # k1, k2, k3: see ops/kl.py
    kl_in: str = "loss"          # or "reward"
    epochs: int = 1              # passes over a step's trajectories
    minibatches: int = 1         # updates per pass

    name: ClassVar[str] = "grpo"
    min_group_size: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low <= 1 or self.clip_high < 0:
            raise ConfigError(f"clip_low lies in 0..1 and clip_high is not negative; got {self.clip_low}, "
                              f"{self.clip_high}")
        if self.epochs < 1 or self.minibatches < 1:
            raise ConfigError(f"epochs and minibatches are at least 1; got {self.epochs}, {self.minibatches}")
        check_reference(self)
        if self.kl_coef and self.kl_in == "reward" and self.normalize_std:
            raise ConfigError("algorithm.kl_in = 'reward' with algorithm.normalize_std divides the pull by its own "
                              "spread wherever the rewards of a group are equal, so that kl_coef loses its meaning and "
                              "rounding is trained on; set algorithm.normalize_std=false, or algorithm.kl_in='loss'")

    @property
    def requires(self) -> tuple[str, ...]:
        return reference_facts(self)

    @property
    def updates_per_step(self) -> int:
        return self.epochs * self.minibatches

    def credit(self, batch: Batch) -> Credit:
        """The advantage of a trajectory, on all its sampled tokens in all its segments; unscored ones weigh nothing.

        Raises DataError where no task was attempted twice, because then nothing could ever be learned.
        """
        group_N, scored_N = batch.group_of_trajectory_N, batch.scored_N
        if int(group_N.bincount().max()) < self.min_group_size:
            raise DataError("GRPO compares attempts at the same task, but every group of this batch has one attempt: "
                            "collect at least 2 attempts per task, or use an algorithm without a group baseline")
        demand_facts(self, batch)
        row_T = batch.trajectory_of_token_T
        weight_T = (batch.eligible_T & scored_N[row_T]).double()
        at_A, earned_N = weight_T.nonzero()[:, 0], batch.reward_N
        if (penalty_A := reward_penalty(self, batch, at_A)) is not None:
            earned_N = earned_N - torch.zeros_like(earned_N).index_add(0, row_T[at_A], penalty_A)
        advantage_N = group_advantage(earned_N, group_N, scored_N, normalize_std=self.normalize_std)
        statistics = group_statistics(batch.reward_N, group_N, scored_N)
        spread = statistics.std[statistics.count > 1]
        notes = {
            "groups_flat": float(statistics.flat.sum()),
            "groups_without_baseline": float((statistics.count < 2).sum()),
            "trajectories_unscored": float((~scored_N).sum()),
        }
        if len(spread):
            notes["reward_std_in_group"] = float(spread.mean())
        return Credit(advantage_N[row_T] * weight_T, weight_T, notes)

    def loss(self, inputs: LossInputs) -> TokenLoss:
        """-min(r A, clip(r) A) - entropy_coef * H (+ the pull towards the reference), per token."""
        clipped = clipped_surrogate(inputs.logp_M, inputs.old_logp_M, inputs.advantage_M,
                                    low=self.clip_low, high=self.clip_high)
        loss_M, figures = with_reference(self, clipped.loss, inputs)
        if self.entropy_coef:
            loss_M = loss_M - self.entropy_coef * inputs.entropy_M
        return TokenLoss(loss_M, clipped.ratio.detach(), clipped.state, figures)
