"""The processes that train together: who they are, which rows each takes, and how they put their numbers together.

Every process is handed the *whole* batch and works out the same deal of rows without talking. One process is a world of
one: nothing is sent, and nothing here changes a number.

Axis letters: T tokens of the whole batch (flat) · M trained tokens of a micro-batch.
"""
from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import Tensor

from workbench.learn.batch import Batch, deal
from workbench.learn.microbatch import MicroBatch, Rows
from workbench.types.errors import LearnerError

SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "TP")
# What `accelerate launch` puts into the environment for a config file that shards. On a CPU accelerate leaves it at that
# and trains whole weights, so its own answer, `distributed_type`, is not enough.
ASKED_TO_SHARD = {"ACCELERATE_USE_FSDP": "FSDP", "ACCELERATE_USE_DEEPSPEED": "DEEPSPEED",
                  "ACCELERATE_USE_MEGATRON_LM": "MEGATRON_LM", "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism_config"}


class Ranks:
    """This process among `count`; `count` is asserted, because several ways of starting many quietly give one.

    Raises LearnerError for another number and for an accelerate setting that would shard the weights.
    """

    def __init__(self, device: torch.device, count: int, *, packed: bool = False) -> None:
        """`packed`: micro-batches are cut for a model that takes its segments packed, not padded."""
        self.packed = packed
        for name, kind in ASKED_TO_SHARD.items():
            if os.environ.get(name, "false").lower() in ("true", "1"):
                raise _sharded(kind)
        # Precision is ours (autocast): accelerate's is one setting for the whole Python process.
        self.accelerator = Accelerator(
            cpu=device.type == "cpu", mixed_precision="no", gradient_accumulation_steps=1,
            kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False)],
        )
        self.count, self.device = self.accelerator.num_processes, self.accelerator.device
        if self.count != count:
            raise LearnerError(
                f"asked for {count} processes, but this is a world of {self.count}. Start it with `torchrun "
                f"--nproc_per_node {count} ...` (`accelerate launch --cpu` quietly starts one only), or set "
                "learner.num_processes to what you start"
            )
        if (kind := self.accelerator.distributed_type.value) in SHARDED:
            raise _sharded(kind)

    def prepare(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        """The model with its gradients exchanged between processes (in eval mode, as it was), and its optimizer."""
        with warnings.catch_warnings():  # what torch offers instead would exchange the buffers once more
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            model, optimizer = self.accelerator.prepare(model, optimizer)
        return model.eval(), optimizer

    def micro_batches(self, rows: Rows, budget: int) -> list[MicroBatch]:
        """This process's micro-batches. Processes with fewer than others get empty ones: all must take part alike."""
        trained = rows.trained_segments
        hands = deal([int(rows.length_S[s]) for s in trained], self.count)
        pieces = [rows.cut([trained[i] for i in hand], budget, packed=self.packed) for hand in hands]
        mine = pieces[self.accelerator.process_index]
        mine = mine + [[]] * (max(len(piece) for piece in pieces) - len(mine))
        return [rows.build(segments, self.device) for segments in mine]

    def gathered(self, batch: Batch, tokens_T: Tensor, budget: int, of_micro: Callable[[MicroBatch], Tensor]) -> Tensor:
        """A number for each of the chosen tokens [T], float32, NaN elsewhere, without gradient. `of_micro` gives those
        of one micro-batch [M]; each process works out its own rows and gets everybody's."""
        values_T = torch.zeros(batch.num_tokens)
        with torch.no_grad():
            for micro in self.micro_batches(Rows.of(batch, tokens_T), budget):
                values_T[micro.token_M] = of_micro(micro).float().cpu()
        return torch.where(tokens_T, self.summed(values_T), torch.nan)

    def summed(self, values: Tensor) -> Tensor:
        """Put together what each process worked out for its own rows (zero elsewhere)."""
        if self.count == 1:
            return values
        return self.accelerator.reduce(values.to(self.device), "sum").cpu()

    def everywhere(self, fine: bool) -> bool:
        if self.count == 1:
            return fine
        bad = torch.tensor([0 if fine else 1], device=self.device)
        return int(self.accelerator.reduce(bad, "sum")) == 0

    def agree_on(self, tensors: Iterable[Tensor]) -> bool:
        """True where all processes hold the same bits in these tensors."""
        if self.count == 1:
            return True
        digest = blake2b(digest_size=7)
        for tensor in tensors:
            digest.update(tensor.contiguous().numpy().tobytes())
        mine = torch.tensor([int.from_bytes(digest.digest(), "big")], device=self.device)
        return len(self.accelerator.gather(mine).unique()) == 1


def _sharded(kind: str) -> LearnerError:
    return LearnerError(f"accelerate is set to {kind}, but weights are trained whole on every process here (DDP); take that "
                        "setting out of the accelerate config or the environment. Adapters (learner.lora_rank) train with a "
                        "fraction of the memory")
