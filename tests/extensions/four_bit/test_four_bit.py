"""The weights below adapters in four bits: one set of weights, whoever multiplies by it; adapters alone are trained and saved.

Where bitsandbytes is not installed, a stand-in packs the weights (packing_kit): everything but the packing is ours."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import pytest
import torch
import transformers as hf
from learning_data import make_groups, tiny_model

sys.path.insert(0, str(Path(__file__).parent))

from packing_kit import stand_in_where_it_is_missing  # noqa: E402

from workbench.engines.config import TransformersEngineConfig  # noqa: E402
from workbench.engines.digests import digests  # noqa: E402
from workbench.engines.intake import WeightNames  # noqa: E402
from workbench.engines.policy import load_policy, num_parameters  # noqa: E402
from workbench.engines.transformers_engine import TransformersEngine  # noqa: E402
from workbench.extensions.four_bit.base import four_bit_base  # noqa: E402
from workbench.learn.adapters import adapted, merged  # noqa: E402
from workbench.learn.algorithms import GRPO  # noqa: E402
from workbench.learn.batch import Batch  # noqa: E402
from workbench.learn.config import LearnerConfig  # noqa: E402
from workbench.learn.learner import Learner  # noqa: E402
from workbench.look.cells.export_policy import export_policy  # noqa: E402
from workbench.look.cells.train import resume_here, train_here  # noqa: E402
from workbench.training import checkpoint  # noqa: E402
from workbench.training.config import load_config  # noqa: E402
from workbench.training.reopening import reopen  # noqa: E402
from workbench.values.errors import ConfigError, LearnerError, PolicyError  # noqa: E402

LORA = LearnerConfig(lr=1e-2, lora_rank=4, lora_alpha=8.0)
UP = "model.layers.0.mlp.up_proj"


@pytest.fixture(scope="module", autouse=True)
def packing():
    with pytest.MonkeyPatch.context() as patch:
        stand_in_where_it_is_missing(patch)
        yield


def held():
    return four_bit_base(tiny_model(), "tiny")


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(24)[None] % 60).logits


def written(weights):
    """As a plain model takes them."""
    return {name: tensor + 0 for name, tensor in weights.items()}


def test_a_layer_multiplies_by_what_four_bits_hold_and_keeps_no_more():
    plain = torch.nn.Linear(70, 33)
    model = torch.nn.ModuleDict({"layer": copy.deepcopy(plain)})
    model.get_output_embeddings = lambda: None
    layer = four_bit_base(model, "one")["layer"]
    dense = layer.dense()
    x = torch.randn(5, 70, requires_grad=True)
    product = layer(x)
    torch.testing.assert_close(product, torch.nn.functional.linear(x, dense, plain.bias))
    product.square().sum().backward()
    mine = x.grad.clone()
    x.grad = None
    torch.nn.functional.linear(x, dense, plain.bias).square().sum().backward()
    torch.testing.assert_close(mine, x.grad)
    blocks = -(-plain.weight.numel() // 64)
    packed = [layer.packed, layer.scales]
    assert sum(t.numel() * t.element_size() for t in packed) <= 36 * blocks  # of 256 in float32
    # Close to what they were, and not the same.
    away = (dense - plain.weight).abs().mean() / plain.weight.abs().mean()
    assert 0.01 < away < 0.2


def test_a_change_of_precision_leaves_what_is_held():
    model = held()
    before = model.get_submodule(UP).dense()
    assert torch.equal(model.to(torch.bfloat16).get_submodule(UP).dense(), before)
    assert model.model.embed_tokens.weight.dtype is torch.bfloat16


def test_a_copy_of_its_own_is_dense_and_one_that_shares_is_the_layer_itself():
    model = held()
    own = copy.deepcopy(model)
    assert type(own.get_submodule(UP)) is torch.nn.Linear
    assert torch.equal(logits(own), logits(model))
    adapted_model = adapted(model, LORA)
    assert adapted_model.get_submodule(UP).base_layer is model.get_submodule(UP)
    assert torch.equal(logits(adapted_model), logits(model))
    assert num_parameters(model) == num_parameters(tiny_model())
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_weights_are_named_like_those_of_any_model_and_written_out_one_by_one():
    model = held()
    weights = model.state_dict()
    names = WeightNames.of(model)
    plain = WeightNames.of(tiny_model())
    assert (dict(names.shapes), names.tied) == (dict(plain.shapes), plain.tied)
    tensor = weights[f"{UP}.weight"]
    assert tensor.device == torch.device("cpu") and tensor.dtype is torch.float32
    assert not tensor.is_contiguous(), "who reads its memory is stopped"
    assert torch.equal(tensor.to(torch.float32), model.get_submodule(UP).dense())
    assert torch.equal(torch.cat([tensor, tensor])[: len(tensor)], model.get_submodule(UP).dense())
    assert digests(weights) == digests(copy.deepcopy(model).state_dict())
    with pytest.raises(RuntimeError, match="held in four bits and cannot be written over"):
        model.load_state_dict(tiny_model().state_dict())


def test_an_engine_samples_from_the_weights_that_learn():
    model = held()
    engine = TransformersEngine(model, TransformersEngineConfig())
    learner = Learner(model, GRPO(), LORA, reference=model)
    batch = Batch.from_groups(make_groups())
    for step in range(2):
        facts = learner.facts(batch)
        assert learner.update(facts, GRPO().credit(facts), step=step)[0].skipped is None
    weights = learner.weights()
    engine.sync(weights, learner.version)
    sampled = tiny_model()
    sampled.load_state_dict(engine._model.state_dict())
    mine = logits(learner.models.policy.module)
    torch.testing.assert_close(logits(sampled), mine, atol=2e-5, rtol=0)
    learner.handed.look(learner.models.policy.module, weights)
    assert learner.handed.gap.within(1e-4, 1e-2)
    # Negative controls: the policy before, and the adapters on top of the weights that were not packed.
    assert (logits(model) - mine).abs().max() > 1e-3
    whole = adapted(tiny_model(), LORA)
    own = {
        name: t for name, t in learner.models.policy.module.state_dict().items() if "lora" in name
    }
    plain = tiny_model()
    plain.load_state_dict(merged(whole, {**whole.state_dict(), **own}))
    assert (logits(plain) - mine).abs().max() > 1e-3


def test_what_was_handed_out_stays_when_adapters_move_on():
    learner = Learner(held(), GRPO(), LORA)
    batch = Batch.from_groups(make_groups())
    facts = learner.facts(batch)
    before = learner.weights()
    kept = written(before)
    learner.update(facts, GRPO().credit(facts), step=0)
    assert all(torch.equal(tensor + 0, kept[name]) for name, tensor in before.items())
    assert any(
        not torch.equal(tensor + 0, kept[name]) for name, tensor in learner.weights().items()
    )


def test_only_adapters_are_saved_and_a_saved_state_goes_on_bit_for_bit():
    batch = Batch.from_groups(make_groups())
    algorithm = GRPO(minibatches=2)
    learner = Learner(held(), algorithm, LORA)
    learner.update(batch, algorithm.credit(batch), step=0)
    tensors, state = learner.state()
    assert tensors["model"] and all(".lora_" in name for name in tensors["model"])
    resumed = Learner(held(), algorithm, LORA)
    resumed.load_state(tensors, json.loads(json.dumps(state)))
    for one in (learner, resumed):
        one.update(batch, algorithm.credit(batch), step=9)
    second = resumed.state()[0]
    for part, tensors in learner.state()[0].items():
        assert all(torch.equal(tensor, second[part][name]) for name, tensor in tensors.items())


@pytest.mark.parametrize(
    "settings, words",
    [
        ({}, "which cannot be trained; set learner.lora_rank"),
        ({"learner.lora_rank": 4, "learner.num_processes": 2}, "are not spread over processes"),
    ],
)
def test_settings_that_do_not_go_with_it_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        load_config("frozenlake", {"policy.base_bits": 4, **settings})
    assert load_config("frozenlake", {"learner.lora_rank": 4, "policy.base_bits": 4})


def test_all_weights_are_not_trained_and_models_without_linear_layers_are_refused():
    with pytest.raises(LearnerError, match="no parameter that requires a gradient"):
        Learner(held(), GRPO(), LearnerConfig())
    config = hf.GPT2Config(vocab_size=64, n_positions=64, n_embd=16, n_layer=1, n_head=2)
    with pytest.raises(PolicyError, match="only 0% of this model's weights"):
        four_bit_base(hf.GPT2LMHeadModel(config), "gpt2")


def test_without_the_package_it_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setattr("workbench.extensions.four_bit.base.find_spec", lambda name: None)
    with pytest.raises(PolicyError, match=r"agent-rl-workbench\[quant\]"):
        load_policy("frozenlake-tiny", base_bits=4)


# ------------------------------------------------------------------------------------------------ a run


SETTINGS = {
    "train.steps": 2,
    "train.tasks_per_step": 2,
    "train.group_size": 4,
    "train.evaluate_every": 0,
    "train.checkpoint_every": 1,
    "evaluation.num_tasks": 2,
    "learner.lr": 1e-2,
    "learner.lora_rank": 4,
    "policy.base_bits": 4,
}


@pytest.mark.full
def test_a_run_is_linted_resumed_and_exported_merged(tmp_path):
    run = train_here(load_config("frozenlake", SETTINGS), tmp_path / "whole")
    assert run.metrics()["logp_gap_max"].max() < 1e-3
    saved = checkpoint.load_newest(run.path).tensors["model"]
    assert saved and all(".lora_" in name for name in saved)

    half = train_here(load_config("frozenlake", {**SETTINGS, "train.steps": 1}), tmp_path / "half")
    resume_here(half.path, {"train.steps": 2})
    again = checkpoint.load_newest(half.path).tensors["model"]
    assert all(torch.equal(tensor, again[name]) for name, tensor in saved.items())

    export_policy(run, tmp_path / "merged")
    exported = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    mine = logits(reopen(run, quiet=True).learner.models.policy.module)
    torch.testing.assert_close(logits(exported), mine, atol=1e-4, rtol=0)
    assert (logits(exported) - logits(load_policy("frozenlake-tiny").model)).abs().max() > 1e-2
