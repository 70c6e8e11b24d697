"""The fused way reads a group's first prompt from the slot of one of its sequences: no bit changes, and nothing else of that
slot is read."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

from tests.kernel_kit import needs_compiler, own_folder  # noqa: F401
from workbench.engines import TransformersEngineConfig, open_engine
from workbench.engines.slots import SlotCache
from workbench.extensions.native import fused

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "engines"))
from engine_models import SHAPE, VOCAB, ask, play, prompts  # noqa: E402

pytestmark = needs_compiler
SIZES = {
    "vectors": dict(head_dim=32),
    "no vectors": dict(hidden_size=36, intermediate_size=50, head_dim=12),
}


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
    """Two groups of four, their prompts longer than a vector and of odd lengths, and a sequence of its own."""
    rng = np.random.default_rng(2)
    first, second = (rng.integers(6, VOCAB, count) for count in (83, 37))
    return [first, second, *prompts(1), *(first.copy() for _ in range(3)), *([second] * 3)]


def apart(cache: SlotCache) -> tuple[torch.Tensor, torch.Tensor]:
    """Each slot by itself, as without groups."""
    own_S = torch.arange(cache.slots)
    return own_S, torch.zeros_like(own_S)


def played(model, monkeypatch, reader, **settings):
    """(ids, logprobs) of three turns of the groups."""
    monkeypatch.setattr(fused, "prompts_read_once", reader)
    engine = open_engine(TransformersEngineConfig(decode="fused", **settings), model)
    assert engine.notes == []
    sessions = play(engine, groups(), turns=3, max_new_tokens=8)
    logps = [logp for session in sessions for _, logp in session.sampled]
    return np.concatenate([session.ids for session in sessions]), np.array(logps)


@pytest.mark.parametrize("settings", [{}, dict(dtype="bfloat16"), dict(drafts=4)], ids=str)
@pytest.mark.parametrize("sizes", SIZES)
def test_no_bit_is_another_one(sizes, settings, monkeypatch):
    model = model_of(**SIZES[sizes])
    real = fused.prompts_read_once
    read = []

    def noted(cache):
        leader_S, common_S = real(cache)
        read.append(int((common_S > 0).sum()))
        return leader_S, common_S

    ids, logps = played(model, monkeypatch, noted, **settings)
    other_ids, other_logps = played(model, monkeypatch, apart, **settings)
    assert max(read) == 6, "three of each group read from the fourth"
    assert np.array_equal(ids, other_ids)
    np.testing.assert_array_equal(logps, other_logps)


def test_the_comparison_sees_another_groups_prompt(monkeypatch):
    """Negative control: all read from the first slot."""
    model = model_of(**SIZES["vectors"])

    def mixed(cache):
        leader_S, common_S = fused_reader(cache)
        return torch.zeros_like(leader_S), common_S

    fused_reader = fused.prompts_read_once
    _, logps = played(model, monkeypatch, mixed)
    _, other_logps = played(model, monkeypatch, apart)
    assert len(logps) != len(other_logps) or (logps != other_logps).any()


def test_a_prompt_is_read_from_one_place(monkeypatch):
    """What lies in a follower's own slot under the prompt may be anything; what its leader has there counts."""
    model = model_of(**SIZES["vectors"])
    prompt = groups()[0]

    def logps_after(spoiled: int | None) -> list[np.ndarray]:
        engine = open_engine(TransformersEngineConfig(decode="fused"), model)
        for row, limit in enumerate((20, 8, 8)):  # the leader is there to the end
            engine.submit(ask(row, str(row), prompt, max_new_tokens=limit, stop_ids=frozenset()))
        while not all(engine.partial(row) for row in range(3)):
            engine.poll()
        if spoiled is not None:
            with torch.inference_mode():
                for slab in engine._runner._table.slabs[0].cache._tensors:
                    slab[spoiled, :, : len(prompt) // 16 * 16] += 1
        done = []
        while len(done) < 3:
            done += engine.poll()
        return [answer.logprobs for answer in sorted(done, key=lambda answer: answer.request_id)]

    sound = logps_after(None)
    follower = logps_after(2)
    assert all(map(np.array_equal, sound, follower))
    leader = logps_after(0)
    assert not any(map(np.array_equal, sound, leader))
    monkeypatch.setattr(fused, "prompts_read_once", apart)
    alone = logps_after(2)
    assert list(map(np.array_equal, sound, alone)) == [True, True, False]


def test_who_reads_from_whom():
    cache = SlotCache(torch.device("cpu"))
    cache.slots = 6
    one, other = (np.arange(count).tobytes() for count in (5, 7))
    cache.prompts = [None, one, other, one, other]
    leader_S, common_S = fused.prompts_read_once(cache)
    assert leader_S.tolist() == [0, 1, 2, 1, 2, 5]
    assert common_S.tolist() == [0, 0, 0, 5, 7, 0]
    cache.prompts = [one, None, other]
    assert fused.prompts_read_once(cache)[1].tolist() == [0] * 6


def test_a_rewritten_history_is_read_from_its_own_slot(monkeypatch):
    """A session that changes a token of its first prompt reads no longer from the others' slot."""
    model = model_of(**SIZES["vectors"])

    def rewritten(ids, turn):
        ids = ids.copy()
        ids[turn] = 6 + (ids[turn] - 5) % (VOCAB - 6)
        return ids

    results = []
    for reader in (fused.prompts_read_once, apart):
        monkeypatch.setattr(fused, "prompts_read_once", reader)
        engine = open_engine(TransformersEngineConfig(decode="fused"), model)
        sessions = play(engine, groups(), turns=3, history=rewritten)
        results.append([logp for session in sessions for _, logp in session.sampled])
    assert results[0] == results[1]
