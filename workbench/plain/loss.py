"""What is minimised: from logprobs and advantages to a loss per token, and how tokens are summed up.

Tensors hold one number for each token of a segment [L]. The gradient flows through `logp` and `value` alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from workbench.basics.tensors import Tensor, nn, torch

MAX_LOG_RATIO = 20.0  # nats: one absurd token must not make infinity out of a whole update
MAX_SEQUENCE_LOG_RATIO = 10.0  # of GSPO, as published
MAX_K3 = 10.0  # of k3, which grows exponentially, as published


class ObjectiveValue(NamedTuple):
    """What an objective says of each token [L]."""

    loss: Tensor
    ratio: Tensor  # of probabilities, new over old, that the loss is made of
    state: Tensor  # the bound that holds it: 0 none, -1 the lower one, 1 the upper one, 2 the dual clip


def bounded_ratio(logp: Tensor, old_logp: Tensor) -> Tensor:
    """r = pi / pi_old, held within what does not overflow."""
    return (logp - old_logp).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def clip(
    logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    counts: Tensor,
    *,
    low: float = 0.2,
    high: float = 0.2,
    dual: float = 0.0,
) -> ObjectiveValue:
    """PPO's clipped surrogate, L = -min(r A, clip(r, 1 - low, 1 + high) A), with r = pi / pi_old.

    At r = 1 its gradient is REINFORCE's. Schulman et al. 2017 (arXiv 1707.06347), eq. 7; two bounds:
    DAPO (arXiv 2503.14476), eq. 10. `dual` = c > 1: a token with A < 0 costs at most -c A: Ye et al.
    2020 (arXiv 1912.09729), eq. 3."""
    return _clipped(bounded_ratio(logp, old_logp), advantage, low, high, dual)


def gspo(
    logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    counts: Tensor,
    *,
    low: float = 3e-4,
    high: float = 4e-4,
) -> ObjectiveValue:
    """The same surrogate with one ratio for a whole segment: s = exp(mean of log pi - log pi_old)
    over the tokens that count. Each token has its own gradient (GSPO-token). Zheng et al. 2025
    (arXiv 2507.18071), eq. 5, 7 and 14."""
    change = (logp - old_logp).detach()
    mean = change[counts].mean() if counts.any() else 0.0
    # logp less itself is 0: it only lets each token's gradient through.
    log_ratio = mean + logp - logp.detach()
    ratio = log_ratio.clamp(max=MAX_SEQUENCE_LOG_RATIO).exp()
    return _clipped(ratio, advantage, low, high, 0.0)


def _clipped(
    ratio: Tensor, advantage: Tensor, low: float, high: float, dual: float
) -> ObjectiveValue:
    """Hold the ratio within its bounds, where that makes the gain smaller. A token that a bound
    holds has a constant for a loss: no gradient."""
    above = (ratio > 1 + high) & (advantage > 0)
    below = (ratio < 1 - low) & (advantage < 0)
    gain = torch.where(below, (1 - low) * advantage, ratio * advantage)
    gain = torch.where(above, (1 + high) * advantage, gain)
    state = above.int() - below.int()
    # Below zero the plain clip has no upper bound for the cost: the dual clip is one.
    if dual:
        worst = (ratio > dual) & (advantage < 0)
        gain = torch.where(worst, dual * advantage, gain)
        state = torch.where(worst, 2, state)
    return ObjectiveValue(-gain, ratio, state)


def cispo(
    logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    counts: Tensor,
    *,
    low: float = 1.0,
    high: float = 0.28,
) -> ObjectiveValue:
    """REINFORCE with a weight that is held: L = -clip(r, 1 - low, 1 + high) A log pi, the ratio
    without gradient, so that no token drops out. MiniMax-M1 (arXiv 2506.13585), eq. 4 and 5."""
    ratio = bounded_ratio(logp, old_logp).detach()
    weight = ratio.clamp(1 - low, 1 + high)
    state = (ratio > 1 + high).int() - (ratio < 1 - low).int()
    return ObjectiveValue(-weight * advantage * logp, ratio, state)


# The loss of a token depends on no other token of its segment; in GSPO it does.
clip.by_token = True
cispo.by_token = True


def sampler_weight(old_logp: Tensor, rollout_logp: Tensor, cap: float) -> Tensor:
    """Correct for a sampler that is not quite the policy: min(pi_old / pi_sampler, cap); 1 where its
    logprob is not known. Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You
    Off-Policy RL Training"."""
    weight = bounded_ratio(old_logp, rollout_logp).detach().clamp(max=cap)
    return torch.where(rollout_logp.isnan(), 1.0, weight)


def kl(logp: Tensor, ref_logp: Tensor, estimator: str) -> Tensor:
    """Estimates of KL(policy || reference) in nats, per token: Schulman 2020 (joschu.net/blog/kl-approx.html).

    k1 = log pi - log ref      k2 = k1^2 / 2      k3 = r - 1 - log r, r = ref / pi      abs = |k1|
    """
    above = logp - ref_logp
    # k3 grows exponentially where the reference is far above, so it is held twice.
    if estimator == "k3":
        log_r = (-above).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        return (log_r.expm1() - log_r).clamp(max=MAX_K3)
    return {"k1": above, "k2": above**2 / 2, "abs": above.abs()}[estimator]


def value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float = 0.0) -> Tensor:
    """The critic's loss, L = 1/2 max((V - target)^2, (V held within `clip` of the old V - target)^2),
    as in OpenAI's baselines (ppo2); without `clip` 1/2 (V - target)^2."""
    free = (value - target) ** 2
    if not clip:
        return free / 2
    # The larger loss counts: a value that moved too far gains nothing by being right.
    near = old_value + (value - old_value).clamp(-clip, clip)
    held = (near - target) ** 2
    return torch.where(held > free, held, free) / 2


def logprobs(model: nn.Module, ids: Tensor) -> tuple[Tensor, Tensor]:
    """(logprob of each token of a segment given those before it, entropy of what it was drawn from)
    [L], float64. Row t - 1 of the logits [L, V] predicts token t, and nothing predicts token 0 (NaN)."""
    logits_LV = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
    logp_LV = logits_LV.double().log_softmax(-1)
    chosen = logp_LV[torch.arange(len(ids) - 1), ids[1:]]
    entropy = -(logp_LV.exp() * logp_LV.clamp(min=-1e300)).sum(-1)  # 0 log 0 = 0
    nothing = chosen.new_full((1,), torch.nan)
    return torch.cat([nothing, chosen]), torch.cat([nothing, entropy])


def shares(weights: list[np.ndarray], reduction: str, fixed_length: int = 0) -> list[np.ndarray]:
    """What the loss of each token is multiplied with: `weights` [T] of each trajectory, over one
    denominator for a whole update, in however many segments and micro-batches it is computed.

        token-mean            the number of tokens                        DAPO (arXiv 2503.14476), eq. 8
        seq-mean-token-mean   trajectories x the tokens of this trajectory  GRPO (arXiv 2402.03300), eq. 3
        seq-mean-token-sum    trajectories
        fixed-length          trajectories x a length that is fixed       Dr. GRPO (arXiv 2503.20783), section 3

    Only tokens whose weight is not zero are counted, and only trajectories that have one."""
    counts = [int((weight != 0).sum()) for weight in weights]
    attempts = sum(count > 0 for count in counts)
    scaled = []
    for weight, count in zip(weights, counts):
        # An update without a token to train has no denominator, and nothing to divide.
        divisor = {
            "token-mean": sum(counts),
            "seq-mean-token-mean": attempts * count,
            "seq-mean-token-sum": attempts,
            "fixed-length": attempts * fixed_length,
        }[reduction]
        scaled.append(weight / max(divisor, 1))
    return scaled
