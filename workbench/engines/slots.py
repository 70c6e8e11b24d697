"""Keys and values of many sequences in one slab per layer: row = slot = one session.

    keys[layer], values[layer]    [slots, kv heads, length, head size]

Sequences that are decoded now lie in slots 0 .. A-1, so that a decode step reads a plain view of the slab; sessions
that wait for their environment lie behind them. The slab starts as zeros and never holds NaN: a masked position has
weight zero, and zero times NaN would still be NaN.

`slots` and `length` are what the runner asked for and decides by; the memory behind them may be larger. On a CPU it is
kept when the weights change: to take it from the system anew, page by page, costs more than to fill it.
"""
from __future__ import annotations

import torch


class SlotCache:
    """The slab. Layers are made on first use, with the shape and dtype that the model's attention hands over."""

    def __init__(self, device: torch.device):
        self.device = device
        self.slots = 0
        self.length = 0
        self._room, self._most = (0, 0), 0  # slots and length that the memory is there for; the most positions so far
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}

    def drop(self) -> None:
        """Forget everything; give the memory back where that is cheap."""
        self.slots = self.length = 0
        if self.device.type == "cpu":
            for slab in (self.keys, self.values):
                for tensor in slab.values():
                    with torch.inference_mode():
                        tensor.zero_()
        else:
            self._room, self.keys, self.values = (0, 0), {}, {}

    def reserve(self, slots: int, length: int) -> None:
        """Set the size of the slab; what lies inside both the old and the new size is kept."""
        room = (max(slots, self._room[0]), max(length, self._room[1]))
        self._most = max(self._most, slots * length)
        if room[0] * room[1] > self._most:  # never more memory than was once asked for
            room = (slots, length)
        if room != self._room:
            kept_slots, kept_length = min(slots, self.slots), min(length, self.length)
            for slab in (self.keys, self.values):
                for layer, old in slab.items():
                    new = old.new_zeros((room[0], old.shape[1], room[1], old.shape[3]))
                    new[:kept_slots, :, :kept_length] = old[:kept_slots, :, :kept_length]
                    slab[layer] = new
            self._room = room
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
            self.keys[layer] = key.new_zeros((self._room[0], key.shape[1], self._room[1], key.shape[2]))
            self.values[layer] = value.new_zeros((self._room[0], value.shape[1], self._room[1], value.shape[2]))
        keys, values = self.keys[layer], self.values[layer]
        keys[slot_T, :, position_T] = key
        values[slot_T, :, position_T] = value
        return keys, values

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for slab in (self.keys, self.values) for t in slab.values())
