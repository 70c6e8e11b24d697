"""Loading a policy: where it is found, what is checked, and what a person is told when it does not work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from learning_data import tiny_model
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import workbench.engines.policy as policy_module
from tests.fork_kit import LoadsInThreads, faults_in_forks
from workbench.chat import ChatFormat
from workbench.engines.policy import (
    fingerprint,
    load_policy,
    load_tokenizer,
    other_files,
    read_pretrained,
    shipped_policies,
    weights_fingerprint,
)
from workbench.extensions.bounds import trial
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


@pytest.mark.parametrize("name", ["", "two words", "a/b/c", "owner/", "x" * 5_000, "~nobody/x"])
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


def test_code_that_comes_with_a_model_is_refused(tmp_path):
    marker = tmp_path / "ran"
    folder = write_policy(tmp_path / "model")
    (folder / "evil.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: pass\n")
    edit_config(folder, auto_map={"AutoModelForCausalLM": "evil.Evil"})
    with pytest.raises(PolicyError, match="trust_remote_code is off"):
        load_policy(folder)
    assert not marker.exists()


def test_pickled_weights_are_refused(tmp_path):
    folder = write_policy(tmp_path)
    torch.save(tiny_model().state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(PolicyError, match=r"\*\.safetensors .*found pytorch_model.bin"):
        load_policy(folder)


def test_an_unknown_architecture(shelf):
    edit_config(shelf / "bandit-tiny", model_type="of-tomorrow", architectures=["Tomorrow"])
    with pytest.raises(PolicyError, match="could not load .*of-tomorrow"):
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
        (DOUBLING, "the chat template was tried .* took more than 512 MB"),
    ],
)
def test_a_template_without_an_end_is_refused(tmp_path, monkeypatch, template, words):
    monkeypatch.setattr(trial, "SECONDS", 2.0 if template is ENDLESS else 30.0)
    folder = write_policy(tmp_path, template=template)
    for load in (load_policy, load_tokenizer):
        with pytest.raises(PolicyError, match=words):
            load(folder)


def sharded(folder):
    """The same policy in two files of weights."""
    write_policy(folder)
    tiny_model().save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink()
    return folder, folder / "model.safetensors.index.json"


def test_weights_are_read_from_the_folder_alone(tmp_path):
    """An index beside them may name a file anywhere: two models would have one fingerprint."""
    folder, index = sharded(tmp_path / "p")
    whole = load_policy(folder)
    assert index.name in whole.files and index.name not in whole.contents()
    held = json.loads(index.read_text())
    key, shard = sorted(held["weight_map"].items())[0]
    (tmp_path / "stolen.safetensors").write_bytes((folder / shard).read_bytes())
    for named in (
        "../stolen.safetensors",
        str(tmp_path / "stolen.safetensors"),
        "sub/x.safetensors",
    ):
        index.write_text(json.dumps(held | {"weight_map": held["weight_map"] | {key: named}}))
        with pytest.raises(PolicyError, match="index.json names .* nothing outside of it is read"):
            load_policy(folder)
    for damaged in ({}, {"weight_map": [1]}, {"weight_map": None}):
        index.write_text(json.dumps(damaged))
        with pytest.raises(PolicyError, match="has no weight_map"):
            load_policy(folder)
    index.write_text(json.dumps(held))
    edit_config(folder, transformers_weights="../stolen.safetensors")
    with pytest.raises(PolicyError, match="config.json names '../stolen.safetensors'"):
        load_policy(folder)


@pytest.mark.parametrize(
    "file", ["model.safetensors", "tokenizer.json", "config.json", "chat_template.jinja"]
)
def test_a_link_that_leads_out_is_refused_and_one_in_the_hubs_cache_is_not(tmp_path, file):
    folder = write_policy(tmp_path / "p")
    shutil.move(folder / file, tmp_path / file)
    (folder / file).symlink_to(tmp_path / file)
    for load in (load_policy, load_tokenizer):
        with pytest.raises(PolicyError, match=f"{file} is a link that leads out"):
            load(folder)
    cache = tmp_path / "models--x--y"  # as the hub lays it out
    (cache / "blobs").mkdir(parents=True)
    shutil.move(tmp_path / file, cache / "blobs" / "abc")
    (folder / file).unlink()
    (folder / file).symlink_to("../../blobs/abc")
    (cache / "snapshots").mkdir()
    shutil.move(folder, cache / "snapshots" / "1")
    (tmp_path / "newest").symlink_to(
        cache / "snapshots" / "1"
    )  # a link to a whole folder is the user's
    assert load_policy(tmp_path / "newest").tokenizer("w5")["input_ids"] == [5]


def test_an_adapter_beside_the_weights_is_refused(tmp_path):
    """transformers would load it, and what it names as its base."""
    folder = write_policy(tmp_path)
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere"}')
    with pytest.raises(PolicyError, match="holds an adapter .* merge it"):
        load_policy(folder)


def test_a_tokenizer_may_not_name_a_file_elsewhere(tmp_path):
    folder = write_policy(tmp_path / "p")
    path = folder / "tokenizer_config.json"
    held = json.loads(path.read_text())
    path.write_text(json.dumps(held | {"tokenizer_file": "/home/somebody/tokenizer.json"}))
    load_policy(folder)  # of the machine that it was made on, as many have it: not there, not read
    (tmp_path / "other.json").write_text("{}")
    for named in ("../other.json", str(tmp_path / "other.json")):
        path.write_text(json.dumps(held | {"tokenizer_file": named}))
        with pytest.raises(PolicyError, match="tokenizer_config.json names"):
            load_tokenizer(folder)


def test_a_config_of_more_weights_than_there_are_is_refused_before_they_are_made(tmp_path):
    """transformers would fill tens of gigabytes with random numbers first."""
    write_policy(tmp_path)
    edit_config(tmp_path, vocab_size=4_000_000)
    began = time.monotonic()
    with pytest.raises(PolicyError, match="describes [0-9,]+ weights, but the weight files have"):
        load_policy(tmp_path)
    assert time.monotonic() - began < 10


def test_a_weight_file_whose_names_fill_the_memory_is_refused(tmp_path):
    folder = write_policy(tmp_path)
    with open(folder / "model.safetensors", "r+b") as file:
        file.write((1 << 30).to_bytes(8, "little"))
    with pytest.raises(PolicyError, match="has 1,073,741,824 bytes of names"):
        load_policy(folder)


def test_further_templates_count_among_what_decides(tmp_path):
    folder = write_policy(tmp_path)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("x")
    assert "additional_chat_templates/rag.jinja" in other_files(folder)


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
    write_policy(tmp_path / "first")
    load_policy(tmp_path / "first")  # a process for templates is there from now on
    tmp_path = tmp_path / "second"
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

    load_policy(tmp_path)  # a process for templates is there from now on
    edit_config(tmp_path, note="tried again")
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


# ------------------------------------------------------------------------------------------------ after a fork


def test_a_model_is_loaded_in_threads_after_a_fork(tmp_path):
    assert faults_in_forks(lambda: read_pretrained(LoadsInThreads, tmp_path, "a model")) == []


def test_negative_control_threads_of_a_forked_process_race_for_torchs_pool():
    """In a process of its own: what earlier tests did with torch's threads is not in it."""
    # On a starved machine the threads may come one after the other for a while: four in five forks fail, else.
    code = (
        "from tests.fork_kit import LoadsInThreads, faults_in_forks\n"
        "print(faults_in_forks(lambda: LoadsInThreads.from_pretrained('', False), 500, first=True))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "thread pool" in ended.stdout, ended.stderr
