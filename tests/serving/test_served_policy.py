"""What `workbench serve` takes: a run, a checkpoint, a policy; with the manner it was trained in. And the command itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest
import torch

from workbench import cli
from workbench.engines.endpoint import Endpoint
from workbench.extensions.servers.served_policy import ServedSettings, open_served
from workbench.run.store import Run
from workbench.training import checkpoint
from workbench.training.config import load_config
from workbench.training.train import train_here
from workbench.values.errors import ConfigError, PolicyError

SMALL = {
    "train.steps": 2,
    "train.tasks_per_step": 2,
    "train.group_size": 2,
    "train.evaluate_every": 0,
    "evaluation.num_tasks": 2,
    "train.checkpoint_every": 1,
    "collect.temperature": 0.8,
    "collect.max_turn_tokens": 16,
    "learner.lr": 1e-2,
    "lint.mode": "off",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "first"
    return train_here(load_config("frozenlake-ppo", SMALL), folder, on_note=None)


def served_weights(source, **settings) -> dict[str, torch.Tensor]:
    with open_served(source, ServedSettings(**settings)) as policy:
        return {name: w.clone() for name, w in policy.engine._model.state_dict().items()}


def is_as_saved(weights, run: Run, step: int) -> bool:
    saved = checkpoint.load(run.path, step).tensors["model"]
    return all(torch.equal(weights[name], tensor) for name, tensor in saved.items())


def test_a_run_is_served_as_it_was_trained(run):
    with open_served(run.path) as policy:
        assert (policy.name, policy.style, policy.temperature) == ("first", "hermes", 0.8)
        weights = {name: w.clone() for name, w in policy.engine._model.state_dict().items()}
    assert is_as_saved(weights, run, 2) and not is_as_saved(weights, run, 1)


def test_a_checkpoint_is_served_by_its_step_or_its_folder(run):
    folder = run.path / "checkpoints" / "step-00000001"
    assert is_as_saved(served_weights(folder), run, 1)
    assert is_as_saved(served_weights(run.path, step=1), run, 1)


def test_a_policy_is_served_by_name_or_folder_and_others_are_refused(run, tmp_path):
    with open_served("frozenlake-tiny", ServedSettings(name="lake")) as policy:
        assert (policy.name, policy.temperature) == ("lake", 1.0)
    assert cli.main(["export", str(run.path), str(tmp_path / "out")]) == 0
    assert is_as_saved(served_weights(tmp_path / "out"), run, 2)
    for source, settings, words in (
        ("frozenlake-tiny", {"step": 3}, "checkpoint of a run"),
        ("frozenlake-tiny", {"calls": "hermess"}, "hermes"),
    ):
        with pytest.raises(ConfigError, match=words):
            served_weights(source, **settings)
    with pytest.raises(PolicyError):
        served_weights(tmp_path / "nothing")


@pytest.mark.full
def test_the_command_serves_and_a_talk_goes_through_it(run, tmp_path):
    """By the client of `workbench chat --endpoint`, in text and by the server's own reading of calls."""
    key = {"SERVE_KEY": "correct-horse-battery"}
    command = [sys.executable, "-m", "workbench.cli", "serve", str(run.path), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--engine", "embedded", "--key-env", "SERVE_KEY"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | key | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        assert "opening" in process.stdout.readline()
        line = process.stdout.readline()
        assert "every request carries the key" in line
        url = line.split(" at ")[1].split(" by ")[0]
        client = openai.OpenAI(base_url=url, api_key="wrong-horse-battery", max_retries=0)
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
        os.environ.update(key)
        endpoint = Endpoint(url, "first", "SERVE_KEY", deadline_s=30.0)
        pieces = list(
            endpoint.stream(
                [{"role": "user", "content": "x"}], temperature=0, top_p=1, max_tokens=8
            )
        )
        assert pieces[-1].text == "".join(pieces[:-1]) and pieces[-1].finish in ("stop", "length")
        asked = ["chat", str(run.path), "--endpoint", url, "--model", "first"]
        asked += ["--key-env", "SERVE_KEY", "--ask", "7", "--max-turns", "1"]
        assert cli.main(asked) in (0, 1)  # it was answered, rightly or not; 2: something broke
    finally:
        os.environ.pop("SERVE_KEY", None)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_what_belongs_to_one_engine_is_refused_with_the_other(run, capsys):
    assert cli.main(["serve", str(run.path), "--engine", "vllm", "--seed", "3"]) == 2
    assert "--seed is of the embedded engine" in capsys.readouterr().err
