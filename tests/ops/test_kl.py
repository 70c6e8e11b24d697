"""KL estimators against the divergence itself, which a softmax over five tokens knows exactly."""

from __future__ import annotations

import pytest
import torch

from workbench.learn.ops.loss import kl_estimate

torch.manual_seed(0)
LOGP = (
    torch.randn(5, dtype=torch.float64).div(2).log_softmax(0)
)  # near enough that nothing is held at a bound
REF = torch.randn(5, dtype=torch.float64).div(2).log_softmax(0)
P = LOGP.exp()
KL = float((P * (LOGP - REF)).sum())


def expected(estimator: str) -> float:
    return float((P * kl_estimate(LOGP, REF, estimator)).sum())


def test_by_hand():
    logp, ref = torch.tensor([-1.0]), torch.tensor([-1.5])
    assert (
        kl_estimate(logp, ref, "k1").item() == 0.5 and kl_estimate(logp, ref, "k2").item() == 0.125
    )
    assert kl_estimate(logp, ref, "k3").item() == pytest.approx(0.10653066, abs=1e-7)
    assert kl_estimate(logp, ref, "abs").item() == kl_estimate(ref, logp, "abs").item() == 0.5


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(estimator):
    assert expected(estimator) == pytest.approx(KL, abs=1e-12)


def test_k2_is_biased_and_never_negative():
    assert abs(expected("k2") - KL) > 1e-3
    assert bool(
        (kl_estimate(LOGP, REF, "k2") >= 0).all() and (kl_estimate(LOGP, REF, "k3") >= 0).all()
    )
    assert bool((kl_estimate(LOGP, REF, "k1") < 0).any())


def test_k3_keeps_its_digits_where_the_models_agree():
    """d^2/2 for a difference d of 2^-13 in float32; exp(d) - 1 - d without expm1 is noise there."""
    logp, difference = torch.tensor([-1.0]), torch.tensor([2.0**-13])
    assert kl_estimate(logp - difference, logp, "k3").item() == pytest.approx(
        2.0**-27, rel=1e-2, abs=0
    )
    assert (difference.exp() - 1 - difference).item() != pytest.approx(2.0**-27, rel=1e-1, abs=0)


def test_the_gradient_of_each_as_a_loss():
    """In expectation under the policy: k1 nothing, k2 the gradient of KL(policy || ref), k3 that of KL(ref || policy)."""

    def gradient(of) -> torch.Tensor:
        logits = LOGP.clone().requires_grad_(True)
        of(logits.log_softmax(0)).backward()
        return logits.grad

    def loss(estimator):
        return gradient(lambda logp: (P * kl_estimate(logp, REF, estimator)).sum())

    assert loss("k1").abs().max() < 1e-12
    torch.testing.assert_close(loss("k2"), gradient(lambda logp: (logp.exp() * (logp - REF)).sum()))
    torch.testing.assert_close(loss("k3"), gradient(lambda logp: (REF.exp() * (REF - logp)).sum()))


def test_absurd_tokens_stay_finite_and_other_names_are_refused():
    far = kl_estimate(torch.tensor([-500.0, 0.0]), torch.tensor([0.0, -500.0]), "k3")
    assert far.tolist() == [10.0, 10.0]  # held, where e^500 would be infinite
    with pytest.raises(ValueError, match="one of k1, k2, k3, abs, got 'k4'"):
        kl_estimate(LOGP, REF, "k4")
