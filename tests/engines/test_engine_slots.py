"""The slab of keys and values: it grows within its memory without a copy, keeps what it must, and whatever lies in new
memory or was left behind by others never reaches attention."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from engine_models import ask, drain, play, prompts, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.counts import reduced
from workbench.engines import TransformersEngineConfig, open_engine, slots
from workbench.engines.slots import SlotCache

TIGHT = dict(max_rows=3, prefill_tokens=10, cache_tokens=200)


def engine_for(model, **settings):
    return open_engine(TransformersEngineConfig(**settings), model)


def record(sessions):
    return [(played.ids.tolist(), played.sampled) for played in sessions]


def three_collects(model, **settings):
    """Few short sessions, many long ones, and a few again, between changes of weights: memory is made, grows, is used
    again in another layout."""
    engine, found = engine_for(model, **settings), []
    for version, (count, turns) in enumerate([(3, 2), (9, 5), (4, 3)], start=1):
        found.append(record(play(engine, prompts(count, seed=version), turns=turns)))
        engine.sync(model.state_dict(), version)
    assert engine.keeps_cache, engine.cache_reason
    return found


def poison(monkeypatch) -> list[int]:
    """New memory is full of NaN; the list fills with how much of it was asked for."""
    asked = []

    def fresh(like, count):
        asked.append(count)
        return like.new_full((count,), float("nan"))

    monkeypatch.setattr(slots, "_fresh", fresh)
    return asked


LIMITS = {"roomy": {}, "tight": TIGHT}


@pytest.mark.parametrize(
    "case",
    reduced(
        product(("qwen3", "gemma2", "gpt2", "deepseek_v3"), LIMITS),
        (("qwen3", "tight"), ("gemma2", "roomy"), ("deepseek_v3", "roomy")),
    ),
    ids="-".join,
)
def test_nan_in_new_memory_never_reaches_attention(case, monkeypatch):
    """Ids and logprobs are the same bit for bit whatever lay in the memory that the slab was given."""
    model, limits = tiny(case[0]), LIMITS[case[1]]
    clean = three_collects(model, **limits)
    asked = poison(monkeypatch)
    assert three_collects(model, **limits) == clean  # floats compared exactly
    assert len(asked) > 4 * model.config.num_hidden_layers, (
        "the slab grew into new memory several times"
    )


def test_control_memory_that_is_not_filled_does_reach_attention(monkeypatch):
    """Without the zeros, sessions end with logits that are not finite."""
    poison(monkeypatch)
    monkeypatch.setattr(torch.Tensor, "zero_", lambda tensor: tensor)
    engine = engine_for(tiny("qwen3"))
    assert not engine.keeps_cache and "differs from a plain forward by inf" in engine.cache_reason


def test_what_earlier_sequences_left_has_no_weight():
    """An engine full of other weights' keys samples what a fresh one samples, bit for bit."""
    model, other = tiny("qwen3"), tiny("qwen3", seed=1)
    used, fresh = engine_for(model), engine_for(model)
    used.sync({name: 3 * weight for name, weight in other.state_dict().items()}, 1)
    play(used, prompts(9, seed=5), turns=5)
    used.sync(model.state_dict(), 2)
    assert record(play(used, prompts(6), turns=3)) == record(play(fresh, prompts(6), turns=3))


def test_a_prompt_that_is_cut_off_leaves_no_nan_behind():
    """Its first part passed, nobody saw its logits, and its slot goes to a short session beside a long one."""
    model = tiny("qwen2")
    engine = engine_for(model, prefill_tokens=8)
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = float("nan")
    engine.sync(model.state_dict(), 1)
    stops = frozenset({5, 7})
    engine.submit(ask(0, "long", np.arange(8, 40), max_new_tokens=30, stop_ids=frozenset()))
    while not engine.partial(0):
        engine.poll()
    engine.submit(ask(1, "cut off", [9, 7, *range(10, 40)], stop_ids=stops))
    engine.poll()
    cache = engine._runner._table.slabs[0].cache
    assert any(bool(keys.isnan().any()) for keys in cache.keys.values()), "it began, and went NaN"
    engine.release("cut off")
    engine.submit(ask(2, "short", [8, 9, 10], max_new_tokens=3, stop_ids=stops))
    done = drain(engine)
    assert sorted(completion.request_id for completion in done) == [0, 2]
    assert all(completion.finish != "error" for completion in done if completion.request_id == 2)


def test_from_the_second_step_on_nothing_is_laid_out_or_copied(monkeypatch):
    model, laid_out = tiny("qwen3"), []
    engine = engine_for(model)
    straight = slots._laid_out
    monkeypatch.setattr(
        slots, "_laid_out", lambda *sizes: laid_out.append(sizes[1:]) or straight(*sizes)
    )
    for version in (1, 2, 3):
        del laid_out[:]
        play(engine, prompts(8), turns=4)
        assert bool(laid_out) == (version == 1), laid_out
        engine.sync(model.state_dict(), version)


def test_memory_is_what_the_largest_slab_needs():
    """A use of many short slots and one of few long ones take turns: the larger of the two is held, once."""
    cache = SlotCache(torch.device("cpu"))
    sizes = [(16, 8), (3, 40), (16, 9), (1, 144), (2, 70)]
    for slots_, length in sizes:
        cache.drop()
        cache.reserve(slots_, length)
        write(cache, 0, 0, 1.0)
    numbers = 2 * 2 * 4  # keys and values, heads, head size
    assert cache.bytes == max(slots_ * length for slots_, length in sizes) * numbers * 4


def write(cache: SlotCache, slot: int, position: int, number: float) -> None:
    state = torch.full((1, 2, 4), number)
    cache.write(
        0,
        state,
        -state[:, :, :3] if number < 0 else -state,
        torch.tensor([slot]),
        torch.tensor([position]),
    )


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_what_was_written_stays_where_it_was_written(data):
    """Any order of growing, shrinking, moving and writing, beside a dictionary; all of the memory stays finite."""
    before, slots._fresh = slots._fresh, lambda like, count: like.new_full((count,), float("nan"))
    try:
        cache, expected, number = SlotCache(torch.device("cpu")), {}, 0
        for _ in range(data.draw(st.integers(1, 25))):
            action = data.draw(
                st.sampled_from(
                    ["reserve", "reserve", "write", "write", "write", "move", "drop", "clear"]
                )
            )
            if action == "reserve":
                cache.reserve(data.draw(st.integers(0, 6)), data.draw(st.integers(0, 12)))
            elif action == "drop":
                cache.drop()
                expected = {}
            elif cache.slots and cache.length:
                slot = data.draw(st.integers(0, cache.slots - 1))
                if action == "write":
                    number += 1
                    position = data.draw(st.integers(0, cache.length - 1))
                    write(cache, slot, position, float(number))
                    expected[slot, position] = number
                elif action == "clear" and cache.keys:
                    cache.clear(slot)
                    expected |= {place: 0 for place in expected if place[0] == slot}
                elif cache.keys:
                    target, length = (
                        data.draw(st.integers(0, cache.slots - 1)),
                        data.draw(st.integers(0, cache.length)),
                    )
                    cache.move([(slot, target)], length)
                    for position in range(length):
                        expected.pop((target, position), None)
                        if (slot, position) in expected:
                            expected[target, position] = expected[slot, position]
            expected = {
                place: n
                for place, n in expected.items()
                if place[0] < cache.slots and place[1] < cache.length
            }
            for (slot, position), n in expected.items():
                assert (cache.keys[0][slot, :, position] == n).all() and (
                    cache.values[0][slot, :, position] == -n
                ).all()
            for memory in (cache._key_memory, cache._value_memory):
                assert all(bool(tensor.isfinite().all()) for tensor in memory.values())
            if cache.keys:
                assert cache.keys[0].shape == (cache.slots, 2, cache.length, 4)
    finally:
        slots._fresh = before
