"""A group's first prompt, kept once for all of its sequences (`engine.decode = "fused"`).

    keys, values    [layers, kv heads, length, head size] of one prompt

The sequence that computes the prompt writes the beginning of it here, and those that begin with the
same prompt read it from here; their slots hold what comes after it. The prompt is given back with
the last sequence that has it. One whose history is rewritten inside it takes along what stays, into
its own slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from workbench.engines.sampling import Row
from workbench.engines.slot_table import SlotSession, SlotTable
from workbench.engines.slots import NOT_SHARED, SharedPrompt, SlotCache
from workbench.extensions.native.layout import Model

# A prompt is kept up to a multiple of this many positions: what the kernel handles together is
# never on both sides.
BLOCK = 16


@dataclass(eq=False)
class GroupPrompt(SharedPrompt):
    """The beginning of one prompt; its memory is made by the first pass that needs it."""

    keys: Tensor | None = None
    values: Tensor | None = None

    def make(self, model: Model) -> None:
        if self.keys is None:
            shape = (model.layers, model.kv_heads, self.length, model.size)
            self.keys = torch.empty(shape)
            self.values = torch.empty_like(self.keys)

    def read(self, count: int) -> dict[int, tuple[Tensor, Tensor]]:
        """Its first positions as `SlotCache.put` takes them."""
        return {
            layer: (keys[:, :count].transpose(0, 1), values[:, :count].transpose(0, 1))
            for layer, (keys, values) in enumerate(zip(self.keys, self.values))
        }


class SharedSlotTable(SlotTable):
    """A table whose sessions have the beginning of their first prompt in common."""

    def make_room(
        self, session: SlotSession, row: Row, source: SlotSession | None, protected: set[str]
    ) -> bool:
        held = session.shared
        leaves = 0 < row.cached < held.length
        if leaves and session.name in protected:
            return False  # another one copies from its slot in this tick
        session.shared = self.shared_by(session, row, source)
        has_room = super().make_room(session, row, source, protected)
        if not has_room:
            session.shared = held
        elif leaves:
            session.carried = held.read(row.cached)
            session.slot = None
        return has_room

    def shared_by(self, session: SlotSession, row: Row, source: SlotSession | None) -> SharedPrompt:
        """What is to come before the slot of a session in this turn, of which `row.cached` tokens
        are its own already."""
        if source is not None:
            return source.shared
        if row.cached == 0:
            # The last token of a prompt passes by itself in all but the first sequence.
            length = (len(row.prompt) - 1) // BLOCK * BLOCK
            return GroupPrompt(length) if length else NOT_SHARED
        return session.shared if row.cached >= session.shared.length else NOT_SHARED


def addresses(cache: SlotCache, model: Model) -> np.ndarray:
    """Of each slot where its prompt lies, as `Shared` of `step.cpp` (keys, values, length): int64
    [S, 3]."""
    places = np.zeros((cache.slots, 3), np.int64)
    for slot, prompt in enumerate(cache.shared):
        if prompt.length:
            prompt.make(model)
            places[slot] = (prompt.keys.data_ptr(), prompt.values.data_ptr(), prompt.length)
    return places
