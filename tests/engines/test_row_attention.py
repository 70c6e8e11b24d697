"""Sequence by sequence, attention gives the numbers of a plain softmax over each sequence's own keys, whatever lies
behind them in the slab; and the engine that uses it agrees with a plain forward pass."""

from __future__ import annotations

import pytest
import torch
from engine_models import play, prompts, tiny, worst_gap
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.engines import TransformersEngineConfig, attention, open_engine
from workbench.engines.attention import attend_by_rows, reads_long_rows
from workbench.engines.intake import copy_weights, lay_out_for_few_rows


def plainly(query_AHD, keys, values, ends, scaling):
    rows = []
    for row, end in enumerate(ends):
        shared = query_AHD.shape[1] // keys.shape[1]
        key, value = (slab[row, :, :end].repeat_interleave(shared, 0) for slab in (keys, values))
        weights = torch.softmax(torch.einsum("hd,hld->hl", query_AHD[row], key) * scaling, -1)
        rows.append(torch.einsum("hl,hld->hd", weights, value))
    return torch.stack(rows)


@settings(max_examples=40, deadline=None)
@given(
    ends=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    kv_heads=st.integers(1, 3),
    shared=st.integers(1, 4),
    thin=st.sampled_from([1, 64, 65_536]),
    value_size=st.sampled_from([8, 3, 12]),
    seed=st.integers(0, 99),
)
def test_each_sequence_over_its_own_keys(ends, kv_heads, shared, thin, value_size, seed):
    generator = torch.Generator().manual_seed(seed)
    slab = (len(ends) + 1, kv_heads, max(ends) + 2)
    keys, values = (torch.randn(*slab, size, generator=generator) for size in (8, value_size))
    for row, end in enumerate(ends):  # of what another sequence left behind nothing may be seen
        keys[row, :, end:], values[row, :, end:] = 1e6, 1e6
    query = torch.randn(len(ends), kv_heads * shared, 8, generator=generator)
    before, attention.THIN = attention.THIN, thin  # also cut into pieces of a single key
    try:
        found = attend_by_rows(query, keys, values, ends, 0.3)
    finally:
        attention.THIN = before
    torch.testing.assert_close(found, plainly(query, keys, values, ends, 0.3), rtol=1e-5, atol=1e-5)


def test_it_is_taken_where_it_pays():
    long, half = torch.zeros(3, 2, 400, 64), torch.zeros(3, 2, 400, 64, dtype=torch.bfloat16)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert reads_long_rows([400, 300, 200], long)
        assert not reads_long_rows([9, 9, 9], long) and not reads_long_rows([400, 300, 200], half)
        torch.set_num_threads(8)
        assert not reads_long_rows([400, 300, 200], long)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gpt2"])
def test_an_engine_that_attends_by_rows_agrees_with_a_plain_forward(family, monkeypatch):
    calls = []
    monkeypatch.setattr(attention, "reads_long_rows", lambda *sizes: calls.append(sizes) or True)
    model = tiny(family)
    engine = open_engine(TransformersEngineConfig(), model)
    assert engine.keeps_cache, engine.cache_reason
    assert worst_gap(model, play(engine, prompts(5), turns=3)) < 2e-5 and calls


def test_laid_out_weights_are_the_same_model_and_follow_a_sync():
    model, other = tiny("qwen3"), tiny("qwen3", seed=1)
    ids = torch.arange(5)[None]
    plain = model(input_ids=ids).logits
    lay_out_for_few_rows(model)
    assert not all(p.is_contiguous() for p in model.parameters())  # it did something
    torch.testing.assert_close(model(input_ids=ids).logits, plain, rtol=1e-4, atol=1e-4)
    copy_weights(model, other.state_dict())
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values())
    )
