"""Who lies in which slab: one long trajectory costs the short ones nothing, both slabs stay within the bound, and what a
session has computed goes with it wherever it goes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from engine_models import VOCAB, ask, plain_logprobs, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.engines import TransformersEngineConfig, open_engine, slot_table, slots
from workbench.engines.intake import position_numbers
from workbench.engines.sampling import Counters, Row
from workbench.engines.slot_table import SlotSession, SlotTable

LONG, SHORT, CONTEXT = 1, 127, 640
CACHE = 8_192  # one slab for all of them would take (LONG + SHORT) * CONTEXT = 81,920
TURNS = 5
MODEL = tiny("qwen3", positions=CONTEXT)


def one_long_among_short_ones(engine, watch=lambda: None):
    """All play TURNS turns, begun together; the long one is told 140 tokens after each, the others two. (ids, logprobs
    of the last turn) of the long one and of a short one, and how many tokens are new to the engine if it forgets
    nothing."""
    rng = np.random.default_rng(0)
    ids = {f"s{number}": rng.integers(6, VOCAB, 12) for number in range(LONG + SHORT)}
    last, new = {}, sum(map(len, ids.values()))
    for turn in range(TURNS):
        for number, name in enumerate(ids):
            engine.submit(
                ask(
                    turn * len(ids) + number,
                    name,
                    ids[name],
                    max_new_tokens=4,
                    stop_ids=frozenset(),
                )
            )
        done = []
        while len(done) < len(ids):
            done += engine.poll()
            watch()
        for completion in done:
            assert completion.error is None, completion.error
            name = f"s{completion.request_id % len(ids)}"
            last[name] = ids[name] = (
                np.concatenate([ids[name], completion.token_ids]),
                completion.logprobs,
            )
            reply = rng.integers(6, VOCAB, 140 if name == "s0" else 2) if turn < TURNS - 1 else []
            new += len(reply) + (turn < TURNS - 1)  # and the token that was sampled last
            ids[name] = np.concatenate([last[name][0], reply]).astype(int)
    return [last["s0"], last["s9"]], new


def test_one_long_trajectory_among_short_ones_evicts_nobody():
    engine, held = open_engine(TransformersEngineConfig(cache_tokens=CACHE), MODEL), []
    position = 4 * position_numbers(MODEL.config)  # bytes
    found, new = one_long_among_short_ones(
        engine, lambda: held.append(sum(slab.cache.bytes for slab in engine._runner._table.slabs))
    )
    stats = engine.stats()
    assert stats["evictions"] == 0 and stats["prefill_tokens"] == new, "nothing was computed twice"
    assert max(held) <= CACHE * position and stats["cached_tokens"] <= CACHE
    for ids, logprobs in found:
        plain = plain_logprobs(MODEL, ids)[-len(logprobs) :]
        np.testing.assert_allclose(logprobs, plain.numpy(), atol=2e-5)
    assert len(found[0][0]) > 0.9 * CONTEXT > 10 * len(found[1][0])


def test_control_in_one_slab_it_evicts_many(monkeypatch):
    whole = slot_table._division

    def in_one(*asked):
        found = whole(*asked)
        return None if found is not None and found.cut else found

    monkeypatch.setattr(slot_table, "_division", in_one)
    engine = open_engine(TransformersEngineConfig(cache_tokens=CACHE), MODEL)
    _, new = one_long_among_short_ones(engine)
    stats = engine.stats()
    assert stats["evictions"] > SHORT // 2 and stats["prefill_tokens"] > 1.5 * new


def test_two_runs_with_two_slabs_are_equal_bit_for_bit():
    first, second = (
        one_long_among_short_ones(open_engine(TransformersEngineConfig(cache_tokens=CACHE), MODEL))[
            0
        ]
        for _ in range(2)
    )
    for (ids, logprobs), (other_ids, other_logprobs) in zip(first, second, strict=True):
        assert np.array_equal(ids, other_ids) and np.array_equal(logprobs, other_logprobs)


def test_when_all_are_released_nothing_of_them_decides_who_lies_where_next():
    """Else a resumed run, which did not make an earlier collect, passes its rows in other company, with other
    roundings."""
    used, fresh = (
        open_engine(TransformersEngineConfig(cache_tokens=CACHE), MODEL) for _ in range(2)
    )
    one_long_among_short_ones(used)
    for number in range(LONG + SHORT):
        used.release(f"s{number}")
    assert used.stats()["cached_tokens"] == 0
    lies = []
    for engine in (used, fresh):
        one_long_among_short_ones(
            engine,
            lambda: lies.append(
                [(s.name, s.apart, s.slot) for s in engine._runner._table.sessions.values()]
            ),
        )  # noqa: B023
    half = len(lies) // 2
    assert lies[:half] == lies[half:] and any(apart for _, apart, _ in lies[-1])


# ------------------------------------------------------------------------------------------------ the table by itself

BOUND = 60


def least(reaches: list[int]) -> int:
    """Positions of the best way to deal these out to two slabs, by trying all."""
    ways = product((False, True), repeat=len(reaches))
    return min(
        sum(
            len(some) * max(some, default=0)
            for some in (
                [r for r, far in zip(reaches, way) if far == side] for side in (False, True)
            )
        )
        for way in ways
    )


class Played:
    """A table whose sessions write their own numbers, as a model would; and what each must still have."""

    def __init__(self) -> None:
        self.table, self.written, self.number = (
            SlotTable(torch.device("cpu"), BOUND, Counters()),
            {},
            0,
        )

    def begin(self, name: str, prompt: int, limit: int, kept: int) -> bool:
        session = self.table.sessions.get(name) or SlotSession(name)
        reused = min(kept, len(session.held), prompt - 1)
        row = Row(ask(0, name, [1]), np.zeros(prompt, np.int64), limit, np.zeros(limit))
        running = {s.name for s in self.table.sessions.values() if s.row is not None}
        before = {s.name: s.reach for s in self.table.sessions.values() if s is not session}
        idle = sorted(
            (s for s in self.table.sessions.values() if s is not session and s.row is None),
            key=lambda s: (s.last_used, s.apart, s.slot or 0),
        )
        found = self.table.make_room(session, row, None, running)
        gone = [s.name for s in idle if s.name not in self.table.sessions]
        assert gone == [s.name for s in idle[: len(gone)]], "longest unused first"
        kept = [reach for other, reach in before.items() if other not in gone] + [row.reach]
        if not found:
            assert (
                not gone
                and least(kept[-1:] + [before[name] for name in running if name != session.name])
                > BOUND
            )
            return False
        assert least(kept) <= BOUND
        assert not gone or least([*kept, before[gone[-1]]]) > BOUND, "nobody more than needed"
        for other in gone:
            del self.written[other]
        row.cached, row.pending = reused, row.prompt[reused:]
        self.table.begin(session, row)
        self.written[name] = self.written.get(name, [])[:reused]
        return True

    def tick(self) -> None:
        """Lay out, and let each active session write what it has pending; then it has one token more, or is at its
        end."""
        self.table.layout()
        for slab in self.table.slabs:
            assert [session.slot for session in slab.active] == list(range(len(slab.active)))
            for session in slab.members:
                assert session.slot < slab.cache.slots and session.needed <= slab.cache.length
            assert len({session.slot for session in slab.members}) == len(slab.members)
            for session in slab.active:
                row = session.row
                for _ in range(len(row.pending)):
                    self.number += 1
                    state = torch.full((1, 2, 4), float(self.number))
                    slab.cache.write(
                        0, state, -state, torch.tensor([session.slot]), torch.tensor([row.cached])
                    )
                    self.written[session.name].append(self.number)
                    row.cached += 1
                row.tokens.append(1)
                row.pending = np.zeros(1, np.int64)
                if len(row.tokens) == row.limit:
                    self.table.rest(session, np.zeros(row.cached, np.int64))

    def look(self) -> None:
        """Every session has what it wrote, and both slabs, with all their memory, are within the bound."""
        for name, session in self.table.sessions.items():
            slab = self.table.slabs[session.apart]
            if session.slot is not None and self.written[name]:
                found = slab.cache.keys[0][session.slot, 0, : len(self.written[name]), 0]
                assert found.tolist() == self.written[name], name
        assert self.table.positions <= BOUND
        assert sum(slab.cache.room for slab in self.table.slabs) <= BOUND
        for slab in self.table.slabs:
            for memory in (slab.cache._key_memory, slab.cache._value_memory):
                assert all(bool(tensor.isfinite().all()) for tensor in memory.values())


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_is_played_everybody_keeps_what_is_theirs_within_the_bound(data):
    before, slots._fresh = slots._fresh, lambda like, count: like.new_full((count,), float("nan"))
    try:
        played = Played()
        for _ in range(data.draw(st.integers(1, 30))):
            action = data.draw(
                st.sampled_from(["begin", "begin", "begin", "tick", "tick", "release", "drop"])
            )
            names = [name for name, s in played.table.sessions.items() if s.row is None]
            if action == "begin":
                name = f"s{data.draw(st.integers(0, 9))}"
                session = played.table.sessions.get(name)
                if session is None or session.row is None:
                    held = 0 if session is None else len(session.held)
                    prompt = data.draw(st.integers(1, 12)) if data.draw(st.booleans()) else held + 2
                    limit = data.draw(st.sampled_from([1, 2, 3, 20]))
                    if prompt + limit <= BOUND:
                        played.begin(name, prompt, limit, data.draw(st.sampled_from([0, 3, 99])))
            elif action == "tick":
                played.tick()
                played.look()
            elif action == "release" and names:
                name = data.draw(st.sampled_from(names))
                played.table.forget(played.table.sessions[name])
                del played.written[name]
            elif action == "drop" and data.draw(st.integers(0, 4)) == 0:
                played.table.drop()
                played.written = {}
        played.tick()
        played.look()
    finally:
        slots._fresh = before


def test_nobody_is_evicted_where_some_division_has_room_for_all():
    """Three of 4 and one of 40 come to 52 positions in two slabs, and to 160 in one."""
    played = Played()
    for number in range(3):
        assert played.begin(f"s{number}", 3, 1, 0)
        played.tick()
    assert played.begin("long", 39, 1, 0)
    played.tick()
    played.look()
    assert set(played.table.sessions) == {"s0", "s1", "s2", "long"} and played.table.positions <= 52
    assert [session.name for session in played.table.slabs[1].members] == ["long"]
    assert played.begin("larger", 20, 1, 0) and "s0" not in played.table.sessions, (
        "control: now somebody has to go"
    )


@pytest.mark.parametrize("order", [1, -1])
def test_it_does_not_matter_who_came_first(order):
    """A long one that was there first is put apart when the short ones come."""
    played = Played()
    for name, prompt in [("long", 35), *((f"s{number}", 3) for number in range(5))][::order]:
        assert played.begin(name, prompt, 1, 0), name
        played.tick()
        played.look()
    assert len(played.table.sessions) == 6 and played.table._counters.evictions == 0
