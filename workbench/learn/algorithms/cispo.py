"""CISPO: the importance weight is bounded, the token never drops out."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.learn.algorithms.grpo import GRPO


@dataclass(frozen=True)
class CISPO(GRPO):
    """Clipped importance weights: REINFORCE with GRPO's advantages, weighted by a ratio that is held at the top and
    carries no gradient. A rare token that the update made much likelier goes on being learned from.

    There is no lower bound (`clip_low` of 1), as in the paper. It does not say its upper one; this is DAPO's.
    Source: MiniMax 2025, "MiniMax-M1" (arXiv 2506.13585), section 3.1.
    """

    objective: str = "cispo"
    clip_low: float = 1.0
    clip_high: float = 0.28

    name: ClassVar[str] = "cispo"
