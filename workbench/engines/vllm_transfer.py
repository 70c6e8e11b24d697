"""Our end of a sync inside vLLM: takes new weights, notes what arrived, loads it. Imported by vLLM's workers only.

vLLM calls a *weight transfer engine* in every worker: start, then update with one or more pieces, then finish. This one
takes tensors from a safetensors file or a broadcast (a server), or from the same process. Digests are taken of the tensors
as they come: afterwards vLLM may pack a matrix and give the original away (its CPU build does, for every linear layer), and
its own checksum is then one of nothing.

A worker finds all this by `worker_extension_cls`, so nothing has to be installed as a plugin. Written against 0.32.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.platforms import current_platform

from workbench.engines.adapter_route import AdapterCalls, plain_head
from workbench.engines.broadcast import Line, found, in_pieces, own_address
from workbench.engines.digests import digests
from workbench.engines.vllm_words import BACKEND

# Within this process: what is handed over, under a name.
handed: dict[str, Mapping[str, torch.Tensor]] = {}


@dataclass
class LinePlace(WeightTransferInitInfo):
    """Where whoever broadcasts is met, how many are, and how long is waited. Of the other ways there is nothing to agree on."""

    host: str
    port: int
    world: int
    backend: str
    seconds: float


@dataclass
class WeightPiece(WeightTransferUpdateInfo):
    """Some of the weights: in a file, handed over under a name in this process, or `told`: a broadcast in this order, of
    (name, dtype, shape)."""

    path: str = ""
    handed: str = ""
    told: list[tuple[str, str, list[int]]] = field(default_factory=list)


class WorkerTransfer(WeightTransferEngine[LinePlace, WeightPiece]):
    """Loads what it is given; `arrived` holds the digests of the newest update."""

    init_info_cls = LinePlace
    update_info_cls = WeightPiece
    line: Line | None = None

    def init_transfer_engine(self, init_info: LinePlace) -> None:
        self.shutdown()
        all_here = self.parallel_config
        rank = 1 + all_here.data_parallel_index * all_here.world_size + all_here.rank
        store = found(init_info.host, init_info.port, init_info.seconds)
        self.line = Line(
            store,
            rank,
            init_info.world,
            backend=init_info.backend,
            seconds=init_info.seconds,
            host=own_address(init_info.host, init_info.port),
        )

    def start_weight_update(self) -> None:
        self.arrived: dict[str, str] = {}
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict) -> None:
        # vLLM's own waits for an accelerator afterwards, and raises where there is none.
        self.receive_weights(self.parse_update_info(update_info))
        if not current_platform.is_cpu():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: WeightPiece) -> None:
        for weights in self._pieces(update_info):
            self.arrived |= digests(weights)
            # A list: no tensor is dropped while vLLM still reads it.
            self.model.load_weights(list(weights.items()))

    def _pieces(self, update_info: WeightPiece) -> Iterable[Mapping[str, torch.Tensor]]:
        if update_info.told:
            return in_pieces(self.line, update_info.told)
        if update_info.handed:
            return [handed[update_info.handed]]
        return [load_file(update_info.path)]

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        if current_platform.is_cpu():
            pack_embeddings(self.model)

    def shutdown(self) -> None:
        if self.line is not None:
            self.line.close()
            self.line = None


class WorkerCalls(AdapterCalls):
    """Calls that vLLM's worker answers beside its own methods."""

    def workbench_arrived(self) -> dict[str, str]:
        """Digests by name of what the newest update brought; empty before the first."""
        return dict(getattr(self.weight_transfer_engine, "arrived", {}))

    def workbench_held(self) -> dict[str, str]:
        """Digests of what the model holds, by vLLM's own names: does it wake up as it fell asleep?"""
        return digests(dict(self.model_runner.get_model().named_parameters()))

    def workbench_makes_generators(self) -> bool:
        """Whether a request that has a seed is given a generator of its own."""
        return not getattr(self.vllm_config, "use_v2_model_runner", False)

    def workbench_head_logits(self, hidden_ND: str) -> list[list[float]]:
        """The output head's logits for hidden states (JSON), without the rest of the model."""
        model = self.model_runner.get_model()
        weight = next(parameter for parameter in model.parameters() if parameter.numel())
        with torch.no_grad(), plain_head(model):
            logits_NV = model.compute_logits(torch.tensor(json.loads(hidden_ND)).to(weight))
            return logits_NV.float().tolist()


def pack_embeddings(model: torch.nn.Module) -> None:
    """Prepare the output head again where it is tied to the embedding.

    On the CPU vLLM packs the weights of linear layers. A reload packs them again, but for a head that is no layer of its
    own, and that goes on multiplying by the old one.
    """
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    for module in model.modules():
        weight = getattr(module, "weight", None)
        # Linear layers gave their weight away when they were packed; what still has one is an embedding that is a head.
        if hasattr(module, "cpu_linear") and weight is not None and weight.numel():
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, WorkerTransfer)
