"""How much of a step's gradient is signal: the gradients of two random halves of its trajectories, compared with each other.

    signal = g_a . g_b              estimates |G|^2, the squared length of the gradient that endless trajectories would give
    noise  = |g_a - g_b|^2 / 4      estimates the variance of the whole step's gradient around it
    ratio  = signal / noise         below 1 a step moves the weights more by chance than by what was earned

Source: the gradient noise scale of arXiv 1812.06162, there from two sizes of batch; here both halves have the same.
"""

from __future__ import annotations

from workbench.learn.algorithms.base import Credit
from workbench.learn.batch import Batch
from workbench.learn.distributed import whole
from workbench.learn.learner import Learner, dealt
from workbench.learn.update import GradientPass


def signal_to_noise(
    learner: Learner, batch: Batch, credit: Credit, *, step: int
) -> dict[str, float]:
    """`gradient_snr` of the policy's gradient as it is before the updates of a step, not scaled down; negative where the
    halves pull apart. Nothing where there are no two trajectories to compare, or the halves do not differ. Costs a pass over the
    step, and moves nothing. Every process calls it with the same whole batch."""
    models = learner.models
    gradients = []
    halves = dealt(batch, credit.trained_T, 2, (learner.config.seed, "halves", step))
    if len(halves) < 2:
        return {}
    for used_T in halves:
        half = GradientPass(models, learner.algorithm, batch, credit, used_T)
        half.run(learner.config.micro_batch_tokens)
        by_name = models.policy.gradients().items()
        gradients.append({name: whole(g).detach().double() for name, g in by_name})
        models.clear_gradients()
    first, second = gradients
    signal = sum(float((first[name] * second[name]).sum()) for name in first)
    noise = sum(float((first[name] - second[name]).square().sum()) for name in first) / 4
    return {"gradient_snr": signal / noise} if noise > 0 else {}
