"""How an algorithm uses its critic: where it is asked what comes after the end, and how it is fitted.

Axis letters: N trajectories · M tokens (flat).
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from workbench.learn.batch import Batch
from workbench.learn.ops.loss import ValueLoss, clipped_value_loss
from workbench.types.settings import at_least, check_settings, one_of
from workbench.types.tensors import Tensor, torch

BOOTSTRAP = ("context_full", "truncated", "never")


@dataclass(frozen=True)
class CriticLoss:
    """`bootstrap` says where an attempt that a limit cut short goes on being worth what the critic expects. A limit that
    the policy is told of is part of its task: after the last of "10 moves" nothing can be earned, and a critic that is
    asked nevertheless makes dawdling pay. The environments here state their limits and count the moves that are left,
    so the default bootstraps only where the context was full, of which no prompt speaks. For an environment with hidden
    limits, or a history that hides how many answers were given (`collect.history`): "truncated".
    Source: the two kinds of limits: Pardo et al. 2018 (arXiv 1712.00378).
    """

    bootstrap: Annotated[str, one_of(*BOOTSTRAP),
                         "where the critic says what comes after the end; truncated: at every limit"] = "context_full"
    value_clip: Annotated[float, at_least(0), "a step's updates move a value by at most this; 0: freely"] = 0.5

    def __post_init__(self) -> None:
        check_settings(self, "algorithm")

    @property
    def requires(self) -> tuple[str, ...]:
        """The later facts of the batch that are read."""
        return ("value_T",) if self.bootstrap == "never" else ("value_T", "final_value_N")

    def bootstraps_N(self, batch: Batch) -> Tensor:
        """bool [N]: attempts that are taken to go on being worth what the critic expects after their last token."""
        where = {"truncated": batch.truncated_N, "context_full": batch.context_full_N,
                 "never": torch.zeros_like(batch.truncated_N)}
        return where[self.bootstrap]

    def loss(self, value_M: Tensor, old_value_M: Tensor, target_M: Tensor) -> ValueLoss:
        """What the critic is fitted with, per token: half the squared error, clipped."""
        return clipped_value_loss(value_M, old_value_M, target_M, clip=self.value_clip)
