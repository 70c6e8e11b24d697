"""Sandboxes through a program of the machine: refused in that program's words where it does not do it, and what it is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.sandbox.grounds import need_tier
from workbench.extensions.sandbox.commands import COMMANDS, command_of
from workbench.extensions.sandbox.limits import BY_COMMAND
from workbench.extensions.sandbox.pool import SandboxPool
from workbench.extensions.sandbox.sandboxes import SandboxSettings, open_sandbox
from workbench.values.errors import ConfigError, ToolError

ORDER = {
    "tier": "",
    "seed": 0,
    "limits": {
        "cpu_s": 5,
        "memory_mb": 256,
        "disk_mb": 16,
        "processes": 2,
        "files": 64,
        "output_bytes": 100,
        "programs": False,
    },
}
# What shuts the network, the files and the privileges off, in each program's words.
SHUTS = {
    "bubblewrap": ("--unshare-net", "--unshare-pid", "--remount-ro", "--clearenv"),
    "docker": (
        "--network none",
        "--ipc none",
        "--read-only",
        "--cap-drop ALL",
        "no-new-privileges",
        "--pull never",
        "--memory 512m",
        "size=16m",
    ),
    "apptainer": ("--network none", "--containall", "--cleanenv", "--no-home", "--drop-caps all"),
}


@pytest.fixture
def pool():
    made = SandboxPool()
    yield made
    made.shutdown()


def program_at(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_the_settings_name_every_command():
    assert set(COMMANDS) == set(BY_COMMAND) == set(SHUTS)


@pytest.mark.parametrize("tier", BY_COMMAND)
def test_what_is_not_installed_is_refused_and_how_to_install_it_is_said(
    tier, pool, monkeypatch, tmp_path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ToolError,
        match=f"{COMMANDS[tier].program} is not installed here .*Code of an agent's is run in a sandbox or not at all",
    ):
        open_sandbox(SandboxSettings(tier=tier), pool)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "echo 'Cannot connect to the Docker daemon. Is it running?' >&2; exit 1",
            "Cannot connect to the Docker daemon. Is it running?",
        ),
        ("exit 1", "it ended without a word"),
        ("head -c 5000 /dev/zero | tr '\\0' x; exit 1", "xxxx"),
    ],
)
def test_a_program_that_does_not_begin_a_sandbox_is_refused_in_its_own_words(
    text, said, pool, monkeypatch, tmp_path
):
    program_at(tmp_path, "docker", text)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ToolError, match="sandbox.tier = 'docker' does not work here") as error:
        open_sandbox(SandboxSettings(tier="docker"), pool)
    assert said in str(error.value) and len(str(error.value)) < 2000


@pytest.mark.parametrize("tier", BY_COMMAND)
@pytest.mark.parametrize("as_root", [True, False])
def test_a_command_shuts_everything_off_and_tells_the_sandbox_its_bounds(tier, as_root):
    made = command_of(ORDER | {"tier": tier}, "/usr/bin/python3", as_root)
    *words, order = made["command"]
    line = " ".join(words)
    assert all(each in line for each in SHUTS[tier]) and "{" not in "".join(
        word for word in words if "import" not in word
    )
    assert json.loads(order)["limits"] == ORDER["limits"]
    assert ("--unshare-user" in words) == (tier == "bubblewrap" and not as_root)
    assert made["end"][1:] == (
        ["kill", words[words.index("--name") + 1]] if tier == "docker" else []
    )


def test_programs_of_the_machine_are_not_for_these_tiers():
    with pytest.raises(ConfigError, match="needs sandbox.tier = 'namespaces'"):
        SandboxSettings(tier="bubblewrap", programs=True)


def test_a_sandbox_of_bubblewrap_has_files_and_no_forks():
    need_tier("bubblewrap")
    with open_sandbox(SandboxSettings(tier="bubblewrap", warm=0)) as sandbox:
        assert (
            sandbox.run("open('kept', 'w').write('x')").text == "1\n"
            and sandbox.read_file("kept") == b"x"
        )
        assert sandbox.run("import os\nos.fork()").said.startswith("PermissionError")
        with pytest.raises(ToolError, match="cannot be forked"):
            sandbox.fork()
