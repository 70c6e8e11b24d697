"""One gradient through a large policy's own weights is held against the slope of its log-probabilities."""

from __future__ import annotations

import pytest
import torch
from learning_data import make_groups, tiny_model, unscore

from workbench.extensions.preflight.own_gradient import own_gradient
from workbench.learn.algorithms import GRPO
from workbench.learn.batch import Batch
from workbench.learn.config import LearnerConfig
from workbench.linting import Evidence, check
from workbench.linting.gradients import OWN_BOUND, RULES
from workbench.linting.probe import probe_of

LORA = LearnerConfig(lora_rank=4)


class HalfBack(torch.autograd.Function):
    """The values are right, the gradient is half of it."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / 2


def with_a_wrong_kernel(model):
    layer = model.model.layers[-1].self_attn.o_proj
    layer.register_forward_hook(lambda module, args, out: HalfBack.apply(out))
    return model


@pytest.mark.parametrize("config", [LearnerConfig(), LORA], ids=["all weights", "adapters"])
def test_a_right_gradient_is_the_slope_and_a_wrong_one_is_not(config):
    model = tiny_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    asked = own_gradient(model, config)
    last = len(model.model.layers) - 1
    assert f"layers.{last}.self_attn.q_proj" in asked.parameter
    assert ("lora_A" in asked.parameter) is bool(config.lora_rank)
    assert asked.gap < 0.2 * OWN_BOUND
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert own_gradient(with_a_wrong_kernel(model), config).gap > 0.5


def test_what_cannot_be_asked_is_not():
    assert own_gradient(tiny_model().to(torch.bfloat16), LearnerConfig()) is None
    assert own_gradient(tiny_model().requires_grad_(False), LearnerConfig()) is None


def test_the_rule_says_what_is_wrong_with_a_large_policy(monkeypatch):
    monkeypatch.setattr("workbench.linting.probe.MAX_PARAMETERS", 1)
    groups = unscore(make_groups(tasks=2, attempts=3), 1, 2)

    def answer(model):
        probe = probe_of(model, GRPO(), LearnerConfig())
        evidence = Evidence(
            tuple(map(tuple, groups)),
            batch=Batch.from_groups(groups),
            algorithm=GRPO(),
            probe=probe,
            step=1,
        )
        return check(evidence, RULES)["R19"]

    whole = answer(tiny_model())
    assert whole.status == "passed"
    assert "the gradient through this policy's own weights" in whole.checked
    # The stand-in is made from the architecture, and knows nothing of the kernel.
    (finding,) = answer(with_a_wrong_kernel(tiny_model())).errors
    assert "another gradient than it has values" in finding.what
