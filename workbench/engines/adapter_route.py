"""Adapters on their way into a vLLM server by its own routes, without the weights below them: what is sent, and the worker's
end. The learner's end is of the extension that has the server (`vllm_server.adapters`).

    worker    held_adapter: digests of what the layers multiply by from now on

A worker puts an adapter into a place that each layer has for it: those of q, k and v side by side, the scale taken into B.
That place is what is looked at, and what it must hold is computed from what was sent. For the routes say "added
successfully" of an adapter of other layers than the model's as well, of which nothing is applied then; and new weights below
drop an adapter that they go on listing. No vllm is imported here; written against 0.32.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workbench.engines.digests import digest

ALLOW = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"  # the routes are there only where this is 1
_PREFIX = "base_model.model."  # of peft's names, before those of the layers
_SUFFIX = ".weight"  # ... and after them


@dataclass(frozen=True, eq=False)
class Adapter:
    """Low-rank adapters as peft writes them: `stated` is adapter_config.json, `tensors` adapter_model.safetensors."""

    stated: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def digests(self, dtype: str) -> dict[str, str]:
        """The digests that `held_adapter` gives in a worker that computes in `dtype`."""
        scale = self.stated["lora_alpha"] / self.stated["r"]
        held = {}
        for name, tensor in self.tensors.items():
            tensor = tensor.detach().cpu().to(getattr(torch, dtype))
            tensor = tensor * scale if ".lora_B" in name else tensor
            held[name.removeprefix(_PREFIX).removesuffix(_SUFFIX)] = digest(tensor)
        return held


# ---------------------------------------------------------------------------------------------- in vLLM's worker


class AdapterCalls:
    """Calls about adapters that vLLM's worker answers."""

    def workbench_adapter_room(self) -> dict[str, Any]:
        """The largest rank that is taken (0: none is), and whether the routes are there."""
        lora = self.vllm_config.lora_config
        routes = os.environ.get(ALLOW, "0").lower() in ("1", "true")
        return {"rank": 0 if lora is None else lora.max_lora_rank, "routes": routes}

    def workbench_adapter(self) -> dict[str, str]:
        """See `held_adapter`."""
        return held_adapter(self.model_runner)


@contextmanager
def plain_head(model: torch.nn.Module) -> Iterator[None]:
    """Within it the output head is the model's own. Where adapters may come, vLLM wraps what multiplies by it, and the
    wrapping counts on as many rows as the last batch had."""
    wrapped = []
    for owner in model.modules():
        for name, part in owner.named_children():
            if name in ("logits_processor", "lm_head") and hasattr(part, "base_layer"):
                wrapped.append((owner, name, part))
    for owner, name, part in wrapped:
        setattr(owner, name, part.base_layer)
    try:
        yield
    finally:
        for owner, name, part in wrapped:
            setattr(owner, name, part)


def held_adapter(model_runner: Any) -> dict[str, str]:
    """By layer, digests of both matrices of the newest adapter, as they lie where the layer multiplies by them; empty where
    no adapter is."""
    manager = model_runner.lora_manager._adapter_manager
    adapters = manager.list_adapters()
    newest = max(adapters, default=None)
    if newest not in manager.lora_index_to_id:
        return {}
    slot = manager.lora_index_to_id.index(newest)
    rank = adapters[newest].rank
    held = {}
    for name, layer in manager.modules.items():
        if not isinstance(layer.lora_a_stacked, tuple):
            continue  # an embedding or output head, which no adapter of ours has
        layers = manager.packed_modules.get(name, [name])
        for part, downs, ups in zip(layers, layer.lora_a_stacked, layer.lora_b_stacked):
            down = downs[slot, 0]
            up = ups[slot, 0]
            if down.any() or up.any():
                held[f"{part}.lora_A"] = digest(_within(down, rank))
                held[f"{part}.lora_B"] = digest(_within(up.T, rank).T)
    return held


def _within(rows: Tensor, rank: int) -> Tensor:
    """The rows of an adapter; all that there are, where those that are for a larger one are not empty."""
    return rows if rows[rank:].any() else rows[:rank]
