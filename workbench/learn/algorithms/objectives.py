"""Objectives: from logprobs and advantages to a loss per token. PPO's clip, GSPO, CISPO; and weights for another sampler.

An objective is a frozen dataclass whose fields are its settings: `loss(inputs)` is what is minimised, before weighting;
`plain(logp, old_logp, advantage, counts)` is the same by `workbench/plain/loss.py`, for one segment; None where there is
no second implementation. A field is a setting: `algorithm.objective.clip_high`.

Axis letters: M trained tokens of a micro-batch (flat) · T tokens (flat) · S sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, NamedTuple, Protocol

from workbench.basics.settings import at_least, check_settings
from workbench.basics.tensors import Tensor, torch
from workbench.learn.algorithms.base import LossInputs
from workbench.plain import loss as plain
from workbench.values.errors import ConfigError

Low = Annotated[float, at_least(0, most=1), "the ratio is held above 1 - clip_low"]
High = Annotated[float, at_least(0), "... and below 1 + clip_high"]

# exp(20) is 5e8: far outside any trust region, and still finite in float32 with room for a product.
MAX_LOG_RATIO = 20.0
# Of a ratio over a whole sequence, which is a geometric mean, as in the published implementation of GSPO.
MAX_SEQUENCE_LOG_RATIO = 10.0

HELD_BY_DUAL_CLIP = 2


class Clipped(NamedTuple):
    """Per token: `loss` (to be minimised, carries the gradient), `ratio` (for metrics and views)
    and `state`."""

    loss: Tensor
    ratio: Tensor
    state: Tensor  # int8: 0 free · -1 held at the lower bound · +1 held at the upper bound · 2 held by the dual clip


class Objective(Protocol):
    """`name`: its `algorithm.objective.kind`."""

    name: str
    plain: Callable | None

    def loss(self, inputs: LossInputs) -> Clipped: ...


@dataclass(frozen=True)
class ClipObjective:
    """PPO's: the clipped surrogate, with separate bounds, and a dual clip (see `clipped_surrogate`)."""

    clip_low: Low = 0.2
    clip_high: High = 0.2
    dual_clip: Annotated[
        float, at_least(0), "c > 1: a token with A < 0 costs at most -c A; 0: no such bound"
    ] = 0.0

    name: ClassVar[str] = "clip"

    def __post_init__(self) -> None:
        check_settings(self, "algorithm.objective")
        if self.dual_clip and self.dual_clip <= 1:
            raise ConfigError(
                f"algorithm.objective.dual_clip is 0 (off) or above 1, got {self.dual_clip}"
            )

    def loss(self, inputs: LossInputs) -> Clipped:
        return clipped_surrogate(
            inputs.logp_M,
            inputs.old_logp_M,
            inputs.advantage_M,
            low=self.clip_low,
            high=self.clip_high,
            dual=self.dual_clip,
        )

    @property
    def plain(self) -> Callable:
        return partial(plain.clip, low=self.clip_low, high=self.clip_high, dual=self.dual_clip)


@dataclass(frozen=True)
class GSPOObjective:
    """One ratio for a whole segment, so that it is held or free as a whole (see `sequence_surrogate`). Its bounds are
    narrow because such a mean moves little; GRPO's would never clip it."""

    clip_low: Low = 3e-4
    clip_high: High = 4e-4

    name: ClassVar[str] = "gspo"

    def __post_init__(self) -> None:
        check_settings(self, "algorithm.objective")

    def loss(self, inputs: LossInputs) -> Clipped:
        return sequence_surrogate(
            inputs.logp_M,
            inputs.old_logp_M,
            inputs.advantage_M,
            inputs.segment_M,
            inputs.counts_M,
            low=self.clip_low,
            high=self.clip_high,
        )

    @property
    def plain(self) -> Callable:
        return partial(plain.gspo, low=self.clip_low, high=self.clip_high)


@dataclass(frozen=True)
class CISPOObjective:
    """The importance weight is bounded, and the token never drops out: a rare one that the update made much likelier goes
    on being learned from (see `weighted_logprob`). No lower bound, as in the paper; it does not say its upper one; this
    is DAPO's."""

    clip_low: Low = 1.0
    clip_high: High = 0.28

    name: ClassVar[str] = "cispo"

    def __post_init__(self) -> None:
        check_settings(self, "algorithm.objective")

    def loss(self, inputs: LossInputs) -> Clipped:
        return weighted_logprob(
            inputs.logp_M,
            inputs.old_logp_M,
            inputs.advantage_M,
            low=self.clip_low,
            high=self.clip_high,
        )

    @property
    def plain(self) -> Callable:
        return partial(plain.cispo, low=self.clip_low, high=self.clip_high)


OBJECTIVES = {kind.name: kind for kind in (ClipObjective, GSPOObjective, CISPOObjective)}


def probability_ratio(logp_T: Tensor, old_logp_T: Tensor) -> Tensor:
    """r = pi_new(token) / pi_old(token), from logprobs in nats. The log-ratio is held within +-20, so that one absurd
    token cannot make infinity out of a whole update; outside it the gradient is zero."""
    return (logp_T - old_logp_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def clipped_surrogate(
    logp_T: Tensor,
    old_logp_T: Tensor,
    advantage_T: Tensor,
    *,
    low: float,
    high: float,
    dual: float = 0.0,
) -> Clipped:
    """L = -min(r A, clip(r, 1 - low, 1 + high) A)

    `state` is not zero exactly where the clip cuts the gradient: below 1 - low with A < 0, above 1 + high with A > 0.
    (Outside the bounds on the *other* side the minimum takes the unclipped branch, and the token is free.)
    `dual` = c > 1 also bounds what a bad token can cost: where A < 0, L = min(L, -c A), so that a ratio above c has no
    gradient either; 0: not at all.
    Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms" (arXiv 1707.06347), eq. 7; separate bounds:
    Yu et al. 2025, "DAPO" (arXiv 2503.14476), eq. 10; dual clip: Ye et al. 2020 (arXiv 1912.09729), eq. 3.
    """
    return _surrogate(probability_ratio(logp_T, old_logp_T), advantage_T, low, high, dual)


def sequence_surrogate(
    logp_T: Tensor,
    old_logp_T: Tensor,
    advantage_T: Tensor,
    sequence_T: Tensor,
    counts_T: Tensor,
    *,
    low: float,
    high: float,
) -> Clipped:
    """GSPO: the clipped surrogate with one ratio for all tokens of a sequence, their geometric mean,

        s = exp(mean over the sequence of (log pi_new - log pi_old))

    so that a sequence (a segment: what the model saw in one piece) is held or free as a whole. A token's gradient is s
    A grad log pi (GSPO-token, whose gradient is that of GSPO where a sequence has one advantage). `sequence_T` numbers
    the sequences from 0; `counts_T` (bool) says which tokens the mean is over. The log of s is held below 10.
    Source: Zheng et al. 2025, "Group Sequence Policy Optimization" (arXiv 2507.18071), eq. 5, 7 and 14.
    """
    sequences = int(sequence_T.max()) + 1 if len(sequence_T) else 0
    change_T = torch.where(counts_T, (logp_T - old_logp_T).detach(), 0.0)
    sum_S = change_T.new_zeros(sequences).index_add(0, sequence_T, change_T)
    count_S = change_T.new_zeros(sequences).index_add(0, sequence_T, counts_T.to(change_T.dtype))
    mean_T = (sum_S / count_S.clamp(min=1.0))[sequence_T]
    ratio_T = (mean_T + logp_T - logp_T.detach()).clamp(max=MAX_SEQUENCE_LOG_RATIO).exp()
    return _surrogate(ratio_T, advantage_T, low, high, 0.0)


def weighted_logprob(
    logp_T: Tensor, old_logp_T: Tensor, advantage_T: Tensor, *, low: float, high: float
) -> Clipped:
    """CISPO: L = -sg(clip(r, 1 - low, 1 + high)) A log pi, sg: no gradient

    REINFORCE with a bounded importance weight: a token beyond the bounds weighs less, but never drops out. `state` says
    where the weight was held.
    Source: MiniMax 2025, "MiniMax-M1" (arXiv 2506.13585), eq. 4-5.
    """
    ratio_T = probability_ratio(logp_T, old_logp_T).detach()
    with torch.no_grad():
        state_T = torch.zeros_like(ratio_T, dtype=torch.int8)
        state_T[ratio_T < 1.0 - low] = -1
        state_T[ratio_T > 1.0 + high] = 1
    return Clipped(-ratio_T.clamp(1.0 - low, 1.0 + high) * advantage_T * logp_T, ratio_T, state_T)


def sampler_weight(old_logp_T: Tensor, rollout_logp_T: Tensor, *, cap: float) -> Tensor:
    """w = min(pi_old / pi_sampler, cap): makes up for a sampler that is not quite the policy that is trained (another
    engine, temperature, top-p), token by token, without gradient; 1 where the sampler's logprob is not known (NaN).

    Source: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (truncated
    importance sampling); Ionides 2008 for the truncation.
    """
    weight_T = probability_ratio(old_logp_T.detach(), rollout_logp_T).clamp(max=cap)
    return torch.where(rollout_logp_T.isnan(), 1.0, weight_T)


def _surrogate(
    ratio_T: Tensor, advantage_T: Tensor, low: float, high: float, dual: float
) -> Clipped:
    free_T = ratio_T * advantage_T
    held_T = ratio_T.clamp(1.0 - low, 1.0 + high) * advantage_T
    loss_T = -torch.minimum(free_T, held_T)
    with torch.no_grad():
        state_T = torch.zeros_like(ratio_T, dtype=torch.int8)
        state_T[(ratio_T < 1.0 - low) & (advantage_T < 0)] = -1
        state_T[(ratio_T > 1.0 + high) & (advantage_T > 0)] = 1
        if dual:
            state_T[(ratio_T > dual) & (advantage_T < 0)] = HELD_BY_DUAL_CLIP
    if dual:
        loss_T = torch.where(advantage_T < 0, torch.minimum(loss_T, -dual * advantage_T), loss_T)
    return Clipped(loss_T, ratio_T, state_T)
