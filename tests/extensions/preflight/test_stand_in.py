"""A small stand-in is of the same architecture, the same every time, and answers what the lint asks of a large policy."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from learning_data import make_groups, tiny_model, unscore
from transformers import AutoConfig, AutoModelForCausalLM

from tests.counts import reduced
from tests.linting.test_gradients import BUGS, the_last_value_is_that_before_the_last_token
from workbench.extensions.preflight.stand_in import MOST, small_stand_in
from workbench.learn.algorithms import GRPO, PPO
from workbench.learn.batch import Batch
from workbench.learn.config import LearnerConfig
from workbench.linting import Evidence, check
from workbench.linting.gradients import RULES
from workbench.linting.knobs import RULES as KNOBS
from workbench.linting.probe import probe_of
from workbench.values import Group, StopReason
from workbench.values.errors import LearnerError

# Model types of published families -> kinds of layers that the stand-in has, one of each at least.
PUBLISHED = {
    "qwen2": {"full_attention"},
    "qwen3": {"full_attention"},
    "llama": set(),
    "gemma2": {"sliding_attention", "full_attention"},
    "mistral": set(),
    "phi3": set(),
    "gpt2": set(),
    "glm4": set(),
    "qwen3_moe": set(),
    "gpt_oss": {"sliding_attention", "full_attention"},
    "deepseek_v3": set(),
    "qwen3_5_text": {"linear_attention", "full_attention"},
    "smollm3": {"full_attention"},
    "deepseek_v2": set(),
    "gemma3_text": {"sliding_attention", "full_attention"},
    "gemma4_text": {"sliding_attention", "full_attention"},
    "gemma4": set(),
    "nemotron": set(),
    "nemotron_h": set(),
    "falcon_h1": set(),
    "jamba": set(),
    "bamba": set(),
    "glm4_moe": set(),
    "minimax": set(),
}
# What their published configurations say and the defaults of their classes do not.
MORE = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "nemotron": {"num_key_value_heads": 8},
    "gemma4_text": {"num_kv_shared_layers": 10},
    "deepseek_v3": {"first_k_dense_replace": 3},
}


def large(algorithm, monkeypatch, model=None, **settings):
    """A probe of a policy that counts as too large to be tried itself."""
    monkeypatch.setattr("workbench.linting.probe.MAX_PARAMETERS", 1)
    model = tiny_model() if model is None else model
    return probe_of(model, algorithm, LearnerConfig(**settings), None)


def asked(algorithm, monkeypatch, groups=None, **settings):
    if groups is None:
        groups = unscore(make_groups(tasks=2, attempts=3), 1, 2)
    evidence = Evidence(
        tuple(map(tuple, groups)),
        batch=Batch.from_groups(groups),
        algorithm=algorithm,
        probe=large(algorithm, monkeypatch, **settings),
    )
    return check(evidence, RULES)["R19"]


@pytest.mark.parametrize("kind", reduced(PUBLISHED, ("qwen3", "gpt_oss", "gpt2", "gemma4_text")))
def test_published_architectures_have_one(kind):
    with torch.device("meta"):
        config = AutoConfig.for_model(kind, **MORE.get(kind, {}))
        model = AutoModelForCausalLM.from_config(config)
    small = small_stand_in(model)
    assert type(small) is type(model) and not any(p.is_meta for p in small.parameters())
    # Mamba's layers do not become narrow: 1.3 million in a jamba, 1.9 in a nemotron_h.
    most = 2_500_000 if kind in ("nemotron_h", "jamba") else 1_000_000
    assert sum(p.numel() for p in small.parameters()) < most < MOST
    assert PUBLISHED[kind] <= set(getattr(small.config, "layer_types", None) or ())


def test_it_is_the_same_every_time_and_changes_nothing():
    model = tiny_model()
    model.get_input_embeddings().weight.requires_grad_(False)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    state = torch.random.get_rng_state()
    one, other = small_stand_in(model), small_stand_in(model)
    assert all(map(torch.equal, one.parameters(), other.parameters()))
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(before[name], w) for name, w in model.state_dict().items())
    # What the policy does not train is not trained here.
    assert not one.get_input_embeddings().weight.requires_grad
    assert any(parameter.requires_grad for parameter in one.parameters())


def test_what_cannot_be_built_has_none():
    assert small_stand_in(torch.nn.Linear(2, 2)) is None


@pytest.mark.parametrize(
    ("bug", "algorithm", "words"),
    reduced(BUGS, BUGS[:4], several=True),
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_planted_bugs_are_named_where_a_stand_in_is_asked(bug, algorithm, words, monkeypatch):
    groups = None
    if bug is the_last_value_is_that_before_the_last_token:  # of trajectories that were cut off
        groups = [
            Group(tuple(replace(t, stop_reason=StopReason.MAX_TURNS) for t in group))
            for group in make_groups(tasks=2, attempts=3)
        ]
    bug(monkeypatch)
    answer = asked(algorithm, monkeypatch, groups, warmup_updates=5)
    assert any(words in finding.what for finding in answer.errors), answer


@pytest.mark.parametrize("algorithm", [GRPO(entropy_coef=0.01, minibatches=2), PPO()])
def test_negative_control_nothing_is_found_where_nothing_is_wrong(algorithm, monkeypatch):
    answer = asked(algorithm, monkeypatch)
    assert not answer.findings and "the learner's gradient" in answer.checked


def test_settings_are_turned_on_it(monkeypatch):
    """R13 in whole: what the learner does under other values, too."""
    algorithm = GRPO(entropy_coef=0.001, epochs=2)
    groups = make_groups()
    evidence = Evidence(
        batch=Batch.from_groups(groups), algorithm=algorithm, probe=large(algorithm, monkeypatch)
    )
    assert check(evidence, KNOBS)["R13"].status == "passed"
    # Negative control: a learner that is deaf to one of them.
    import workbench.learn.update as module

    real = module.GradientPass._terms_of
    monkeypatch.setattr(
        module.GradientPass,
        "_terms_of",
        lambda self, result: {n: t for n, t in real(self, result).items() if n != "entropy"},
    )
    assert "entropy_coef" in check(evidence, KNOBS)["R13"].errors[0].what


@pytest.mark.parametrize("target", ["3.self_attn.q_proj", "model.layers.3.self_attn.q_proj"])
def test_adapters_in_layers_that_a_stand_in_does_not_have(target, monkeypatch):
    config = AutoConfig.for_model(
        "llama", num_hidden_layers=4, hidden_size=32, intermediate_size=32, vocab_size=64
    )
    model = AutoModelForCausalLM.from_config(config)
    probe = large(GRPO(), monkeypatch, model, lora_rank=2, lora_targets=(target,))
    assert probe.stood_for and probe.model.config.num_hidden_layers < 4
    adapted = {name for name, _ in probe.model.named_parameters() if ".lora_" in name}
    assert adapted and all(".self_attn.q_proj." in name for name in adapted)
    # Negative control: a name that neither has is refused.
    with pytest.raises(LearnerError, match="no_such_layer"):
        large(GRPO(), monkeypatch, model, lora_rank=2, lora_targets=("3.no_such_layer",))
