"""How large a model is, from its config alone: it is made and run on tensors without memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from transformers import AutoModelForCausalLM, PreTrainedConfig

from workbench.learn.adapters import adapted
from workbench.learn.config import LearnerConfig
from workbench.learn.microbatch import output_head
from workbench.learn.recompute import layers_of


@dataclass(frozen=True)
class ModelSize:
    """A model as its config describes it: numbers of `parameters` and, of those that are trained (`trained`), how many stand
    below the output head (`below_the_head`: a critic's trunk); of weights that adapters are merged into (`merged`); of those
    around the decoder layers (`around`) and in the largest of them (`layer`); bytes of `buffers`; bytes that a forward pass of
    one micro-batch keeps (`kept`)."""

    parameters: int
    trained: int
    below_the_head: int
    merged: int
    around: int
    layer: int
    buffers: int
    kept: int
    vocabulary: int
    width: int


def model_size(
    config: PreTrainedConfig, rows: int, tokens: int, learner: LearnerConfig
) -> ModelSize:
    """Measure the model of this config, with the learner's adapters, over `rows` sequences of `tokens` tokens. Raises what
    transformers raises for a config that it cannot build, LearnerError for adapters that it cannot have."""
    kept: dict[
        int, torch.UntypedStorage
    ] = {}  # held, so that none of their addresses is used again

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage
        return tensor

    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        model = adapted(plain, learner) if learner.lora_rank else plain
    trunk = model.base_model
    with FakeTensorMode():  # as on a CPU: autocast knows devices
        held = {
            name: torch.empty(tensor.shape, dtype=tensor.dtype).requires_grad_(tensor.requires_grad)
            for name, tensor in (*trunk.named_parameters(), *trunk.named_buffers())
        }
        with (
            saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=learner.precision == "bf16"),
        ):
            functional_call(
                trunk,
                held,
                kwargs={
                    "input_ids": torch.zeros(rows, tokens, dtype=torch.int64),
                    "use_cache": False,
                },
            )
    layers = layers_of(trunk) if learner.activation_checkpointing else []
    own = {tensor.untyped_storage()._cdata for tensor in held.values()}
    vocabulary, width = output_head(model).weight.shape

    def trained(module: torch.nn.Module) -> int:
        return _count(p for p in module.parameters() if p.requires_grad)

    in_layers = [_count(layer.parameters()) for layer in layers_of(plain)]
    return ModelSize(
        parameters := _count(plain.parameters()),
        trained(model),
        trained(trunk),
        sum(
            layer.base_layer.weight.numel() for layer in model.modules() if hasattr(layer, "lora_A")
        ),
        parameters - sum(in_layers),
        max(in_layers, default=0),
        sum(b.numel() * b.element_size() for b in model.buffers()),
        _kept(
            sum(storage.nbytes() for address, storage in kept.items() if address not in own),
            len(layers),
            rows * tokens * width * (2 if learner.precision == "bf16" else 4),
        ),
        vocabulary,
        width,
    )


def _count(parameters: Iterable[torch.nn.Parameter]) -> int:
    return sum(p.numel() for p in parameters)


def _kept(everything: int, recomputed: int, states: int) -> int:
    """Bytes that are there at once where layers are `recomputed`: what each was given (`states`), and all of one of them."""
    return (
        everything if not recomputed else recomputed * states + math.ceil(everything / recomputed)
    )
