"""Keys and values of many sequences in one slab per layer (row = slot = one session), and which session lies where.

    keys[layer], values[layer]    [slots, kv heads, length, head size]

Sequences that are decoded now lie in slots 0 .. A-1, so that a decode step reads a plain view of the slab; sessions
that wait for their environment lie behind them.

The slab is a view of memory that has room for more, and that is laid out as [slots it has room for, kv heads, length it
has room for, head size]: within its room a slab grows without a copy. The memory is kept while it is large enough: to
take it from the system again, page by page, costs more than to fill it, and what an allocator is given back piece by
piece it does not always hand on (three evaluations of 512 attempts held 1.6 times as much). On a CPU it outlives a
change of weights.

All of the memory holds finite numbers: a masked position has weight zero, and zero times NaN would still be NaN. So new
memory is filled with zeros where nothing is copied into it, and a slot in which a model produced NaN is cleared. What
else lies in it from earlier sequences is finite, and is multiplied by that zero.
"""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from workbench.engines.sampling import Counters, Row


class SlotCache:
    """The slab. Layers are made on first use, with the shape and dtype that the model's attention hands over."""

    def __init__(self, device: torch.device):
        self.device = device
        self.slots = 0
        self.length = 0
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}
        self._room = (0, 0)  # slots and length that the memory is laid out for
        self._key_memory: dict[int, torch.Tensor] = {}    # as `keys`, of the size of the room
        self._value_memory: dict[int, torch.Tensor] = {}

    def drop(self) -> None:
        """Forget everything; give the memory back where that is cheap."""
        if self.device.type != "cpu":
            self._key_memory, self._value_memory, self._room = {}, {}, (0, 0)
        self._show(0, 0)

    def reserve(self, slots: int, length: int) -> None:
        """Set the size of the slab; what lies inside both the old and the new size is kept."""
        if slots > self._room[0] or length > self._room[1]:
            self._lay_out(slots, length)
        self._show(slots, length)

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
        with torch.inference_mode():
            for slab in (self.keys, self.values):
                for tensor in slab.values():
                    tensor[slot].zero_()

    def write(
        self, layer: int, key: torch.Tensor, value: torch.Tensor, slot_T: torch.Tensor, position_T: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store key [tokens, kv heads, head size] and value (its head size may be another) at (slot, position); returns
        the layer's whole slabs."""
        if layer not in self.keys:
            slots, length = self._room
            for memory, state in ((self._key_memory, key), (self._value_memory, value)):
                new = _fresh(state, slots * state.shape[1] * length * state.shape[2]).zero_()
                memory[layer] = new.view(slots, state.shape[1], length, state.shape[2])
            self._show(self.slots, self.length)
        keys, values = self.keys[layer], self.values[layer]
        keys[slot_T, :, position_T] = key
        values[slot_T, :, position_T] = value
        return keys, values

    @property
    def bytes(self) -> int:
        """Memory that is held, in use or not."""
        return sum(t.untyped_storage().nbytes() for slab in (self.keys, self.values) for t in slab.values())

    def _show(self, slots: int, length: int) -> None:
        """Make the slabs views of this size."""
        self.slots, self.length = slots, length
        self.keys = {layer: memory[:slots, :, :length] for layer, memory in self._key_memory.items()}
        self.values = {layer: memory[:slots, :, :length] for layer, memory in self._value_memory.items()}

    def _lay_out(self, slots: int, length: int) -> None:
        """Give the memory room for a slab of this size: as it is, if it is large enough, and then all of it."""
        held = self._room[0] * self._room[1] if self._key_memory else 0
        room = (slots, max(length, held // max(1, slots)))
        kept = min(slots, self.slots), min(length, self.length)
        self.keys, self.values = {}, {}  # views would keep what is replaced
        for memory in (self._key_memory, self._value_memory):
            for layer, old in memory.items():
                memory[layer] = _laid_out(old, room, kept)
        self._room = room


def _laid_out(old: torch.Tensor, room: tuple[int, int], kept: tuple[int, int]) -> torch.Tensor:
    """Memory for another room with the leading slots and positions of the old one; in the same memory, if that is large
    enough."""
    (slots, length), (kept_slots, kept_length) = room, kept
    heads, size = old.shape[1], old.shape[3]
    count, held = slots * heads * length * size, old.untyped_storage().nbytes() // old.element_size()
    inside = old[:kept_slots, :, :kept_length]
    if count <= held:
        inside = inside.clone()  # the two overlap
        new = old.as_strided((slots, heads, length, size), (heads * length * size, length * size, size, 1), 0)
    else:
        new = _fresh(old, count).view(slots, heads, length, size)
        new[kept_slots:] = 0
        new[:kept_slots, :, kept_length:] = 0
    new[:kept_slots, :, :kept_length] = inside
    return new


def _fresh(like: torch.Tensor, count: int) -> torch.Tensor:
    """New memory for this many numbers, whatever lies in it: possibly NaN."""
    return like.new_empty(count)


# ------------------------------------------------------------------------------------------------ who lies where

ROUND = 64  # the slab's length is a multiple of this many positions, where the cap allows


@dataclass(eq=False)
class SlotSession:
    """One sequence and its slot. Between turns it is idle: the slot keeps what was computed."""

    name: str
    slot: int | None = None
    # Tokens whose keys and values are in the slot; not kept up to date while a turn is in progress.
    held: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    last_used: int = 0                        # tick
    row: Row | None = None                    # the turn in progress
    first_prompt: bytes | None = None         # set while its slot begins with all of this prompt: others may copy it


class SlotTable:
    """Which session owns which slot of the slab. Active sessions lie in slots 0 .. A-1."""

    def __init__(self, device: torch.device, cache_tokens: int, counters: Counters) -> None:
        self.cache = SlotCache(device)
        self.sessions: dict[str, SlotSession] = {}
        self.active: list[SlotSession] = []                # session in slot i is active[i]
        self._cache_tokens, self._counters = cache_tokens, counters
        self._holders: dict[bytes, list[SlotSession]] = {}  # first prompt -> sessions whose slot begins with it
        self._changed = False                               # some session started, ended or left since the last layout

    def begin(self, session: SlotSession, row: Row) -> None:
        """A turn of the session begins."""
        session.row, session.last_used, self._changed = row, self._counters.ticks, True
        self.sessions[session.name] = session

    def rest(self, session: SlotSession, held: np.ndarray) -> None:
        """Its turn is over; `held` is what its slot keeps."""
        session.row, session.held, self._changed = None, held, True

    def holder_of(self, prompt: bytes) -> SlotSession | None:
        """A session whose slot begins with this first prompt, to copy from."""
        return next(iter(self._holders.get(prompt, ())), None)

    def drop(self) -> None:
        """Forget every session."""
        self.sessions, self.active, self._holders = {}, [], {}
        self.cache.drop()

    def make_room(self, row: Row, needed: dict[str, int], source: SlotSession | None, protected: set[str]) -> bool:
        """Evict idle sessions until the slab can hold this row to its end too: longest unused first, and last of all
        the one that it wants to copy from, for it must run even so."""
        length = max([self.cache.length, row.reach, *needed.values()])
        wanted = max(1, self._cache_tokens // length) - (row.session not in self.sessions)
        idle = [s for s in self.sessions.values() if s.name not in protected and s.name != row.session]
        idle.sort(key=lambda s: (s is source, s.last_used, s.slot))
        excess = len(self.sessions) - wanted
        if excess > len(idle):
            return False
        for session in idle[: max(0, excess)]:
            self._counters.evictions += 1
            self.forget(session)
        return True

    def forget(self, session: SlotSession) -> None:
        """The session is over, or loses its slot."""
        if session.row is not None:
            self.cache.clear(session.slot)  # in the middle of its prompt there may be NaN that no logits have shown
        self.unlist(session)
        del self.sessions[session.name]
        session.row, self._changed = None, True

    def unlist(self, session: SlotSession) -> None:
        """Its slot no longer begins with its first prompt."""
        if session.first_prompt is not None:
            holders = self._holders[session.first_prompt]
            holders.remove(session)
            if not holders:
                del self._holders[session.first_prompt]
            session.first_prompt = None

    def list_prompt(self, session: SlotSession) -> None:
        """The slot now begins with the whole prompt of this turn; if it is the session's first, others may copy it."""
        if session.first_prompt is None and len(session.held) == 0:
            session.first_prompt = session.row.prompt.tobytes()
            self._holders.setdefault(session.first_prompt, []).append(session)

    # ------------------------------------------------------------------------------------------ layout

    def layout(self) -> None:
        """Make the slab large enough and bring the active sessions to its front, moving as few as possible."""
        if self._changed:
            self.active = [s for s in self.sessions.values() if s.row is not None]
        length = max((s.row.cached + len(s.row.pending) for s in self.active), default=0)
        if length <= self.cache.length and not self._changed:
            return
        cap = max((s.row.reach for s in self.active), default=0)
        slots, length = self._size(length, cap)
        # Make it large enough for both layouts, move, then cut; and lengthen it last, so that it never holds more than
        # the larger of the two.
        self.cache.reserve(max(slots, self.cache.slots), self.cache.length)
        moves = self._assign(slots)
        self.cache.move(moves, max((len(s.held) if s.row is None else s.row.cached for s in self.sessions.values()),
                                    default=0))
        self.cache.reserve(slots, length)
        self.active.sort(key=lambda session: session.slot)
        self._changed = False

    def _size(self, length: int, cap: int) -> tuple[int, int]:
        """(slots, length) of the slab: grown by half where it must grow, within `cache_tokens`."""
        count = len(self.sessions)
        slots = self.cache.slots
        if count > slots:
            slots = max(count, slots + slots // 2)
        if length > self.cache.length:
            roomy = -(-max(length, self.cache.length + self.cache.length // 2) // ROUND) * ROUND
            length = max(length, min(roomy, max(cap, self.cache.length)))
        else:
            length = self.cache.length
        most = max(count, self._cache_tokens // max(1, length))
        return min(slots, most), length

    def _assign(self, slots: int) -> list[tuple[int, int]]:
        """Give every session its slot; returns the moves (from, to) of those that have something to carry along."""
        count = len(self.active)
        staying = {s.slot for s in self.active if s.slot is not None and s.slot < count}
        vacant = iter(sorted(set(range(count)) - staying))
        idle = [s for s in self.sessions.values() if s.row is None]
        resting = {s.slot for s in idle if count <= s.slot < slots}
        free = iter(sorted(set(range(count, slots)) - resting))
        moves = []
        for session in [*self.active, *idle]:
            low, high, pool = (0, count, vacant) if session.row is not None else (count, slots, free)
            old = session.slot
            if old is None or not low <= old < high:
                session.slot = next(pool)
                if old is not None:
                    moves.append((old, session.slot))
        return moves
