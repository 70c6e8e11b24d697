"""Layers that are computed once more give the same gradient to the last bit, and keep less."""

from __future__ import annotations

import copy

import pytest
import torch
from learning_data import make_groups, tiny_model
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workbench.learn import recompute
from workbench.learn.algorithms import GRPO, PPO
from workbench.learn.batch import Batch
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.learn.learner import Learner
from workbench.learn.packing import is_packable
from workbench.learn.recompute import layers_of, recompute_layers
from workbench.training.config import load_config, to_dict
from workbench.values.errors import ConfigError, LearnerError


class Ledger(TorchDispatchMode):
    """Bytes of all memory that operations made and that is still held; `peak` is the most there ever was."""

    def __init__(self, model):
        super().__init__()
        self.live = self.peak = 0
        self.held = {
            p.untyped_storage()._cdata: (StorageWeakRef(p.untyped_storage()), 0)
            for p in model.parameters()
        }

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if (
                isinstance(tensor, torch.Tensor)
                and tensor.untyped_storage()._cdata not in self.held
            ):
                storage = tensor.untyped_storage()
                self.held[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                self.live += storage.nbytes()
        for name in [name for name, (held, _) in self.held.items() if held.expired()]:
            self.live -= self.held.pop(name)[1]
        self.peak = max(self.peak, self.live)
        return out


def after_two_steps(algorithm=GRPO(minibatches=2), critic=None, **settings):
    model, batch = tiny_model(), Batch.from_groups(make_groups(turns=3))
    learner = Learner(
        model, algorithm, LearnerConfig(lr=1e-3, **settings), critic=critic, reference=model
    )
    for step in range(2):
        facts = learner.facts(batch)
        assert not [
            report.skipped
            for report in learner.update(facts, algorithm.credit(facts), step=step)
            if report.skipped
        ]
    return learner


@pytest.mark.parametrize(
    "layout, settings",
    [
        ("auto", {}),
        ("padded", {"lora_rank": 4}),
        pytest.param("auto", {"lora_rank": 4}, marks=pytest.mark.full),
        pytest.param("padded", {}, marks=pytest.mark.full),
        pytest.param("auto", {"precision": "bf16"}, marks=pytest.mark.full),
    ],
)
def test_training_is_the_same_to_the_last_bit(monkeypatch, layout, settings):
    """Also where rows are packed: which tokens belong together is said outside of the layer, before the backward pass."""
    calls = []
    real = recompute.checkpoint
    monkeypatch.setattr(
        recompute, "checkpoint", lambda *args, **kwargs: calls.append(1) or real(*args, **kwargs)
    )
    plain = after_two_steps(layout=layout, **settings)
    assert not calls
    again = after_two_steps(layout=layout, activation_checkpointing=True, **settings)
    assert calls and is_packable(again.models.policy.module) == (layout == "auto") == is_packable(
        plain.models.policy.module
    )
    first, second = plain.state()[0], again.state()[0]
    assert all(
        torch.equal(tensor, second[part][name])
        for part in first
        for name, tensor in first[part].items()
    )


@pytest.mark.parametrize("trunk", ["own", "policy"])
def test_a_critic_s_too(trunk):
    made = [
        after_two_steps(PPO(minibatches=2), CriticConfig(trunk=trunk), activation_checkpointing=on)
        for on in (False, True)
    ]
    first, second = (learner.state()[0] for learner in made)
    assert all(
        torch.equal(tensor, second[part][name])
        for part in first
        for name, tensor in first[part].items()
    )
    if trunk == "own":
        policy, critic = (
            layers_of(module)
            for module in (made[1].models.policy.module, made[1].models.critic.bare)
        )
        assert critic and all(layer.forward.args[0] is layer for layer in (*policy, *critic)), (
            "each computes itself, not its original"
        )


def test_less_is_kept():
    def peak(on):
        model = tiny_model(num_hidden_layers=8)
        if on:
            recompute_layers(model)
        with Ledger(model) as ledger:
            model(
                input_ids=torch.arange(400).reshape(4, 100) % 61, use_cache=False
            ).logits.sum().backward()
        return ledger.peak

    assert peak(True) < 0.5 * peak(False)


def test_nothing_is_computed_twice_without_a_gradient(monkeypatch):
    model = tiny_model()
    recompute_layers(model)
    monkeypatch.setattr(
        recompute, "checkpoint", lambda *args, **kwargs: pytest.fail("no backward pass will follow")
    )
    with torch.no_grad():
        model(input_ids=torch.arange(5)[None], use_cache=False)


def test_a_model_without_such_layers_is_refused():
    model = copy.deepcopy(tiny_model())
    model.model.layers = torch.nn.ModuleList()
    with pytest.raises(
        LearnerError, match="Qwen3ForCausalLM marks no layer.*activation_checkpointing = false"
    ):
        recompute_layers(model)


def test_the_setting_is_found_by_its_other_name_and_kept_with_every_run():
    with pytest.raises(ConfigError, match="learner.activation_checkpointing"):
        load_config("frozenlake", {"learner.gradient_checkpointing": True})
    assert to_dict(load_config("frozenlake"))["learner"]["activation_checkpointing"] is False
    assert to_dict(load_config("frozenlake", {"learner.activation_checkpointing": True}))[
        "learner"
    ]["activation_checkpointing"]
