"""REINFORCE++: no critic and no group, or a group for the baseline only; whitened over the whole batch."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from workbench.learn.algorithms.base import Advantages, CreditInputs
from workbench.learn.algorithms.group_relative import GroupRelative
from workbench.learn.algorithms.policy_gradient import PolicyGradient
from workbench.learn.ops.group import comparable, group_advantage, group_statistics
from workbench.learn.ops.returns import discounted_return
from workbench.types.errors import ConfigError


@dataclass(frozen=True)
class ReinforcePP(PolicyGradient):
    """The discounted return of each action token, whitened. One attempt per task is enough.

    What the environment says takes no time (learn/ops/gae.py). The pull towards a reference is paid in the reward.
    Source: Hu et al. 2025, "REINFORCE++" (arXiv 2501.03262).
    """

    gamma: float = 1.0           # discount per action token
    kl_estimator: str = "k1"     # k1, k2, k3, abs: see learn/ops/kl.py
    kl_in: str = "reward"        # or "loss"

    name: ClassVar[str] = "reinforce_pp"
    has_timeline: ClassVar[bool] = True
    whitens: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gamma <= 1:
            raise ConfigError(f"algorithm.gamma lies in 0..1, got {self.gamma}")

    def advantages(self, inputs: CreditInputs) -> Advantages:
        """G_j = r_j + gamma G_{j+1}, whitened."""
        return Advantages(inputs.whitened(discounted_return(inputs.reward_A, inputs.row_A, gamma=self.gamma)))


@dataclass(frozen=True)
class ReinforcePPBaseline(GroupRelative):
    """What an attempt earned above the mean of its group, on all its tokens, whitened over the batch instead of divided
    by the group's own deviation: a group that differs little stays one that says little.

    Whitening moves all tokens by the mean over tokens, which is not zero where good attempts are longer than bad ones.
    What says nothing (a flat group, an attempt without a scored sibling) is not moved with them, but stays at zero.
    Source: Hu et al. 2025 (arXiv 2501.03262), the variant with a group baseline, which pulls by k2 in the loss.
    """

    kl_estimator: str = "k2"     # k1, k2, k3, abs: see learn/ops/kl.py

    name: ClassVar[str] = "reinforce_pp_baseline"
    whitens: ClassVar[bool] = True

    def advantages(self, inputs: CreditInputs) -> Advantages:
        """R - mean R, whitened over tokens, so that a long attempt counts for more."""
        groups = inputs.reward_N, inputs.group_N, inputs.kept_N
        white_A = inputs.whitened(inputs.of_rows(group_advantage(*groups, normalize_std=False)))
        says_N = comparable(group_statistics(*groups), inputs.group_N, inputs.kept_N)
        return Advantages(torch.where(inputs.of_rows(says_N), white_A, 0.0))
