"""Activation checkpointing (Chen et al. 2016, arXiv 1604.06174): a decoder layer keeps only what it was given, and is computed
once more in the backward pass. The gradient is the same to the last bit.

Transformers has it too, but for models in training mode only; a learner's model is in eval mode, where that switch does
nothing, and says nothing.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from workbench.learn.packing import attending_to, running_pass
from workbench.values.errors import LearnerError


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers that can be computed once more: those that transformers itself marks."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def recompute_layers(model: nn.Module) -> None:
    """Compute every decoder layer once more in the backward pass, from now on. Raises LearnerError where a model marks none."""
    layers = layers_of(model)
    if not layers:
        raise LearnerError(
            f"{type(model).__name__} marks no layer that could be computed once more (transformers' "
            "GradientCheckpointingLayer); set learner.activation_checkpointing = false"
        )
    for layer in layers:
        # An attribute of this instance, before the method of its class.
        layer.forward = partial(_forward, layer)


def _forward(layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return type(layer).forward(layer, *args, **kwargs)
    packed = running_pass()  # the backward pass comes after the block that says what is packed how

    def run(*args: Any, **kwargs: Any) -> Any:
        with attending_to(*packed):
            return type(layer).forward(layer, *args, **kwargs)

    # Nothing is drawn in eval mode.
    return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
