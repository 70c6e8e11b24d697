"""From flat storage to the model and back: length-sorted micro-batches, logits at trained positions only.

Axis letters: T tokens of the whole batch (flat) · S segments · B rows of a micro-batch · L its padded length ·
M trained tokens of a micro-batch (flat) · V vocabulary.

Rows are padded on the right. Under causal attention nothing to the right of a token has a part in it, so neither an
attention mask nor position ids are needed, and attention takes its fastest path. A row ends before its last trained
token: what stands there and after predicts nothing that is trained.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workbench.batch import Batch
from workbench.errors import LearnerError
from workbench.ops.shift import scoring_position

PADDING_ID = 0  # any valid id would do: no trained token can see it


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """A few whole segments, ready for the model. Both index tensors are aligned [M]."""

    input_ids_BL: Tensor
    token_M: Tensor     # int64: which tokens of the batch are trained, as indices into T
    scored_by_M: Tensor  # int64: where their predictions stand, as indices into B * L
    segment_M: Tensor   # int64: the row each belongs to, 0..B-1


@dataclass(frozen=True, eq=False)
class Rows:
    """What the segments of a batch cost and where their trained tokens are, worked out once per update.

    `length_S` is the length of the model's input for a segment: 0 where nothing in it is trained.
    """

    batch: Batch
    token_M: Tensor        # all trained tokens, ascending
    bounds_S1: Tensor      # segment s trains token_M[bounds[s]:bounds[s + 1]]
    length_S: Tensor

    @classmethod
    def of(cls, batch: Batch, trained_T: Tensor) -> Rows:
        token_M = trained_T.nonzero()[:, 0]
        bounds_S1 = torch.searchsorted(token_M, batch.segment_offsets)
        last = token_M[(bounds_S1[1:] - 1).clamp(min=0)] if len(token_M) else batch.segment_offsets[:-1]
        length_S = torch.where(bounds_S1.diff() > 0, last - batch.segment_offsets[:-1], 0)
        return cls(batch, token_M, bounds_S1, length_S)

    @property
    def trained_segments(self) -> list[int]:
        return (self.length_S > 0).nonzero()[:, 0].tolist()

    def build(self, segments: Sequence[int], device: torch.device | str) -> MicroBatch:
        """The micro-batch of these segments; for none of them, one of a single token that trains nothing."""
        longest = max((int(self.length_S[s]) for s in segments), default=1)
        input_ids_BL = torch.full((max(len(segments), 1), longest), PADDING_ID, dtype=torch.int64)
        tokens, scored_by, rows = [], [], []
        for row, segment in enumerate(segments):
            start, length = int(self.batch.segment_offsets[segment]), int(self.length_S[segment])
            input_ids_BL[row, :length] = self.batch.token_ids_T[start:start + length]
            token_M = self.token_M[int(self.bounds_S1[segment]):int(self.bounds_S1[segment + 1])]
            tokens.append(token_M)
            scored_by.append(row * longest + scoring_position(token_M - start))
            rows.append(torch.full_like(token_M, row))
        nothing = [torch.zeros(0, dtype=torch.int64)]
        return MicroBatch(input_ids_BL.to(device), torch.cat(tokens or nothing),
                          torch.cat(scored_by or nothing).to(device), torch.cat(rows or nothing))


def cut(length_S: Tensor, segments: Sequence[int], budget: int, *, sort: bool = True) -> list[list[int]]:
    """Cut segments into micro-batches of at most `budget` padded tokens (rows x longest row), longest first, so that
    rows of like length share one and little is padding. A segment longer than the budget is one by itself."""
    length = {s: int(length_S[s]) for s in segments}
    order = sorted(segments, key=lambda s: (-length[s], s)) if sort else list(segments)
    pieces: list[list[int]] = []
    longest = 0
    for segment in order:
        widest = max(longest, length[segment])
        if pieces and (len(pieces[-1]) + 1) * widest <= budget:
            pieces[-1].append(segment)
            longest = widest
        else:
            pieces.append([segment])
            longest = length[segment]
    return pieces


def output_head(model: nn.Module) -> nn.Module:
    """The module that turns hidden states into logits. Raises LearnerError where a model does not say which it is."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is None:
        raise LearnerError(f"{type(model).__name__} names no output embedding, so its logits cannot be taken at "
                           "trained positions only; use a causal language model (AutoModelForCausalLM)")
    return head


@contextmanager
def _only(head: nn.Module, scored_by_M: Tensor) -> Iterator[None]:
    """While open, `head` sees only the chosen hidden states [1, M, H], so only their logits are ever made. Whatever
    the model does with its logits afterwards (soft-capping, scaling) still happens."""

    def select(module, args):
        hidden_BLH, *rest = args
        return hidden_BLH.reshape(-1, hidden_BLH.shape[-1]).index_select(0, scored_by_M).unsqueeze(0), *rest

    handle = head.register_forward_pre_hook(select)
    try:
        yield
    finally:
        handle.remove()


def trained_logits(model: nn.Module, head: nn.Module, micro: MicroBatch, *, bf16: bool = False) -> Tensor:
    """Logits that predict the trained tokens of a micro-batch [M, V], with gradient if grad mode is on.

    `model` may be wrapped (DDP); `head` is the bare model's. `bf16` runs the forward pass under autocast.
    """
    with _only(head, micro.scored_by_M), torch.autocast(micro.input_ids_BL.device.type, torch.bfloat16, enabled=bf16):
        logits = model(input_ids=micro.input_ids_BL, use_cache=False).logits
    if logits.shape[:-1] != (1, len(micro.token_M)):
        raise LearnerError(
            f"asked {type(model).__name__} for the logits of {len(micro.token_M)} positions and got shape "
            f"{tuple(logits.shape)}: its output head is not what get_output_embeddings() names, so it cannot be "
            "trained here"
        )
    return logits[0]
