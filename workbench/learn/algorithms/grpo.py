"""GRPO: an attempt is worth what it earned above its siblings, and every token of it gets that."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.learn.algorithms.base import Advantages, CreditInputs
from workbench.learn.algorithms.group_relative import GroupRelative
from workbench.learn.ops.group import group_advantage
from workbench.types.errors import ConfigError


@dataclass(frozen=True)
class GRPO(GroupRelative):
    """Group-relative policy optimisation, over whole trajectories of several turns and segments.

    Source: Shao et al. 2024 (arXiv 2402.03300), with the token mean of DAPO (arXiv 2503.14476) instead of a mean per
    answer (`reduction`). `normalize_std=False` is the baseline of Dr. GRPO (arXiv 2503.20783). The pull towards a
    reference policy is off unless `kl_coef` is set; in the reward it lowers what an attempt earned before attempts are
    compared. A flat group gives zeros; an attempt without a scored sibling has no baseline, and gets zero.
    """

    normalize_std: bool = True   # divide by the group's standard deviation

    name: ClassVar[str] = "grpo"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kl_coef and self.kl_in == "reward" and self.normalize_std:
            raise ConfigError("algorithm.kl_in = 'reward' with algorithm.normalize_std divides the pull by its own "
                              "spread wherever the rewards of a group are equal, so that kl_coef loses its meaning and "
                              "rounding is trained on; set algorithm.normalize_std=false, or algorithm.kl_in='loss'")

    def advantages(self, inputs: CreditInputs) -> Advantages:
        """The advantage of a trajectory, on all its sampled tokens in all its segments."""
        return Advantages(inputs.of_rows(group_advantage(inputs.reward_N, inputs.group_N, inputs.kept_N,
                                                         normalize_std=self.normalize_std)))
