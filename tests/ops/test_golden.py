"""Numbers of an independent implementation, computed in float64; the file names it and its settings."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from workbench.ops.gae import gae, whiten
from workbench.ops.group import group_advantage
from workbench.ops.kl import kl_estimate
from workbench.ops.value import clipped_value_loss

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "advantages_and_losses.json").read_text())
TOLERANCE = 1e-6


@pytest.fixture(params=GOLDEN["cases"], ids=lambda case: f"gamma-{case['gamma']}-lam-{case['lam']}")
def case(request):
    """(settings, inputs at the masked tokens [A], expected numbers there): padded rows become flat action tokens."""
    raw = request.param
    mask = torch.tensor(raw["inputs"]["mask"]).bool()

    def at_mask(value):
        values = torch.tensor(value, dtype=torch.float64)
        return values[mask] if values.shape == mask.shape else values

    inputs = {name: at_mask(value) for name, value in raw["inputs"].items()}
    expected = {name: value if isinstance(value, dict) else at_mask(value) for name, value in raw["expected"].items()}
    return raw, inputs | {"row": mask.nonzero()[:, 0], "rows": len(mask)}, expected


def close(mine, theirs) -> bool:
    return float((mine - theirs).abs().max()) < TOLERANCE


def test_gae(case):
    raw, inputs, expected = case
    found = gae(inputs["rewards"], inputs["values"], torch.zeros(inputs["rows"]), inputs["row"], gamma=raw["gamma"],
                lam=raw["lam"])
    assert close(found.target, expected["gae_returns"]) and close(whiten(found.advantage), expected["gae_whitened"])


def test_negative_control_whitening_over_other_tokens_too_is_noticed(case):
    raw, inputs, expected = case
    found = gae(inputs["rewards"], inputs["values"], torch.zeros(inputs["rows"]), inputs["row"], gamma=raw["gamma"],
                lam=raw["lam"])
    with_observations = torch.cat([found.advantage, torch.zeros(30)])
    assert not close(whiten(with_observations)[:-30], expected["gae_whitened"])


def test_value_loss(case):
    _, inputs, expected = case
    found = clipped_value_loss(inputs["vpred"], inputs["values"], expected["gae_returns"], clip=0.5)
    assert close(found.loss.mean(), expected["value_loss"])


@pytest.mark.parametrize("mine, theirs", [("k1", "kl_k1"), ("k2", "kl_mse"), ("k3", "kl_low_var_kl")])
def test_kl(case, mine, theirs):
    _, inputs, expected = case
    assert close(kl_estimate(inputs["logp"], inputs["ref_logp"], mine), expected[theirs])


@pytest.mark.parametrize("normalize_std, name", [(True, "grpo"), (False, "grpo_no_std")])
def test_group_advantage(case, normalize_std, name):
    _, inputs, expected = case
    reward_N = torch.zeros(inputs["rows"], dtype=torch.float64).index_add(0, inputs["row"], inputs["rewards"])
    advantage_N = group_advantage(reward_N, inputs["group"].long(), torch.ones(inputs["rows"], dtype=torch.bool),
                                  normalize_std=normalize_std)
    assert close(advantage_N[inputs["row"]], expected[name])
