"""Every config file that ships starts as it stands: in the processes and with the engine that it names. Nothing is overridden.

A name on the model hub and a data set are looked for in the folder that one stands in, too: where this machine has neither, a tiny
model of the same architecture and a few questions in the same format lie there under those very names.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.counts import reduced
from tests.open_recipe import opened
from workbench.engines.policy import SHIPPED
from workbench.extensions.ablation.plan import config_of as arm_config
from workbench.extensions.ablation.plan import jobs
from workbench.extensions.ablation.reading import read_plan
from workbench.training.config import PRESETS, Config, load_config, load_config_with_warnings
from workbench.training.sections import PolicyConfig
from workbench.training.starting import obstacles
from workbench.training.train import train_here
from workbench.values.errors import ConfigError, EngineError

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "experiments").glob("*.toml"))
TABLES = sorted((ROOT / "experiments/agent_tables").glob("*.toml"))
HOTPOTQA = ROOT / "experiments/hotpotqa-qwen2.5-3b.toml"
POSITIONS = 32768  # of Qwen2.5-3B-Instruct, as its config.json gives it
# File -> the name of its policy, and the architecture that lies there on the hub.
ONE_GPU = {
    "search-qwen3-1.7b-24gb.toml": ("Qwen/Qwen3-1.7B", "qwen3"),
    "search-qwen3-4b-80gb.toml": ("Qwen/Qwen3-4B-Instruct-2507", "qwen3"),
}
ALONE = [path for path in FILES if path != HOTPOTQA and path.name not in ONE_GPU]


def opened_in(processes, path, folder, stand_in=True):
    """What the first of so many processes says of a file, all of them started as people start them. `stand_in`: where the file
    has vLLM, a stand-in takes its place."""
    search = [str(ROOT), str(ROOT / "tests/engines")]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node",
            str(processes),
            str(ROOT / "tests/open_recipe.py"),
            str(path),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ
        | {
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(search),
            "STAND_IN": "1" if stand_in else "",
        },
    )
    said = [
        json.loads(line.removeprefix("RECIPE "))
        for line in done.stdout.splitlines()
        if line.startswith("RECIPE ")
    ]
    assert len(said) == 1 and "error" not in said[0], (said, done.stderr[-3000:])
    return said[0]


def lay_policy(folder: Path, family: str) -> None:
    """A tiny policy of this architecture with random weights and, where TRL brings it, its own chat template: what a name on the
    hub stands for here. Its heads are 32 wide, as vLLM's attention on a CPU wants them."""
    shutil.copytree(SHIPPED / "search-tiny", folder)
    template = importlib.util.find_spec("trl")
    if family == "qwen3" and "Instruct" not in folder.name and template is not None:
        published = Path(template.origin).parent / "chat_templates/qwen3.jinja"
        shutil.copy(published, folder / "chat_template.jinja")
    shape = {
        "vocab_size": 640,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": True,
    }
    known = json.loads((folder / "config.json").read_text())
    tokens = {name: known[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(
        AutoConfig.for_model(family, **shape, **tokens)
    ).save_pretrained(folder)


@pytest.fixture
def hub(tmp_path):
    """A folder in which HotpotQA's files and every policy of the recipes are found by name; all small."""
    lay_policy(tmp_path / "Qwen/Qwen2.5-3B-Instruct", "qwen2")
    for name, family in ONE_GPU.values():
        lay_policy(tmp_path / name, family)
    shutil.copy(ROOT / "tests/qa/files/hotpot_train_v1.1.json", tmp_path)
    (tmp_path / "hotpot_dev_distractor_v1.json").write_bytes(
        gzip.decompress((ROOT / "tests/qa/files/hotpot_dev_distractor_v1.json.gz").read_bytes())
    )
    return tmp_path


def test_every_file_loads_without_a_warning_and_names_what_can_start():
    assert len(FILES) >= 7 and HOTPOTQA in FILES
    for path in FILES:
        config, warnings = load_config_with_warnings(path)
        assert (warnings, obstacles(config, config.learner.num_processes)) == ([], []), path.name
    for name in PRESETS:
        assert obstacles(load_config(name), 1) == [], name
    for path in TABLES:
        table = read_plan(path)
        arms = [
            arm_config(table, job)
            for job in jobs(table, [0])
            if not getattr(job.arm, "inert", False)
        ]
        assert arms and all(obstacles(config, 1) == [] for config in arms), path.name


@pytest.mark.parametrize(
    "source", [*map(str, ALONE), *(pytest.param(name, marks=pytest.mark.full) for name in PRESETS)]
)
def test_what_names_one_process_opens_as_it_stands(source):
    found = opened(source)
    assert (found["world"], found["engine"]) == (1, "TransformersEngine") and found["said"] >= 1, (
        found
    )
    assert found["warnings"] == (
        load_config_with_warnings(source)[1] if source in PRESETS else []
    ), "a file has none"


@pytest.mark.full
def test_a_file_for_two_processes_opens_in_two(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text('base = "frozenlake"\n[learner]\nnum_processes = 2\n')
    assert opened_in(2, path, tmp_path)["world"] == 2


@pytest.mark.full
def test_the_one_for_four_processes_opens_in_four_beside_a_server(hub):
    """Each process holds a quarter of the weights, which all of them put together for the server."""
    found = opened_in(4, HOTPOTQA, hub)
    assert (found["world"], found["engine"], found["context"], found["warnings"]) == (
        4,
        "VllmEngine",
        5120,
        [],
    )
    assert found["held"] == pytest.approx(0.25, abs=0.02)
    assert found["started"] == [{"devices": "4,5,6,7", "data_parallel": 4}]


@pytest.mark.full
@pytest.mark.parametrize("name", ONE_GPU)
def test_those_for_one_gpu_open_with_vllm_in_their_process(hub, name):
    found = opened_in(1, ROOT / "experiments" / name, hub)
    assert (found["world"], found["engine"], found["context"], found["warnings"]) == (
        1,
        "VllmEngine",
        4096,
        [],
    )
    assert (found["adapters"], found["started"]) == (32, []), "no server is started"


@pytest.mark.full
def test_without_vllm_a_recipe_that_needs_it_says_so(hub):
    """The negative control: it is the stand-in that opens them."""
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("vLLM is installed here")
    with pytest.raises(EngineError, match="engine.kind='vllm' needs the package vllm"):
        with chdir(hub):
            opened(str(ROOT / "experiments/search-qwen3-1.7b-24gb.toml"))


def test_started_alone_the_one_for_four_is_refused_before_anything_is_loaded():
    """The negative control: with one process the same door stays shut, before the policy or the data set is missed."""
    with pytest.raises(
        ConfigError,
        match="asked for 4 processes, but this is a world of 1.*torchrun --nproc_per_node 4",
    ):
        opened(str(HOTPOTQA))


@pytest.mark.parametrize(
    "path",
    [HOTPOTQA, *(ROOT / "experiments" / name for name in ONE_GPU)],
    ids=lambda path: path.name,
)
def test_a_recipe_says_that_it_was_not_run_and_what_is_no_measurement(path):
    text = path.read_text()
    assert text.startswith("# NOT ") and "nobody measured it on a GPU" in text
    assert "one process only" not in text
    if path != HOTPOTQA:
        assert "an estimate and no measurement" in text and "#" in text.split("vllm#4702")[0]


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ("hotpotqa-qwen2.5-3b", ("qwen2.5-3b", 4, 0)),
        ("search-qwen3-1.7b-24gb", ("qwen3-1.7b", 1, 32)),
        ("search-qwen3-4b-80gb", ("qwen3-4b", 1, 32)),
    ],
)
def test_the_command_that_measured_a_recipes_memory_is_of_its_own_settings(shape, wanted):
    path = ROOT / f"experiments/{shape}.toml"
    config = load_config(path)
    text = " ".join(line.removeprefix("#").strip() for line in path.read_text().splitlines())
    command = re.search(r"experiments\.recipe_memory ([^);]*)", text)[1].split()
    asked = dict(zip(command[1::2], command[2::2]))
    name, processes, rank = wanted
    assert (
        command[0] == name
        and int(command[command.index("--tokens") + 1]) == config.learner.micro_batch_tokens
    )
    assert config.learner.num_processes == processes and config.learner.lora_rank == rank
    assert ("--processes" in command) == (processes > 1) and ("--lora" in command) == bool(rank)
    assert ("--checkpointing" in command) == config.learner.activation_checkpointing and asked
    assert ("--critic" in command) == (path == HOTPOTQA)
    assert ("--reference" in command) == ("ref_logp_T" in config.algorithm.requires)


@pytest.mark.parametrize(
    ("settings", "processes", "gpus", "words"),
    [
        ({"engine.kind": "vllm"}, 1, None, []),
        ({}, 2, None, ["asked for 1 processes, but this is a world of 2"]),
        ({"learner.num_processes": 2}, 2, None, []),
        (
            {"learner.num_processes": 2, "policy.device": "cuda"},
            2,
            1,
            ["2 processes need a GPU each, and there are 1 here"],
        ),
        ({"learner.num_processes": 2, "policy.device": "cuda"}, 2, 2, []),
        ({"learner.num_processes": 2, "policy.device": "cpu"}, 2, 0, []),
    ],
)
def test_what_stands_in_the_way_is_said_with_what_to_change(settings, processes, gpus, words):
    found = obstacles(load_config("frozenlake", settings), processes, gpus=gpus)
    assert len(found) == len(words) and all(word in line for word, line in zip(words, found))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"engine.kind": "vllm", "learner.num_processes": 8},
            "without a server, vllm lives in the one process that trains.* set learner.num_processes = 1 .* layout.kind = 'one_node' .* engine.kind = 'transformers'",
        ),
        ({"policy.device": "cuda:1", "learner.num_processes": 2}, "set policy.device = 'cuda'"),
    ],
)
def test_an_impossible_combination_is_refused_when_it_is_loaded(settings, words):
    with pytest.raises(ConfigError, match=words):
        load_config("frozenlake", settings)


@pytest.mark.parametrize("number", reduced([2, 8], [2]))
def test_training_asks_first_of_all(number, tmp_path):
    config: Config = load_config("frozenlake", {"learner.num_processes": number})
    with pytest.raises(
        ConfigError, match=f"asked for {number} processes, but this is a world of 1"
    ):
        train_here(replace(config, policy=PolicyConfig("no/such-model")), tmp_path / "run")
    assert not (tmp_path / "run").exists()
