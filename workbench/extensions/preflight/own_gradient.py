"""Is the gradient through a large policy's own weights the slope of its log-probabilities?

    own_gradient(policy.model, config.learner)      ("model.layers.29.self_attn.q_proj.weight", 0.0003); None: nothing to ask

A small stand-in answers for the way from trajectories to the gradient. Kernels that are written by hand, weights that are held
in few bits, and numbers that are large in one place are the policy's own: of those one question is asked, with one short
sequence and one matrix of the last layer (of its adapters, where they are trained). Along its gradient, as backpropagation
has it, the mean log-probability of the tokens has to rise by the gradient's norm; that is measured by two passes a small step
to either side. Three passes over a dozen tokens, and back through one layer: no weight is written to.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from workbench.learn.adapters import adapted
from workbench.learn.config import LearnerConfig

TOKENS = 12
# Nats between the two passes: a thousand times the rounding; smaller where the curve bends so much that the slope over the
# larger change is another one. A gradient that is wrong is wrong over all of them.
CHANGES = (2e-3, 5e-4, 1e-4)
CLOSE = 0.01  # of the gradient's norm: no smaller change is tried
SPREAD = 0.05  # of adapters, which begin with nothing to have a gradient through
LAYER = re.compile(r"^(.*\.\d+\.)")


class GradientGap(NamedTuple):
    """`gap`: how far the measured slope is from the gradient's norm, relative to it."""

    parameter: str
    gap: float


def own_gradient(model: nn.Module, config: LearnerConfig) -> GradientGap | None:
    """None where there is no trained matrix in a layer, or none in float32, or its gradient is zero. `model` is left as it
    is."""
    if config.lora_rank:
        model = adapted(model, config, spread=SPREAD)
    name = _matrix(model)
    weights = {n: p.detach() for n, p in model.named_parameters() if not p.is_meta}
    if name is None or weights[name].dtype is not torch.float32:
        return None
    table = model.get_input_embeddings().weight
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, table.shape[0], (1, TOKENS), generator=generator).to(table.device)

    def score(weight: Tensor) -> Tensor:
        output = functional_call(model, weights | {name: weight}, (ids,), {"use_cache": False})
        logp_TV = output.logits[0, :-1].float().log_softmax(-1)
        return logp_TV.gather(1, ids[0, 1:, None]).mean()

    gap = slope_gap(score, weights[name])
    return None if gap is None else GradientGap(name, gap)


def slope_gap(score: Callable[[Tensor], Tensor], weight: Tensor) -> float | None:
    """How far the slope of `score` along its gradient at `weight` is from the gradient's norm, relative to it; None where that
    is zero."""
    weight = weight.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(score(weight), weight)
    norm = float(gradient.norm())
    if not norm > 0:
        return None
    least = float("inf")
    for change in CHANGES:
        half = change / (2 * norm)
        with torch.no_grad():
            step = gradient * (half / norm)
            slope = float(score(weight + step) - score(weight - step)) / (2 * half)
        least = min(least, abs(slope - norm) / norm)
        if least < CLOSE:
            break
    return least


def _matrix(model: nn.Module) -> str | None:
    """The first trained matrix of the last layer that has one: what lies behind it in that layer is on the way back."""
    names = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.ndim == 2 and LAYER.match(name)
    ]
    if not names:
        return None
    layer = LAYER.match(names[-1])[1]
    return next(name for name in names if name.startswith(layer))
