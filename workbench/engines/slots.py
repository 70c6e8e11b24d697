"""Keys and values of many sequences in one slab per layer: row = slot = one session.

    keys[layer], values[layer]    [slots, kv heads, length, head size]

Sequences that are decoded now lie in slots 0 .. A-1, so that a decode step reads a plain view of the slab; sessions
that wait for their environment lie behind them. The slab starts as zeros and never holds NaN: a masked position has
weight zero, and zero times NaN would still be NaN.

The memory behind a slab is kept while it is large enough, and laid out anew for other sizes: to take it from the system
again, page by page, costs more than to fill it, and what an allocator is given back piece by piece it does not always
hand on (three evaluations of 512 attempts held 1.6 times as much). On a CPU it outlives a change of weights.
"""
from __future__ import annotations

import torch


class SlotCache:
    """The slab. Layers are made on first use, with the shape and dtype that the model's attention hands over."""

    def __init__(self, device: torch.device):
        self.device = device
        self.slots = 0
        self.length = 0
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}

    def drop(self) -> None:
        """Forget everything; give the memory back where that is cheap."""
        self.slots = self.length = 0
        if self.device.type == "cpu":
            for slab in (self.keys, self.values):
                for layer, tensor in slab.items():
                    with torch.inference_mode():
                        slab[layer] = _laid_out(tensor, 0, 0, 0, 0)
        else:
            self.keys, self.values = {}, {}

    def reserve(self, slots: int, length: int) -> None:
        """Set the size of the slab; what lies inside both the old and the new size is kept."""
        if (slots, length) == (self.slots, self.length):
            return
        kept = min(slots, self.slots), min(length, self.length)
        for slab in (self.keys, self.values):
            for layer, old in slab.items():
                slab[layer] = _laid_out(old, slots, length, *kept)
        self.slots, self.length = slots, length

    def move(self, pairs: list[tuple[int, int]], length: int) -> None:
        """Copy slots (source, destination), all read before any is written; only `length` positions matter."""
        if not pairs or length == 0 or not self.keys:
            return
        source = torch.tensor([pair[0] for pair in pairs], device=self.device)
        destination = torch.tensor([pair[1] for pair in pairs], device=self.device)
        for slab in (self.keys, self.values):
            for tensor in slab.values():
                tensor[destination, :, :length] = tensor[source, :, :length]

    def clear(self, slot: int) -> None:
        """Make a slot zeros again, after a model produced NaN in it."""
        for slab in (self.keys, self.values):
            for tensor in slab.values():
                tensor[slot].zero_()

    def write(
        self, layer: int, key: torch.Tensor, value: torch.Tensor, slot_T: torch.Tensor, position_T: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store key and value [tokens, kv heads, head size] at (slot, position); returns the layer's whole slabs."""
        if layer not in self.keys:
            self.keys[layer] = key.new_zeros((self.slots, key.shape[1], self.length, key.shape[2]))
            self.values[layer] = value.new_zeros((self.slots, value.shape[1], self.length, value.shape[2]))
        keys, values = self.keys[layer], self.values[layer]
        keys[slot_T, :, position_T] = key
        values[slot_T, :, position_T] = value
        return keys, values

    @property
    def bytes(self) -> int:
        """Memory that is held, in use or not."""
        return sum(t.untyped_storage().nbytes() for slab in (self.keys, self.values) for t in slab.values())


def _laid_out(old: torch.Tensor, slots: int, length: int, kept_slots: int, kept_length: int) -> torch.Tensor:
    """A slab of another size with the old one's leading slots and positions, elsewhere zeros; in its memory, if that is
    large enough."""
    heads, size = old.shape[1], old.shape[3]
    memory = old.as_strided((old.untyped_storage().nbytes() // old.element_size(),), (1,), 0)
    count = slots * heads * length * size
    kept = old[:kept_slots, :, :kept_length]
    if count > len(memory):
        new = memory.new_zeros(count).view(slots, heads, length, size)
    else:
        kept = kept.clone()  # the two overlap
        new = memory[:count].view(slots, heads, length, size).zero_()
    new[:kept_slots, :, :kept_length] = kept
    return new
