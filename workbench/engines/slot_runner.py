"""Which sequences run, where their keys and values lie, and what passes through the model in this tick.

Axis letters: A sequences that are active now · T tokens of this pass · V vocabulary.

A session owns a slot from its first turn until it is released or evicted. Between turns it is idle: its slot keeps what
was computed, and the next turn computes only what is new. Active sessions lie in slots 0 .. A-1 of their slab
(`slot_table`); where there are two slabs, those of each pass by themselves.
Everything here follows a logical clock (order of submission, ticks), never the wall clock, so two runs that submit the
same requests at the same ticks are equal bit for bit (invariant 8).
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch

from workbench.engines.attention import PIECE, Forward, ForwardStep, PackedPiece, bundle_pieces
from workbench.engines.sampling import Counters, Row, Ticked
from workbench.engines.slot_table import Slab, SlotSession, SlotTable


class SlotRunner:
    """Runs rows on a causal model whose attention is `slot_attention`."""

    def __init__(
        self,
        forward: Forward,
        device: torch.device,
        *,
        max_rows: int,
        prefill_tokens: int,
        cache_tokens: int,
        counters: Counters,
    ):
        self._forward = forward
        self._max_rows = max_rows
        self._prefill_tokens = prefill_tokens
        self._counters = counters
        self._device = device
        # A way to pass tokens may keep some of them outside of the slots (`native`).
        table_kind = getattr(forward, "table_kind", SlotTable)
        self._table = table_kind(device, cache_tokens, counters)
        self._waiting: deque[Row] = deque()

    # ------------------------------------------------------------------------------------------ the outside

    @property
    def cached_tokens(self) -> int:
        """Positions that there is room for, filled or not."""
        return self._table.positions

    def add(self, row: Row) -> None:
        self._waiting.append(row)

    def tick(self) -> Ticked:
        """Admit what waits, pass one batch of tokens through the model; logits for the rows that can sample now."""
        copies = self._admit() if self._waiting else []
        self._table.layout()
        self._table.copy(copies)
        return self._pass_all()

    def advance(self, row: Row, token: int) -> None:
        """`token` was sampled for `row`; it will pass through the model at the next tick."""
        row.pending = np.array([token], np.int64)

    def finish(self, row: Row, keep: bool) -> None:
        """The turn is over. Its session idles with what is cached, or (`keep=False`) loses it."""
        session = self._table.sessions[row.session]
        if keep:
            self._table.rest(session, row.sequence[: row.cached])
        else:
            self._table.forget(session)

    def release(self, session_name: str) -> None:
        self._waiting = deque(row for row in self._waiting if row.session != session_name)
        session = self._table.sessions.get(session_name)
        if session is not None:
            self._table.forget(session)
        if not self._table.sessions and not self._waiting:
            self._table.drop()  # who lies where depends on the room there is: what comes next must not inherit it

    def drop(self) -> None:
        """Forget every cache: the weights that made them are gone. Nothing may be in progress."""
        self._table.drop()

    # ------------------------------------------------------------------------------------------ admission

    def _admit(self) -> list[tuple[SlotSession, SlotSession]]:
        """Open waiting rows in order of submission; returns which sessions copy their first prompt: (from, to)."""
        copies: list[tuple[SlotSession, SlotSession]] = []
        running = [session for session in self._table.active if session.row is not None]
        held = {session.name for session in running}
        computing = {s.row.prompt.tobytes() for s in running if s.row.cached < len(s.row.prompt)}
        budget = self._prefill_tokens - sum(len(session.row.pending) - 1 for session in running)
        postponed: list[Row] = []
        while self._waiting and len(held) < self._max_rows and budget > 0:
            row = self._waiting.popleft()
            session = self._table.sessions.get(row.session) or SlotSession(row.session)
            reused = _common_prefix(session.held, row.prompt)
            key = row.prompt.tobytes()
            if not reused and key in computing:
                postponed.append(row)  # one tick later it can be copied
                continue
            source = None if reused else self._table.holder_of(key)
            row.cached = reused
            protected = {*held, *(origin.name for origin, _ in copies)}
            if not self._table.make_room(session, row, source, protected):
                self._waiting.appendleft(row)
                break
            if source is not None and source.name not in self._table.sessions:
                source = None  # evicted for this very row: it computes what it could have copied
            self._open(session, row, source)
            if source is not None:
                copies.append((source, session))
            elif not reused:
                computing.add(key)
            held.add(row.session)
            budget -= len(row.pending) - 1
        self._waiting.extendleft(reversed(postponed))
        return copies

    def _open(self, session: SlotSession, row: Row, source: SlotSession | None) -> None:
        """Begin a turn: what is known of its prompt is kept or will be copied, the rest is pending."""
        reused = row.cached
        reused_bytes = reused * row.prompt.itemsize
        if reused_bytes < len(session.first_prompt):
            # Its slot is about to be overwritten from position `reused` on.
            session.first_prompt = b""
        # One token at least passes through the model: its logits are wanted.
        row.cached = reused if source is None else len(row.prompt) - 1
        row.pending = row.prompt[row.cached :]
        self._counters.reused_tokens += reused
        self._counters.shared_prompt_tokens += row.cached - reused
        self._table.begin(session, row)

    # ------------------------------------------------------------------------------------------ one pass

    def _pass_all(self) -> Ticked:
        """The newest token of every active sequence, and before it what its prompt still lacks: a forward pass for each
        slab."""
        budget = self._prefill_tokens
        decoded = 0
        passes = []
        for slab in self._table.slabs:
            if slab.active:
                rows = [session.row for session in slab.active]
                slab.cache.shared = [session.shared for session in slab.active]
                takes, budget = _tokens_to_pass(rows, budget)
                decoded += sum(bool(row.tokens) for row in rows)
                logits_AV = self._pass(slab, rows, takes)
                passes.append(self._note_pass(slab, takes, logits_AV))
        self._counters.decode_steps += decoded > 0
        if not passes:
            return Ticked([], None)
        if len(passes) == 1:
            return passes[0]
        near, far = passes
        return Ticked(near.rows + far.rows, torch.cat([near.logits, far.logits]))

    def _pass(self, slab: Slab, rows: list[Row], takes: list[int]) -> torch.Tensor:
        """Logits [A, V] of one forward pass over what was taken of each row of a slab."""
        count = len(rows)
        pieces = _pieces(rows, takes)
        packed_3T = _packed(rows, takes, pieces)
        ends = packed_3T[2, :count] + 1
        packed = torch.from_numpy(packed_3T).to(self._device)
        step = ForwardStep(
            slab.cache,
            slot_T=packed[1],
            position_T=packed[2],
            active=count,
            ends=tuple(ends.tolist()),
            pieces=bundle_pieces(pieces),
        )
        return self._forward(step, packed[:1], count if pieces else None)

    def _note_pass(self, slab: Slab, takes: list[int], logits_AV: torch.Tensor) -> Ticked:
        """Note that tokens have passed; the rows of the slab that can sample now."""
        ready = []
        for index, (session, take) in enumerate(zip(slab.active, takes)):
            row = session.row
            row.cached += take
            row.pending = row.pending[take:]
            if not row.tokens:
                self._counters.prefill_tokens += take
            if len(row.pending) == 0:
                ready.append(index)
                if not row.tokens:
                    self._table.list_prompt(session)
        if len(ready) < len(slab.active):
            logits_AV = logits_AV[torch.tensor(ready, dtype=torch.long, device=self._device)]
        return Ticked([slab.active[index].row for index in ready], logits_AV)


def _packed(rows: list[Row], takes: list[int], pieces: list[PackedPiece]) -> np.ndarray:
    """Ids, slots and positions of the tokens of a pass, int64 [3, T]: the newest of each row, then the pieces."""
    newest = [row.pending[take - 1] for row, take in zip(rows, takes)]
    positions = [row.cached + take - 1 for row, take in zip(rows, takes)]
    parts = [np.array([newest, range(len(rows)), positions], np.int64)]
    for piece in pieces:
        row = rows[piece.slot]
        position_n = np.arange(piece.start, piece.start + piece.count)
        slot_n = np.full_like(position_n, piece.slot)
        parts.append(np.stack([row.pending[position_n - row.cached], slot_n, position_n]))
    return np.concatenate(parts, axis=1)


def _tokens_to_pass(rows: list[Row], budget: int) -> tuple[list[int], int]:
    """How many pending tokens of each row pass now, one at least, and what is left of the budget for prompts."""
    takes = []
    for row in rows:
        takes.append(min(len(row.pending), 1 + max(budget, 0)))
        budget -= takes[-1] - 1
    return takes, budget


def _pieces(rows: list[Row], takes: list[int]) -> list[PackedPiece]:
    """The tokens before the newest one of each row, cut into pieces, short ones first."""
    cut = []
    for slot, (row, take) in enumerate(zip(rows, takes)):
        newest = row.cached + take - 1
        for start in range(row.cached, newest, PIECE):
            cut.append((min(PIECE, newest - start), start, slot))
    first = len(rows)
    pieces = []
    for length, start, slot in sorted(cut):
        pieces.append(PackedPiece(slot, start, length, first))
        first += length
    return pieces


def _common_prefix(held: np.ndarray, prompt: np.ndarray) -> int:
    """Leading tokens of `prompt` whose keys and values are held; never all of it, since its last logits are wanted."""
    length = min(len(held), len(prompt) - 1)
    differs = np.flatnonzero(held[:length] != prompt[:length])
    return int(differs[0]) if len(differs) else length
