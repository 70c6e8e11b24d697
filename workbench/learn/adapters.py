"""Low-rank adapters (LoRA; Hu et al. 2021, arXiv 2106.09685), by `peft`: a model's weights stay as they are, and beside its
linear layers W two small matrices are trained, W + alpha / rank * B A.

    bare = adapted(model, LearnerConfig(lora_rank=16))      a copy that shares the weights of `model` and has adapters
    merged(bare, bare.state_dict())                         the weights of a model without adapters that says the same

The weights are shared, not copied: `model` itself is the policy with its adapters off, which is the usual reference.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from workbench.engines.adapter_route import Adapter
from workbench.learn.config import LearnerConfig
from workbench.learn.distributed import whole
from workbench.learn.microbatch import output_head
from workbench.values.errors import LearnerError

NAME = "default"  # what peft calls an adapter that nobody named
_BASE = "base_layer."


def adapted(model: nn.Module, config: LearnerConfig, *, spread: float = 0.0) -> nn.Module:
    """A copy of `model` in eval mode whose adapters, float32, are all that is trained. It starts with the same answers (B is
    zero, or drawn with this `spread`, to see all of the gradient); A is drawn from `config.seed` on the CPU, so that it is
    the same on every device and in every process. Raises LearnerError where there is no such layer, and for the output head: it may be tied to the embedding."""
    from peft import inject_adapter_in_model

    adapted_model = _sharing_copy(model)
    try:
        # Peft draws as well, from the process's own generator.
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # It finds out by itself, and says so.
            warnings.filterwarnings("ignore", "fan_in_fan_out is set to False")
            inject_adapter_in_model(_peft_config(config), adapted_model)
    except ValueError as error:
        raise LearnerError(
            f"learner.lora_targets = {list(config.lora_targets)}: {error}. Name linear layers of the policy by "
            "the end of their names, such as 'q_proj', or none, for all but its output head"
        ) from error
    if hasattr(output_head(adapted_model), "lora_A"):
        raise LearnerError(
            "learner.lora_targets names the output head, which may be tied to the embedding; leave it out"
        )
    generator = torch.Generator().manual_seed(config.seed % 2**63)
    for layer in (module for module in adapted_model.modules() if hasattr(module, "lora_A")):
        _draw(layer, generator, spread)
    return adapted_model


def _sharing_copy(model: nn.Module) -> nn.Module:
    """A copy of the model that shares its weights, frozen, and its buffers."""
    shared: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for parameter in model.parameters():
        shared[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    return copy.deepcopy(model, shared).eval()


def _draw(layer: nn.Module, generator: torch.Generator, spread: float) -> None:
    """Give the adapter of a layer its first weights."""
    down = layer.lora_A[NAME].float().weight
    up = layer.lora_B[NAME].float().weight
    bound = down.shape[1] ** -0.5  # as torch.nn.Linear starts
    with torch.no_grad():
        down.copy_((torch.rand(down.shape, generator=generator) * 2 - 1) * bound)
        if spread:
            up.copy_(torch.randn(up.shape, generator=generator) * spread)
        else:
            up.zero_()


def merged(module: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of an adapted module, by its state-dict names, as those of the module without adapters: a layer's adapter is
    added to it, in float32, for the grid of half precision swallows small changes."""
    plain: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        layer, is_base, own = name.rpartition(_BASE)
        if is_base and own == "weight":
            at = module.get_submodule(layer.removesuffix("."))
            up = weights[f"{layer}lora_B.{NAME}.weight"]
            down = weights[f"{layer}lora_A.{NAME}.weight"]
            if hasattr(at.base_layer, "merged"):  # held in fewer bits
                plain[layer + own] = at.base_layer.merged(up, down, at.scaling[NAME])
                continue
            change = at.scaling[NAME] * (
                weights[f"{layer}lora_B.{NAME}.weight"] @ weights[f"{layer}lora_A.{NAME}.weight"]
            )
            tensor = tensor.float() + (change.T if at.fan_in_fan_out else change).to(tensor.device)
        if ".lora_" not in name:
            plain[layer + own] = tensor
    return plain


def alone(module: nn.Module, config: LearnerConfig) -> Adapter:
    """The adapters of an adapted module without the weights below. Every process that holds a part of them calls it."""
    tensors = {name: whole(held) for name, held in module.state_dict().items() if ".lora_" in name}
    return Adapter(*peft_files(config, tensors, ""))


def peft_files(
    config: LearnerConfig, tensors: Mapping[str, Tensor], base: str
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(adapter_config.json, tensors of adapter_model.safetensors) as `peft.PeftModel.from_pretrained` reads them, of adapters
    by the learner's names."""
    stated = _peft_config(config).to_dict()
    stated["base_model_name_or_path"] = base
    stated["inference_mode"] = True
    layers = {name.rpartition(".lora_")[0] for name in tensors}
    stated["target_modules"] = sorted({layer.rpartition(".")[2] for layer in layers})
    json_types = (str, int, float, list, bool, type(None))
    settings = {key: value for key, value in stated.items() if isinstance(value, json_types)}
    named = {}
    for name, tensor in tensors.items():
        own = name.replace(f".{NAME}.", ".")
        named[f"base_model.model.{own}"] = tensor
    return settings, named


def _peft_config(config: LearnerConfig) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules=list(config.lora_targets) or "all-linear",
        task_type="CAUSAL_LM",
    )
