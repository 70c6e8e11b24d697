"""The files that start a run on many GPUs: not run here, but what they say is checked. Syntax by bash and a YAML reader, every
setting by the loader, and the server's arguments against those that this project starts one with."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from workbench.extensions.vllm_server.process import CONTROL
from workbench.training.config import load_config_with_warnings
from workbench.training.starting import obstacles

ROOT = Path(__file__).resolve().parents[1]
LAUNCH = ROOT / "experiments/launch"
CONFIG = LAUNCH / "search-qwen2.5-7b.toml"


def commands(name: str) -> str:
    """The shell script that a file is, or has."""
    text = (LAUNCH / name).read_text()
    if name.endswith(".yaml"):
        read = yaml.safe_load(text)
        assert read.keys() == {"name", "resources", "workdir", "setup", "run"}
        return f"{read['setup']}\n{read['run']}"
    return text


def words_after(script: str, start: str) -> list[str]:
    """What stands in the one command of a script that begins so."""
    joined = script.replace("\\\n", " ")
    (line,) = (
        line for line in joined.splitlines() if start in line and not line.lstrip().startswith("#")
    )
    return shlex.split(line.removesuffix("&"))


@pytest.mark.parametrize("name", ["slurm.sbatch", "skypilot.yaml"])
def test_files_are_said_not_to_be_run_and_bash_can_read_them(name):
    assert "NOT RUN HERE" in (LAUNCH / name).read_text()
    done = subprocess.run(["bash", "-n"], input=commands(name), text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    words = words_after(commands(name), "workbench.cli train")
    assert "train" in words and f"experiments/launch/{CONFIG.name}" in commands(name)


def settings_of(script: str) -> dict[str, str]:
    words = words_after(script, "workbench.cli train")
    settings = dict(
        word.split("=", 1) for before, word in zip(words, words[1:]) if before == "--set"
    )
    return {
        name: text.replace("${NODES[0]}:$PORT", "first:8000").replace("$WEIGHTS", "/shared")
        for name, text in settings.items()
    }


def test_the_skypilot_file_sets_what_the_loader_takes():
    config, warnings = load_config_with_warnings(CONFIG, settings_of(commands("skypilot.yaml")))
    assert warnings == [] and (config.layout.devices, config.layout.data_parallel) == ("4,5,6,7", 4)


def test_the_config_starts_in_the_processes_it_names():
    config, warnings = load_config_with_warnings(CONFIG)
    assert warnings == [] and obstacles(config, 4) == [] and "NOT RUN HERE" in CONFIG.read_text()


def test_the_slurm_file_sets_what_the_loader_takes():
    script = commands("slurm.sbatch")
    directives = dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", script, re.M))
    assert directives["nodes"] == "2" and directives["ntasks-per-node"] == "1"
    words = words_after(script, "workbench.cli train")
    config, warnings = load_config_with_warnings(CONFIG, settings_of(script))
    assert warnings == [] and obstacles(config, 8) == []
    assert (
        config.layout.url == "http://first:8000"
        and words[words.index("--nproc_per_node") + 1] == "8"
    )


def test_the_slurm_files_server_is_one_that_this_project_would_start():
    """All control arguments, one position more than a sequence has, and the mode with the control routes."""
    words = words_after(commands("slurm.sbatch"), "api_server")
    assert words[0] == "VLLM_SERVER_DEV_MODE=1"
    config, _ = load_config_with_warnings(CONFIG)
    assert words[words.index("--max-model-len") + 1] == str(config.engine.max_context + 1)
    assert words[words.index("--dtype") + 1] == config.engine.dtype
    for name, value in CONTROL.items():
        option = f"--{name.replace('_', '-')}"
        assert option in words, option
        if value is not True:
            assert words[words.index(option) + 1] == (
                json.dumps(value) if isinstance(value, dict) else str(value)
            )
