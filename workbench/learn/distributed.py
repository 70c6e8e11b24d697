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
from accelerate import Accelerator, DistributedDataParallelKwargs, InitProcessGroupKwargs
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from workbench.learn.batch import Batch, deal
from workbench.learn.microbatch import MicroBatch, Rows
from workbench.learn.recompute import layers_of
from workbench.values.errors import LearnerError

SHARDED = ("FSDP", "DEEPSPEED", "MEGATRON_LM", "TP")
# What `accelerate launch` puts into the environment for a config file that shards. On a CPU accelerate leaves it at that
# and trains whole weights, so its own answer, `distributed_type`, is not enough.
ASKED_TO_SHARD = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DEEPSPEED",
    "ACCELERATE_USE_MEGATRON_LM": "MEGATRON_LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism_config",
}
# Settings of such a file that are the learner's here, under other names.
OURS = {
    "FSDP_OFFLOAD_PARAMS": "offload",
    "FSDP_ACTIVATION_CHECKPOINTING": "activation_checkpointing",
}


class Ranks:
    """This process among `count`; `count` is asserted, because several ways of starting many quietly give one.

    Raises LearnerError for another number and for an accelerate setting that would shard the weights.
    """

    def __init__(
        self,
        device: torch.device,
        count: int,
        *,
        packed: bool = False,
        sharded: bool = False,
        offload: bool = False,
    ) -> None:
        """`packed`: micro-batches are cut for a model that takes its segments packed, not padded. `sharded`: weights are
        dealt out over the processes; `offload`: and lie in the host's memory."""
        self.packed = packed
        self.sharded = sharded and count > 1
        self.offload = offload
        _refuse_other_sharding(sharded)
        # Precision is ours (autocast): accelerate's is one setting for the whole Python process.
        # Sharding is done here, not there.
        held = {name: os.environ.pop(name) for name in ASKED_TO_SHARD if name in os.environ}
        handlers: list[Any] = [DistributedDataParallelKwargs(broadcast_buffers=False)]
        if offload and device.type == "cuda":  # norms are of tensors in the host's memory then
            handlers.append(InitProcessGroupKwargs(backend="cuda:nccl,cpu:gloo"))
        try:
            self.accelerator = Accelerator(
                cpu=device.type == "cpu",
                mixed_precision="no",
                gradient_accumulation_steps=1,
                kwargs_handlers=handlers,
            )
        except ValueError as error:
            raise LearnerError(
                "another trainer of this Python process has set accelerate's precision or device, which are one for the "
                "whole process: restart the kernel, or train in a process of its own (wb.train, workbench train)"
            ) from error
        os.environ.update(held)
        self.count = self.accelerator.num_processes
        self.device = self.accelerator.device
        if self.count != count:
            raise LearnerError(
                f"asked for {count} processes, but this is a world of {self.count}. Start it with `torchrun "
                f"--nproc_per_node {count} ...` (`accelerate launch --cpu` quietly starts one only), or set "
                "learner.num_processes to what you start"
            )
        if (kind := self.accelerator.distributed_type.value) in SHARDED:
            raise _sharded(kind)

    def deal_out(self, model: torch.nn.Module) -> None:
        """Leave this process its part of the weights, in place, where they are sharded: before anything refers to them."""
        if self.sharded:
            shard(model, self.device, self.count, offload=self.offload)

    def prepare(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        """The model with its gradients exchanged between processes (in eval mode, as it was), and its optimizer."""
        if self.sharded:  # a model that was dealt out does it by itself
            return model, optimizer
        with warnings.catch_warnings():
            # What torch offers instead would exchange the buffers once more.
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            model, optimizer = self.accelerator.prepare(model, optimizer)
        return model.eval(), optimizer

    def micro_batches(self, rows: Rows, budget: int) -> list[MicroBatch]:
        """This process's micro-batches. Processes with fewer than others get empty ones: all must take part alike."""
        trained = rows.trained_segments
        hands = deal([int(rows.length_S[s]) for s in trained], self.count)
        dealt = []
        for hand in hands:
            segments = [trained[i] for i in hand]
            dealt.append(rows.cut(segments, budget, packed=self.packed))
        mine = dealt[self.accelerator.process_index]
        mine = mine + [[]] * (max(map(len, dealt)) - len(mine))
        return [rows.build(segments, self.device, packed=self.packed) for segments in mine]

    def gathered(
        self,
        batch: Batch,
        tokens_T: Tensor,
        budget: int,
        of_micro: Callable[[MicroBatch], Tensor],
        model: torch.nn.Module,
    ) -> Tensor:
        """A number for each of the chosen tokens [T], float32, NaN elsewhere, without gradient. `of_micro` gives those
        of one micro-batch [M], from `model`; each process works out its own rows and gets everybody's."""
        values_T = torch.zeros(batch.num_tokens)
        with torch.no_grad():
            micros = self.micro_batches(Rows.of(batch, tokens_T), budget)
            if micros:  # one copy from the device, not one each
                values_M = torch.cat([of_micro(micro).float() for micro in micros])
                values_T[torch.cat([micro.token_M for micro in micros])] = values_M.cpu()
        if self.sharded:  # take apart again what a pass without gradients left whole
            model.reshard()
        return torch.where(tokens_T, self.summed(values_T), torch.nan)

    def summed(self, values: Tensor) -> Tensor:
        """Put together what each process worked out for its own rows (zero elsewhere)."""
        if self.count == 1:
            return values
        return self.accelerator.reduce(values.to(self.device), "sum").cpu()

    def everywhere(self, fine: bool) -> bool:
        """Whether it is true in all processes."""
        if self.count == 1:
            return fine
        return int(self.summed(torch.tensor([not fine], dtype=torch.int64))) == 0

    def agree_on(self, tensors: Iterable[Tensor]) -> bool:
        """True where all processes hold the same bits in these tensors."""
        digest = blake2b(digest_size=7)
        for tensor in tensors:
            digest.update(tensor.contiguous().numpy().tobytes())
        mine = torch.tensor([int.from_bytes(digest.digest(), "big")], device=self.device)
        return len(self.accelerator.gather(mine).unique()) == 1


def _refuse_other_sharding(sharded: bool) -> None:
    """What `accelerate launch` was asked for must be what is done: FSDP2 where weights are sharded, else nothing."""
    asked = [
        kind
        for name, kind in ASKED_TO_SHARD.items()
        if os.environ.get(name, "false").lower() in ("true", "1")
    ]
    version = os.environ.get("FSDP_VERSION", "1")
    if sharded and asked == ["FSDP"]:
        if version != "2":
            raise LearnerError(
                f"accelerate is set to FSDP {version}; learner.sharding = 'full' is FSDP2: set fsdp_version: 2 "
                "in the accelerate config"
            )
        if named := [name for name in OURS if os.environ.get(name, "false").lower() == "true"]:
            raise LearnerError(
                f"the accelerate config sets {named[0].lower()}, which is the learner's here: set it to false "
                f"there, and learner.{OURS[named[0]]} = true"
            )
    elif asked:
        raise _sharded(asked[0])


def _sharded(kind: str) -> LearnerError:
    return LearnerError(
        f"accelerate is set to {kind}, but weights are trained whole on every process here (DDP). To shard them, "
        "set learner.sharding = 'full' (FSDP2), which takes an accelerate config of FSDP2 or none; else take that "
        "setting out. Adapters (learner.lora_rank) train with a fraction of the memory"
    )


# ------------------------------------------------------------------------------------------------ dealt out

# FSDP2 (torch's `fully_shard`; Zhao et al. 2023, arXiv 2304.11277): each process holds a part of every tensor, and puts a
# layer together while it computes it. Torch's own is used and not accelerate's, which leaves the weights whole on a CPU
# without a word. What is whole elsewhere is put together with `whole`: every process must ask for the same tensors in the
# same order, or all of them wait forever.


def shard(
    module: nn.Module, device: torch.device, processes: int, *, offload: bool = False
) -> nn.Module:
    """Deal out the weights of `module`, in place. Decoder layers are put together one at a time; what stands around them
    (embedding, output head) once a pass, and stays until its gradient is there. `offload`: parts, gradients and moments lie
    in the host's memory, where the optimizer moves them. Raises LearnerError where a process would be left with more than
    its part: of weights that nothing marks as layers, all would be there at once."""
    layers = layers_of(module)
    if not layers:
        raise LearnerError(
            f"{type(module).__name__} marks no layers (transformers' GradientCheckpointingLayer), so all of it "
            "would be put together at once; set learner.sharding = 'none'"
        )
    mesh = init_device_mesh(device.type, (processes,))
    policy = CPUOffloadPolicy(pin_memory=device.type != "cpu") if offload else OffloadPolicy()
    for part in (*layers, module):
        fully_shard(part, mesh=mesh, offload_policy=policy)
    if undealt := [name for name, p in module.named_parameters() if not isinstance(p, DTensor)]:
        raise LearnerError(
            f"{undealt[0]} was not dealt out over the processes; set learner.sharding = 'none'"
        )
    return module


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, on every process; one that was never dealt out as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, model: Tensor) -> Tensor:
    """A whole tensor, which every process holds, dealt out as `model` is."""
    if not isinstance(model, DTensor):
        return tensor
    return distribute_tensor(tensor.to(model.device), model.device_mesh, model.placements)
