"""One process or two: the same gradient (invariant 4). Two real processes are started by torchrun, over gloo on the CPU.

Tolerances, all of float32 sums in another order: gradients agree to 2e-6 of their norm. AdamW divides each gradient by
its own size, so where one is almost zero its rounding decides: after two steps of lr = 1e-3 single weights may differ
by up to 1e-4 (a tenth of one step), on average by less than 1e-6.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from distributed_worker import LINT, LR, REFUSALS, SCENARIOS, SHARDED, play
from learning_data import tiny_model
from safetensors.torch import load_file

from tests.counts import reduced
from workbench.learn.algorithms import GRPO
from workbench.learn.config import LearnerConfig
from workbench.learn.distributed import ASKED_TO_SHARD
from workbench.learn.learner import Learner
from workbench.training.config import load_config
from workbench.values.errors import ConfigError, LearnerError

TESTS = Path(__file__).resolve().parent


# The others are among the fuller counts.
QUICK = (
    "append",
    "minibatches",
    "critic",
    "adapters",
    "append, sharded",
    "adapters-and-critic, sharded and offloaded",
)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory, request) -> Path:
    """All scenarios that are asked for in one launch. A hang (a rank that waits for another) ends as a failure after four
    minutes."""
    asked = [
        item.callspec.params.get("name")
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    return launched(
        tmp_path_factory.mktemp("two_processes"),
        2,
        *(name for name in SCENARIOS if name in asked),
        REFUSALS,
        LINT,
    )


def launched(folder: Path, processes: int, *names: str) -> Path:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        str(processes),
        str(TESTS / "distributed_worker.py"),
        str(folder),
        *names,
    ]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def part(tensors: dict[str, torch.Tensor], prefix: str) -> torch.Tensor:
    return torch.cat(
        [t.reshape(-1).double() for name, t in sorted(tensors.items()) if name.startswith(prefix)]
    )


@pytest.mark.parametrize("name", reduced(SCENARIOS, QUICK))
def test_one_process_or_two(two_processes, name):
    agrees_with_one_process(two_processes, name, processes=2)


@pytest.mark.full
def test_one_process_or_four_with_shards(tmp_path):
    names = ["append, sharded", "adapters, sharded", "critic, sharded"]
    folder = launched(tmp_path, 4, *names)
    for name in names:
        agrees_with_one_process(folder, name, processes=4)


def agrees_with_one_process(folder: Path, name: str, processes: int) -> None:
    alone, facts = play(name, processes=1)
    for rank in range(processes):
        shared = load_file(folder / f"{name}.{rank}.safetensors")
        theirs = json.loads((folder / f"{name}.{rank}.json").read_text())
        assert shared.keys() == alone.keys() and theirs["version"] == facts["version"]
        difference = part(shared, "gradient/") - part(alone, "gradient/")
        assert difference.norm() / part(alone, "gradient/").norm() < 2e-6
        moved = (part(shared, "weight/") - part(alone, "weight/")).abs()
        assert moved.max() < LR / 10 and moved.mean() < 1e-6
        mine, other = part(alone, "table/0/0/"), part(shared, "table/0/0/")
        torch.testing.assert_close(other, mine, atol=1e-5, rtol=1e-5, equal_nan=True)
        assert [m["trained_tokens"] for m in theirs["metrics"]] == [
            m["trained_tokens"] for m in facts["metrics"]
        ]
        assert [m["loss"] for m in theirs["metrics"]] == pytest.approx(
            [m["loss"] for m in facts["metrics"]], abs=1e-4
        )


@pytest.mark.parametrize("name", reduced(SCENARIOS, QUICK))
def test_both_ranks_end_with_the_same_weights_and_tables(two_processes, name):
    first, second = (load_file(two_processes / f"{name}.{rank}.safetensors") for rank in (0, 1))
    assert all(torch.equal(first[k].nan_to_num(), second[k].nan_to_num()) for k in first)


@pytest.mark.parametrize(
    "name", reduced(sorted(SHARDED), [name for name in QUICK if name in SHARDED])
)
def test_each_of_two_ranks_holds_half_of_what_is_trained(two_processes, name):
    """Layers are dealt out by rows, so that one of an odd number of rows is not halved exactly."""
    _, facts = play(name, processes=1)
    for rank in (0, 1):
        held = json.loads((two_processes / f"{name}.{rank}.json").read_text())["held"]
        assert {what: held[what] / whole for what, whole in facts["held"].items()} == pytest.approx(
            {"weights": 0.5, "gradients": 0.5, "moments": 0.5}, abs=0.03
        )


def said_of(folder: Path, planted: str) -> list[dict]:
    """What the lint of a step named with this bug, in each process."""
    found = [json.loads((folder / f"lint.{planted}.{rank}.json").read_text()) for rank in (0, 1)]
    assert all(said["updates"] == ["1"] for said in found)
    return found


def test_the_lint_of_two_processes_asks_the_learner_and_says_nothing_of_a_clean_step(two_processes):
    for said in said_of(two_processes, "nothing"):
        assert said["errors"] == [] and {"R13", "R19", "R32"} <= set(said["looked"])


def test_a_gradient_that_is_not_exchanged_is_named_in_the_first_step_and_by_no_other_rule(
    two_processes,
):
    for said in said_of(two_processes, "not exchanged"):
        assert said["errors"] == [
            "R32: of 2 processes 1 hold other weights than process 0 does (process 1)"
        ]


def test_a_gradient_that_is_halved_alike_in_both_processes_is_named_by_the_definition_alone(
    two_processes,
):
    first, second = said_of(two_processes, "halved")
    assert {error.partition(":")[0] for error in first["errors"]} == {"R19"} and first[
        "errors"
    ] == second["errors"]


@pytest.mark.parametrize("name", ["refusals", "refusals, sharded"])
def test_what_is_refused_is_refused_on_every_rank(two_processes, name):
    for rank in (0, 1):
        said = json.loads((two_processes / f"{name}.{rank}.json").read_text())
        assert "set critic.trunk = 'own'" in said["trunk of the policy"]
        assert "this is a world of 2" in said["wrong number of processes"]
        assert "different batches" in said["different batches"]
        assert "advantage = nan" in said["not finite"] and said["unchanged"] == "True"


@pytest.mark.parametrize("name", ASKED_TO_SHARD)
def test_a_setting_that_shards_is_refused_by_name(name, monkeypatch):
    monkeypatch.setenv(name, "true")
    with pytest.raises(
        LearnerError,
        match=f"accelerate is set to {ASKED_TO_SHARD[name]}, but weights are trained whole",
    ):
        Learner(tiny_model(), GRPO(), LearnerConfig())


def test_a_file_that_offloads_is_told_whose_setting_that_is(monkeypatch):
    for name, value in {
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "FSDP_OFFLOAD_PARAMS": "true",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        LearnerError, match="fsdp_offload_params.*set it to false there, and learner.offload = true"
    ):
        Learner(tiny_model(), GRPO(), LearnerConfig(num_processes=2, sharding="full"))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {"learner.sharding": "full", "learner.num_processes": 2, "policy.device": "cpu"},
            "on a CPU everything lies in the host's memory",
        ),
        ({"policy.device": "cuda"}, "set learner.sharding = 'full'"),
    ],
)
def test_offloading_that_moves_nothing_is_refused(settings, why):
    with pytest.raises(ConfigError, match=why):
        load_config("frozenlake", {"learner.offload": True} | settings)


@pytest.mark.full
def test_a_config_file_of_fsdp_is_refused_on_a_cpu_too(tmp_path):
    """Accelerate itself would train whole weights there, without a word."""
    file = tmp_path / "fsdp2.yaml"
    file.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nuse_cpu: true\nnum_machines: 1\nmachine_rank: 0\n"
        "num_processes: 1\nmixed_precision: 'no'\nfsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n"
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "accelerate.commands.launch",
            "--config_file",
            str(file),
            "-m",
            "workbench.cli",
            "train",
            "frozenlake",
            "--set",
            "train.steps=1",
            "--out",
            str(tmp_path / "run"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode != 0 and "accelerate is set to FSDP" in done.stderr + done.stdout
