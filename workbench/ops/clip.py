"""The clipped surrogate of PPO, token by token."""
from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# exp(20) is 5e8: far outside any trust region, and still finite in float32 with room for a product.
MAX_LOG_RATIO = 20.0


class Clipped(NamedTuple):
    """Per token: `loss` (to be minimised, carries the gradient), `ratio` (carries the gradient too) and `state`."""

    loss: Tensor
    ratio: Tensor
    state: Tensor  # int8: 0 free · -1 held at the lower bound · +1 held at the upper bound


def probability_ratio(logp_T: Tensor, old_logp_T: Tensor) -> Tensor:
    """r = pi_new(token) / pi_old(token), from logprobs in nats. The log-ratio is held within +-20, so that one absurd
    token cannot make infinity out of a whole update; outside it the gradient is zero."""
    return (logp_T - old_logp_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def clipped_surrogate(
    logp_T: Tensor, old_logp_T: Tensor, advantage_T: Tensor, *, low: float, high: float
) -> Clipped:
    """L = -min(r A, clip(r, 1 - low, 1 + high) A)

    `state` is not zero exactly where the clip cuts the gradient: below 1 - low with A < 0, above 1 + high with A > 0.
    (Outside the bounds on the *other* side the minimum takes the unclipped branch, and the token is free.)
    Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms" (arXiv 1707.06347), eq. 7; separate bounds:
    Yu et al. 2025, "DAPO" (arXiv 2503.14476), eq. 10.
    """
    ratio_T = probability_ratio(logp_T, old_logp_T)
    free_T = ratio_T * advantage_T
    held_T = ratio_T.clamp(1.0 - low, 1.0 + high) * advantage_T
    with torch.no_grad():
        state_T = torch.zeros_like(ratio_T, dtype=torch.int8)
        state_T[(ratio_T < 1.0 - low) & (advantage_T < 0)] = -1
        state_T[(ratio_T > 1.0 + high) & (advantage_T > 0)] = 1
    return Clipped(-torch.minimum(free_T, held_T), ratio_T, state_T)
