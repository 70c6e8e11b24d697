"""Which sequences run, where their keys and values lie, and what passes through the model in this tick.

Axis letters: A sequences that are active now · T tokens of this pass · V vocabulary.

A session owns a slot of the slab from its first turn until it is released or evicted. Between turns it is idle: its
slot keeps what was computed, and the next turn computes only what is new. Active sessions lie in slots 0 .. A-1.
Everything here follows a logical clock (order of submission, ticks), never the wall clock, so two runs that submit the
same requests at the same ticks are equal bit for bit (law 8).
"""
from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch

from workbench.engines.attention import PIECE, PackedPiece, ForwardStep, bundle_pieces
from workbench.engines.probe import Forward
from workbench.engines.rows import Counters, Row, Ticked
from workbench.engines.slots import SlotCache

ROUND = 64  # the slab's length is a multiple of this many positions, where the cap allows


@dataclass(eq=False)
class _Session:
    name: str
    slot: int | None = None
    # Tokens whose keys and values are in the slot; not kept up to date while a turn is in progress.
    held: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    last_used: int = 0                        # tick
    row: Row | None = None                    # the turn in progress
    first_prompt: bytes | None = None         # set while its slot begins with all of this prompt: others may copy it


class SlotRunner:
    """Runs rows on a causal model whose attention is `slot_attention`."""

    def __init__(self, forward: Forward, device: torch.device, *, max_rows: int, prefill_tokens: int,
                 cache_tokens: int, counters: Counters):
        self._forward = forward
        self._max_rows, self._prefill_tokens, self._cache_tokens = max_rows, prefill_tokens, cache_tokens
        self._counters = counters
        self._cache = SlotCache(device)
        self._device = device
        self._sessions: dict[str, _Session] = {}
        self._active: list[_Session] = []                # session in slot i is _active[i]
        self._waiting: deque[Row] = deque()
        self._holders: dict[bytes, list[_Session]] = {}  # first prompt -> sessions whose slot begins with it
        self._changed = False                            # some session started, ended or left since the last layout

    # ------------------------------------------------------------------------------------------ the outside

    @property
    def cached_tokens(self) -> int:
        """Positions that the slab has room for, filled or not."""
        return self._cache.slots * self._cache.length

    def add(self, row: Row) -> None:
        self._waiting.append(row)

    def tick(self) -> Ticked:
        """Admit what waits, pass one batch of tokens through the model; logits for the rows that can sample now."""
        copies = self._admit() if self._waiting else []
        self._layout()
        self._cache.move([(source.slot, target.slot) for source, target in copies],
                         max((target.row.cached for _, target in copies), default=0))
        return self._pass() if self._active else Ticked([], None)

    def advance(self, row: Row, token: int) -> None:
        """`token` was sampled for `row`; it will pass through the model at the next tick."""
        row.pending = np.array([token], np.int64)

    def finish(self, row: Row, keep: bool) -> None:
        """The turn is over. Its session idles with what is cached, or (`keep=False`) loses it."""
        session = self._sessions[row.session]
        session.row, self._changed = None, True
        session.held = row.sequence[: row.cached]
        if not keep:
            self._cache.clear(session.slot)
            self._forget(session)

    def release(self, session_name: str) -> None:
        self._waiting = deque(row for row in self._waiting if row.session != session_name)
        session = self._sessions.get(session_name)
        if session is not None:
            self._forget(session)
        if not self._sessions and not self._waiting:
            self._cache.drop()  # who is evicted depends on the room there is: what comes next must not inherit it

    def drop(self) -> None:
        """Forget every cache: the weights that made them are gone. Nothing may be in progress."""
        self._sessions, self._active, self._holders = {}, [], {}
        self._cache.drop()

    # ------------------------------------------------------------------------------------------ admission

    def _admit(self) -> list[tuple[_Session, _Session]]:
        """Open waiting rows in order of submission; returns which sessions copy their first prompt: (from, to)."""
        copies: list[tuple[_Session, _Session]] = []
        running = {s.name: s for s in self._active if s.row is not None}
        computing = {s.row.prompt.tobytes() for s in running.values() if s.row.cached < len(s.row.prompt)}
        budget = self._prefill_tokens - sum(len(s.row.pending) - 1 for s in running.values())
        needed = {name: _reach(s.row) for name, s in running.items()}
        postponed: list[Row] = []
        while self._waiting and len(needed) < self._max_rows and budget > 0:
            row = self._waiting.popleft()
            session = self._sessions.get(row.session) or _Session(row.session)
            reused = _common_prefix(session.held, row.prompt)
            key = row.prompt.tobytes()
            if not reused and key in computing:
                postponed.append(row)  # one tick later it can be copied
                continue
            source = None if reused else next(iter(self._holders.get(key, ())), None)
            if not self._make_room(row, needed, source, {*needed, *(origin.name for origin, _ in copies)}):
                self._waiting.appendleft(row)
                break
            if source is not None and source.name not in self._sessions:
                source = None  # evicted for this very row: it computes what it could have copied
            self._open(session, row, reused, source)
            if source is not None:
                copies.append((source, session))
            elif not reused:
                computing.add(key)
            needed[row.session] = _reach(row)
            budget -= len(row.pending) - 1
        self._waiting.extendleft(reversed(postponed))
        return copies

    def _open(self, session: _Session, row: Row, reused: int, source: _Session | None) -> None:
        """Begin a turn: what is known of its prompt is kept or will be copied, the rest is pending."""
        if session.first_prompt is not None and reused * row.prompt.itemsize < len(session.first_prompt):
            self._unlist(session)  # its slot is about to be overwritten from position `reused` on
        # One token at least passes through the model: its logits are wanted.
        row.cached = reused if source is None else len(row.prompt) - 1
        row.pending = row.prompt[row.cached :]
        self._counters.reused_tokens += reused
        self._counters.shared_prompt_tokens += row.cached - reused
        session.row, session.last_used, self._changed = row, self._counters.ticks, True
        self._sessions[session.name] = session

    def _make_room(self, row: Row, needed: dict[str, int], source: _Session | None, protected: set[str]) -> bool:
        """Evict idle sessions until the slab can hold this row to its end too: longest unused first, and last of all
        the one that it wants to copy from, for it must run even so."""
        length = max([self._cache.length, _reach(row), *needed.values()])
        wanted = max(1, self._cache_tokens // length) - (row.session not in self._sessions)
        idle = [s for s in self._sessions.values() if s.name not in protected and s.name != row.session]
        idle.sort(key=lambda s: (s is source, s.last_used, s.slot))
        excess = len(self._sessions) - wanted
        if excess > len(idle):
            return False
        for session in idle[: max(0, excess)]:
            self._counters.evictions += 1
            self._forget(session)
        return True

    def _forget(self, session: _Session) -> None:
        if session.row is not None:
            self._cache.clear(session.slot)  # in the middle of its prompt there may be NaN that no logits have shown
        self._unlist(session)
        del self._sessions[session.name]
        session.row, self._changed = None, True

    def _unlist(self, session: _Session) -> None:
        if session.first_prompt is not None:
            holders = self._holders[session.first_prompt]
            holders.remove(session)
            if not holders:
                del self._holders[session.first_prompt]
            session.first_prompt = None

    # ------------------------------------------------------------------------------------------ layout

    def _layout(self) -> None:
        """Make the slab large enough and bring the active sessions to its front, moving as few as possible."""
        if self._changed:
            self._active = [s for s in self._sessions.values() if s.row is not None]
        length = max((s.row.cached + len(s.row.pending) for s in self._active), default=0)
        if length <= self._cache.length and not self._changed:
            return
        cap = max((_reach(s.row) for s in self._active), default=0)
        slots, length = self._size(length, cap)
        # Make it large enough for both layouts, move, then cut; and lengthen it last, so that it never holds more than
        # the larger of the two.
        self._cache.reserve(max(slots, self._cache.slots), self._cache.length)
        moves = self._assign(slots)
        self._cache.move(moves, max((len(s.held) if s.row is None else s.row.cached for s in self._sessions.values()),
                                    default=0))
        self._cache.reserve(slots, length)
        self._active.sort(key=lambda session: session.slot)
        self._changed = False

    def _size(self, length: int, cap: int) -> tuple[int, int]:
        """(slots, length) of the slab: grown by half where it must grow, within `cache_tokens`."""
        count = len(self._sessions)
        slots = self._cache.slots
        if count > slots:
            slots = max(count, slots + slots // 2)
        if length > self._cache.length:
            roomy = -(-max(length, self._cache.length + self._cache.length // 2) // ROUND) * ROUND
            length = max(length, min(roomy, max(cap, self._cache.length)))
        else:
            length = self._cache.length
        most = max(count, self._cache_tokens // max(1, length))
        return min(slots, most), length

    def _assign(self, slots: int) -> list[tuple[int, int]]:
        """Give every session its slot; returns the moves (from, to) of those that have something to carry along."""
        count = len(self._active)
        staying = {s.slot for s in self._active if s.slot is not None and s.slot < count}
        vacant = iter(sorted(set(range(count)) - staying))
        idle = [s for s in self._sessions.values() if s.row is None]
        resting = {s.slot for s in idle if count <= s.slot < slots}
        free = iter(sorted(set(range(count, slots)) - resting))
        moves = []
        for session in [*self._active, *idle]:
            low, high, pool = (0, count, vacant) if session.row is not None else (count, slots, free)
            old = session.slot
            if old is None or not low <= old < high:
                session.slot = next(pool)
                if old is not None:
                    moves.append((old, session.slot))
        return moves

    # ------------------------------------------------------------------------------------------ one pass

    def _pass(self) -> Ticked:
        """One forward pass: the newest token of every active sequence, and before it what its prompt still lacks."""
        rows = [session.row for session in self._active]
        budget = self._prefill_tokens
        takes: list[int] = []
        for row in rows:
            takes.append(min(len(row.pending), 1 + max(budget, 0)))
            budget -= takes[-1] - 1
        count = len(rows)
        ids = [np.array([row.pending[take - 1] for row, take in zip(rows, takes)], np.int64)]
        slots = [np.arange(count)]
        positions = [np.array([row.cached + take - 1 for row, take in zip(rows, takes)], np.int64)]
        pieces = self._pieces(rows, takes)
        for piece in pieces:
            row = rows[piece.slot]
            ids.append(row.pending[piece.start - row.cached :][: piece.count])
            slots.append(np.full(piece.count, piece.slot))
            positions.append(np.arange(piece.start, piece.start + piece.count))
        packed = torch.from_numpy(np.stack([np.concatenate(part) for part in (ids, slots, positions)])).to(self._device)
        step = ForwardStep(self._cache, slot_T=packed[1], position_T=packed[2], active=count,
                    ends=tuple((positions[0] + 1).tolist()), pieces=bundle_pieces(pieces))
        logits_AV = self._forward(step, packed[:1], count if pieces else None)
        return self._passed(rows, takes, logits_AV)

    def _pieces(self, rows: list[Row], takes: list[int]) -> list[PackedPiece]:
        """What stands before the newest token of each row, cut into pieces, short ones first."""
        cut = []
        for slot, (row, take) in enumerate(zip(rows, takes)):
            for start in range(row.cached, row.cached + take - 1, PIECE):
                cut.append((min(PIECE, row.cached + take - 1 - start), start, slot))
        first, pieces = len(rows), []
        for length, start, slot in sorted(cut):
            pieces.append(PackedPiece(slot, start, length, first))
            first += length
        return pieces

    def _passed(self, rows: list[Row], takes: list[int], logits_AV: torch.Tensor) -> Ticked:
        counters, ready = self._counters, []
        decoded = 0
        for index, (row, take) in enumerate(zip(rows, takes)):
            row.cached += take
            row.pending = row.pending[take:]
            if row.tokens:
                decoded += 1
            else:
                counters.prefill_tokens += take
            if len(row.pending) == 0:
                ready.append(index)
                if not row.tokens:
                    self._list(self._active[index])
        counters.decode_steps += decoded > 0
        if len(ready) < len(rows):
            logits_AV = logits_AV[torch.tensor(ready, dtype=torch.long, device=self._device)]
        return Ticked([rows[index] for index in ready], logits_AV)

    def _list(self, session: _Session) -> None:
        """The slot now begins with the whole prompt of this turn; if it is the session's first, others may copy it."""
        if session.first_prompt is None and len(session.held) == 0:
            session.first_prompt = session.row.prompt.tobytes()
            self._holders.setdefault(session.first_prompt, []).append(session)


def _reach(row: Row) -> int:
    """Positions that this row can fill at most."""
    return len(row.prompt) + row.limit


def _common_prefix(held: np.ndarray, prompt: np.ndarray) -> int:
    """Leading tokens of `prompt` whose keys and values are held; never all of it, since its last logits are wanted."""
    length = min(len(held), len(prompt) - 1)
    differs = np.flatnonzero(held[:length] != prompt[:length])
    return int(differs[0]) if len(differs) else length
