"""What algorithms without a critic share: attempts at the same task are each other's baseline."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from workbench.learn.algorithms.base import CreditInputs
from workbench.learn.algorithms.policy_gradient import PolicyGradient
from workbench.learn.ops.group import group_statistics


@dataclass(frozen=True)
class GroupRelative(PolicyGradient):
    """Needs two attempts per task. A flat group gives zeros; an attempt without a scored sibling has no baseline, and
    gets zero: it says nothing about which of its tokens were good. (Where turns are told apart, attempts that earned
    the same may have earned it at other times: see reinforce.py and gigpo.py.)"""

    min_group_size: ClassVar[int] = 2

    @property
    def ignores_shifts(self) -> bool:
        return True

    def _notes(self, inputs: CreditInputs) -> dict[str, float]:
        """Groups that teach nothing, by reason, and the spread that the others live on: of the raw rewards."""
        kept_N = inputs.kept_N if self.filter.acts else torch.ones_like(inputs.kept_N)  # a filter tells of its own
        statistics = group_statistics(inputs.batch.reward_N, inputs.group_N, inputs.kept_N)
        spread = statistics.std[statistics.count > 1]
        notes = {"groups_flat": float(statistics.flat.sum()),
                 "groups_without_baseline": float((statistics.count < 2)[inputs.group_N[kept_N].unique()].sum())}
        return super()._notes(inputs) | notes | ({"reward_std_in_group": float(spread.mean())} if len(spread) else {})
