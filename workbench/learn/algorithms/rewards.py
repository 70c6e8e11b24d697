"""How raw rewards are put on a common scale before credit is given. The raw ones stay as they are.

Axis letters: N trajectories.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from workbench.learn.ops.normalize import METHODS, Change, normalization
from workbench.types.settings import check_settings, one_of
from workbench.types.tensors import Tensor, torch

OVER = ("group", "batch", "tag")


@dataclass(frozen=True)
class Rewards:
    """`normalize`: none, mean, mean_std or asym_clip (see `learn/ops/normalize.py`); `over`: the attempts at the same task,
    all attempts of the step, or those whose tasks have the same tag (a task's `metadata["tag"]`, else its environment),
    which is what several environments in one step need.

    Turn rewards are multiplied by the scale of their trajectory, and what is added per trajectory is paid at its last
    token: at gamma = 1 every token then sees the normalised total of what is still to come, plus that constant.
    asym_clip holds the *total* within -1..3 deviations; the turns keep the proportions that they have under mean_std,
    and what the clamp takes away (or gives) is paid at the last token.
    """

    normalize: Annotated[str, one_of(*METHODS), "rewards put on a common scale"] = "none"
    over: Annotated[str, one_of(*OVER), "... over which attempts"] = "group"

    def __post_init__(self) -> None:
        check_settings(self, "algorithm.rewards")

    def change(self, reward_N: Tensor, group_N: Tensor, tag_N: Tensor, include_N: Tensor) -> Change:
        """(scale_N, shift_N): R' = scale * R + shift, over the included attempts only; zeros for the others, whose
        reward may be NaN. `tag_N` numbers the tags from 0."""
        set_N = {"group": group_N, "batch": torch.zeros_like(group_N), "tag": tag_N}[self.over]
        return normalization(reward_N, set_N, include_N, self.normalize)

    def inert(self) -> list[tuple[str, bool, str]]:
        """(field, whether it cannot act, why), for the check when a config is loaded."""
        return [("over", self.normalize == "none", "algorithm.rewards.normalize is 'none'")]
