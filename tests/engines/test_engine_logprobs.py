"""The engine's logprobs are those of a plain forward pass over what each session really saw, for every family."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_models import (
    FAMILIES,
    STOP,
    VOCAB,
    WITH_KEYS_AND_VALUES,
    ask,
    drain,
    plain_logprobs,
    play,
    prompts,
    tiny,
    worst_gap,
)

from workbench.engines import TransformersEngineConfig, open_engine, probe
from workbench.engines.attention import ForwardStep
from workbench.engines.slot_runner import SlotRunner

EXACT = 2e-5  # the promise is 1e-4


def engine_for(model, **settings):
    return open_engine(TransformersEngineConfig(**settings), model)


def group_prompts():
    """Two of them equal, as in a group; lengths differ."""
    made = prompts(5)
    return [*made, made[2].copy()]


@pytest.mark.parametrize("family", list(FAMILIES))
def test_several_turns_agree_with_a_plain_forward(family):
    model = tiny(family)
    engine = engine_for(model)
    assert engine.keeps_cache == (family in WITH_KEYS_AND_VALUES), engine.cache_reason
    sessions = play(engine, group_prompts(), turns=3)
    assert max(len(played.ids) for played in sessions) > 16, (
        "longer than the window of the sliding models"
    )
    assert worst_gap(model, sessions) < EXACT


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "mamba"])
@pytest.mark.parametrize(
    "settings", [dict(cache="off"), dict(max_rows=2, prefill_tokens=4), dict(cache_tokens=90)]
)
def test_however_it_is_cut_the_numbers_are_the_same(family, settings):
    """Few rows, prompts in several ticks, a cache that keeps evicting, no kept cache at all."""
    model = tiny(family)
    sessions = play(engine_for(model, **settings), group_prompts(), turns=3)
    assert worst_gap(model, sessions) < EXACT
    if family != "mamba":
        unhindered = play(engine_for(model), group_prompts(), turns=3)
        assert [p.ids.tolist() for p in sessions] == [p.ids.tolist() for p in unhindered], (
            "same addresses, same tokens"
        )


@pytest.mark.parametrize("family", ["qwen3", "mistral"])
def test_long_prompts_in_pieces_agree(family):
    model = tiny(family)
    sessions = play(
        engine_for(model, prefill_tokens=32), prompts(5, low=40, high=150), turns=2, observation=30
    )
    assert worst_gap(model, sessions) < EXACT


@pytest.mark.parametrize("temperature", [0.6, 1.5])
def test_bent_logprobs_are_of_the_bent_distribution_and_plain_ones_of_the_unbent(temperature):
    model = tiny("qwen3")
    engine = engine_for(model)
    engine.submit(
        ask(
            0,
            "s",
            np.arange(6, 20),
            temperature=temperature,
            max_new_tokens=12,
            stop_ids=frozenset(),
        )
    )
    (completion,) = drain(engine)
    ids = np.concatenate([np.arange(6, 20), completion.token_ids])
    for logprobs, bent_by in ((completion.logprobs, temperature), (completion.plain_logprobs, 1.0)):
        np.testing.assert_allclose(
            logprobs, plain_logprobs(model, ids, bent_by)[14:].numpy(), atol=EXACT
        )


def test_greedy_follows_the_most_likely_token():
    model = tiny("llama")
    engine = engine_for(model)
    engine.submit(
        ask(0, "s", np.arange(6, 12), temperature=0.0, max_new_tokens=10, stop_ids=frozenset())
    )
    (completion,) = drain(engine)
    ids = list(range(6, 12))
    for token in completion.token_ids:
        with torch.no_grad():
            assert token == int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        ids.append(int(token))


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_bfloat16_is_near_and_says_so(family):
    model = tiny(family)
    engine = engine_for(model, dtype="bfloat16")
    assert engine.keeps_cache, engine.cache_reason
    reference = tiny(family).to(torch.bfloat16)
    sessions = play(engine, group_prompts(), turns=2)
    assert worst_gap(reference, sessions) < 0.5
    engine.submit(ask(10_000, "other", [7, 8]))
    assert drain(engine)[0].sampling.dtype == "bfloat16"
    assert next(model.parameters()).dtype == torch.float32


def test_the_model_handed_over_is_left_as_it_is():
    model = tiny("qwen3").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    implementation = model.config._attn_implementation
    play(engine_for(model), prompts(2), turns=1)
    assert model.training and model.config._attn_implementation == implementation
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


# -- controls: break it on purpose


def test_control_a_forgotten_window_is_found_by_the_probe(monkeypatch):
    """The fallback takes over, so that even then no wrong logprob comes out."""
    right = ForwardStep.decode_mask
    monkeypatch.setattr(ForwardStep, "decode_mask", lambda self, window: right(self, None))
    model = tiny("mistral")
    engine = engine_for(model)
    assert not engine.keeps_cache and "differs from a plain forward" in engine.cache_reason
    assert worst_gap(model, play(engine, prompts(3), turns=2)) < EXACT


def test_control_an_engine_that_trusted_itself_would_be_noticed_here(monkeypatch):
    right = ForwardStep.decode_mask
    engine = engine_for(tiny("mistral"))
    monkeypatch.setattr(ForwardStep, "decode_mask", lambda self, window: right(self, None))
    assert worst_gap(tiny("mistral"), play(engine, prompts(3), turns=2)) > 1e-2


def test_control_a_session_that_keeps_one_token_too_many_is_noticed(monkeypatch):
    right = SlotRunner.finish

    def wrong(self, row, keep):
        right(self, row, keep)
        session = self._table.sessions[row.session]
        session.held = row.sequence  # as if the last sampled token had passed through the model

    monkeypatch.setattr(SlotRunner, "finish", wrong)
    model = tiny("gpt2")
    assert worst_gap(model, play(engine_for(model), prompts(3), turns=3)) > 1e-2


def test_a_model_whose_own_cache_lies_is_computed_anew_for_every_token(monkeypatch):
    monkeypatch.setattr(probe, "own_cache", lambda outputs: {})
    model = tiny("mamba")
    engine = engine_for(model)
    assert not engine.keeps_cache and "every token is computed anew" in engine.cache_reason
    assert worst_gap(model, play(engine, prompts(3), turns=2)) < EXACT


def test_rows_with_nan_end_alone_and_leave_nothing_behind():
    model = tiny("qwen2")
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = float("nan")
    stops = frozenset({STOP, 7})  # so that nobody well says 7
    for engine in (_unprobed(model), engine_for(model, cache="off")):
        asked = {
            0: ask(0, "sick", [8, 7, *range(9, 30)]),
            1: ask(1, "well", np.arange(8, 20), max_new_tokens=30, stop_ids=stops),
        }
        for request in asked.values():
            engine.submit(request)
        done = engine.poll()
        assert [completion.request_id for completion in done] == [0]
        assert done[0].finish == "error" and "not finite" in done[0].error
        assert len(done[0].token_ids) == len(done[0].logprobs) == 0
        # A short session follows in the slot of the sick one, beside a long one whose keys reach further than its own.
        asked[2] = ask(2, "next", [8, 9, 10], stop_ids=stops)
        engine.submit(asked[2])
        well = drain(engine)
        assert sorted(completion.request_id for completion in well) == [1, 2]
        for completion in well:
            assert completion.error is None, completion.error
            prompt = asked[completion.request_id].prompt_ids
            plain = plain_logprobs(model, np.concatenate([prompt, completion.token_ids]))[
                len(prompt) :
            ]
            np.testing.assert_allclose(completion.logprobs, plain.numpy(), atol=EXACT)


def _unprobed(model):
    """An engine that keeps its cache for a model whose probe meets NaN: made healthy, then given the sick weights."""
    engine = engine_for(tiny("qwen2"))
    engine.sync(model.state_dict(), 1)
    assert engine.keeps_cache
    return engine


def test_ids_stay_inside_the_vocabulary():
    engine = engine_for(tiny("qwen3"))
    for played in play(engine, prompts(4), turns=2):
        assert played.ids.min() >= 0 and played.ids.max() < VOCAB


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_on_a_gpu(dtype):
    model = tiny("qwen3")
    engine = engine_for(model, device="cuda", dtype=dtype)
    assert engine.keeps_cache, engine.cache_reason
    assert worst_gap(model, play(engine, group_prompts(), turns=3)) < (
        1e-3 if dtype == "float32" else 0.5
    )


def test_a_model_with_layers_of_another_kind_is_recognised_whatever_the_numbers_say():
    """Random hybrid: convolutions between attention layers. With small weights its mistakes would be small too."""
    import transformers as hf
    from engine_models import SHAPE

    torch.manual_seed(0)
    model = hf.Lfm2ForCausalLM(
        hf.Lfm2Config(**SHAPE, layer_types=["conv", "full_attention", "conv"])
    ).eval()
    engine = engine_for(model)
    assert (
        not engine.keeps_cache
        and "2 of its 3 layers (such as layer 0) are not attention" in engine.cache_reason
    )
    assert worst_gap(model, play(engine, prompts(3), turns=2)) < EXACT
