"""Estimates of KL(policy || reference), token by token, from the logprobs of sampled tokens.

With r = reference / policy at the token, and tokens sampled from the policy itself (in nats, exact in expectation for
k1 and k3 only):

    k1 = -log r                unbiased, large variance, often negative
    k2 = (log r)^2 / 2         biased, small variance, never negative
    k3 = (r - 1) - log r       unbiased, small variance, never negative
    abs = |log r|              no estimate of KL, but a distance: how far the two are apart, in nats

As a *reward* any of them is a number that is paid. As a *loss* they differ in what their gradient is: that of k2 is the
gradient of the KL divergence in expectation; that of k1 is zero in expectation (it is the score function), so k1 in a
loss only adds noise; that of k3 belongs to the reverse divergence KL(reference || policy); that of abs is the sign of
the difference, as strong for a small one as for a large one.
Source: Schulman 2020, "Approximating KL Divergence" (joschu.net/blog/kl-approx.html); k3 in a loss: Shao et al. 2024,
"DeepSeekMath" (arXiv 2402.03300), eq. 4. Axis letters: M tokens (flat).
"""
from __future__ import annotations

from workbench.types.tensors import Tensor, torch


# Of k3, which grows exponentially: its log-ratio is held within +-20 and it itself at 10, as in the published
# implementations. One absurd token must not make infinity out of a whole update. Outside the gradient is zero.
MAX_LOG_RATIO = 20.0
MAX_K3 = 10.0

ESTIMATORS = ("k1", "k2", "k3", "abs")


def kl_estimate(logp_M: Tensor, ref_logp_M: Tensor, estimator: str) -> Tensor:
    """The estimate per token [M], in nats; the gradient flows through `logp_M`. Raises ValueError for another name."""
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
