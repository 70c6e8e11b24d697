"""PPO: a critic says what was to be expected at each token, and a token is worth how much better it went on."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from workbench.learn.algorithms.base import Advantages, CreditInputs
from workbench.learn.algorithms.policy_gradient import PolicyGradient
from workbench.learn.batch import Batch
from workbench.learn.ops.gae import gae
from workbench.learn.ops.value import ValueLoss, clipped_value_loss
from workbench.types.errors import ConfigError

BOOTSTRAP = ("context_full", "truncated", "never")


@dataclass(frozen=True)
class PPO(PolicyGradient):
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
    value_clip: float = 0.5         # a step's updates move a value by at most this; 0: freely
    kl_estimator: str = "k1"        # k1, k2, k3, abs: see learn/ops/kl.py
    kl_in: str = "reward"           # or "loss"

    name: ClassVar[str] = "ppo"
    has_timeline: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gamma <= 1 or not 0 <= self.lam <= 1:
            raise ConfigError(f"algorithm.gamma and algorithm.lam lie in 0..1; got {self.gamma}, {self.lam}")
        if not 0 <= self.value_clip < float("inf"):
            raise ConfigError(f"algorithm.value_clip is not negative, got {self.value_clip}")
        if self.bootstrap not in BOOTSTRAP:
            raise ConfigError(f"algorithm.bootstrap is one of {', '.join(BOOTSTRAP)}; got {self.bootstrap!r}")

    @property
    def requires(self) -> tuple[str, ...]:
        final = () if self.bootstrap == "never" else ("final_value_N",)
        return ("value_T", *final, *super().requires)

    @property
    def whitens(self) -> bool:
        return self.whiten

    def bootstraps_N(self, batch: Batch) -> Tensor:
        where = {"truncated": batch.truncated_N, "context_full": batch.context_full_N,
                 "never": torch.zeros_like(batch.truncated_N)}
        return where[self.bootstrap]

    def advantages(self, inputs: CreditInputs) -> Advantages:
        """GAE over the timeline; the critic is fitted to what it gives before whitening."""
        found = gae(inputs.reward_A, inputs.value_A, inputs.final_value_N, inputs.row_A, gamma=self.gamma, lam=self.lam)
        return Advantages(inputs.whitened(found.advantage) if self.whiten else found.advantage, found.target)

    def value_loss(self, value_M: Tensor, old_value_M: Tensor, target_M: Tensor) -> ValueLoss:
        """What the critic is fitted with, per token: half the squared error, clipped."""
        return clipped_value_loss(value_M, old_value_M, target_M, clip=self.value_clip)
