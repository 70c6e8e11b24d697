"""GSPO: one ratio for a whole sequence, so that it is held or free as a whole."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.learn.algorithms.grpo import GRPO


@dataclass(frozen=True)
class GSPO(GRPO):
    """Group sequence policy optimisation: GRPO's advantages, the geometric mean of a sequence's ratios, and the mean
    over sequences of their means. A ratio is over what the model saw in one piece, a segment: in a history that is
    rewritten each turn has its own, as in StepPO (arXiv 2604.18401). Its bounds are narrow because such a mean moves
    little; GRPO's would never clip it.

    Source: Zheng et al. 2025, "Group Sequence Policy Optimization" (arXiv 2507.18071), with its bounds.
    """

    objective: str = "gspo"
    clip_low: float = 3e-4
    clip_high: float = 4e-4
    reduction: str = "seq-mean-token-mean"

    name: ClassVar[str] = "gspo"
