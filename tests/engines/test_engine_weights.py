"""The engine's own copy of the weights: what it takes, what it refuses, and that a refusal changes nothing."""

from __future__ import annotations

import pytest
import torch
from engine_models import ask, drain, play, prompts, tiny, worst_gap

from workbench.engines import TransformersEngineConfig, open_engine
from workbench.engines.intake import copy_weights
from workbench.values.errors import EngineError

TIED, UNTIED = "qwen3", "qwen2"


def state(model):
    return dict(model.state_dict())


def snapshot(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_training_the_model_does_not_change_what_is_sampled_until_sync():
    model, engine = tiny(UNTIED), None
    engine = open_engine(TransformersEngineConfig(), model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    assert worst_gap(tiny(UNTIED), play(engine, prompts(2), turns=1)) < 2e-5
    engine.sync(model.state_dict(), 1)
    assert worst_gap(model, play(engine, prompts(2), turns=2)) < 2e-5


def test_of_tied_names_one_is_enough_and_both_must_agree():
    other = tiny(TIED, seed=1)
    for left_out in ("lm_head.weight", "model.embed_tokens.weight"):
        model = tiny(TIED)
        given = state(other)
        del given[left_out]
        copy_weights(model, given)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))
    contradictory = state(other) | {"lm_head.weight": torch.zeros_like(other.lm_head.weight)}
    with pytest.raises(EngineError, match="lm_head.weight.*tied.*different values"):
        copy_weights(tiny(TIED), contradictory)


def test_equal_copies_under_both_tied_names_are_fine():
    other = tiny(TIED, seed=1)
    model = tiny(TIED)
    copy_weights(model, snapshot(other))  # clones: no storage is shared any more
    assert torch.equal(model.lm_head.weight, other.lm_head.weight)
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize(
    "spoil, told",
    [
        (lambda w: w | {"model.wrong.weight": torch.zeros(1)}, "1 name.*model.wrong.weight"),
        (lambda w: {f"module.{name}": tensor for name, tensor in w.items()}, "DDP"),
        (
            lambda w: {name: t for name, t in w.items() if name != "model.norm.weight"},
            "lack 1 name.*model.norm.weight",
        ),
        (
            lambda w: w | {"model.norm.weight": torch.zeros(3)},
            r"model.norm.weight: engine \(32,\), got \(3,\)",
        ),
        (lambda w: {}, "lack"),
    ],
)
def test_wrong_weights_are_named_and_nothing_is_changed(spoil, told):
    engine = open_engine(TransformersEngineConfig(), tiny(UNTIED))
    before = play(engine, prompts(2), turns=1)
    with pytest.raises(EngineError, match=told):
        engine.sync(spoil(state(tiny(UNTIED, seed=1))), 1)
    assert engine.policy_version == 0
    assert [p.ids.tolist() for p in before] == [
        p.ids.tolist()
        for p in play(open_engine(TransformersEngineConfig(), tiny(UNTIED)), prompts(2), turns=1)
    ]
    assert worst_gap(tiny(UNTIED), play(engine, prompts(2, seed=3), turns=1)) < 2e-5


def test_weights_are_cast_to_the_engines_dtype():
    engine = open_engine(TransformersEngineConfig(dtype="bfloat16"), tiny(UNTIED))
    other = tiny(UNTIED, seed=1)
    engine.sync(other.state_dict(), 5)
    assert engine.policy_version == 5
    assert worst_gap(other.to(torch.bfloat16), play(engine, prompts(2), turns=1)) < 0.5


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "mistral", "gpt2"])
def test_half_precision_does_not_round_the_frequencies_of_positions(family):
    """Rounded to bfloat16 they turn the thousandth position by up to a radian: another model than the trained one."""
    model = tiny(family)
    engine = open_engine(TransformersEngineConfig(dtype="bfloat16"), model)
    kept = {
        name: buffer for name, buffer in model.named_buffers() if name not in model.state_dict()
    }
    assert any("inv_freq" in name for name in kept) or family == "gpt2"
    own = dict(engine._model.named_buffers())
    assert all(
        own[name].dtype == buffer.dtype and torch.equal(own[name], buffer)
        for name, buffer in kept.items()
    )
    assert {parameter.dtype for parameter in engine._model.parameters()} == {torch.bfloat16}
    rounded = {
        name
        for name, buffer in tiny(family).to(torch.bfloat16).named_buffers()
        if name in kept and not torch.equal(buffer.to(kept[name].dtype), kept[name])
    }
    assert family == "gpt2" or any(
        "inv_freq" in name for name in rounded
    )  # control: `.to` does round them


def test_ties_stay_ties_in_half_precision():
    engine = open_engine(TransformersEngineConfig(dtype="bfloat16"), tiny(TIED))
    assert engine._model.lm_head.weight is engine._model.get_input_embeddings().weight


def test_weights_that_diverged_end_turns_with_an_error():
    engine = open_engine(TransformersEngineConfig(), tiny(UNTIED))
    engine.sync(
        {name: tensor * float("nan") for name, tensor in tiny(UNTIED).state_dict().items()}, 1
    )
    engine.submit(ask(0, "s", [7, 8, 9]))
    (completion,) = drain(engine)
    assert completion.finish == "error" and "policy version 1" in completion.error
    engine.sync(tiny(UNTIED, seed=1).state_dict(), 2)
    assert worst_gap(tiny(UNTIED, seed=1), play(engine, prompts(2), turns=1)) < 2e-5


def test_what_is_no_language_model_is_refused():
    with pytest.raises(EngineError, match="causal language model, got Linear"):
        open_engine(TransformersEngineConfig(), torch.nn.Linear(2, 2))


def test_a_context_longer_than_the_model_is_refused():
    with pytest.raises(EngineError, match="1000.*256"):
        open_engine(TransformersEngineConfig(max_context=1000), tiny(UNTIED))
