"""What a critic is fitted with, and how good it is. Axis letters: M tokens (flat)."""
from __future__ import annotations

from typing import NamedTuple

from workbench.types.tensors import Tensor, torch



class ValueLoss(NamedTuple):
    """Per token: `loss` (to be minimised, carries the gradient) and `clipped` (bool: the clip cut the gradient)."""

    loss: Tensor
    clipped: Tensor


def clipped_value_loss(value_M: Tensor, old_value_M: Tensor, target_M: Tensor, *, clip: float) -> ValueLoss:
    """L = 1/2 max((V - target)^2, (clip(V, V_old - clip, V_old + clip) - target)^2)

    `clip` is in units of value; 0: no clipping, L = 1/2 (V - target)^2. `clipped` is true exactly where the gradient is
    cut: V has moved towards the target by more than `clip`. (Outside the bounds on the *other* side the maximum takes
    the unclipped branch.) With V = V_old, as in a step's only update, the clip can never bind.
    Source: the PPO of OpenAI's baselines (github.com/openai/baselines, ppo2), described in Andrychowicz et al. 2021
    (arXiv 2006.05990).
    """
    free_M = (value_M - target_M) ** 2
    if not clip:
        return ValueLoss(0.5 * free_M, torch.zeros_like(value_M, dtype=torch.bool))
    held_M = (torch.clamp(value_M, old_value_M - clip, old_value_M + clip) - target_M) ** 2
    outside_M = (value_M - old_value_M).abs() > clip
    return ValueLoss(0.5 * torch.maximum(free_M, held_M), (outside_M & (held_M > free_M)).detach())


def explained_variance(value_M: Tensor, target_M: Tensor) -> float | None:
    """1 - Var(target - V) / Var(target): 1 for a perfect critic, 0 for one that says the same everywhere, below 0 for
    one that is worse than that. None where the targets do not vary, because then there is nothing to explain."""
    target_M, value_M = target_M.double(), value_M.double()
    if len(target_M) < 2 or bool((target_M == target_M[0]).all()):
        return None
    return float(1.0 - (target_M - value_M).var() / target_M.var())
