"""What holds of any objective, whoever wrote it and whether or not it brings a reference implementation (part of R19).

    direction      at the first update of a step, where policy and old policy agree, a token with positive advantage gets
                   likelier, and one with negative advantage does not
    derivative     the gradient of the loss is that of its value: a finite difference finds the same

The second is not asked of objectives that keep a part of themselves constant on purpose, as CISPO does with its bounded
ratio: those bring a reference implementation, which says which part, or `stops_gradient = True`.

Tokens are made up, numbers of the models drawn. Axis letter: M tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked
from workbench.basics.tensors import Tensor, torch
from workbench.learn.algorithms.base import LossInputs
from workbench.linting.expected import declares
from workbench.linting.rule import RuleResult
from workbench.values.seeds import rng_at

TOKENS = 48
SEGMENT = 6
DIRECTION = "which way the objective pushes"
STEPS = (1e-4, 2e-5)  # nats by which logprobs are moved: two, so that a bound in between is noticed
NEAR = 1e-3  # relative; float64 leaves 1e-8
Loss = Callable[[Tensor], Tensor]  # logprobs [M] to the loss of each token [M]


def holds_of_any(algorithm: Any, has_plain_form: bool) -> Iterator[RuleResult]:
    """The direction of every algorithm's loss; its derivative where no reference implementation says what it is."""
    advantage_M = _drawn("advantage", -1.4, -0.6, 0.5, 1.2)
    yield from _direction(algorithm, advantage_M)
    if has_plain_form or declares(algorithm, "stops_gradient"):
        return
    for moved in (0.0, 0.1):
        yield from _derivative(algorithm, advantage_M, moved)


def policy_loss(algorithm: Any, advantage_M: Tensor, old_M: Tensor) -> Loss:
    """The policy's term of the loss, as a function of what the policy says of the tokens it once said `old_M` of."""
    segment_M = torch.arange(TOKENS) // SEGMENT
    entropy_M = torch.ones(TOKENS, dtype=torch.float64)
    everywhere_M = torch.ones(TOKENS, dtype=torch.bool)

    def loss(logp_M: Tensor) -> Tensor:
        return algorithm.loss(
            LossInputs(logp_M, entropy_M, old_M, advantage_M, old_M, segment_M, old_M, everywhere_M)
        ).loss_M

    return loss


def _direction(algorithm: Any, advantage_M: Tensor) -> Iterator[RuleResult]:
    logp_M = _drawn("logp", -0.3, -0.9, -1.7, -2.5).requires_grad_()
    (slope_M,) = torch.autograd.grad(
        policy_loss(algorithm, advantage_M, logp_M.detach())(logp_M).sum(), logp_M
    )
    if not bool(slope_M.isfinite().all()):
        yield NotChecked("a finite loss at ordinary advantages", DIRECTION)
        return
    yield Checked(TOKENS, DIRECTION)
    good_M = advantage_M > 0
    wrong_M = good_M & (slope_M >= 0)
    if bool(wrong_M.any()):
        first = int(wrong_M.nonzero()[0])
        goes = "stays as likely as it is" if float(slope_M[first]) == 0 else "gets less likely"
        yield Finding(
            f"a token with the advantage {float(advantage_M[first]):+.2g} {goes} by this loss "
            f"(d loss / d logprob is {float(slope_M[first]):+.3g} at a ratio of 1), and so do "
            f"{int(wrong_M.sum())} of {int(good_M.sum())}: it pushes against the credit",
            count=int(wrong_M.sum()),
        )
        return
    raised_M = ~good_M & (slope_M < 0)
    if bool(raised_M.any()):
        first = int(raised_M.nonzero()[0])
        as_much = float(slope_M[raised_M].mean()) <= float(slope_M[good_M].mean())
        yield Finding(
            f"a token with the advantage {float(advantage_M[first]):+.2g} gets likelier by this loss (d loss / "
            f"d logprob is {float(slope_M[first]):+.3g} at a ratio of 1), and so do {int(raised_M.sum())} of "
            f"{int((~good_M).sum())}: bad actions are learned as well",
            severity=ERROR if as_much else NOTE,
            count=int(raised_M.sum()),
        )


def _derivative(algorithm: Any, advantage_M: Tensor, moved: float) -> Iterator[RuleResult]:
    """`moved`: how far policy and old policy are apart, in nats."""
    old_M = _drawn("logp", -0.3, -0.9, -1.7, -2.5)
    loss = policy_loss(algorithm, advantage_M, old_M)
    logp_M = (old_M + moved * _drawn("moved", -1.0, -0.5, 0.5, 1.0)).requires_grad_()
    (slope_M,) = torch.autograd.grad(loss(logp_M).sum(), logp_M)
    direction_M = _drawn("direction", -1.0, -0.4, 0.7, 1.0)
    with torch.no_grad():
        measured = [
            float(
                (loss(logp_M + step * direction_M) - loss(logp_M - step * direction_M))
                .double()
                .sum()
            )
            / (2 * step)
            for step in STEPS
        ]
    size = float((slope_M * direction_M).abs().sum()) + abs(measured[1])
    if not size < float("inf") or abs(measured[0] - measured[1]) > NEAR * size:
        return  # not finite, or a bound in between
    yield Checked(TOKENS, "its derivative")
    analytic = float((slope_M * direction_M).sum())
    if abs(analytic - measured[1]) > NEAR * size:
        yield Finding(
            f"moving the logprobs of some tokens changes this loss by {measured[1]:+.4g} a nat, and its "
            f"gradient says {analytic:+.4g}: a part of it has no gradient. If that is meant, as with a weight that "
            "is held constant, say stops_gradient = True, or bring a reference implementation"
        )


def _drawn(purpose: str, *choices: float) -> Tensor:
    return torch.from_numpy(rng_at("lint.objective", purpose).choice(choices, TOKENS))
