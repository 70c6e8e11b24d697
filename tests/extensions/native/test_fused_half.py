"""engine.decode = "fused" with engine.dtype = "bfloat16": the linear layers' factors are rounded and nothing else, company
changes no bit, the processor's own instruction is not needed, and what the trial tells apart in float32 it still does."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

from tests.kernel_kit import needs_compiler, own_folder  # noqa: F401
from workbench.engines import TransformersEngineConfig, open_engine, probe
from workbench.engines.gap import TRAINING_LIMITS
from workbench.engines.policy import load_policy
from workbench.extensions.native import fused, kernel, layout

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "engines"))
from engine_models import SHAPE, ask, drain, play, prompts, tiny, worst_gap  # noqa: E402

ODD = dict(vocab_size=67, hidden_size=36, intermediate_size=50, head_dim=12)
POLICY = "frozenlake-tiny"
NEAR = 2e-2  # of a logprob, in bfloat16


def engine_for(model, **settings):
    settings = dict(decode="fused", dtype="bfloat16") | settings
    return open_engine(TransformersEngineConfig(**settings), model)


def asked():
    made = prompts(4, low=1, high=46)
    return [*made, made[2].copy()]


def rounded(model):
    """The same model in float32, its weights on the grid of bfloat16."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return model


def mean_gap(model, sessions):
    gaps = []
    for played in sessions:
        ids_T = torch.as_tensor(played.ids).long()
        with torch.no_grad():
            logp_TV = model(input_ids=ids_T[None]).logits[0].log_softmax(-1)
        gaps += [abs(float(logp_TV[t - 1, ids_T[t]]) - logp) for t, logp in played.sampled]
    return float(np.mean(gaps))


def logprobs(sessions):
    return [logp for played in sessions for _, logp in played.sampled]


# ------------------------------------------------------------------------------------------------ numbers


@needs_compiler
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_it_samples_from_the_rounded_weights(family):
    """Rounding of activations is left, and can be seen: that of float32 is a hundred times smaller."""
    model = rounded(tiny(family))
    engine = engine_for(model)
    assert engine.notes == [] and isinstance(engine._runner._forward, fused.FusedForward)
    sessions = play(engine, asked(), turns=3)
    assert 1e-4 < worst_gap(model, sessions) < NEAR
    assert worst_gap(model, play(engine_for(model, dtype="float32"), asked(), turns=1)) < 2e-5


@needs_compiler
def test_a_trained_policys_gap_is_far_below_what_stops_training_and_below_plain_bfloat16():
    model = load_policy(POLICY).model
    mean, largest = TRAINING_LIMITS[torch.bfloat16]
    ways = {
        way: play(engine_for(model, decode=way), asked(), turns=3) for way in ("fused", "plain")
    }
    gaps = {way: mean_gap(model, sessions) for way, sessions in ways.items()}
    assert 1e-4 < gaps["fused"] < mean and worst_gap(model, ways["fused"]) < largest
    assert gaps["fused"] < gaps["plain"], "all else is computed in float32"


@needs_compiler
def test_other_weights_are_not_within_the_limits():
    """A control: what the lint's R23 compares, against a policy that is not the one that sampled."""
    sessions = play(engine_for(load_policy(POLICY).model), asked(), turns=1)
    mean, _ = TRAINING_LIMITS[torch.bfloat16]
    assert mean_gap(load_policy("sokoban-tiny").model, sessions) > mean


@needs_compiler
def test_a_turn_says_that_it_was_sampled_in_bfloat16():
    engine = engine_for(tiny("qwen3"))
    engine.submit(ask(0, "one", np.arange(8, 20)))
    (done,) = drain(engine)
    assert done.sampling.dtype == "bfloat16"


@needs_compiler
def test_numbers_are_rounded_to_the_nearest():
    """As torch rounds: of two equally near ones to the even one; what is not finite stays so."""
    special = [0.0, -0.0, 1.00390625, 1.01171875, 3.4e38, torch.inf, -torch.inf, torch.nan, 1e-40]
    numbers_T = torch.cat([torch.tensor(special), torch.randn(4096)])
    rounded_T = torch.empty_like(numbers_T, dtype=torch.bfloat16)
    source = ctypes.c_void_p(numbers_T.data_ptr())
    target = ctypes.c_void_p(rounded_T.data_ptr())
    kernel.kernel().round_all(source, ctypes.c_int64(len(numbers_T)), target)
    assert torch.equal(rounded_T.nan_to_num(7.0), numbers_T.to(torch.bfloat16).nan_to_num(7.0))


# ------------------------------------------------------------------------------------------------ bits


@needs_compiler
def test_who_else_is_decoded_changes_no_bit():
    model = tiny("qwen3")
    together = play(engine_for(model), asked(), turns=1)
    cut = play(engine_for(model, prefill_tokens=4, max_rows=3), asked(), turns=1)
    assert logprobs(together) == logprobs(cut)
    for index, prompt in enumerate(asked()):
        engine = engine_for(model)
        engine.submit(ask(index, "alone", prompt))
        (alone,) = drain(engine)
        assert logprobs([together[index]]) == alone.logprobs.tolist()


@needs_compiler
def test_drafts_are_exact_too():
    model = load_policy(POLICY).model
    bare, drafted = (play(engine_for(model, drafts=drafts), asked(), turns=3) for drafts in (0, 8))
    assert logprobs(bare) == logprobs(drafted)
    other = play(engine_for(model, dtype="float32"), asked(), turns=3)
    assert logprobs(bare) != logprobs(other), "a control"


@needs_compiler
def test_without_the_instruction_numbers_are_widened_and_only_sums_round_otherwise(monkeypatch):
    """Odd sizes, too: what is left of the inputs beside whole vectors."""
    torch.manual_seed(0)
    odd = hf.LlamaForCausalLM(hf.LlamaConfig(**SHAPE | ODD)).eval()
    models = [tiny("qwen3"), odd]
    own = [play(engine_for(model), asked(), turns=1) for model in models]
    monkeypatch.setattr(kernel, "FLAGS", (*kernel.FLAGS, "-O1", "-mno-avx512bf16"))
    kernel.kernel.cache_clear()
    assert kernel.kernel().multiplies_halves() == 0
    for model, sessions in zip(models, own):
        widened = play(engine_for(model), asked(), turns=1)
        apart = np.abs(np.subtract(logprobs(sessions), logprobs(widened))).max()
        assert apart < NEAR and worst_gap(rounded(model), widened) < NEAR
    kernel.kernel.cache_clear()


# ------------------------------------------------------------------------------------------------ weights


@needs_compiler
def test_new_weights_are_the_ones_that_decode_and_take_half_the_memory():
    model, other = rounded(tiny("qwen3")), rounded(tiny("qwen3", seed=1))
    engine = engine_for(model)
    play(engine, asked(), turns=1)
    engine.sync(other.state_dict(), 1)
    assert worst_gap(other, play(engine, asked(), turns=2)) < NEAR
    assert worst_gap(model, play(engine, asked(), turns=1)) > 10 * NEAR, "a control"
    assert {parameter.dtype for parameter in engine._model.parameters()} == {torch.bfloat16}


# ------------------------------------------------------------------------------------------------ trials


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_control_a_model_that_is_read_wrongly_is_found_by_the_trial(dtype, monkeypatch):
    """Its shape (in both) is tried in float32; what only goes wrong in bfloat16 (of weights that matter) by itself."""
    read = layout.WeightReader.read

    def misread(self):
        model = read(self)
        if self._dtype == dtype:
            model.layer[1].down.weight = model.layer[0].down.weight
        return model

    monkeypatch.setattr(layout.WeightReader, "read", misread)
    (note,) = engine_for(load_policy(POLICY).model).notes
    assert "log-probabilities would be other ones" in note


def test_without_a_compiler_todays_way_runs_in_bfloat16(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    kernel.kernel.cache_clear()
    model = tiny("llama")
    engine = engine_for(model)
    kernel.kernel.cache_clear()
    (note,) = engine.notes
    assert "no C++ compiler" in note
    plain = play(engine_for(model, decode="plain"), asked(), turns=1)
    assert logprobs(play(engine, asked(), turns=1)) == logprobs(plain)


def test_a_model_is_judged_in_float32_so_that_rounding_is_not_taken_for_a_fault(monkeypatch):
    """SmolLM2 in bfloat16 rounds 0.43 nats apart; this small one by more than a limit that is made small for it."""
    monkeypatch.setitem(probe.TOLERANCE, torch.bfloat16, 1e-3)
    model = tiny("qwen3")
    assert engine_for(model, decode="plain").keeps_cache
    half = model.to(torch.bfloat16)
    size = half.get_input_embeddings().weight.shape[0]
    with torch.inference_mode():
        verdict = probe.judge(half, size, torch.device("cpu"), True, 64)
    assert verdict.mode != "slots", "a control: judged in its own dtype"
