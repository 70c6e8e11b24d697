"""Which layers of a policy are held in four bits: every linear one but the output head.

model = four_bit_base(policy.model, "my-policy")      the same model, its linear layers in four bits, nothing of it trainable
"""

from __future__ import annotations

import logging
from importlib.util import find_spec

from torch import nn

from workbench.engines.policy import num_parameters
from workbench.values.errors import PolicyError

LEAST = 0.5  # of the weights that are no table of embeddings
HEARD = "bitsandbytes.backends.cpu.ops"  # says at import which kernels it does without


def four_bit_base(model: nn.Module, name: str) -> nn.Module:
    """Hold the linear layers of `model` in four bits, in place, and freeze all of it. `name`: of the policy. Raises PolicyError
    where bitsandbytes is not installed, and for a model most of whose weights are not in linear layers (experts that lie in one
    tensor, transposed layers of GPT-2): they would stay as large as they are."""
    if find_spec("bitsandbytes") is None:
        raise PolicyError(
            f"{name}: policy.base_bits = 4 needs bitsandbytes, which is not installed; pip install "
            "'agent-rl-workbench[quant]', or leave policy.base_bits at 0"
        )
    layers = _linear_layers(model)
    tables = {
        id(module.weight): module.weight.numel()
        for module in model.modules()
        if isinstance(module, nn.Embedding)
    }
    inside = sum(layer.weight.numel() for _, _, layer in layers)
    share = inside / max(num_parameters(model) - sum(tables.values()), 1)
    if share < LEAST:
        raise PolicyError(
            f"{name}: policy.base_bits = 4 holds linear layers in four bits, and only {share:.0%} of this model's weights "
            "(embeddings aside) are in such layers; experts in one tensor and transposed layers stay as they are. Leave "
            "policy.base_bits at 0; policy.dtype = 'bfloat16' halves the weights below adapters"
        )
    logger = logging.getLogger(HEARD)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        from workbench.extensions.four_bit.linear import FourBitLinear
    finally:
        logger.setLevel(level)
    for owner, own, layer in layers:
        setattr(owner, own, FourBitLinear(layer))
    return model.requires_grad_(False)


def _linear_layers(model: nn.Module) -> list[tuple[nn.Module, str, nn.Linear]]:
    """(module, name in it, layer) of each linear layer but the output head."""
    head = model.get_output_embeddings()
    layers = []
    for owner in model.modules():
        for own, layer in owner.named_children():
            if type(layer) is nn.Linear and layer is not head:
                layers.append((owner, own, layer))
    return layers
