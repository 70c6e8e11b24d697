"""DAPO: GRPO with a higher upper bound, a mean over tokens, and no groups that teach nothing."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.learn.algorithms.filtering import Filter
from workbench.learn.algorithms.grpo import GRPO


@dataclass(frozen=True)
class DAPO(GRPO):
    """Decoupled clip and dynamic sampling, as far as it is about credit: clip-higher, the token mean, no reference, and
    groups in which all earned the same are left out of the denominator too.

    The paper samples further prompts until a step is full of groups that teach; here a step has the tasks it has, and
    those that teach nothing make it smaller. Its penalty for overlong answers would be a reward of the environment.
    Source: Yu et al. 2025, "DAPO" (arXiv 2503.14476), section 3.
    """

    clip_high: float = 0.28
    filter: Filter = Filter(zero_variance="drop")

    name: ClassVar[str] = "dapo"
