"""Adapters on their way into a vLLM server by its own routes, without the weights below them: both ends.

    learner   keep (peft's two files) ─▶ /v1/load_lora_adapter, under a new name each time ─▶ the older name is unloaded
    worker    held_adapter: digests of what the layers multiply by from now on

A worker puts an adapter into a place that each layer has for it: those of q, k and v side by side, the scale taken into B.
That place is what is looked at, and what it must hold is computed from what was sent. For the routes say "added
successfully" of an adapter of other layers than the model's as well, of which nothing is applied then; and new weights below
drop an adapter that they go on listing. No vllm is imported here; written against 0.32.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from workbench.engines.digests import digest
from workbench.engines.layout import ADAPTER_RANKS
from workbench.values.errors import EngineError

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


def adapter_arguments(rank: int) -> dict[str, Any]:
    """Arguments of a server that takes adapters of this rank, one at a time."""
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": rank_of_places(rank)}


def rank_of_places(rank: int) -> int:
    """The rank of the places that vLLM's layers have for an adapter of this rank."""
    return next(places for places in ADAPTER_RANKS if places >= rank)


class AdapterTransfer:
    """The learner's end. Of rank 0 nothing goes this way."""

    def __init__(self, rank: int, dtype: str, folder: str) -> None:
        """`folder` is read by the server too; `dtype` is the server's."""
        self._rank = rank
        self._dtype = dtype
        self._folder = folder
        self.sent: Mapping[str, str] = {}  # digests of the newest
        # The first weights of the server: adapters are beside those.
        self.base: Mapping[str, Tensor] | None = None
        self._numbers = itertools.count()
        self._path: Path | None = None  # of the newest; its name is the adapter's
        # Of the one before, while it is not known whether the newest arrived.
        self._older: Path | None = None
        self._listed = ""  # the name that the server has

    def refuse_without(self, holds: Mapping[str, Any], url: str) -> None:
        """Raise EngineError for a server that cannot take adapters. `holds`: its worker's workbench_adapter_room."""
        if not self._rank or holds["rank"] >= self._rank and holds["routes"]:
            return
        if not holds["rank"]:
            missing = "was started without --enable-lora"
        elif holds["rank"] < self._rank:
            missing = f"holds adapters of rank {holds['rank']} at most"
        else:
            missing = f"was started without {ALLOW}=1"
        options = []
        for name, value in adapter_arguments(self._rank).items():
            option = f"--{name.replace('_', '-')}"
            options.append(option if value is True else f"{option} {value}")
        words = " ".join(options)
        raise EngineError(
            f"{url} {missing}, and layout.adapters = 'routes' sends it adapters of rank {self._rank}: start it "
            f"with {ALLOW}=1 and {words}, or set layout.adapters = 'merged'"
        )

    def keep(self, adapter: Adapter | None, weights: Mapping[str, Tensor], label: str) -> None:
        """Write the adapter down, to be handed over; None: `weights` come, and need none. Raises EngineError where it finds
        no room."""
        path = None if adapter is None else self._written(adapter, label)
        self._forget_older()
        self._older = self._path
        self._path = path
        if adapter is not None:
            self.sent = adapter.digests(self._dtype)
        elif self._rank and self.base is None:
            self.base = weights

    def _written(self, adapter: Adapter, label: str) -> Path:
        path = Path(self._folder, f"{label.replace(':', '-')}-{next(self._numbers)}")
        tensors = {
            name: tensor.detach().contiguous().cpu() for name, tensor in adapter.tensors.items()
        }
        try:
            path.mkdir()
            (path / "adapter_config.json").write_text(json.dumps(dict(adapter.stated)))
            save_file(tensors, path / "adapter_model.safetensors")
        except (OSError, RuntimeError) as error:  # safetensors' own error is a RuntimeError
            shutil.rmtree(path, ignore_errors=True)
            raise EngineError(
                f"the adapter {label} does not fit into {self._folder} ({error}); name a folder with room that "
                "the server reads too: layout.folder"
            ) from error
        return path

    @property
    def name(self) -> str:
        """The newest adapter's name in requests; empty: there is none, and requests are for the weights as they are."""
        return "" if self._path is None else self._path.name

    def hand_over(self, post: Callable[..., Any]) -> None:
        """Under a name that the server has never heard: of one that it knows it may keep what it has."""
        adapter = {"lora_name": self.name, "lora_path": str(self._path)}
        post("/v1/load_lora_adapter", adapter, plain=True)
        self.unload(post)
        self._listed = self.name

    def unload(self, post: Callable[..., Any]) -> None:
        """Take the older one off the server's list, for whoever asks for it by name would have it loaded again."""
        if self._listed:
            post("/v1/unload_lora_adapter", {"lora_name": self._listed}, plain=True)
            self._listed = ""

    def arrived(self) -> None:
        """It did, or weights that need none did: nothing older is needed."""
        self._forget_older()

    def leave(self) -> None:
        """The server is another process now, and knows no name."""
        self._listed = ""

    def _forget_older(self) -> None:
        if self._older is not None:
            shutil.rmtree(self._older, ignore_errors=True)
            self._older = None


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
