"""The probe tries every way that a run can take: long rows, short rows, pieces of prompts, sessions of more than 512
tokens that go on from their cache, heads whose keys and values differ in size. What fails there is never sampled with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_models import WITH_KEYS_AND_VALUES, play, prompts, tiny, worst_gap

from tests.counts import reduced
from workbench.engines import TransformersEngineConfig, attention, open_engine, probe
from workbench.engines.attention import PIECE, ForwardStep

EXACT = 2e-5  # as in test_engine_logprobs
POSITIONS = 1024


def engine_for(model, **settings):
    return open_engine(TransformersEngineConfig(**settings), model)


def long_sessions(engine):
    """A prompt in several pieces, then observations that are added behind position 512; two turns decode there."""
    sessions = play(
        engine, prompts(3, low=450, high=520), turns=4, observation=40, stop_ids=frozenset()
    )
    assert all(len(played.ids) > 512 + 60 for played in sessions)
    assert engine.stats()["reused_tokens"] > 3 * 512, "they went on from their cache"
    return sessions


# With many threads, decoding never goes row by row.
THREADS = [(family, threads) for family in WITH_KEYS_AND_VALUES for threads in (1, 4)]


@pytest.mark.parametrize(
    "case", reduced(THREADS, [*THREADS[::2], ("qwen3", 4), ("deepseek_v3", 4)]), ids=str
)
def test_a_session_of_more_than_512_tokens_that_goes_on_from_its_cache(case):
    family, threads = case
    model, before = tiny(family, positions=POSITIONS), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        engine = engine_for(model)
        assert engine.keeps_cache, engine.cache_reason
        sessions = long_sessions(engine)
    finally:
        torch.set_num_threads(before)
    assert worst_gap(model, sessions) < EXACT


@pytest.mark.parametrize("window", [256, 512, 600])
@pytest.mark.parametrize("family", ["gemma3", "mistral"])
def test_windows_that_only_a_long_session_fills(family, window):
    model = tiny(family, positions=POSITIONS, window=window)
    engine = engine_for(model)
    assert engine.keeps_cache, engine.cache_reason
    assert worst_gap(model, long_sessions(engine)) < EXACT


def test_without_a_kept_cache_long_sessions_of_latent_attention_agree_too():
    model = tiny("deepseek_v3", positions=POSITIONS)
    engine = engine_for(model, cache="off")
    sessions = play(engine, prompts(2, low=530, high=540), turns=2, observation=20)
    assert worst_gap(model, sessions) < EXACT


class Watched:
    """What the probe of one engine asked of attention."""

    def __init__(self, monkeypatch):
        self.row_pieces, self.slab, self.ends, self.continued = [], 0, [], 0
        by_rows, plain = attention.attend_by_rows, attention._attend

        def rows(query, keys, values, ends, scaling, thin):
            self.row_pieces.append(thin is not None)
            return by_rows(query, keys, values, ends, scaling, thin)

        def slab(query, *others):
            self.slab += query.shape[2] == 1
            return plain(query, *others)

        class Noted(ForwardStep):
            def __init__(noted, *values, **named):
                super().__init__(*values, **named)
                self.ends.append(max(noted.ends))
                starts = [piece.start for bundle in noted.pieces for piece in bundle]
                self.continued += any(start > 512 for start in starts)

        monkeypatch.setattr(attention, "attend_by_rows", rows)
        monkeypatch.setattr(attention, "_attend", slab)
        monkeypatch.setattr(probe, "ForwardStep", Noted)


def test_every_way_is_tried_whatever_a_model_is_like(monkeypatch):
    """With two heads of eight numbers, rows would be read one by one only from 512 tokens on, and never in pieces."""
    watched = Watched(monkeypatch)
    engine = engine_for(tiny("qwen3", positions=POSITIONS))
    assert engine.keeps_cache and "567 tokens" in engine.cache_reason
    assert {True, False} == set(watched.row_pieces) and watched.slab
    assert max(watched.ends) > 2 * PIECE and watched.continued
    assert len(set(watched.ends)) > 5, "the slab grows under it"


@pytest.mark.parametrize(
    "room", [dict(max_context=100), dict(cache_tokens=100), dict(max_context=20)]
)
def test_the_probe_is_no_longer_than_what_a_run_can_hold(room, monkeypatch):
    watched = Watched(monkeypatch)
    model = tiny("gpt2", positions=POSITIONS)
    engine = engine_for(model, **room)
    assert engine.keeps_cache, engine.cache_reason
    assert max(watched.ends) == (19 if room == dict(max_context=20) else 100)


def test_control_rows_that_cannot_be_read_are_found_before_a_run_needs_them(monkeypatch):
    """As it was: values of another size than keys, and only long rows took the way that could not do it."""

    def as_it_was(query, keys, values, ends, scaling, thin):
        raise ValueError(
            "operands could not be broadcast together with shapes (4,1,12) (4,1,6) (4,1,12)"
        )

    monkeypatch.setattr(attention, "attend_by_rows", as_it_was)
    model = tiny("deepseek_v3", positions=POSITIONS)
    engine = engine_for(model)
    assert not engine.keeps_cache
    assert "ValueError: operands could not be broadcast" in engine.cache_reason
    assert "each turn is prefilled anew" in engine.cache_reason
    sessions = play(engine, prompts(2, low=530, high=540), turns=2, observation=20)
    assert worst_gap(model, sessions) < EXACT


@pytest.mark.parametrize("way", ["rows", "pieces of rows", "slab"])
def test_control_each_way_that_is_a_little_wrong_is_found(way, monkeypatch):
    by_rows, plain = attention.attend_by_rows, attention._attend

    def rows(query, keys, values, ends, scaling, thin):
        right = by_rows(query, keys, values, ends, scaling, thin)
        return right * 1.01 if (thin is None) == (way == "rows") else right

    def slab(query, *others):
        return plain(query, *others) * (1.01 if query.shape[2] == 1 else 1.0)

    if way == "slab":
        monkeypatch.setattr(attention, "_attend", slab)
    else:
        monkeypatch.setattr(attention, "attend_by_rows", rows)
    engine = engine_for(tiny("llama", positions=POSITIONS))
    assert not engine.keeps_cache and "differs from a plain forward" in engine.cache_reason


@pytest.mark.parametrize("forgets", ["decode_mask", "piece mask"])
def test_control_a_window_of_512_that_is_forgotten_is_found(forgets, monkeypatch):
    """No shorter sequence would show it."""
    where, name = (
        (ForwardStep, "decode_mask") if forgets == "decode_mask" else (attention._Bundle, "mask")
    )
    right = getattr(where, name)
    monkeypatch.setattr(where, name, lambda self, window: right(self, None))
    engine = engine_for(tiny("gemma3", positions=POSITIONS, window=512))
    assert not engine.keeps_cache and "differs from a plain forward" in engine.cache_reason


def test_the_own_cache_is_tried_with_a_long_prompt_too(monkeypatch):
    lengths = []
    model = tiny("mamba")
    forward = type(model).forward
    monkeypatch.setattr(
        type(model),
        "forward",
        lambda self, input_ids, **others: (
            lengths.append((input_ids.shape[1], others["use_cache"]))
            or forward(self, input_ids, **others)
        ),
    )
    engine = engine_for(model)
    assert not engine.keeps_cache and "own cache is used" in engine.cache_reason
    assert (560, True) in lengths and np.count_nonzero(
        [length == (1, True) for length in lengths]
    ) == 7 + 8 + 3
