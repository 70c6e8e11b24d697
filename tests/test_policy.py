"""Loading a policy: where it is found, what is checked, and what a person is told when it does not work."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from learning_data import tiny_model
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import workbench.engines.policy as policy_module
from workbench.chat import ChatFormat
from workbench.engines import trial
from workbench.engines.policy import (
    fingerprint,
    load_policy,
    load_tokenizer,
    other_files,
    shipped_policies,
    weights_fingerprint,
)
from workbench.values.errors import PolicyError

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def write_policy(folder, *, words: int = 61, template: str | None = TEMPLATE, model=None):
    """A policy folder such as `save_pretrained` writes: tiny random weights, one token per word."""
    plain = Tokenizer(models.WordLevel({f"w{i}": i for i in range(words)}, unk_token="w0"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="w0", eos_token="w1")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    (tiny_model() if model is None else model).save_pretrained(folder)
    return folder


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A stand-in for data/policies."""
    monkeypatch.setattr(policy_module, "SHIPPED", tmp_path / "policies")
    for name in ("frozenlake-tiny", "bandit-tiny"):
        write_policy(tmp_path / "policies" / name)
    return tmp_path / "policies"


def test_by_shipped_name_and_by_path(shelf):
    by_name, by_path = load_policy("bandit-tiny"), load_policy(shelf / "bandit-tiny")
    assert shipped_policies() == ["bandit-tiny", "frozenlake-tiny"]
    assert by_name.name == "bandit-tiny" and by_name.fingerprint == by_path.fingerprint
    assert by_name.tokenizer("w5 w7")["input_ids"] == [5, 7]
    assert not by_name.model.training and by_name.model.dtype == torch.float32
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        assert torch.equal(by_name.model(ids).logits, tiny_model()(ids).logits)


def test_another_architecture(tmp_path):
    torch.manual_seed(0)
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
        )
    )
    assert type(load_policy(write_policy(tmp_path, model=llama)).model) is LlamaForCausalLM


def test_dtype(shelf):
    assert load_policy("bandit-tiny", dtype="bfloat16").model.dtype == torch.bfloat16
    with pytest.raises(PolicyError, match="dtype is one of float32, bfloat16, float16, got 'half'"):
        load_policy("bandit-tiny", dtype="half")


def test_the_fingerprint_is_of_the_weights(shelf):
    before = fingerprint(shelf / "bandit-tiny")
    edit_config(shelf / "bandit-tiny", note="nothing")
    assert fingerprint(shelf / "bandit-tiny") == before
    write_policy(shelf / "bandit-tiny", model=tiny_model(seed=1))
    assert fingerprint(shelf / "bandit-tiny") != before
    weights = tiny_model().state_dict()
    same = {name: weights[name] for name in reversed(weights)}
    assert weights_fingerprint(weights) == weights_fingerprint(same)
    assert weights_fingerprint(weights) != weights_fingerprint(tiny_model(seed=1).state_dict())


def test_what_decides_beside_the_weights_is_known_by_file(shelf):
    policy = load_policy(shelf / "bandit-tiny")
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= set(
        policy.files
    )
    (shelf / "bandit-tiny" / "provenance.json").write_text("{}")
    assert other_files(shelf / "bandit-tiny") == policy.files
    edit_config(shelf / "bandit-tiny", rms_norm_eps=0.1)
    now = other_files(shelf / "bandit-tiny")
    assert [name for name in now if now[name] != policy.files[name]] == ["config.json"]


def test_weights_in_memory_of_any_type_have_a_fingerprint():
    assert weights_fingerprint({"a": torch.ones(3, dtype=torch.bfloat16)}) != weights_fingerprint(
        {"a": torch.ones(3)}
    )


# ------------------------------------------------------------------------------------------------ what people are told


def test_a_shipped_name_with_a_typo(shelf):
    with pytest.raises(PolicyError, match=r"did you mean 'frozenlake-tiny'") as caught:
        load_policy("frozenlake-tny")
    assert "HF_HUB_OFFLINE is set" in str(caught.value) and "bandit-tiny" in str(caught.value)


def test_a_missing_folder_names_its_neighbours(shelf):
    with pytest.raises(
        PolicyError, match=r"no folder .*; did you mean 'bandit-tiny'.*'\? Give the folder"
    ):
        load_policy(shelf / "bandit-tny")


@pytest.mark.parametrize("name", ["", "two words", "a/b/c", "owner/"])
def test_names_that_can_be_nothing(shelf, name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyError):
        load_policy(name)


def test_a_hub_name_while_offline(shelf):
    with pytest.raises(PolicyError, match="HF_HUB_OFFLINE is set, so it cannot be downloaded"):
        load_policy("nobody/nothing-of-this-name")


def test_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(PolicyError, match="holds no config.json"):
        load_policy(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(PolicyError, match="not valid JSON"):
        load_policy(tmp_path)


def test_code_that_comes_with_a_model_is_refused(shelf):
    marker = shelf / "ran"
    (shelf / "bandit-tiny" / "evil.py").write_text(
        f"open({str(marker)!r}, 'w')\nclass Evil: pass\n"
    )
    edit_config(shelf / "bandit-tiny", auto_map={"AutoModelForCausalLM": "evil.Evil"})
    with pytest.raises(PolicyError, match="trust_remote_code is off"):
        load_policy("bandit-tiny")
    assert not marker.exists()


def test_pickled_weights_are_refused(shelf):
    folder = shelf / "bandit-tiny"
    torch.save(tiny_model().state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(PolicyError, match=r"\*\.safetensors .*found pytorch_model.bin"):
        load_policy("bandit-tiny")


def test_an_unknown_architecture(shelf):
    edit_config(shelf / "bandit-tiny", model_type="of-tomorrow", architectures=["Tomorrow"])
    with pytest.raises(PolicyError, match="model_type 'of-tomorrow'"):
        load_policy("bandit-tiny")


def test_damaged_weights(shelf):
    path = shelf / "bandit-tiny" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(PolicyError, match="could not load"):
        load_policy("bandit-tiny")


def test_missing_weights_are_not_made_up(shelf):
    """transformers would fill them with random numbers and only log it."""
    path = shelf / "bandit-tiny" / "model.safetensors"
    save_file({"model.norm.weight": torch.ones(32)}, path, metadata={"format": "pt"})
    with pytest.raises(PolicyError, match="lack 24 of the model.s tensors"):
        load_policy("bandit-tiny")


def test_tokenizer_and_model_must_fit(tmp_path):
    with pytest.raises(
        PolicyError, match=r"ids up to 61, but the model has 61 embeddings \(0..60\)"
    ):
        load_policy(write_policy(tmp_path, words=62))


def test_a_chat_template_is_needed(tmp_path):
    with pytest.raises(PolicyError, match="no chat template"):
        load_policy(write_policy(tmp_path, template=None))


# ------------------------------------------------------------------------------------------------ folders of somebody else


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"
DOUBLING = "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"num_hidden_layers": 10**9, "layer_types": None},
            "config.json was tried in a process of its own and ",
        ),
        ({"num_hidden_layers": -1}, "lack|cannot be used|could not load"),
        ({"hidden_size": "x"}, "config.json cannot be used"),
        ({"num_attention_heads": 0}, "config.json cannot be used"),
        ({"rope_parameters": "x"}, "config.json cannot be used"),
        ({"attn_implementation": "evil/kernel"}, "asks for the kernel 'evil/kernel'"),
        (
            {"text_config": {"_experts_implementation": "evil/kernel"}},
            "asks for the kernel 'evil/kernel'",
        ),
    ],
)
def test_a_config_that_cannot_be_built_is_refused_in_words(tmp_path, monkeypatch, changes, words):
    monkeypatch.setattr(trial, "SECONDS", 2.0)
    write_policy(tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(PolicyError, match=words):
        load_policy(tmp_path)


@pytest.mark.parametrize("text", ["[]", "3", "null", "[" * 5000])
@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_a_file_that_holds_something_else_is_refused_in_words(tmp_path, file, text):
    write_policy(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(PolicyError, match="not valid JSON|cannot be used"):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (ENDLESS, "the chat template was tried .* not done after 2 seconds"),
        (DOUBLING, "the chat template was tried .* took more than 2 GB"),
    ],
)
def test_a_template_without_an_end_is_refused(tmp_path, monkeypatch, template, words):
    monkeypatch.setattr(trial, "SECONDS", 2.0 if template is ENDLESS else 30.0)
    folder = write_policy(tmp_path, template=template)
    for load in (load_policy, load_tokenizer):
        with pytest.raises(PolicyError, match=words):
            load(folder)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(tmp_path, bad):
    model = tiny_model()
    with torch.no_grad():
        model.get_input_embeddings().weight[3, 1] = bad
    with pytest.raises(
        PolicyError,
        match=r"2 of its tensors hold numbers that are not finite \(model.embed_tokens.weight, lm_head",
    ):
        load_policy(write_policy(tmp_path, model=model))


def test_what_was_tried_is_not_tried_again_and_what_changed_is(tmp_path, monkeypatch):
    forks = []
    monkeypatch.setattr(trial.os, "fork", lambda fork=os.fork: (forks.append(1), fork())[1])
    write_policy(tmp_path)
    load_policy(tmp_path), load_policy(tmp_path), load_tokenizer(tmp_path)
    assert len(forks) == 1
    edit_config(tmp_path, num_hidden_layers="x")
    for number in (2, 3):  # what was refused is tried again
        with pytest.raises(PolicyError):
            load_policy(tmp_path)
        assert len(forks) == number


def test_a_trial_leaves_no_process_and_no_descriptor(tmp_path):
    write_policy(tmp_path)

    def held():  # threads of earlier tests may end meanwhile, and give back what they held
        children = set()
        for path in Path("/proc/self/task").glob("*/children"):
            with suppress(OSError):
                children.update(path.read_text().split())
        return len(os.listdir("/proc/self/fd")), children

    descriptors, children = held()
    load_policy(tmp_path)
    after, left = held()
    assert after <= descriptors and left <= children


def test_the_tokenizer_carries_the_stops_of_generation_config(tmp_path):
    """Read with the model and with the tokenizer alone; what is no id of the tokenizer is left out."""
    folder = write_policy(tmp_path / "p")
    assert load_tokenizer(folder).generation_stops == ()
    said = json.loads((folder / "generation_config.json").read_text())
    for stops, expected in (([1, 7, 99_999, "x"], (1, 7)), (7, (7,))):
        (folder / "generation_config.json").write_text(json.dumps(said | {"eos_token_id": stops}))
        assert load_tokenizer(folder).generation_stops == expected
    assert load_policy(folder).tokenizer.generation_stops == (7,)


def test_shipped_policies_end_their_turns_as_ever():
    for name in shipped_policies():
        tokenizer = load_tokenizer(name)
        chat = ChatFormat.from_tokenizer(tokenizer)
        assert chat.stop_ids == {chat.end_of_turn, tokenizer.eos_token_id}
        assert chat.manner.plain("<think>a</think>b") == "<think>a</think>b" and not chat.instead
