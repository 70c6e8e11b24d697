"""How much memory a step of a recipe's learner takes, measured on tensors without memory: no weights, no GPU.

    python -m experiments.recipe_memory qwen2.5-3b --processes 4 --tokens 5120 --checkpointing --reference --critic
    python -m experiments.recipe_memory qwen3-1.7b --lora 32 --tokens 8192 --checkpointing

The model is made on fake tensors (torch's FakeTensorMode): operations work out shapes and no numbers. The learner's own
functions then take a step: `recompute_layers`, `adapted`, `shard` (over a fake process group), `scores_in_pieces`, AdamW.
Every storage is counted from the operation that makes it until nobody holds it.

Counted: one process's weights, adapters, gradients, moments, a reference, a critic, and what the passes keep. Not counted: the CUDA
context (about half a GB), what the allocator cannot use again, buffers of NCCL, a colocated engine, and weights that are put
together for a sync. One sequence fills a micro-batch; the batch itself lies on the host.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workbench.learn import pieces
from workbench.learn.adapters import adapted
from workbench.learn.config import LearnerConfig
from workbench.learn.distributed import shard
from workbench.learn.microbatch import MicroBatch, output_head
from workbench.learn.optimizer import adamw
from workbench.learn.recompute import recompute_layers

# Shapes as the models' config.json files give them.
SHAPES: dict[str, dict[str, Any]] = {
    "qwen2.5-3b": {
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 11_008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "qwen3-1.7b": {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "qwen3-4b": {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "tiny": {
        "model_type": "qwen2",
        "vocab_size": 4096,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
    },
}
GB = 1e9


class Counted(TorchDispatchMode):
    """Bytes of all storages that operations made and somebody still holds, also where they are made larger or smaller, as
    FSDP2 does with what it puts together."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self.known: dict[int, int] = {}  # address of a storage -> bytes
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> Counted:
        resize = self._resize

        def resized(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            made = resize(storage, size)
            if storage._cdata in self.known:
                self._hold(storage._cdata, size)
            return made

        torch.UntypedStorage.resize_ = resized
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize
        super().__exit__(*raised)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return made

    def add(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage, once, until it is gone."""
        if isinstance(tensor, DTensor):  # whose own storage is as large as all parts together
            tensor = tensor.to_local()
        storage = tensor.untyped_storage()
        if storage._cdata in self.known:
            return
        self._hold(storage._cdata, storage.nbytes())
        weakref.finalize(storage, self._gone, storage._cdata)

    def _hold(self, name: int, size: int) -> None:
        self.now += size - self.known.get(name, 0)
        self.known[name] = size
        self.peak = max(self.peak, self.now)

    def _gone(self, name: int) -> None:
        self.now -= self.known.pop(name)


def step(
    shape: str,
    tokens: int,
    *,
    processes: int = 1,
    lora: int = 0,
    checkpointing: bool = False,
    reference: bool = False,
    critic: bool = False,
) -> dict[str, float]:
    """GB (10^9 bytes) of one process: what lies there before the step, after it (with moments), and at its peak."""
    config = LearnerConfig(lora_rank=lora, precision="bf16")
    dtype = torch.bfloat16 if lora else torch.float32
    counted = Counted()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, counted:
        model = _model(shape, dtype)
        trained = _with_adapters(model, config) if lora else model
        values = [_model(shape, torch.float32, head=False)] if critic else []
        copies = [trained, *values]
        if reference and not lora:
            copies.append(_model(shape, dtype))
        if checkpointing:
            for copy in (trained, *values):
                recompute_layers(copy)
    if processes > 1:  # a mesh of processes is made of real numbers; the weights stay fake ones
        with counted:
            for copy in copies:
                shard(copy, torch.device("cpu"), processes)
    gc.collect()  # the whole weights, of which parts were taken
    with fake, counted:
        learned = [[p for p in copy.parameters() if p.requires_grad] for copy in (trained, *values)]
        optimizers = [adamw(parameters, 1e-6, config) for parameters in learned]
        before = counted.now
        counted.peak = before
        _pass(trained, tokens)
        for copy in values:
            _value_pass(copy, tokens)
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        return {"before": before / GB, "after": counted.now / GB, "peak": counted.peak / GB}


def _model(shape: str, dtype: torch.dtype, head: bool = True) -> torch.nn.Module:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    own = dict(SHAPES[shape])
    config = AutoConfig.for_model(own.pop("model_type"), max_position_embeddings=32_768, **own)
    made = AutoModelForCausalLM if head else AutoModel
    return made.from_config(config, dtype=dtype).eval()


def _with_adapters(model: torch.nn.Module, config: LearnerConfig) -> torch.nn.Module:
    """As the learner adds them. A module changes the type of its parameters in place, which fake ones refuse: meanwhile it
    takes new ones."""

    def renewed(module: torch.nn.Module, convert: Any, recurse: bool = True) -> torch.nn.Module:
        for part in module.modules() if recurse else (module,):
            for name, held in part._parameters.items():
                if held is not None:
                    made = convert(held.detach())
                    part._parameters[name] = torch.nn.Parameter(made, held.requires_grad)
        return module

    apply = torch.nn.Module._apply
    torch.nn.Module._apply = renewed
    try:
        return adapted(model, config)
    finally:
        torch.nn.Module._apply = apply


def _pass(model: torch.nn.Module, tokens: int) -> None:
    """Forward and backward over one sequence, of which every token is trained."""
    pieces._plain.add(
        model
    )  # that its logits are its head's is found by numbers, which there are none of
    ids = torch.zeros(1, tokens, dtype=torch.int64)
    place = torch.arange(tokens)
    micro = MicroBatch(ids, place, place, torch.zeros(tokens, dtype=torch.int64))
    head = output_head(model)
    scores = pieces.scores_in_pieces(model, head, micro, ids[0], "value", bf16=True)
    scores.logp_M.mean().backward()


def _value_pass(trunk: torch.nn.Module, tokens: int) -> None:
    """The same of a critic's own trunk, whose head is a single number."""
    with torch.autocast("cpu", torch.bfloat16):
        states = trunk(input_ids=torch.zeros(1, tokens, dtype=torch.int64), use_cache=False)
    states.last_hidden_state[..., 0].float().mean().backward()


def in_group(processes: int) -> None:
    """A process group of so many of which only this one is there: collectives work out shapes."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if processes > 1:
        dist.init_process_group("fake", rank=0, world_size=processes, store=FakeStore())


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.recipe_memory", description=__doc__.splitlines()[0]
    )
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("--tokens", type=int, required=True, help="of a micro-batch")
    parser.add_argument("--processes", type=int, default=1, help="that share the weights (FSDP2)")
    parser.add_argument("--lora", type=int, default=0, help="rank of adapters; 0: all weights")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--reference", action="store_true", help="a second copy, for a KL term")
    parser.add_argument("--critic", action="store_true", help="with a trunk of its own")
    options = parser.parse_args(arguments)
    in_group(options.processes)
    print(json.dumps(step(**vars(options)), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
