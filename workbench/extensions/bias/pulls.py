"""What holds of any objective, whoever wrote it and whether or not it brings a reference implementation (R48).

    held      a clip that holds tokens does not hold those that moved against their advantage and let the others go
    leash     what is lost without an advantage pulls back to the policy that sampled, in expectation
    cut       the loss of a token does not depend on which other segments are in its micro-batch

Asked of made-up tokens, of 0.4 milliseconds; the gradient is autograd's.

Axis letters: M tokens · V outcomes.
"""

from __future__ import annotations

from collections.abc import Iterator

from workbench.basics.findings import Checked, Finding, RuleResult
from workbench.basics.tensors import Tensor, torch
from workbench.extensions.bias.further import further_objective, gradient_on_policy
from workbench.extensions.bias.scales import single_tokens
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import LossInputs

MOVES = (0.1, 0.3, 0.7, 1.5)  # log ratios to either side
NOTHING = 1e-7
# Tokens of segments; the first half of them are shorter than the others.
LENGTHS = (1, 2, 3, 6, 9, 15)
DRAWS = 4
OUTCOMES = 6
SPREAD = 0.5  # of the logits by which the two policies differ


def objective_properties(algorithm: Algorithm) -> Iterator[RuleResult]:
    """Ask the objective of an algorithm, as it is set. Raises whatever its loss raises."""
    on_policy = list(gradient_on_policy(algorithm))
    yield from on_policy
    if any(isinstance(result, Finding) for result in on_policy):
        return  # whatever is asked further is asked of a gradient
    yield from _held(algorithm)
    yield from _leash(algorithm)
    yield from _cut(algorithm)
    yield from further_objective(algorithm)
    yield from single_tokens(algorithm)


def _loss(
    algorithm: Algorithm, logp_M: Tensor, old_M: Tensor, advantage_M: Tensor, segment_M: Tensor
) -> Tensor:
    inputs = LossInputs(
        logp_M,
        torch.ones_like(logp_M),
        old_M,
        advantage_M,
        old_M,
        segment_M,
        old_M,
        torch.ones(len(logp_M), dtype=torch.bool),
    )
    return algorithm.loss(inputs).loss_M


# ------------------------------------------------------------------------------------------------ the side that is held


def _pushes(algorithm: Algorithm, moved_M: Tensor, advantage: float) -> Tensor:
    """bool [M]: the advantage has a gradient there, beside what is lost without one, by tokens whose log ratio is `moved_M`,
    each a segment."""
    old_M = torch.full_like(moved_M, -2.0)
    logp_M = (old_M + moved_M).requires_grad_()
    numbers = torch.arange(len(moved_M))
    losses = [
        _loss(algorithm, logp_M, old_M, torch.full_like(moved_M, value), numbers)
        for value in (advantage, 0.0)
    ]
    return torch.autograd.grad((losses[0] - losses[1]).sum(), logp_M)[0].abs() > NOTHING


def _held(algorithm: Algorithm) -> Iterator[RuleResult]:
    up_M = torch.tensor(MOVES, dtype=torch.float64)
    wrong = torch.ones(len(MOVES), dtype=torch.bool)
    for advantage in (1.0, -1.0):
        too_far = _pushes(algorithm, advantage * up_M, advantage)
        against = _pushes(algorithm, -advantage * up_M, advantage)
        wrong = wrong & too_far & ~against
    yield Checked(4 * len(MOVES), "the side that is held")
    if bool(wrong.any()):
        ratio = float(up_M[wrong][0].exp())
        yield Finding(
            f"a token with a positive advantage whose ratio is {ratio:.3g} is pushed further, and one whose ratio is "
            f"{1 / ratio:.3g} is held; with a negative advantage it is the other way round. Expected that the clip holds a step "
            f"that goes too far, and never one that went against its advantage: {algorithm.name} takes the larger of the two "
            "gains (torch.maximum) where PPO takes the smaller one, the pessimistic bound (torch.minimum)"
        )


# ------------------------------------------------------------------------------------------------ a penalty that pulls


def _leash(algorithm: Algorithm) -> Iterator[RuleResult]:
    """Without any advantage, the mean loss over what the old policy samples: going down its gradient must bring the new
    policy nearer to the old one."""
    generator = torch.Generator().manual_seed(0)
    away = 0
    steps = []
    for _ in range(DRAWS):
        old_V, moved_V = torch.randn(2, OUTCOMES, dtype=torch.float64, generator=generator)
        old_V = old_V.log_softmax(0)
        logits_V = (old_V + SPREAD * moved_V).requires_grad_()
        logp_V = logits_V.log_softmax(0)
        loss_V = _loss(algorithm, logp_V, old_V, torch.zeros_like(old_V), torch.arange(OUTCOMES))
        if not loss_V.requires_grad:
            return
        of_loss = torch.autograd.grad((old_V.exp() * loss_V).sum(), logits_V, retain_graph=True)[0]
        of_distance = torch.autograd.grad(-(old_V.exp() * logp_V).sum(), logits_V)[0]
        if float(of_loss.norm()) <= NOTHING:
            break
        cosine = float(of_loss @ of_distance / (of_loss.norm() * of_distance.norm()))
        steps.append(cosine)
        away += cosine < -0.1
    yield Checked(max(len(steps), 1), "a penalty")
    if steps and away == len(steps):
        yield Finding(
            f"where no advantage says anything, the loss of {algorithm.name} pushes the policy away from the one that sampled (its "
            f"gradient, over {len(steps)} pairs of policies, points {min(steps):+.2f} to {max(steps):+.2f} of the distance's own): a "
            "penalty without a pull. The plain difference of logprobs (k1) has a gradient that is zero on average where both are "
            "the same, and pushes away elsewhere; take k2, (logp - old)^2 / 2, or k3, exp(old - logp) - 1 - (old - logp)"
        )


# ------------------------------------------------------------------------------------------------ how the batch is cut


def _cut(algorithm: Algorithm) -> Iterator[RuleResult]:
    generator = torch.Generator().manual_seed(1)
    count = sum(LENGTHS)
    old_M, moved_M, advantage_M = torch.randn(3, count, dtype=torch.float64, generator=generator)
    segment_M = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))
    logp_M = old_M - 3.0 + 0.05 * moved_M
    old_M = old_M - 3.0
    whole_M = _loss(algorithm, logp_M, old_M, advantage_M, segment_M)
    half = sum(LENGTHS[: len(LENGTHS) // 2])
    part_M = _loss(algorithm, logp_M[:half], old_M[:half], advantage_M[:half], segment_M[:half])
    gap = float((whole_M[:half] - part_M).abs().max())
    yield Checked(count, "how the batch is cut")
    if gap > 1e-6 * max(float(whole_M.abs().max()), 1.0):
        yield Finding(
            f"the loss of a token changes by up to {gap:.4g} with the other segments that share "
            f"its micro-batch ({count} tokens, or the first {half} of them): what a trajectory "
            "weighs depends on how the batch is cut, on memory settings. An objective divides by "
            "nothing that is counted over its micro-batch: leave that to algorithm.reduction, or "
            "divide by a constant"
        )
