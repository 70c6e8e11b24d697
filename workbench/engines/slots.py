"""Keys and values of many sequences in one slab per layer (row = slot = one session).

    keys[layer], values[layer]    [slots, kv heads, length, head size]

Which session lies in which slot is `slot_table`'s business.

The slab is a view of memory that has room for more, and that is laid out as [slots it has room for, kv heads, length it
has room for, head size]: within its room a slab grows without a copy. The memory is kept while it is large enough: to
take it from the system again, page by page, costs more than to fill it, and what an allocator is given back piece by
piece it does not always hand on (three evaluations of 512 trajectories held 1.6 times as much). On a CPU it outlives a
change of weights.

All of the memory holds finite numbers: a masked position has weight zero, and zero times NaN would still be NaN. So new
memory is filled with zeros where nothing is copied into it, and a slot in which a model produced NaN is cleared. What
else lies in it from earlier sequences is finite, and is multiplied by that zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(eq=False)
class SharedPrompt:
    """The beginning of several sequences, which lies in none of their slots. Whoever lets it be
    holds its keys and values."""

    length: int  # positions


NOT_SHARED = SharedPrompt(0)


class SlotCache:
    """The slab. Layers are made on first use, with the shape and dtype that the model's attention hands over."""

    def __init__(self, device: torch.device):
        self.device = device
        self.slots = 0
        self.length = 0
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self.shared: list[SharedPrompt] = []  # what comes before each of the first slots
        self._room = (0, 0)  # slots and length that the memory is laid out for
        self._key_memory: dict[int, Tensor] = {}  # as `keys`, of the size of the room
        self._value_memory: dict[int, Tensor] = {}

    def drop(self) -> None:
        """Forget everything; give the memory back where that is cheap."""
        if self.device.type != "cpu":
            self._key_memory = {}
            self._value_memory = {}
            self._room = (0, 0)
        self.shared = []
        self._show(0, 0)

    @property
    def room(self) -> int:
        """Positions that its memory is laid out for."""
        return self._room[0] * self._room[1]

    def reserve(self, slots: int, length: int, exact: bool = False) -> None:
        """Set the size of the slab; what lies inside both the old and the new size is kept. `exact`: memory beyond it
        is given back."""
        fits = slots <= self._room[0] and length <= self._room[1]
        if not fits or exact and self.room > slots * length:
            self._lay_out(slots, length, exact)
        self._show(slots, length)

    def read(self, slot: int, length: int) -> dict[int, tuple[Tensor, Tensor]]:
        """Copies of the first positions of a slot: {layer: (keys, values)}, each [positions, kv heads, head size]."""
        states = {}
        for layer, keys in self.keys.items():
            key = keys[slot, :, :length].transpose(0, 1).clone()
            value = self.values[layer][slot, :, :length].transpose(0, 1).clone()
            states[layer] = (key, value)
        return states

    def put(self, slot: int, states: dict[int, tuple[Tensor, Tensor]]) -> None:
        """Begin a slot with what was read from another, of this slab or of another one, as far as this one reaches."""
        for layer, (key, value) in states.items():
            position_T = torch.arange(min(len(key), self.length), device=self.device)
            slot_T = torch.full_like(position_T, slot)
            self.write(layer, key[: self.length], value[: self.length], slot_T, position_T)

    def move(self, pairs: list[tuple[int, int]], length: int) -> None:
        """Copy slots (source, destination), all read before any is written; only `length` positions matter."""
        if not pairs or length == 0 or not self.keys:
            return
        source = torch.tensor([pair[0] for pair in pairs], device=self.device)
        destination = torch.tensor([pair[1] for pair in pairs], device=self.device)
        for tensor in self._tensors:
            tensor[destination, :, :length] = tensor[source, :, :length]

    def clear(self, slot: int) -> None:
        """Make a slot zeros again, after a model produced NaN in it."""
        with torch.inference_mode():
            for tensor in self._tensors:
                tensor[slot].zero_()

    def write(
        self,
        layer: int,
        key: Tensor,
        value: Tensor,
        slot_T: Tensor,
        position_T: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Store key [tokens, kv heads, head size] and value (its head size may be another) at (slot, position); returns
        the layer's whole slabs."""
        if layer not in self.keys:
            slots, length = self._room
            for memory, state in ((self._key_memory, key), (self._value_memory, value)):
                heads, size = state.shape[1:]
                new = _fresh(state, slots * heads * length * size).zero_()
                memory[layer] = new.view(slots, heads, length, size)
            self._show(self.slots, self.length)
        keys = self.keys[layer]
        values = self.values[layer]
        keys[slot_T, :, position_T] = key
        values[slot_T, :, position_T] = value
        return keys, values

    @property
    def bytes(self) -> int:
        """Memory that is held, in use or not."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self._tensors)

    @property
    def _tensors(self) -> list[Tensor]:
        return [*self.keys.values(), *self.values.values()]

    def _show(self, slots: int, length: int) -> None:
        """Make the slabs views of this size."""
        self.slots = slots
        self.length = length
        self.keys = {
            layer: memory[:slots, :, :length] for layer, memory in self._key_memory.items()
        }
        self.values = {
            layer: memory[:slots, :, :length] for layer, memory in self._value_memory.items()
        }

    def _lay_out(self, slots: int, length: int, exact: bool) -> None:
        """Give the memory room for a slab of this size: as it is, if it is large enough, and then all of it. `exact`:
        new memory, and no more than that."""
        held = self.room if self._key_memory and not exact else 0
        room = (slots, max(length, held // max(1, slots)))
        kept = min(slots, self.slots), min(length, self.length)
        self.keys = {}  # views would keep what is replaced
        self.values = {}
        for memory in (self._key_memory, self._value_memory):
            for layer, old in memory.items():
                memory[layer] = _laid_out(old, room, kept, exact)
        self._room = room


def _laid_out(old: Tensor, room: tuple[int, int], kept: tuple[int, int], exact: bool) -> Tensor:
    """Memory for another room with the leading slots and positions of the old one; in the same memory, if that is large
    enough and need not be `exact`."""
    slots, length = room
    kept_slots, kept_length = kept
    heads = old.shape[1]
    size = old.shape[3]
    count = slots * heads * length * size
    held = old.untyped_storage().nbytes() // old.element_size()
    inside = old[:kept_slots, :, :kept_length]
    if count <= held and not exact:
        inside = inside.clone()  # the two overlap
        strides = (heads * length * size, length * size, size, 1)
        new = old.as_strided((slots, heads, length, size), strides, 0)
    else:
        new = _fresh(old, count).view(slots, heads, length, size)
        new[kept_slots:] = 0
        new[:kept_slots, :, kept_length:] = 0
    new[:kept_slots, :, :kept_length] = inside
    return new


def _fresh(like: Tensor, count: int) -> Tensor:
    """New memory for this many numbers, whatever lies in it: possibly NaN."""
    return like.new_empty(count)
