"""What the loss of tokens and its sum are made of: the one shift, logprobs and entropy, KL, a critic's error, and sums
that say what they are divided by.

A causal model's output at position t-1 is its prediction of token t. Everything in this project at index t describes
token t, so the logprob of token t is read from the logits at t-1; `scoring_position` is the only place that says so, and
the only shift (invariant 3).

Axis letters: M chosen tokens (flat) · T tokens (flat) · V vocabulary · N sequences.
"""

from __future__ import annotations

from typing import NamedTuple

from workbench.basics.tensors import Tensor, torch

REDUCTIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "fixed-length")
ESTIMATORS = ("k1", "k2", "k3", "abs")  # of a KL divergence

# Of k3, which grows exponentially: its log-ratio is held within +-20 and it itself at 10, as in the published
# implementations. One absurd token must not make infinity out of a whole update. Outside the gradient is zero.
MAX_LOG_RATIO = 20.0
MAX_K3 = 10.0


def scoring_position(position_M: Tensor) -> Tensor:
    """Where the prediction of the token at `position_M` stands: one to the left.

    Positions are counted in the token's own row, from 0. Raises ValueError for position 0, which nothing predicts.
    """
    if bool((position_M < 1).any()):
        raise ValueError(
            "the token at position 0 of a row has no prediction: nothing stands before it"
        )
    return position_M - 1


def logprobs_of(logits_MV: Tensor, token_ids_M: Tensor) -> Tensor:
    """log softmax(logits)[token], in nats, float32. No shift: row m of the logits must already predict token m."""
    logits_MV = logits_MV.float()  # a half-precision log-sum-exp would lose about 3 of 4 digits
    return logits_MV.gather(-1, token_ids_M.unsqueeze(-1)).squeeze(-1) - logits_MV.logsumexp(-1)


def entropy_of(logits_MV: Tensor) -> Tensor:
    """Shannon entropy of softmax(logits), in nats, float32: H = log sum exp(z) - sum p z. No shift, as above."""
    logits_MV = logits_MV.float()
    # Zero probability times a logit of minus infinity counts as zero, so the product is taken over finite logits only.
    product = logits_MV.softmax(-1) * logits_MV.masked_fill(logits_MV == float("-inf"), 0.0)
    return logits_MV.logsumexp(-1) - product.sum(-1)


def kl_estimate(logp_M: Tensor, ref_logp_M: Tensor, estimator: str) -> Tensor:
    """An estimate of KL(policy || reference) from the logprobs of sampled tokens, per token [M], in nats; the gradient
    flows through `logp_M`. Raises ValueError for another name.

    With r = reference / policy at the token, and tokens sampled from the policy itself (exact in expectation for k1 and
    k3 only):

        k1 = -log r                unbiased, large variance, often negative
        k2 = (log r)^2 / 2         biased, small variance, never negative
        k3 = (r - 1) - log r       unbiased, small variance, never negative
        abs = |log r|              no estimate of KL, but a distance: how far the two are apart, in nats

    As a *reward* any of them is a number that is paid. As a *loss* they differ in what their gradient is: that of k2 is
    the gradient of the KL divergence in expectation; that of k1 is zero in expectation (it is the score function), so
    k1 in a loss only adds noise; that of k3 belongs to the reverse divergence KL(reference || policy); that of abs is
    the sign of the difference, as strong for a small one as for a large one.
    Source: Schulman 2020, "Approximating KL Divergence" (joschu.net/blog/kl-approx.html); k3 in a loss: Shao et al.
    2024, "DeepSeekMath" (arXiv 2402.03300), eq. 4.
    """
    if estimator == "k1":
        return logp_M - ref_logp_M
    if estimator == "k2":
        return 0.5 * (logp_M - ref_logp_M) ** 2
    if estimator == "abs":
        return (logp_M - ref_logp_M).abs()
    if estimator == "k3":
        log_r_M = (ref_logp_M - logp_M).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        # expm1 keeps the digits where the two models agree, which is almost everywhere.
        return torch.clamp(log_r_M.expm1() - log_r_M, max=MAX_K3)
    raise ValueError(f"a KL estimator is one of {', '.join(ESTIMATORS)}, got {estimator!r}")


class ValueLoss(NamedTuple):
    """Per token: `loss` (to be minimised, carries the gradient) and `clipped` (bool: the clip cut the gradient)."""

    loss: Tensor
    clipped: Tensor


def clipped_value_loss(
    value_M: Tensor, old_value_M: Tensor, target_M: Tensor, *, clip: float
) -> ValueLoss:
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
    target_M = target_M.double()
    value_M = value_M.double()
    if len(target_M) < 2 or bool((target_M == target_M[0]).all()):
        return None
    return float(1.0 - (target_M - value_M).var() / target_M.var())


class Reduction(NamedTuple):
    """`scale` [T], float64: what a token counts, beside its weight. `denominator`: what the sum is divided by."""

    scale: Tensor
    denominator: float


def reduction(kind: str, counts_T: Tensor, row_T: Tensor, *, fixed_length: int = 0) -> Reduction:
    """How the tokens that count (bool [T]) are summed up, in all micro-batches and processes of an update (invariant 4):

        token-mean            sum of all tokens / number of tokens                    DAPO (arXiv 2503.14476), eq. 8
        seq-mean-token-mean   mean over sequences of each one's mean                  GRPO (arXiv 2402.03300), eq. 3
        seq-mean-token-sum    mean over sequences of each one's sum
        fixed-length          the same, divided by a length that is the same for all  Dr. GRPO (arXiv 2503.20783), section 3

    A sequence, numbered by `row_T`, is a whole trajectory, in however many segments its history was cut: so a trajectory
    counts the same with every history.

    Only sequences with a token that counts are counted. Where none does, the denominator is 0: there is no such sum.
    Raises ValueError for another kind, and for "fixed-length" without a length.
    """
    if kind not in REDUCTIONS:
        raise ValueError(f"a reduction is one of {', '.join(REDUCTIONS)}, got {kind!r}")
    if kind == "fixed-length" and fixed_length < 1:
        raise ValueError(
            f"the reduction 'fixed-length' divides by a length of at least 1 token, got {fixed_length}"
        )
    scale_T = torch.ones(len(counts_T), dtype=torch.float64)
    if kind == "token-mean":
        return Reduction(scale_T, float(counts_T.sum()))
    rows, at, length = row_T[counts_T].unique(return_inverse=True, return_counts=True)
    if kind == "seq-mean-token-mean":
        scale_T[counts_T] = 1.0 / length[at].double()
    return Reduction(scale_T, float(len(rows) * (fixed_length if kind == "fixed-length" else 1)))


def masked_sum_over(values_T: Tensor, weight_T: Tensor, denominator: float) -> Tensor:
    """sum(weight * value) / denominator, over the tokens whose weight is not zero.

    The denominator is handed in because only the caller can know it: the number of trained tokens over *all*
    micro-batches and *all* processes. A mean taken here would make the gradient depend on how a batch was cut.
    Values at weight zero may be NaN (they were never computed); they and their gradients stay out.
    Raises ValueError unless the denominator is positive and finite.
    """
    if values_T.shape != weight_T.shape:
        raise ValueError(
            f"values {tuple(values_T.shape)} and weights {tuple(weight_T.shape)} must have the same shape"
        )
    if not 0 < float(denominator) < float("inf"):
        raise ValueError(
            f"the denominator is a count of trained tokens, so positive and finite; got {denominator}"
        )
    used = weight_T != 0
    products = torch.where(used, values_T, torch.zeros_like(values_T)) * weight_T.to(values_T.dtype)
    return products.sum() / denominator
