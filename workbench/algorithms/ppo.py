"""PPO: a critic says what was to be expected at each token, and a token is worth how much better it went on."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from workbench.algorithms.base import Credit, LossInputs, TokenLoss, demand_facts
from workbench.algorithms.reference import check_reference, reference_facts, reward_penalty, with_reference
from workbench.batch import Batch
from workbench.errors import ConfigError
from workbench.ops.clip import clipped_surrogate
from workbench.ops.gae import gae, rewards_at_turn_ends, whiten
from workbench.ops.value import ValueLoss, clipped_value_loss

BOOTSTRAP = ("context_full", "truncated", "never")


@dataclass(frozen=True)
class PPO:
    """Proximal policy optimisation with generalised advantage estimation over the action tokens of whole trajectories.

    `bootstrap` says where an attempt that a limit cut short goes on being worth what the critic expects. A limit that
    the policy is told of is part of its task: after the last of "10 moves" nothing can be earned, and a critic that is
    asked nevertheless makes dawdling pay. The environments here state their limits and count the moves that are left,
    so the default bootstraps only where the context was full, of which no prompt speaks. For an environment with hidden
    limits, or a history that hides how many answers were given (`collect.history`): "truncated".
    Source: Schulman et al. 2017 (arXiv 1707.06347); the two kinds of limits: Pardo et al. 2018 (arXiv 1712.00378).
    """

    gamma: float = 1.0              # discount per action token; what the environment says takes no time
    lam: float = 1.0                # 1: rewards to the end minus the value; lower: lean on the critic sooner
    whiten: bool = True             # advantages to mean 0, deviation 1, over the trained tokens of the step
    bootstrap: str = "context_full"  # or "truncated": at every limit, or "never"
    clip_low: float = 0.2           # the ratio is held above 1 - clip_low
    clip_high: float = 0.2          # ... and below 1 + clip_high
    value_clip: float = 0.5         # a step's updates move a value by at most this; 0: freely
    entropy_coef: float = 0.0       # nats of entropy are worth this much loss
    kl_coef: float = 0.0            # what a nat away from the reference policy costs
    kl_estimator: str = "k1"        # k1, k2, k3: see ops/kl.py
    kl_in: str = "reward"           # or "loss"
    epochs: int = 1                 # passes over a step's trajectories
    minibatches: int = 1            # updates per pass

    name: ClassVar[str] = "ppo"
    min_group_size: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 0 <= self.gamma <= 1 or not 0 <= self.lam <= 1:
            raise ConfigError(f"algorithm.gamma and algorithm.lam lie in 0..1; got {self.gamma}, {self.lam}")
        if not 0 <= self.clip_low <= 1 or not 0 <= self.clip_high or not 0 <= self.value_clip < float("inf"):
            raise ConfigError(f"clip_low lies in 0..1, clip_high and value_clip are not negative; got {self.clip_low}, "
                              f"{self.clip_high}, {self.value_clip}")
        if self.bootstrap not in BOOTSTRAP:
            raise ConfigError(f"algorithm.bootstrap is one of {', '.join(BOOTSTRAP)}; got {self.bootstrap!r}")
        if self.epochs < 1 or self.minibatches < 1:
            raise ConfigError(f"epochs and minibatches are at least 1; got {self.epochs}, {self.minibatches}")
        check_reference(self)

    @property
    def requires(self) -> tuple[str, ...]:
        final = () if self.bootstrap == "never" else ("final_value_N",)
        return ("value_T", *final, *reference_facts(self))

    @property
    def updates_per_step(self) -> int:
        return self.epochs * self.minibatches

    def credit(self, batch: Batch) -> Credit:
        """GAE over the sampled tokens of scored trajectories; unscored ones weigh nothing anywhere. `return_T` is what
        the critic is fitted to (before whitening), NaN where nothing is trained. Raises DataError where a fact in
        `requires` was never computed."""
        demand_facts(self, batch)
        row_T = batch.trajectory_of_token_T
        weight_T = (batch.eligible_T & batch.scored_N[row_T]).double()
        at_A = weight_T.nonzero()[:, 0]
        reward_A = rewards_at_turn_ends(batch.turn_reward_K, batch.turn_offsets, batch.outcome_N, row_T[at_A],
                                        batch.turn_T[at_A])
        if (penalty_A := reward_penalty(self, batch, at_A)) is not None:
            reward_A = reward_A - penalty_A
        value_A, cut_N = batch.value_T[at_A].double(), self._cut_short(batch)
        final_N = torch.zeros(batch.num_trajectories, dtype=torch.float64)
        if bool(cut_N.any()):
            final_N = torch.where(cut_N, batch.final_value_N.double(), final_N)
        found = gae(reward_A, value_A, final_N, row_T[at_A], gamma=self.gamma, lam=self.lam)
        worth_A = whiten(found.advantage) if self.whiten else found.advantage
        notes = {"trajectories_unscored": float((~batch.scored_N).sum()),
                 "trajectories_bootstrapped": float(cut_N.sum())}
        if len(at_A):
            notes |= {"value_mean": float(value_A.mean()), "return_mean": float(found.target.mean()),
                      "advantage_std": float(found.advantage.std(correction=0))}
        nothing_T = torch.full_like(weight_T, torch.nan)
        return Credit(torch.zeros_like(weight_T).index_copy(0, at_A, worth_A), weight_T, notes,
                      return_T=nothing_T.index_copy(0, at_A, found.target))

    def _cut_short(self, batch: Batch) -> Tensor:
        """bool [N]: the attempt is taken to go on being worth something after its last token."""
        where = {"truncated": batch.truncated_N, "context_full": batch.context_full_N,
                 "never": torch.zeros_like(batch.truncated_N)}
        return where[self.bootstrap] & batch.scored_N

    def loss(self, inputs: LossInputs) -> TokenLoss:
        """-min(r A, clip(r) A) - entropy_coef * H (+ the pull towards the reference), per token."""
        clipped = clipped_surrogate(inputs.logp_M, inputs.old_logp_M, inputs.advantage_M,
                                    low=self.clip_low, high=self.clip_high)
        loss_M, figures = with_reference(self, clipped.loss, inputs)
        if self.entropy_coef:
            loss_M = loss_M - self.entropy_coef * inputs.entropy_M
        return TokenLoss(loss_M, clipped.ratio.detach(), clipped.state, figures)

    def value_loss(self, value_M: Tensor, old_value_M: Tensor, target_M: Tensor) -> ValueLoss:
        """What the critic is fitted with, per token: half the squared error, clipped."""
        return clipped_value_loss(value_M, old_value_M, target_M, clip=self.value_clip)
