"""Dr. GRPO: GRPO done right, as its authors say: nothing is divided by what the attempts happened to be."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.learn.algorithms.grpo import GRPO


@dataclass(frozen=True)
class DrGRPO(GRPO):
    """No division by the group's standard deviation, which makes groups that differ little count as much as others, and
    none by an attempt's own length, which makes long failures cheap: every sum is divided by one fixed length.

    The gradient is that of the objective times (n - 1) / n and 1 / fixed_length, as long as nothing is clipped.
    Source: Liu et al. 2025, "Understanding R1-Zero-Like Training" (arXiv 2503.20783), section 3.
    """

    normalize_std: bool = False
    reduction: str = "fixed-length"
    fixed_length: int = 256  # tokens; only a scale of the step size, but the same for all attempts

    name: ClassVar[str] = "dr_grpo"
