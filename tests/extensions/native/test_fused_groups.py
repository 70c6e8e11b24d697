"""The fused way keeps a group's first prompt once: no bit changes, its memory is counted and given
back, and a sequence that leaves the prompt takes along what it still has of it."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.counts import reduced
from tests.kernel_kit import needs_compiler, own_folder  # noqa: F401
from workbench.engines import TransformersEngineConfig, open_engine
from workbench.engines.slot_table import SlotTable
from workbench.extensions.native import fused
from workbench.extensions.native.prompts import BLOCK, GroupPrompt, SharedSlotTable

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "engines"))
from engine_models import SHAPE, VOCAB, ask, play, prompts  # noqa: E402

pytestmark = needs_compiler
SIZES = {
    "vectors": dict(head_dim=32),
    "no vectors": dict(hidden_size=36, intermediate_size=50, head_dim=12),
}
LENGTHS = (83, 37, 16, 17, 3)  # of prompts: around multiples of a block, and shorter than one


def model_of(**others):
    """A random model whose attention matters."""
    torch.manual_seed(0)
    model = hf.Qwen3ForCausalLM(hf.Qwen3Config(**(SHAPE | others))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(5.0)
    return model


def groups():
    """Groups of four, and a sequence of its own."""
    rng = np.random.default_rng(2)
    firsts = [rng.integers(6, VOCAB, count) for count in LENGTHS]
    return [*firsts, *prompts(1), *(first.copy() for first in firsts * 3)]


class Watched(SharedSlotTable):
    """Notes how many sessions had their prompt in common with another one, at most."""

    most = 0

    def layout(self):
        super().layout()
        kept = [s.shared for s in self.sessions.values() if s.shared.length]
        Watched.most = max(Watched.most, len(kept) - len(set(map(id, kept))))


def played(model, monkeypatch, table, history=lambda ids, turn: ids, **settings):
    """(ids, logprobs, statistics) of three turns of the groups."""
    monkeypatch.setattr(fused.FusedForward, "table_kind", table)
    engine = open_engine(TransformersEngineConfig(decode="fused", **settings), model)
    assert engine.notes == []
    sessions = play(engine, groups(), turns=3, max_new_tokens=8, history=history)
    logps = [logp for session in sessions for _, logp in session.sampled]
    return np.concatenate([session.ids for session in sessions]), np.array(logps), engine.stats()


@pytest.mark.parametrize("others", [{}, dict(dtype="bfloat16"), dict(drafts=4)], ids=str)
@pytest.mark.parametrize("sizes", SIZES)
def test_no_bit_is_another_one(sizes, others, monkeypatch):
    model = model_of(**SIZES[sizes])
    monkeypatch.setattr(Watched, "most", 0)
    ids, logps, stats = played(model, monkeypatch, Watched, **others)
    other_ids, other_logps, other_stats = played(model, monkeypatch, SlotTable, **others)
    with_blocks = sum(length > BLOCK for length in LENGTHS)
    assert Watched.most == 3 * with_blocks, "three of each group have their prompt of the fourth"
    assert np.array_equal(ids, other_ids)
    np.testing.assert_array_equal(logps, other_logps)
    counted = ("prefill_tokens", "shared_prompt_tokens", "reused_tokens")
    assert [stats[name] for name in counted] == [other_stats[name] for name in counted]


def test_the_comparison_sees_another_groups_prompt(monkeypatch):
    """Negative control: all of one length read the prompt of whoever came first."""
    model = model_of(**SIZES["vectors"])
    first: dict[int, GroupPrompt] = {}

    class Mixed(SharedSlotTable):
        def shared_by(self, session, row, source):
            shared = super().shared_by(session, row, source)
            return first.setdefault(0, shared) if shared.length else shared

    _, logps, _ = played(model, monkeypatch, Mixed)
    _, other_logps, _ = played(model, monkeypatch, SlotTable)
    assert len(logps) != len(other_logps) or (logps != other_logps).any()


def test_a_prompt_is_read_from_one_place():
    """What lies in the one place counts for all that began with it."""
    model = model_of(**SIZES["vectors"])
    prompt = groups()[0]

    def logps_after(spoil) -> list[np.ndarray]:
        engine = open_engine(TransformersEngineConfig(decode="fused"), model)
        for row in range(3):
            engine.submit(ask(row, str(row), prompt, max_new_tokens=8, stop_ids=frozenset()))
        while not all(engine.partial(row) for row in range(3)):
            engine.poll()
        with torch.inference_mode():
            spoil(engine._runner._table.sessions)
        done = []
        while len(done) < 3:
            done += engine.poll()
        return [answer.logprobs for answer in sorted(done, key=lambda answer: answer.request_id)]

    def nothing(sessions):
        [kept] = {id(session.shared): session.shared for session in sessions.values()}.values()
        assert kept.length == 80 and kept.keys.shape[2] == 80

    sound = logps_after(nothing)
    spoiled = logps_after(lambda sessions: sessions["1"].shared.keys.add_(1))
    assert not any(map(np.array_equal, sound, spoiled))


@pytest.mark.parametrize("where", [1, 20, 79, 80, 81, 200])
def test_a_rewritten_history_takes_along_what_stays(where, monkeypatch):
    """A session changes a token inside its prompt, at the end of the part that is kept once, or
    after it."""
    model = model_of(**SIZES["vectors"])

    def rewritten(ids, turn):
        ids = ids.copy()
        place = min(where + turn, len(ids) - 1)
        ids[place] = 6 + (ids[place] - 5) % (VOCAB - 6)
        return ids

    ids, logps, stats = played(model, monkeypatch, SharedSlotTable, rewritten)
    other_ids, other_logps, other_stats = played(model, monkeypatch, SlotTable, rewritten)
    assert np.array_equal(ids, other_ids)
    np.testing.assert_array_equal(logps, other_logps)
    assert stats["reused_tokens"] == other_stats["reused_tokens"] > 0


def test_a_session_that_begins_anew_takes_another_groups_prompt(monkeypatch):
    """From a long prompt to a shorter one that another session has, and to one that nobody has."""
    model = model_of(**SIZES["vectors"])
    long, short, *_ = groups()
    new = np.concatenate([short[5:], long[7:40]])
    asked = [("a", long), ("b", short), ("a", short), ("b", new), ("a", long[:50]), ("b", long)]

    def logps(table) -> list[np.ndarray]:
        monkeypatch.setattr(fused.FusedForward, "table_kind", table)
        engine = open_engine(TransformersEngineConfig(decode="fused"), model)
        answers = []
        for number, (name, prompt) in enumerate(asked):
            engine.submit(ask(number, name, prompt, stop_ids=frozenset()))
            while not (done := engine.poll()):
                pass
            answers += [answer.logprobs for answer in done]
        return answers

    np.testing.assert_array_equal(logps(SharedSlotTable), logps(SlotTable))


@pytest.mark.parametrize("room", [600, 420, 260])
def test_within_a_bound_that_evicts_nothing_is_another_one(room, monkeypatch):
    """Sessions lie apart, lose their slots and compute again; prompts count among the positions
    that there may be."""
    model = model_of(**SIZES["vectors"])
    positions = []

    class Bounded(SharedSlotTable):
        def layout(self):
            super().layout()
            kept = {id(s.shared): s.shared for s in self.sessions.values()}
            laid_out = sum(slab.cache.room for slab in self.slabs)
            positions.append(laid_out + sum(prompt.length for prompt in kept.values()))
            assert self.positions <= room

    bound = dict(cache_tokens=room, max_rows=6)
    ids, logps, stats = played(model, monkeypatch, Bounded, **bound)
    roomy_ids, roomy_logps, _ = played(model, monkeypatch, SlotTable)
    _, _, other_stats = played(model, monkeypatch, SlotTable, **bound)
    assert np.array_equal(ids, roomy_ids)
    np.testing.assert_array_equal(logps, roomy_logps)
    assert max(positions) <= room
    assert stats["prefill_tokens"] <= other_stats["prefill_tokens"], "it evicts no more than before"
    assert other_stats["evictions"] > 0


def test_who_is_copied_from_leaves_its_prompt_a_tick_later(monkeypatch):
    """One session rewrites its history in the tick in which another one copies the end of the same
    prompt from its slot."""
    model = model_of(**SIZES["vectors"])
    prompt = groups()[0]
    rewritten = prompt.copy()
    rewritten[1] = 6 + (rewritten[1] - 5) % (VOCAB - 6)

    def logps(table) -> list[np.ndarray]:
        monkeypatch.setattr(fused.FusedForward, "table_kind", table)
        engine = open_engine(TransformersEngineConfig(decode="fused"), model)
        answers = []
        for number, asked in enumerate([[("e", prompt)], [("a", prompt), ("e", rewritten)]]):
            for place, (name, ids) in enumerate(asked):
                engine.submit(ask(10 * number + place, name, ids, stop_ids=frozenset()))
            done = []
            while len(done) < len(asked):
                done += engine.poll()
            answers += sorted(done, key=lambda answer: answer.request_id)
        return [answer.logprobs for answer in answers]

    np.testing.assert_array_equal(logps(SharedSlotTable), logps(SlotTable))


@pytest.mark.parametrize("count", reduced([30, 300], [30]))
def test_whatever_is_played_no_bit_is_another_one(count):
    settings(max_examples=count, deadline=None)(given(st.data())(played_at_random))()


def played_at_random(data):
    """Sessions that begin, go on, rewrite what they had, begin anew and leave, in a cache that is
    too small for all."""
    model, room = model_of(**SIZES["vectors"]), data.draw(st.integers(150, 400))
    config = dict(decode="fused", max_rows=data.draw(st.integers(1, 4)), prefill_tokens=64)
    engines = []
    for table, cache_tokens in ((SharedSlotTable, room), (SlotTable, 8192)):
        with mock.patch.object(fused.FusedForward, "table_kind", table):
            made = TransformersEngineConfig(cache_tokens=cache_tokens, **config)
            engines.append(open_engine(made, model))
    ids: dict[str, np.ndarray] = {}
    for number in range(data.draw(st.integers(1, 12))):
        begun = data.draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True))
        for place, name in enumerate(begun):
            action = data.draw(st.sampled_from(["go on", "go on", "rewrite", "anew", "leave"]))
            if action == "leave":
                for engine in engines:
                    engine.release(name)
            if action == "anew" or action == "leave" or name not in ids or len(ids[name]) > 120:
                ids[name] = groups()[data.draw(st.integers(0, 4))]
            elif action == "rewrite":
                where = data.draw(st.integers(0, len(ids[name]) - 1))
                ids[name][where] = 6 + (ids[name][where] - 5) % (VOCAB - 6)
            for engine in engines:
                engine.submit(ask(10 * number + place, name, ids[name], stop_ids=frozenset()))
        answers = []
        for engine in engines:
            done = []
            while len(done) < len(begun):
                done += engine.poll()
                assert engine is engines[1] or engine.stats()["cached_tokens"] <= room
            answers.append(sorted(done, key=lambda answer: answer.request_id))
        for name, one, other in zip(begun, *answers, strict=True):
            assert one.error is other.error is None
            np.testing.assert_array_equal(one.token_ids, other.token_ids)
            np.testing.assert_array_equal(one.logprobs, other.logprobs)
            ids[name] = np.concatenate([ids[name], one.token_ids, [7, 8]])


def test_a_prompt_goes_with_its_last_sequence(monkeypatch):
    model = model_of(**SIZES["vectors"])
    engine = open_engine(TransformersEngineConfig(decode="fused"), model)
    for row in range(3):
        engine.submit(ask(row, str(row), groups()[0]))
    while len(engine._runner._table.sessions) < 3 or not engine.partial(2):
        engine.poll()
    kept = weakref.ref(engine._runner._table.sessions["2"].shared)
    engine.release("0")
    engine.release("1")
    gc.collect()
    assert kept() is not None
    engine.release("2")
    engine.poll()
    gc.collect()
    assert kept() is None and engine.stats()["cached_tokens"] == 0


def test_eight_of_a_group_take_little_more_than_their_own(monkeypatch):
    """Positions of a group of eight with a prompt of 200: the slots are as long as what comes after
    it."""
    model = model_of(**SIZES["vectors"], max_position_embeddings=512)
    prompt = np.random.default_rng(0).integers(6, VOCAB, 200)

    def positions(table) -> int:
        monkeypatch.setattr(fused.FusedForward, "table_kind", table)
        engine = open_engine(TransformersEngineConfig(decode="fused"), model)
        for row in range(8):
            engine.submit(ask(row, str(row), prompt, max_new_tokens=30, stop_ids=frozenset()))
        while not all(len(engine.partial(row)) > 20 for row in range(8)):
            engine.poll()
        return engine.stats()["cached_tokens"]

    assert positions(SharedSlotTable) <= 192 + 8 * 64
    assert positions(SlotTable) >= 8 * 220
