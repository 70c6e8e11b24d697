"""A small stand-in for a policy: the same architecture and settings, few and narrow layers, random weights.

    small_stand_in(policy.model)        0.1 million parameters in place of 135 million, on the CPU; None: none can be made

Whether the learner's gradient is that of the definition (R19) and whether settings act (R13) is decided by masks, shifts,
packing, denominators and the optimizer, which are the learner's and not the weights'. So a policy that is too large to be
tried segment by segment, or that lives on a GPU, is asked by one that has every kind of its layers, once each.

How small is tried in several ways (shrink): narrow ones first; where widths of an architecture depend on each other, all of
them divided by one number; then fewer layers and a smaller vocabulary alone. What cannot be built and run is not used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from workbench.engines.policy import num_parameters
from workbench.extensions.preflight.shrink import small_configs

SEED = 20260801  # of the weights
MOST = 20_000_000  # parameters: more would take as long as the policy itself


def small_stand_in(model: nn.Module) -> nn.Module | None:
    """A small model of the same class on the CPU, float32, the same at every call; None where none can be built and run.
    `model` is read and left alone; parameters that it does not train are not trained here."""
    if not hasattr(model, "config"):
        return None
    for config in small_configs(model.config):
        for attention in (None, "eager"):
            try:
                if attention is not None:
                    config._attn_implementation = attention
                return _built(model, config)
            # Whatever a published architecture says of widths that it does not bear.
            except Exception:
                continue
    return None


def _built(model: nn.Module, config: Any) -> nn.Module:
    """The model of a configuration, once it has answered. Raises whatever the architecture raises."""
    with torch.device("meta"):
        size = num_parameters(type(model)(config))
    if size > MOST:
        raise ValueError(f"{size} parameters")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        small = type(model)(config).float().eval()
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    for name, parameter in small.named_parameters():
        parameter.requires_grad_(name not in frozen)
    with torch.no_grad():
        logits = small(input_ids=torch.arange(8)[None], use_cache=False).logits
    if not bool(logits.isfinite().all()):
        raise ValueError("logits that are not finite")
    return small
