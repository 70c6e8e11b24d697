"""How much of a step's gradient is signal: the gradients of two random halves of its attempts, held against each other.

    signal = g_a . g_b              estimates |G|^2, the squared length of the gradient that endless attempts would give
    noise  = |g_a - g_b|^2 / 4      estimates the variance of the whole step's gradient around it
    ratio  = signal / noise         below 1 a step moves the weights more by chance than by what was earned

Source: the gradient noise scale of arXiv 1812.06162, there from two sizes of batch; here both halves have the same.
"""
from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import Credit
from workbench.learn.batch import Batch
from workbench.learn.distributed import whole
from workbench.learn.update import GradientPass, Models


def signal_to_noise(models: Models, algorithm: Algorithm, batch: Batch, credit: Credit, halves: Sequence[Tensor],
                    budget: int) -> float | None:
    """Of the policy's gradient, before it is scaled down; `halves`: the tokens of each [T], `budget` as in `GradientPass.run`.
    No weight is moved. It is negative where the halves pull apart; None where they do not differ. Every process calls it."""
    found: list[dict[str, Tensor]] = []
    for used_T in halves:
        GradientPass(models, algorithm, batch, credit, used_T).run(budget)
        found.append({name: whole(gradient).detach().double() for name, gradient in models.policy.gradients().items()})
        models.clear_gradients()
    first, second = found
    signal = sum(float((first[name] * second[name]).sum()) for name in first)
    noise = sum(float((first[name] - second[name]).square().sum()) for name in first) / 4
    return signal / noise if noise > 0 else None
