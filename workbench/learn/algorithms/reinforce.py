"""REINFORCE over turns: a token is worth what was earned from its turn on, discounted once per turn."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from workbench.learn.algorithms.base import Advantages, CreditInputs
from workbench.learn.algorithms.group_relative import GroupRelative
from workbench.learn.ops.group import group_statistics, leave_one_out
from workbench.learn.ops.returns import discounted_return
from workbench.types.errors import ConfigError

BASELINES = ("others", "none")


@dataclass(frozen=True)
class Reinforce(GroupRelative):
    """G_k - b for every token of turn k, with G_k = r_k + gamma G_{k+1} over the turns of an attempt.

    b is the mean of what the *other* attempts of the group earned, discounted from their beginning: they know nothing
    of what was drawn in this one, so that it costs no bias. An attempt without a scored sibling gets zero. Attempts that
    are all the same get zeros in their first turn; later ones get what is still to come less what all of it was, which
    is noise and no bias.
    baseline="none": b = 0, one attempt per task is enough, and there is much more variance.
    Source: Williams 1992, "Simple statistical gradient-following algorithms"; a turn earns what comes after it only:
    Sutton et al. 1999, "Policy Gradient Methods", theorem 1.
    """

    gamma: float = 1.0        # discount per turn
    baseline: str = "others"  # or "none"

    name: ClassVar[str] = "reinforce"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gamma <= 1:
            raise ConfigError(f"algorithm.gamma lies in 0..1, got {self.gamma}")
        if self.baseline not in BASELINES:
            raise ConfigError(f"algorithm.baseline is one of {', '.join(BASELINES)}, got {self.baseline!r}")

    @property
    def min_group_size(self) -> int:
        return 2 if self.baseline == "others" else 1

    @property
    def ignores_shifts(self) -> bool:
        return self.baseline == "others" and self.gamma == 1

    def advantages(self, inputs: CreditInputs) -> Advantages:
        """The same for every token of a turn."""
        turns = inputs.turns
        return_P = discounted_return(inputs.reward_P, turns.row_P, gamma=self.gamma)
        if self.baseline == "others":
            first_P = torch.ones(len(turns.row_P), dtype=torch.bool)
            first_P[1:] = turns.row_P.diff() != 0
            start_N = inputs.reward_N.index_copy(0, turns.row_P[first_P], return_P[first_P])
            above_N = leave_one_out(start_N, inputs.group_N, inputs.kept_N)
            count_N = group_statistics(start_N, inputs.group_N, inputs.kept_N).count[inputs.group_N]
            # G_k - b in two parts, so that the first turns of attempts that are all the same come out as exact zeros.
            return_P = (return_P - start_N[turns.row_P] + above_N[turns.row_P]) * (count_N > 1)[turns.row_P]
        return Advantages(return_P[turns.turn_of_A])
