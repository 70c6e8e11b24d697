"""Adapters: only they are trained, the policy below them is shared and stays as it was, and every engine gets them merged."""

from __future__ import annotations

import copy
import json
import math

import pytest
import torch
import transformers as hf
from learning_data import make_groups, tiny_model
from safetensors.torch import load_file

from workbench import cli
from workbench.engines.config import TransformersEngineConfig
from workbench.engines.transformers_engine import TransformersEngine
from workbench.extensions.engine_audit.older import before_last_update
from workbench.learn.adapters import adapted, merged
from workbench.learn.algorithms import GRPO, PPO
from workbench.learn.batch import Batch
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.learn.learner import Learner
from workbench.look.cells.export_policy import export_policy
from workbench.look.cells.train import train_here, train_step
from workbench.training import checkpoint
from workbench.training.config import load_config, to_dict
from workbench.training.reopening import reopen
from workbench.training.session import open_session
from workbench.values.errors import ConfigError, LearnerError

LORA = LearnerConfig(lr=1e-2, lora_rank=4, lora_alpha=8.0)


def gpt2():
    """Its linear layers hold their weights transposed."""
    torch.manual_seed(0)
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=64, n_positions=64, n_embd=16, n_layer=1, n_head=2)
    ).eval()


def moved(model, by=0.3):
    """The model with adapters that do something."""
    adapted_model = adapted(model, LORA)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in adapted_model.named_parameters():
            if parameter.requires_grad:
                parameter.add_(by * torch.randn(parameter.shape, generator=generator))
    return adapted_model


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(24)[None] % 60).logits


def trained(model=None, algorithm=GRPO(), steps=2, config=LORA, critic=None):
    model = tiny_model() if model is None else model
    batch = Batch.from_groups(make_groups())
    learner = Learner(model, algorithm, config, reference=model, critic=critic)
    for step in range(steps):
        facts = learner.facts(batch)
        assert [
            report.skipped for report in learner.update(facts, algorithm.credit(facts), step=step)
        ][0] is None
    return learner, batch


def test_a_copy_with_adapters_starts_as_the_policy_shares_its_weights_and_leaves_it_alone():
    model = tiny_model()
    state = torch.get_rng_state()
    adapted_model = adapted(model, LORA)
    assert torch.equal(torch.get_rng_state(), state), (
        "nothing is drawn from the process's own generator"
    )
    assert torch.equal(logits(adapted_model), logits(model)) and type(adapted_model) is type(model)
    assert {
        name.rpartition(".lora_")[0].rpartition(".")[2]
        for name, p in adapted_model.named_parameters()
        if p.requires_grad
    } == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    places = {p.data_ptr() for p in model.parameters()}
    assert {p.data_ptr() for p in adapted_model.parameters() if not p.requires_grad} == places, (
        "no second copy"
    )
    assert all(p.requires_grad for p in model.parameters()) and "lora" not in " ".join(
        model.state_dict()
    )


def test_adapters_are_drawn_from_their_seed_alone():
    def drawn(seed):
        torch.manual_seed(seed * 31)
        return adapted(tiny_model(), LearnerConfig(lora_rank=4, seed=5)).state_dict()

    first, again = drawn(1), drawn(2)
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    other = adapted(tiny_model(), LearnerConfig(lora_rank=4, seed=6)).state_dict()
    names = [name for name in first if ".lora_A." in name]
    assert names and not any(torch.equal(first[name], other[name]) for name in names)


@pytest.mark.parametrize("make", [tiny_model, gpt2])
def test_merged_weights_are_those_that_peft_merges(make):
    model = make()
    adapted_model = moved(model)
    plain = copy.deepcopy(model)
    plain.load_state_dict(merged(adapted_model, adapted_model.state_dict()))
    assert (logits(adapted_model) - logits(model)).abs().max() > 0.05
    torch.testing.assert_close(logits(plain), logits(adapted_model), atol=2e-5, rtol=1e-5)
    with torch.no_grad():
        for layer in adapted_model.modules():
            if hasattr(layer, "get_delta_weight"):
                layer.merge(adapter_names=["default"])
    theirs = {
        name.replace("base_layer.", ""): tensor
        for name, tensor in adapted_model.state_dict().items()
        if ".lora_" not in name
    }
    assert theirs.keys() == plain.state_dict().keys()
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-6, rtol=1e-6)


def test_only_adapters_are_trained_and_saved_and_the_policy_is_the_reference():
    model = tiny_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    learner, batch = trained(model, GRPO(reference={"kl_coef": 0.05}))
    tensors, state = learner.state()
    assert all(".lora_" in name for name in tensors["model"]) and state["trainable"] == list(
        tensors["model"]
    )
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert any(
        bool(tensor.any()) for name, tensor in tensors["model"].items() if ".lora_B." in name
    ), "something was learned"
    moments = {key.rpartition(".")[2] for key in tensors["optimizer"]}
    assert moments == {"step", "exp_avg", "exp_avg_sq"}
    found = learner.facts(batch).ref_logp_T
    untrained = Learner(tiny_model(), GRPO(), LearnerConfig()).logprobs(
        batch, GRPO(reference={"kl_coef": 0.05}).reads_T(batch)
    )
    torch.testing.assert_close(found, untrained, equal_nan=True, atol=1e-6, rtol=0)
    now = learner.logprobs(batch, batch.eligible_T)
    assert (now - untrained)[batch.eligible_T].abs().max() > 1e-3


def test_an_engine_gets_what_was_trained():
    """The delivery is proven on log-probabilities: the engine's own model against the learner's."""
    model = tiny_model()
    engine = TransformersEngine(copy.deepcopy(model), TransformersEngineConfig())
    learner, batch = trained(model)
    engine.sync(learner.weights(), learner.version)
    held = copy.deepcopy(model)
    held.load_state_dict(engine._model.state_dict())
    plain = Learner(held, GRPO(), LearnerConfig())
    theirs, mine = (
        each.logprobs(batch, batch.eligible_T)[batch.eligible_T] for each in (plain, learner)
    )
    torch.testing.assert_close(theirs, mine, atol=2e-5, rtol=0)
    untrained = Learner(tiny_model(), GRPO(), LearnerConfig()).logprobs(batch, batch.eligible_T)[
        batch.eligible_T
    ]
    assert (theirs - untrained).abs().max() > 1e-3
    older = before_last_update(learner)
    assert older.keys() == learner.weights().keys() == model.state_dict().keys()
    assert any(not torch.equal(older[name], tensor) for name, tensor in learner.weights().items())


@pytest.mark.parametrize(
    "algorithm, trunk",
    [(GRPO(minibatches=2), "own"), (PPO(minibatches=2), "own"), (PPO(), "policy")],
)
def test_a_saved_state_goes_on_bit_for_bit(algorithm, trunk):
    critic = CriticConfig(trunk=trunk)
    learner, batch = trained(algorithm=algorithm, critic=critic)
    tensors, state = learner.state()
    model = tiny_model()
    resumed = Learner(model, algorithm, LORA, reference=model, critic=critic)
    resumed.load_state(tensors, json.loads(json.dumps(state)))
    for each in (learner, resumed):
        facts = each.facts(batch)
        each.update(facts, algorithm.credit(facts), step=9)
    first, second = learner.state()[0], resumed.state()[0]
    assert all(
        torch.equal(first[part][name], tensor)
        for part in first
        for name, tensor in second[part].items()
    )


def test_a_critic_of_its_own_shares_what_is_frozen():
    learner, _ = trained(algorithm=PPO(), critic=CriticConfig())
    bare, critic = learner.models.policy.module, learner.models.critic
    frozen = {p.data_ptr() for p in bare.parameters() if not p.requires_grad}
    own = [p.data_ptr() for p in critic.bare.parameters() if not p.requires_grad]
    assert own and set(own) <= frozen
    mine = {p.data_ptr() for p in bare.parameters() if p.requires_grad}
    assert not mine & {p.data_ptr() for p in critic.bare.parameters() if p.requires_grad}
    assert all(".lora_" in name or name.startswith("head.") for name in critic.weights.trainable)


def test_a_policy_of_half_precision_gets_adapters_of_full():
    model = tiny_model().to(torch.bfloat16)
    with pytest.raises(
        LearnerError,
        match="float32.*with lora_rank only adapters are trained, and the policy may be bfloat16",
    ):
        Learner(model, GRPO(), LearnerConfig())
    learner, _ = trained(model, config=LearnerConfig(lr=1e-2, lora_rank=4, layout="padded"))
    assert {tensor.dtype for tensor in learner.state()[0]["model"].values()} == {torch.float32}
    weights = learner.weights()
    name = "model.layers.0.mlp.up_proj.weight"
    change = weights[name] - model.state_dict()[name].float()
    assert weights[name].dtype is torch.float32 and 0 < change.abs().max() < 0.1, (
        "not rounded to the grid of the policy"
    )


@pytest.mark.parametrize(
    "settings, words",
    [
        (
            {"lora_targets": ("no_such_layer",)},
            r"lora_targets = \['no_such_layer'\].*Name linear layers of the policy",
        ),
        ({"lora_targets": ("q_proj", "lm_head")}, "names the output head"),
    ],
)
def test_what_cannot_be_adapted_is_refused(settings, words):
    with pytest.raises(LearnerError, match=words):
        Learner(tiny_model(), GRPO(), LearnerConfig(lora_rank=2, **settings))


def test_another_run_s_state_is_refused():
    tensors, state = trained()[0].state()
    with pytest.raises(LearnerError, match="belongs to another model"):
        Learner(tiny_model(), GRPO(), LearnerConfig()).load_state(tensors, state)
    with pytest.raises(LearnerError, match="belongs to another model"):
        Learner(tiny_model(), GRPO(), LearnerConfig(lora_rank=8)).load_state(tensors, state)
    whole = Learner(tiny_model(), GRPO(), LearnerConfig()).state()
    with pytest.raises(LearnerError, match="belongs to another model"):
        Learner(tiny_model(), GRPO(), LORA).load_state(*whole)


def test_settings_that_cannot_act_are_refused_and_every_run_says_whether_it_has_adapters():
    with pytest.raises(ConfigError, match="learner.lora_alpha.*set learner.lora_rank"):
        load_config("frozenlake", {"learner.lora_alpha": 8.0})
    with pytest.raises(ConfigError, match="learner.lora_rank"):
        load_config("frozenlake", {"learner.lora_r": 8})
    assert to_dict(load_config("frozenlake"))["learner"]["lora_rank"] == 0
    chosen = load_config("frozenlake", {"learner.lora_rank": 8, "learner.lora_targets": ["q_proj"]})
    assert to_dict(chosen)["learner"]["lora_rank"] == 8 and chosen.learner.lora_targets == (
        "q_proj",
    )


# ------------------------------------------------------------------------------------------------ a run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = load_config(
        "frozenlake",
        {
            "train.steps": 2,
            "train.tasks_per_step": 2,
            "train.group_size": 4,
            "train.evaluate_every": 0,
            "evaluation.num_tasks": 2,
            "train.checkpoint_every": 1,
            "learner.lr": 1e-2,
            "learner.lora_rank": 4,
        },
    )
    return train_here(config, tmp_path_factory.mktemp("runs") / "adapted")


@pytest.mark.full
def test_a_run_is_linted_and_its_engine_agrees_with_its_learner(run):
    assert [event["kind"] for event in run.events()] == ["policy"], (
        "the lint looked at every step, and at the gradient"
    )
    assert run.metrics()["logp_gap_max"].max() < 1e-3 and len(run.metrics()) == 2
    saved = checkpoint.load_newest(run.path).tensors["model"]
    assert all(".lora_" in name for name in saved)


@pytest.mark.full
def test_an_export_is_the_policy_merged_or_its_adapter_alone(run, tmp_path, capsys):
    peft = pytest.importorskip("peft")
    session = reopen(run, quiet=True)
    batch = Batch.from_groups(make_groups())
    export_policy(run, tmp_path / "merged")
    assert cli.main(["export", str(run.path), str(tmp_path / "adapter"), "--adapter"]) == 0
    assert "PeftModel.from_pretrained" in capsys.readouterr().out
    whole = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert all(
        torch.equal(tensor, session.learner.weights()[name])
        for name, tensor in whole.state_dict().items()
    )
    theirs = peft.PeftModel.from_pretrained(
        copy.deepcopy(session.policy.model), str(tmp_path / "adapter")
    ).eval()
    mine = session.learner.models.policy.module
    torch.testing.assert_close(logits(theirs), logits(mine), atol=1e-6, rtol=0)
    torch.testing.assert_close(logits(theirs), logits(whole), atol=1e-4, rtol=0)
    assert not torch.equal(logits(theirs), logits(session.policy.model))
    assert (
        sum(t.numel() for t in load_file(tmp_path / "adapter/adapter_model.safetensors").values())
        < 50_000
    )
    assert len(batch.token_ids_T) and math.isfinite(float(logits(theirs).sum()))


@pytest.mark.full
def test_a_run_of_all_weights_has_no_adapter_to_export(tmp_path):
    config = load_config(
        "frozenlake",
        {
            "train.steps": 1,
            "train.tasks_per_step": 2,
            "train.group_size": 2,
            "train.evaluate_every": 0,
            "evaluation.num_tasks": 2,
            "lint.mode": "off",
        },
    )
    whole = train_here(config, tmp_path / "whole")
    with pytest.raises(ConfigError, match="trained all weights.*no adapter"):
        export_policy(whole, tmp_path / "adapter", merge=False)


@pytest.mark.parametrize("sent", ["what learns", "the frozen base"])
def test_a_base_that_is_sent_in_place_of_what_learns_is_named_by_its_own_rule_alone(
    sent, monkeypatch
):
    """R23 sees the gap between engine and trainer as well, and leaves it to R35, which says where it comes from."""

    def without_adapters(module, weights):
        return merged(
            module, {name: 0 * w if "lora_B" in name else w for name, w in weights.items()}
        )

    if sent == "the frozen base":
        monkeypatch.setattr("workbench.learn.learner.merged", without_adapters)
    session = open_session(
        load_config(
            "bandit",
            {
                "learner.lora_rank": 4,
                "learner.lr": 1e-2,
                "lint.mode": "warn",
                "lint.start": False,
                "train.tasks_per_step": 2,
                "train.group_size": 4,
            },
        ),
        quiet=True,
    )
    train_step(session, 1)  # after it the adapters say something
    assert train_step(session, 2).lint.named == (() if sent == "what learns" else ("R35",))
