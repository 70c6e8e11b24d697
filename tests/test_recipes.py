"""Every config file that ships starts as it stands: in the processes and with the engine that it names. Nothing is overridden.

A name on the model hub and a data set are looked for in the folder that one stands in, too: where this machine has neither, a tiny
model of the same architecture and a few questions in the same format lie there under those very names.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

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
from workbench.values.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "experiments").glob("*.toml"))
TABLES = sorted((ROOT / "experiments/agent_tables").glob("*.toml"))
HOTPOTQA = ROOT / "experiments/hotpotqa-qwen2.5-3b.toml"
POSITIONS = 32768  # of Qwen2.5-3B-Instruct, as its config.json gives it
ALONE = [path for path in FILES if path != HOTPOTQA]


def opened_in(processes, path, folder):
    """What the first of so many processes says of a file, all of them started as people start them."""
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
        | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)},
    )
    said = [
        json.loads(line.removeprefix("RECIPE "))
        for line in done.stdout.splitlines()
        if line.startswith("RECIPE ")
    ]
    assert len(said) == 1 and "error" not in said[0], (said, done.stderr[-3000:])
    return said[0]


@pytest.fixture
def hub(tmp_path):
    """A folder in which HotpotQA's files and Qwen2.5-3B-Instruct are found by name; both small."""
    policy = tmp_path / "Qwen/Qwen2.5-3B-Instruct"
    shutil.copytree(SHIPPED / "search-tiny", policy)
    kept = json.loads((policy / "config.json").read_text())
    (policy / "config.json").write_text(json.dumps(kept | {"max_position_embeddings": POSITIONS}))
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
def test_the_one_for_eight_processes_opens_in_eight(hub):
    found = opened_in(8, HOTPOTQA, hub)
    assert (found["world"], found["engine"], found["context"], found["warnings"]) == (
        8,
        "TransformersEngine",
        5120,
        [],
    )


def test_started_alone_the_one_for_eight_is_refused_before_anything_is_loaded():
    """The negative control: with one process the same door stays shut, before the policy or the data set is missed."""
    with pytest.raises(
        ConfigError,
        match="asked for 8 processes, but this is a world of 1.*torchrun --nproc_per_node 8",
    ):
        opened(str(HOTPOTQA))


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
