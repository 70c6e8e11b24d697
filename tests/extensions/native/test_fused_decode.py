"""engine.decode = "fused": the tokens of today's engine and its logprobs up to the rounding of both, whatever the shape of a
llama or qwen model; who else is decoded changes no bit; and what it cannot do it says, and leaves to today's way."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

from tests.counts import reduced
from tests.kernel_kit import needs_compiler, own_folder  # noqa: F401
from workbench.engines import TransformersEngineConfig, open_engine
from workbench.engines.policy import load_policy, shipped_policies
from workbench.extensions.native import fused, kernel, layout
from workbench.training.session import notes_of
from workbench.values.errors import ConfigError, EngineError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "engines"))
from engine_models import FAMILIES, SHAPE, ask, drain, play, prompts, tiny, worst_gap  # noqa: E402

NEAR = 3e-6  # of a logprob, random weights
# The same of shipped policies on text that they do not know: float32 rounds today's logprobs by up to 9e-6, too.
NEAR_SHARP = 3e-5


def shaped(make, config, seed=0, **others):
    """A random model whose attention matters, of any shape."""
    torch.manual_seed(seed)
    model = make(config(**SHAPE | others)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.mul_(5.0)
            elif "bias" in name:
                parameter.normal_()
    return model


LLAMA = (hf.LlamaForCausalLM, hf.LlamaConfig)
QWEN2 = (hf.Qwen2ForCausalLM, hf.Qwen2Config)
QWEN3 = (hf.Qwen3ForCausalLM, hf.Qwen3Config)
ODD = dict(vocab_size=67, hidden_size=36, intermediate_size=50, head_dim=12)
LARGER = dict(hidden_size=96, intermediate_size=176, head_dim=32)
LLAMA3 = dict(
    rope_parameters=dict(
        rope_type="llama3",
        rope_theta=10_000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    )
)
SHAPES = {
    "llama, head of its own": (*LLAMA, dict(tie_word_embeddings=False)),
    "llama, tied": (*LLAMA, dict(tie_word_embeddings=True)),
    "llama, every head its own keys": (*LLAMA, dict(num_key_value_heads=4)),
    "llama, one key for all": (*LLAMA, dict(num_key_value_heads=1)),
    "llama, three queries to a key": (
        *LLAMA,
        dict(hidden_size=48, num_attention_heads=6, num_key_value_heads=2, head_dim=16),
    ),
    "llama, biases everywhere": (*LLAMA, dict(attention_bias=True)),
    "llama3's rotations": (*LLAMA, LLAMA3),
    "llama, odd sizes": (*LLAMA, ODD | dict(tie_word_embeddings=True)),
    "qwen2": (*QWEN2, {}),
    "qwen2, larger": (*QWEN2, LARGER | dict(tie_word_embeddings=True)),
    "qwen3": (*QWEN3, dict(head_dim=8)),
    "qwen3, larger": (*QWEN3, LARGER | dict(tie_word_embeddings=True)),
    "qwen3, odd sizes": (*QWEN3, ODD),
}
# Few rows, prompts in several ticks, sessions that lose their slots and come back.
CUTS = [{}, dict(max_rows=2, prefill_tokens=4), dict(cache_tokens=150)]


def engine_for(model, decode="fused", **settings):
    return open_engine(TransformersEngineConfig(decode=decode, **settings), model)


def sampled(sessions):
    """(ids [all], logprobs [all]) of all sessions, one after the other."""
    ids = np.concatenate([played.ids for played in sessions])
    return ids, np.array([logp for played in sessions for _, logp in played.sampled])


def ragged(count=6):
    """Prompts of 1 to 45 tokens; two are equal, as in a group."""
    made = prompts(count, low=1, high=46)
    return [*made, made[2].copy()]


def expect_same(model, asked, near=NEAR, **settings):
    """Both ways on the same requests; returns the fused engine."""
    ways = [engine_for(model, decode, **settings) for decode in ("plain", "fused")]
    assert ways[1].notes == []
    plain, own = (play(way, asked, turns=3) for way in ways)
    (ids, logps), (own_ids, own_logps) = sampled(plain), sampled(own)
    assert np.array_equal(ids, own_ids)
    assert len(logps) == len(own_logps) > 30
    assert np.abs(logps - own_logps).max() < near
    assert ways[0].stats()["evictions"] == ways[1].stats()["evictions"]
    return ways[1]


@needs_compiler
@pytest.mark.parametrize(
    "name",
    reduced(SHAPES, ["llama, head of its own", "qwen2", "qwen3, larger", "llama, odd sizes"]),
)
def test_the_same_tokens_and_logprobs_as_today(name):
    make, config, others = SHAPES[name]
    model = shaped(make, config, **others)
    assert isinstance(fused_of(engine_for(model)), fused.FusedForward)
    expect_same(model, ragged())


@needs_compiler
@pytest.mark.parametrize("cut", CUTS[1:], ids=["few rows", "evictions"])
def test_however_it_is_cut_the_tokens_are_the_same(cut):
    engine = expect_same(shaped(*QWEN3, head_dim=16), ragged(), **cut)
    assert (engine.stats()["evictions"] > 0) == ("cache_tokens" in cut)


@needs_compiler
@pytest.mark.parametrize("name", reduced(sorted(shipped_policies()), ["frozenlake-tiny"]))
def test_shipped_policies_sample_what_they_sample_today(name):
    expect_same(load_policy(name).model, ragged(), NEAR_SHARP)


@needs_compiler
@pytest.mark.parametrize("name", ["qwen2, larger", "qwen3, larger"])
def test_its_rounding_is_no_larger_than_todays(name):
    """Against float64, over all sampled tokens; a control that rounds to bfloat16 is far off."""
    make, config, others = SHAPES[name]
    model = shaped(make, config, **others)
    precise = copy.deepcopy(model).double()
    errors = {}
    for decode in ("plain", "fused"):
        sessions = play(engine_for(model, decode), ragged(), turns=3)
        errors[decode] = mean_error(precise, sessions)
    rounded = engine_for(model, "plain", dtype="bfloat16")
    assert errors["fused"] < 1.25 * errors["plain"] < 2e-6
    assert mean_error(precise, play(rounded, ragged(), turns=1)) > 1e-3


def mean_error(precise, sessions):
    errors = []
    for played in sessions:
        ids_T = torch.as_tensor(played.ids).long()
        with torch.no_grad():
            logits = precise(input_ids=ids_T[None], use_cache=False).logits[0]
        logp_TV = torch.log_softmax(logits, dim=-1)
        errors += [abs(float(logp_TV[t - 1, ids_T[t]]) - logp) for t, logp in played.sampled]
    return np.mean(errors)


def fused_of(engine):
    return engine._runner._forward


# ------------------------------------------------------------------------------------------------ bits


@needs_compiler
def test_who_else_is_decoded_changes_no_bit():
    """Alone, in company, and with its prompt cut otherwise: the same logprobs to the last bit."""
    model = shaped(*QWEN3, **LARGER)
    asked = ragged()
    together = play(engine_for(model), asked, turns=1)
    cut = play(engine_for(model, prefill_tokens=4, max_rows=3), asked, turns=1)
    for index, played in enumerate(together):
        engine = engine_for(model)
        engine.submit(ask(index, "alone", asked[index]))
        (alone,) = drain(engine)
        logps = [logp for _, logp in played.sampled]
        assert logps == alone.logprobs.tolist()
        assert logps == [logp for _, logp in cut[index].sampled]


@needs_compiler
def test_control_in_todays_engine_company_changes_bits():
    model = shaped(*QWEN3, **LARGER)
    asked = ragged()
    together = play(engine_for(model, "plain"), asked, turns=1)
    differs = []
    for index, played in enumerate(together):
        engine = engine_for(model, "plain")
        engine.submit(ask(index, "alone", asked[index]))
        (alone,) = drain(engine)
        differs.append([logp for _, logp in played.sampled] != alone.logprobs.tolist())
    assert any(differs)


# ------------------------------------------------------------------------------------------------ weights


@needs_compiler
def test_new_weights_are_the_ones_that_decode():
    model, other = tiny("qwen3"), tiny("qwen3", seed=1)
    engine = engine_for(model)
    play(engine, ragged(), turns=1)
    engine.sync(other.state_dict(), 1)
    assert worst_gap(other, play(engine, ragged(), turns=2)) < 2e-5
    assert worst_gap(model, play(engine, ragged(), turns=1)) > 1e-2, "a control"


@needs_compiler
def test_rows_with_nan_end_alone():
    model = tiny("qwen2")
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = float("nan")
    engine = engine_for(tiny("qwen2"))
    engine.sync(model.state_dict(), 1)
    stops = frozenset({5, 7})
    engine.submit(ask(0, "sick", [8, 7, *range(9, 30)]))
    engine.submit(ask(1, "well", np.arange(8, 20), max_new_tokens=20, stop_ids=stops))
    done = drain(engine)
    errors = {completion.request_id: completion.error for completion in done}
    assert "not finite" in errors[0] and errors[1] is None


# ------------------------------------------------------------------------------------------------ what it does not do

KNOWN = ["llama", "qwen2", "qwen3"]
WHY = {
    "gemma": "variance_epsilon",
    "gemma2": "through a window",
    "mistral": "through a window",
    "gpt2": "no attribute 'model'",
    "deepseek_v3": "where a plain matrix is expected",
    "mamba": "does nothing here",
}


@needs_compiler
@pytest.mark.parametrize("family", reduced(WHY, ["gemma", "mistral", "mamba"]))
def test_another_kind_keeps_todays_way_and_says_why(family):
    model = tiny(family)
    engine = engine_for(model)
    (note,) = engine.notes
    assert WHY[family] in note and "engine.decode = 'fused'" in note
    plain = play(engine_for(model, "plain"), ragged(), turns=2)
    assert sampled(plain)[1].tolist() == sampled(play(engine, ragged(), turns=2))[1].tolist()
    assert set(WHY) | set(KNOWN) <= set(FAMILIES)


@needs_compiler
def test_a_model_that_only_its_numbers_tell_apart_is_found_by_the_trial():
    """Granite has llama's parts, and multiplies by factors of its own between them."""
    config = hf.GraniteConfig(**SHAPE, residual_multiplier=0.5, attention_multiplier=0.3)
    torch.manual_seed(0)
    engine = engine_for(hf.GraniteForCausalLM(config).eval())
    (note,) = engine.notes
    assert "log-probabilities would be other ones" in note


@needs_compiler
@pytest.mark.parametrize("wrong", ["scale", "of_keys", "last"])
def test_control_a_model_that_is_read_wrongly_is_found_by_the_trial(wrong, monkeypatch):
    read = layout.WeightReader.read

    def misread(self):
        model = read(self)
        if wrong == "scale":
            model.layer[1].scale *= 1.1
        elif wrong == "of_keys":
            model.layer[2].of_keys.weight = model.layer[0].of_keys.weight
        else:
            model.last.epsilon = 0.1
        return model

    monkeypatch.setattr(layout.WeightReader, "read", misread)
    model = tiny("qwen3")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "k_norm" in name:
                parameter.normal_()
    (note,) = engine_for(model).notes
    assert "log-probabilities would be other ones" in note


@needs_compiler
def test_rotations_that_depend_on_the_length_are_refused():
    rotation = dict(rope_type="dynamic", rope_theta=10_000.0, factor=2.0)
    (note,) = engine_for(shaped(*LLAMA, rope_parameters=rotation)).notes
    assert "'dynamic'" in note


@needs_compiler
def test_weights_that_nobody_reads_are_refused():
    model = tiny("llama")
    model.model.layers[1].mlp.extra = torch.nn.Linear(3, 3)
    (note,) = engine_for(model).notes
    assert "does not use" in note and "extra" in note


@needs_compiler
def test_more_threads_than_it_works_with():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(8)
        (note,) = engine_for(tiny("llama")).notes
    finally:
        torch.set_num_threads(threads)
    assert "torch has 8" in note


@pytest.mark.parametrize(
    "settings", [dict(dtype="float16"), dict(device="cuda"), dict(cache="off")]
)
def test_where_it_could_do_nothing_it_is_refused_at_once(settings):
    with pytest.raises(ConfigError, match="kept cache in float32 or bfloat16 on a CPU"):
        TransformersEngineConfig(decode="fused", **settings)
    TransformersEngineConfig(**settings)


def test_todays_way_is_the_default_and_imports_nothing():
    assert TransformersEngineConfig().decode == "plain"
    engine = open_engine(TransformersEngineConfig(), tiny("llama"))
    assert engine.notes == [] and not isinstance(fused_of(engine), fused.FusedForward)


# ------------------------------------------------------------------------------------------------ the compiler


@pytest.mark.parametrize(
    "compiler, why", [("no-such-compiler", "no C++ compiler"), ("false", "cannot compile")]
)
def test_without_a_compiler_todays_way_runs_and_the_note_says_so(compiler, why, monkeypatch):
    monkeypatch.setenv("CXX", compiler)
    kernel.kernel.cache_clear()
    model = tiny("llama")
    engine = engine_for(model)
    kernel.kernel.cache_clear()
    (note,) = engine.notes
    assert why in note
    assert worst_gap(model, play(engine, ragged(), turns=1)) < 2e-5

    class Policy:
        pass

    Policy.model = model
    assert notes_of(engine, Policy).count(note) == 1, "it is told once, where a run begins"


@needs_compiler
def test_it_is_compiled_once(monkeypatch):
    kernel.kernel()
    built = sorted(kernel.kept_at().iterdir())
    kernel.kernel.cache_clear()
    monkeypatch.setattr(kernel, "_build", lambda *_: pytest.fail("compiled again"))
    kernel.kernel()
    assert len(built) == 1 and built[0].suffix == ".so", "nothing else is left there"
    assert sorted(kernel.kept_at().iterdir()) == built


@needs_compiler
@pytest.mark.parametrize("what", ["SOURCE", "SHARED", "FLAGS"])
def test_another_source_or_other_flags_are_another_kernel(what, monkeypatch, tmp_path):
    source = kernel.SOURCE
    before = kernel._key(source, "g++")
    if what == "FLAGS":
        monkeypatch.setattr(kernel, "FLAGS", (*kernel.FLAGS, "-g"))
    else:
        (tmp_path / "other.cpp").write_text("int one;")
        other = tmp_path / "other.cpp"
        if what == "SHARED":
            monkeypatch.setattr(kernel, "SHARED", (other,))
        else:
            source = other
    assert kernel._key(source, "g++") != before
    monkeypatch.undo()
    monkeypatch.setattr(kernel, "_processor", lambda: "another processor")
    assert kernel._key(kernel.SOURCE, "g++") != before


@needs_compiler
def test_a_folder_that_others_may_write_to_is_not_loaded_from(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernel.kept_at().mkdir(parents=True)
    kernel.kept_at().chmod(0o777)
    kernel.kernel.cache_clear()
    with pytest.raises(EngineError, match="others may write to it"):
        kernel.kernel()
    kernel.kept_at().chmod(0o700)
    kernel.kernel()
    kernel.kernel.cache_clear()
