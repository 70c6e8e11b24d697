"""RLOO: an attempt is worth what it earned above the mean of the others."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.learn.algorithms.base import Advantages, CreditInputs
from workbench.learn.algorithms.group_relative import GroupRelative
from workbench.learn.ops.group import leave_one_out


@dataclass(frozen=True)
class RLOO(GroupRelative):
    """REINFORCE with a leave-one-out baseline, over whole trajectories: n / (n - 1) times what Dr. GRPO's gives.

    The gradient is unbiased as long as nothing is clipped and tokens are summed (or divided by a fixed length).
    Source: Ahmadian et al. 2024, "Back to Basics" (arXiv 2402.14740).
    """

    name: ClassVar[str] = "rloo"

    def advantages(self, inputs: CreditInputs) -> Advantages:
        """The same for every token of an attempt."""
        return Advantages(inputs.of_rows(leave_one_out(inputs.reward_N, inputs.group_N, inputs.kept_N)))
