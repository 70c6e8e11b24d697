"""Floating-point operations that a step's tokens need at least: what a phase is held against the machine's peak with.

Counted are matrix products of the model's blocks and head, and attention over a token's own past, for each token once:
a prompt that the trajectories of a group share once for all of them. Norms, rotations, softmax and sampling are work too,
but no matrix products; that they cost time is part of the distance to the peak.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from workbench.learn.batch import Batch
from workbench.learn.microbatch import Rows
from workbench.learn.packing import Part


@dataclass(frozen=True)
class Cost:
    """Operations of a forward pass: for each token in the blocks, for each token whose logits are made, and for each
    pair of a token and one that it looks at."""

    block: float
    head: float
    pair: float

    @classmethod
    def of(cls, model: torch.nn.Module) -> Cost:
        config = model.config
        head = model.get_output_embeddings().weight
        tables = {head.data_ptr(), model.get_input_embeddings().weight.data_ptr()}
        matrices = sum(
            p.numel() for p in model.parameters() if p.ndim == 2 and p.data_ptr() not in tables
        )
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        # a multiply and an add for each weight; and for each pair one product with the key and one with the value
        return cls(
            2 * matrices,
            2 * head.numel(),
            4 * config.num_hidden_layers * config.num_attention_heads * size,
        )

    def of_parts(self, parts: Iterable[Part], logits: int) -> float:
        """A forward pass over packed segments that makes the logits of `logits` of their tokens."""
        total = self.head * logits
        for part in parts:
            count, prefix = part.stop - part.start, part.prefix_stop - part.prefix_start
            total += self.block * count + self.pair * count * (prefix + (count + 1) / 2)
        return total


def forward_operations(cost: Cost, batch: Batch) -> float:
    """One forward pass over the whole batch with the logits of all sampled tokens. Sampling needs as much, token by
    token."""
    rows = Rows.of(batch, batch.eligible_T)
    parts = rows.build(rows.trained_segments, "cpu", packed=True).parts
    return cost.of_parts(parts, int(batch.eligible_T.sum()))
