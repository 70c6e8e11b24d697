"""Which session lies where: in which slab of keys and values, and in which slot of it.

Sequences that are decoded now lie in slots 0 .. A-1, so that a decode step reads a plain view of the slab; sessions
that wait for their environment lie behind them.

A slab is as long as its longest session, for all of them. So there are two: where one slab for all
would take more than `cache_tokens`, the longest sessions lie `apart` in the other, and the slab of
the rest is cut to what they need. How many go is what takes the fewest positions. Only where that
is too much as well, idle sessions are evicted, longest unused first. What both slabs may grow to,
until all turns have reached their limits, is at most `cache_tokens` positions, and so is the memory
that they hold (what passes from one to the other is copied on its way). What sessions share outside
the slabs (`SharedPrompt`) counts among them, each once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
import torch

from workbench.engines.sampling import Counters, Row
from workbench.engines.slots import NOT_SHARED, SharedPrompt, SlotCache

ROUND = 64  # a slab's length is a multiple of this many positions, where the cap allows


@dataclass(eq=False)
class SlotSession:
    """One sequence and its slot. Between turns it is idle: the slot keeps what was computed."""

    name: str
    apart: bool = False  # in the slab of the long ones
    slot: int | None = None
    shared: SharedPrompt = NOT_SHARED  # what comes before the first position of its slot
    # Tokens whose keys and values are in the slot; not kept up to date while a turn is in progress.
    held: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    reach: int = 0  # positions of its slot that it may need before it has to ask for room again
    last_used: int = 0  # tick
    row: Row | None = None  # the turn in progress
    # Set while its slot begins with all of this prompt: others may copy it.
    first_prompt: bytes = b""
    carried: dict | None = None  # its keys and values, on their way from one slab to the other

    @property
    def filled(self) -> int:
        """Positions of its slot that matter."""
        cached = len(self.held) if self.row is None else self.row.cached
        return max(0, cached - self.shared.length)

    @property
    def needed(self) -> int:
        """Positions of its slot that it has, with those of its next pass."""
        if self.row is None:
            return self.filled
        return self.row.cached + len(self.row.pending) - self.shared.length


class Slab:
    """One of the two, and who lies in it."""

    def __init__(self, device: torch.device) -> None:
        self.cache = SlotCache(device)
        self.members: list[SlotSession] = []
        self.active: list[SlotSession] = []  # session in slot i is active[i]
        self.cut = False  # at the next layout it is as short as its sessions allow

    @property
    def length(self) -> int:
        """The length that it keeps."""
        return 0 if self.cut else self.cache.length

    @property
    def lacks_room(self) -> bool:
        needed = max((session.needed for session in self.active), default=0)
        return needed > self.cache.length

    def size(self, room: int) -> tuple[int, int]:
        """(slots, length): grown by half where it must grow, within `room` positions."""
        needed = max((session.needed for session in self.members), default=0)
        cap = max((session.reach for session in self.active), default=0)
        count = len(self.members)
        slots = self.cache.slots
        length = self.length
        if count > slots:
            slots = max(count, slots + slots // 2)
        if needed > length:
            roomy = -(-max(needed, length + length // 2) // ROUND) * ROUND
            length = max(needed, min(roomy, max(cap, length)))
        slots_in_room = room // max(1, length)
        return min(slots, max(count, slots_in_room)), length

    def lay_out(self, slots: int, length: int, exact: bool) -> None:
        """Make it this large and bring the active sessions to its front, moving as few as possible."""
        # Shorten it, make it large enough for both layouts, move, then cut; and lengthen it last, so that it never
        # holds more than the larger of the two.
        self.cache.reserve(max(slots, self.cache.slots), min(length, self.cache.length))
        moves = self._assign(slots)
        filled = max((session.filled for session in self.members), default=0)
        self.cache.move(moves, filled)
        self.cache.reserve(slots, length, exact)
        for session in self.members:
            if session.carried is not None:
                self.cache.put(session.slot, session.carried)
                session.carried = None
        self.active.sort(key=lambda session: session.slot)
        self.cut = False

    def _assign(self, slots: int) -> list[tuple[int, int]]:
        """Give every session its slot; returns the moves (from, to) of those that have something to carry along."""
        count = len(self.active)
        staying = {s.slot for s in self.active if s.slot is not None and s.slot < count}
        vacant = iter(sorted(set(range(count)) - staying))
        idle = [s for s in self.members if s.row is None]
        resting = {s.slot for s in idle if s.slot is not None and count <= s.slot < slots}
        free = iter(sorted(set(range(count, slots)) - resting))
        moves = []
        for session in [*self.active, *idle]:
            is_active = session.row is not None
            allowed = range(count) if is_active else range(count, slots)
            old = session.slot
            if old not in allowed:
                session.slot = next(vacant if is_active else free)
                if old is not None:
                    moves.append((old, session.slot))
        return moves


@dataclass(frozen=True)
class _Division:
    """Which sessions lie apart. `cut`: otherwise than now, and both slabs as short as that allows."""

    apart: frozenset[SlotSession]
    cut: bool


class SlotTable:
    """Which session owns which slot of which slab. Active sessions lie in slots 0 .. A-1 of theirs."""

    def __init__(self, device: torch.device, cache_tokens: int, counters: Counters) -> None:
        # Of most sessions, and of the long ones that lie apart.
        self.slabs = (Slab(device), Slab(device))
        self.sessions: dict[str, SlotSession] = {}
        self._cache_tokens = cache_tokens
        self._counters = counters
        self._changed = False  # some session started, ended or left since the last layout

    @property
    def positions(self) -> int:
        """That there is room for, filled or not."""
        in_slabs = sum(slab.cache.slots * slab.cache.length for slab in self.slabs)
        return in_slabs + self._cache_tokens - self._room(self.sessions.values())

    def _room(self, sessions: Iterable[SlotSession]) -> int:
        """Positions that the slabs may have beside what these sessions share."""
        shared = {session.shared for session in sessions}
        return self._cache_tokens - sum(prompt.length for prompt in shared)

    @property
    def active(self) -> list[SlotSession]:
        near, far = self.slabs
        return near.active + far.active

    def begin(self, session: SlotSession, row: Row) -> None:
        """A turn of the session begins."""
        session.row = row
        session.reach = row.reach - session.shared.length
        session.last_used = self._counters.ticks
        self._changed = True
        self.sessions[session.name] = session

    def rest(self, session: SlotSession, held: np.ndarray) -> None:
        """Its turn is over; `held` is what its slot keeps."""
        session.row = None
        session.held = held
        session.reach = session.filled
        self._changed = True

    def holder_of(self, prompt: bytes) -> SlotSession | None:
        """A session whose slot begins with this first prompt, to copy from."""
        return next((s for s in self.sessions.values() if s.first_prompt == prompt), None)

    def drop(self) -> None:
        """Forget every session."""
        self.sessions = {}
        for slab in self.slabs:
            slab.members = []
            slab.active = []
            slab.cut = False
            slab.cache.drop()
        self.slabs[1].cache.reserve(0, 0, exact=True)

    def forget(self, session: SlotSession) -> None:
        """The session is over, or loses its slot."""
        if session.row is not None:
            # In the middle of its prompt there may be NaN that no logits have shown.
            self.slabs[session.apart].cache.clear(session.slot)
        del self.sessions[session.name]
        session.row = None
        self._changed = True

    def list_prompt(self, session: SlotSession) -> None:
        """The slot now begins with the whole prompt of this turn; if it is the session's first, others may copy it."""
        if not session.first_prompt and len(session.held) == 0:
            session.first_prompt = session.row.prompt.tobytes()

    # ------------------------------------------------------------------------------------------ room

    def make_room(
        self, session: SlotSession, row: Row, source: SlotSession | None, protected: set[str]
    ) -> bool:
        """Find room for this row to its end, too: as the sessions lie, with the longest apart, or without some that are
        idle: longest unused first, and last of all the one that it wants to copy from, for it must run even so."""
        others = [s for s in self.sessions.values() if s is not session]

        def without(gone: Set[SlotSession]) -> _Division | None:
            reaches = {session: row.reach - session.shared.length}
            reaches |= {s: s.reach for s in others if s not in gone}
            return _division(reaches, self.slabs, self._room(reaches))

        division = without(set())
        if division is None:
            idle = [s for s in others if s.name not in protected]
            idle.sort(key=lambda s: (s is source, s.last_used, s.apart, s.slot or 0))
            counts = range(len(idle) + 1)
            fewest = bisect_left(
                counts, True, key=lambda count: without(set(idle[:count])) is not None
            )
            if fewest > len(idle):
                return False
            division = without(set(idle[:fewest]))
            self._counters.evictions += fewest
            for evicted in idle[:fewest]:
                self.forget(evicted)
        if division.cut:
            self._divide(division.apart, session)
        return True

    def _divide(self, apart: frozenset[SlotSession], newest: SlotSession) -> None:
        """Put these sessions apart and the others together; both slabs are cut to them."""
        for session in (*self.sessions.values(), newest):
            if session.apart != (session in apart):
                if session.slot is not None:
                    cache = self.slabs[session.apart].cache
                    session.carried = cache.read(session.slot, session.filled)
                session.apart = session in apart
                session.slot = None
        self._changed = True
        for slab in self.slabs:
            slab.cut = True

    # ------------------------------------------------------------------------------------------ layout

    def layout(self) -> None:
        """Make the slabs large enough, each with its active sessions in front."""
        if self._changed:
            for apart, slab in enumerate(self.slabs):
                slab.members = [s for s in self.sessions.values() if s.apart == bool(apart)]
                slab.active = [s for s in slab.members if s.row is not None]
        elif not any(slab.lacks_room for slab in self.slabs):
            return
        near, far = self.slabs
        sizes = {far: far.size(0)}  # no more slots than sessions
        far_positions = _positions([session.reach for session in far.members], far)
        room = self._room(self.sessions.values())
        sizes[near] = near.size(room - far_positions)
        wanted = {slab: slots * length for slab, (slots, length) in sizes.items()}
        if_kept = sum(max(wanted[slab], slab.cache.room) for slab in self.slabs)
        exact = if_kept > room
        # Whoever gives memory back comes first.
        for slab in sorted(self.slabs, key=lambda slab: wanted[slab] - slab.cache.room):
            slab.lay_out(*sizes[slab], exact)
        self._changed = False

    def copy(self, pairs: Sequence[tuple[SlotSession, SlotSession]]) -> None:
        """Copy what the targets begin with from the slots of others: (source, target), all read before any is
        written."""
        between = []
        for source, target in pairs:
            if source.apart != target.apart:
                cache = self.slabs[source.apart].cache
                between.append((target, cache.read(source.slot, target.filled)))
        for apart, slab in enumerate(self.slabs):
            within = [(s, t) for s, t in pairs if s.apart == t.apart == bool(apart)]
            longest = max((target.filled for _, target in within), default=0)
            slab.cache.move([(source.slot, target.slot) for source, target in within], longest)
        for target, states in between:
            self.slabs[target.apart].cache.put(target.slot, states)


def _division(
    reaches: dict[SlotSession, int], slabs: tuple[Slab, Slab], room: int
) -> _Division | None:
    """Which sessions lie apart if they are to reach so far; None: there are not enough positions for all of them."""
    apart = [session for session in reaches if session.apart]
    near = [reach for session, reach in reaches.items() if not session.apart]
    far = [reaches[session] for session in apart]
    if _positions(near, slabs[0]) + _positions(far, slabs[1]) <= room:
        return _Division(frozenset(apart), cut=False)
    longest = sorted(reaches, key=reaches.get, reverse=True)
    lengths = [reaches[session] for session in longest]
    # With the k longest apart both slabs are as long as their longest: how many positions that takes.
    positions = [k * lengths[0] + (len(longest) - k) * lengths[k] for k in range(len(longest))]
    fewest = min(positions)
    if fewest > room:
        return None
    return _Division(frozenset(longest[: positions.index(fewest)]), cut=True)


def _positions(reaches: Sequence[int], slab: Slab) -> int:
    """That the slab comes to with sessions that reach so far."""
    return len(reaches) * max([slab.length, *reaches])
