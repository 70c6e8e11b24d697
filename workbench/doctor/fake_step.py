"""One training step without its numbers: what it would allocate, counted on tensors that have a shape and no memory.

The model is built from its config alone and runs through the very functions that training uses, forward and backward,
so nothing here knows any architecture, and nothing has to be kept in step with one. What happens inside a single
operation is not seen.

Axis letters: B rows · L their length · M trained tokens · V vocabulary.
"""
from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, PreTrainedConfig

from workbench.learn.batch import Batch
from workbench.learn.critic import ValueModel
from workbench.learn.learner import ENTROPY_ROWS
from workbench.learn.microbatch import MicroBatch, Rows, output_head, trained_logits
from workbench.learn.ops.shift import entropy_of, logprobs_of
from workbench.types import Group, Observation, Segment, Source, Span, StopReason, Task, Trajectory


@dataclass(frozen=True)
class Shapes:
    """One micro-batch: B rows of length L with M trained tokens; whether another one comes before it."""

    rows: int
    length: int
    trained: int
    several: bool


@dataclass(frozen=True)
class StepBytes:
    """What a step allocates beyond weights: `gradients` stay until the update, `activations` are the highest rest."""

    parameters: int          # numbers, each once
    buffers: int             # bytes of what is no parameter
    trunk_parameters: int    # of a critic of its own
    trainable_bytes: int     # of the policy, float32
    activations: int
    sampling: int            # forward pass of a prefill without gradient, and the logits that are sampled from


class _Ledger(TorchDispatchMode):
    """Bytes of all memory that operations have made and that is still held; `peak` is the most there ever was."""

    def __init__(self, known: nn.Module) -> None:
        super().__init__()
        self.live = self.peak = 0
        # Weights, seen through a view, are nothing new. Weak: what nobody holds any more is given back.
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}
        for tensor in [*known.parameters(), *known.buffers()]:
            self._hold(tensor.untyped_storage(), 0)

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self._held:
                self._hold(tensor.untyped_storage(), tensor.untyped_storage().nbytes())
        return out

    def _hold(self, storage: torch.UntypedStorage, size: int) -> None:
        self._held[storage._cdata] = StorageWeakRef(storage), size
        self.live += size
        if self.live > self.peak:  # perhaps only because nobody has looked for what was given back
            for name in [name for name, (held, _) in self._held.items() if held.expired()]:
                self.live -= self._held.pop(name)[1]
            self.peak = max(self.peak, self.live)


def fake_step(config: PreTrainedConfig, shapes: Shapes, *, critic: str | None, bf16: bool, entropy_has_gradient: bool,
              prefill: tuple[int, int], engine_bytes: int) -> StepBytes:
    """Count the allocations of a step on a model with this config.

    `critic`: None, "own" or "policy" (CriticConfig.trunk). `prefill`: (tokens of a tick, rows that sample in it);
    `engine_bytes` per number of the engine's weights. Raises what transformers raises for a config it cannot build.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        trunk = getattr(model, "base_model", model)
        values = None
        if critic is not None:
            if critic == "own":
                trunk = AutoModelForCausalLM.from_config(config, dtype=torch.float32).base_model
            values = ValueModel(trunk, output_head(model).weight.shape[1]).eval()
    parameters = list(model.parameters())
    whole = nn.ModuleList([model, values]) if values is not None else model
    peak = _update_peak(fake, model, values, whole, shapes, shared=critic == "policy", bf16=bf16,
                        entropy_has_gradient=entropy_has_gradient)
    gradients = sum(4 * p.numel() for p in {id(p): p for p in whole.parameters()}.values())
    return StepBytes(
        sum(p.numel() for p in parameters), sum(b.numel() * b.element_size() for b in model.buffers()),
        sum(p.numel() for p in values.parameters()) if critic == "own" else 0,
        4 * sum(p.numel() for p in parameters), max(0, peak - gradients),
        _sampling_peak(fake, model, prefill) * engine_bytes // 4)


def _micro(shapes: Shapes) -> MicroBatch:
    """Attempts at one task, by the way that trajectories take: a prompt, then all that is trained, then one token."""
    def of(source: Source, count: int) -> Span:
        ids = np.zeros(count, np.int32)
        return Span(source, 0, ids, np.zeros(count, np.float32) if source is Source.POLICY else None,
                    sampled=source is Source.POLICY)

    trained = max(1, shapes.trained // shapes.rows)
    before = max(1, shapes.length + 1 - trained)  # the last trained token is predicted, not fed
    segment = Segment((of(Source.PROMPT, before), of(Source.POLICY, trained)))
    group = Group(tuple(Trajectory(Task("t", "", 0), number, 0, Observation(()), (), (segment,), StopReason.TERMINATED)
                        for number in range(shapes.rows)))
    batch = Batch.from_groups([group])
    return Rows.of(batch, batch.eligible_T).build(range(shapes.rows), "cpu")


def _update_peak(fake: FakeTensorMode, model: nn.Module, values: nn.Module | None, whole: nn.Module, shapes: Shapes, *,
                 shared: bool, bf16: bool, entropy_has_gradient: bool) -> int:
    """Like `Learner._forward_backward`, whose logits are still there while a critic of its own is trained."""
    with ExitStack() as modes:
        micro, head = _micro(shapes), output_head(model)
        ids_M = torch.zeros_like(micro.token_M)
        modes.enter_context(fake)
        ledger = modes.enter_context(_Ledger(whole))
        for _ in range(1 + shapes.several):
            logits_MV = trained_logits(model, head, micro, bf16=bf16)
            loss = logprobs_of(logits_MV, ids_M).sum()
            if entropy_has_gradient:
                loss = loss + entropy_of(logits_MV).sum()
            else:
                for some in logits_MV.detach().split(ENTROPY_ROWS):
                    entropy_of(some)
            loss.backward()
            if values is not None and not shared:
                trained_logits(values, values.head, micro, bf16=bf16).sum().backward()
            del loss
    for parameter in whole.parameters():
        parameter.grad = None
    return ledger.peak


def _sampling_peak(fake: FakeTensorMode, model: nn.Module, prefill: tuple[int, int]) -> int:
    tokens, rows = prefill
    with ExitStack() as modes:
        micro = _micro(Shapes(1, tokens, min(rows, tokens), False))
        modes.enter_context(fake)
        ledger = modes.enter_context(_Ledger(model))
        with torch.no_grad():
            logits_MV = trained_logits(model, output_head(model), micro)
            logits_MV.float().log_softmax(-1).exp().cumsum(-1, dtype=torch.float64)  # as `engines.sampling` does
    return ledger.peak
