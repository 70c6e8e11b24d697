"""An exported policy is the run's policy for whoever reads Hugging Face folders: same logits, same template, same ids."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from workbench import cli
from workbench.chat import ChatFormat
from workbench.engines.policy import load_policy
from workbench.look.cells.export_policy import export_policy
from workbench.look.cells.train import train_here
from workbench.run.store import open_run
from workbench.training.config import load_config
from workbench.training.reopening import reopen
from workbench.values import Message, Observation
from workbench.values.errors import ConfigError, StoreError

CHAT = [
    {"role": "system", "content": "You call tools."},
    {"role": "user", "content": "Go from P to G."},
    {"role": "assistant", "content": "<answer>Up</answer>"},
    {"role": "user", "content": "_ O G _ √"},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two steps with a critic on the policy's trunk, which is no part of a policy."""
    config = load_config(
        "frozenlake-ppo",
        {
            "train.steps": 2,
            "train.tasks_per_step": 2,
            "train.group_size": 2,
            "train.evaluate_every": 0,
            "evaluation.num_tasks": 2,
            "train.checkpoint_every": 1,
            "learner.lr": 1e-2,
            "lint.mode": "off",
        },
    )
    return train_here(config, tmp_path_factory.mktemp("runs") / "first")


@pytest.mark.full
def test_the_folder_is_the_policy_to_the_last_bit_and_renders_as_it_was_trained(
    run, tmp_path, capsys
):
    assert cli.main(["export", str(run.path), str(tmp_path / "deep/policy")]) == 0
    folder = tmp_path / "deep/policy"
    assert "AutoModelForCausalLM.from_pretrained" in capsys.readouterr().out
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    session = reopen(open_run(run.path), quiet=True)
    trained, untrained = session.learner.weights(), session.policy.model
    ids = torch.tensor(
        [
            session.chat.open(Observation((Message("user", "Go from P to G."),)))[
                1
            ].token_ids.tolist()
        ]
    )
    assert model.dtype is torch.float32
    with torch.inference_mode():
        before = untrained(ids).logits.clone()
        untrained.load_state_dict(trained, strict=False)
        mine, theirs = untrained.eval()(ids).logits, model.eval()(ids).logits
    assert torch.equal(mine, theirs) and not torch.equal(before, theirs), (
        "the trained policy, not what it started from"
    )
    for name, tensor in model.state_dict().items():
        assert name not in trained or torch.equal(tensor, trained[name].cpu())

    original = session.policy.tokenizer
    assert tokenizer.get_vocab() == original.get_vocab()
    for flags in (
        {"add_generation_prompt": True},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ):
        assert tokenizer.apply_chat_template(CHAT, **flags) == original.apply_chat_template(
            CHAT, **flags
        )
    assert ChatFormat.from_tokenizer(tokenizer).stop_ids == session.chat.stop_ids
    assert model.generation_config.eos_token_id == untrained.generation_config.eos_token_id


@pytest.mark.full
def test_a_folder_is_a_policy_of_a_config_and_says_where_it_comes_from(run, tmp_path):
    export_policy(run, tmp_path / "half", step=1, dtype="bfloat16")
    policy = load_policy(tmp_path / "half", dtype="bfloat16")
    assert policy.model.dtype is torch.bfloat16
    weights = load_file(tmp_path / "half/model.safetensors")
    assert {w.dtype for w in weights.values()} == {torch.bfloat16} and not [
        name for name in weights if "value" in name
    ]
    facts = json.loads((tmp_path / "half/provenance.json").read_text())
    assert (
        facts["step"] == 1
        and facts["started_from"] == "frozenlake-tiny"
        and facts["run_digest"] == run.digest()
    )
    assert "not evaluated at this step" in (tmp_path / "half/README.md").read_text()
    export_policy(run, tmp_path / "newest")
    assert "random" in (tmp_path / "newest/README.md").read_text(), "beside its baselines"


def test_nothing_is_overwritten_and_what_cannot_be_exported_is_said(run, tmp_path, capsys):
    (tmp_path / "there").mkdir()
    with pytest.raises(StoreError, match="is there already"):
        export_policy(run, tmp_path / "there")
    with pytest.raises(StoreError, match="inside the run folder"):
        export_policy(run, run.path / "policy")
    with pytest.raises(StoreError, match="does not exist"):
        export_policy(run, tmp_path / "new", step=7)
    with pytest.raises(ConfigError, match="float32, bfloat16"):
        export_policy(run, tmp_path / "new", dtype="int8")
    assert list(tmp_path.iterdir()) == [tmp_path / "there"], "nothing half-made stays behind"
    for words, message in (
        ((), "one thing"),
        (("d", "--to", "tensorboard", "--out", "e"), "once"),
        (("--to", "tensorboard", "--step", "1"), "numbers of all"),
        (("d", "--out", "e"), "named behind the run"),
    ):
        assert cli.main(["export", str(run.path), *words]) == 2
        assert message in capsys.readouterr().err
