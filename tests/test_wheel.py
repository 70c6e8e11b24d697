"""The wheel works without the checkout: shipped policies ride along, and every command finds them from any folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import workbench
from workbench.basics.shipped import shipped_folder
from workbench.engines.policy import shipped_policies

ROOT = Path(__file__).resolve().parents[1]
BUILT_FROM = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
SMALL = [
    "--set=train.steps=1",
    "--set=train.tasks_per_step=2",
    "--set=train.group_size=2",
    "--set=evaluation.num_tasks=2",
]
EVERY_PRESET = """
import workbench as wb
from workbench.engines.policy import SHIPPED, load_policy
from workbench.training.config import PRESETS
assert "site-packages" in wb.__file__, wb.__file__
for name in sorted({wb.load_config(preset).policy.name for preset in PRESETS}):
    assert load_policy(name).folder == SHIPPED / name
session = wb.open_session(wb.load_config("frozenlake"))
print(len(wb.rollout(session, 1)), "group from a notebook")
"""


def test_policies_are_found_in_a_wheel_and_in_a_checkout(tmp_path):
    package = tmp_path / "site-packages" / "workbench"
    beside = tmp_path / "site-packages" / "data" / "policies"
    beside.mkdir(parents=True)
    assert shipped_folder(package) == beside, "a checkout has them beside the package"
    (package / "data" / "policies").mkdir(parents=True)
    assert shipped_folder(package) == package / "data" / "policies"
    assert (shipped_folder() / "frozenlake-tiny" / "config.json").is_file()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the checkout."""
    source = tmp_path_factory.mktemp("source")
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, source / name)
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "workbench", source / "workbench", ignore=unwanted)
    shutil.copytree(ROOT / "data" / "policies", source / "data" / "policies")
    left_by_an_earlier_build = source / "build/lib/workbench/data/policies/gone-tiny"
    left_by_an_earlier_build.mkdir(parents=True)
    (left_by_an_earlier_build / "config.json").write_text("{}")
    folder = source / "dist"
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", folder, source], check=True, timeout=300)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel; its dependencies are those of the test's environment."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=False)
    [packages] = folder.glob("lib/python*/site-packages")
    # The line of a .pth adds the folder alone: the checkout's editable install in there stays out.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return folder / "bin"


def ask(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess:
    """A command in this folder, which sees nothing of the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [installed / "python", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.full
def test_a_wheel_holds_the_policies_that_there_are(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    held = {name.split("/")[3] for name in names if name.startswith("workbench/data/policies/")}
    assert held == set(shipped_policies()) and len(held) >= 9
    outside = {name.split("/")[0] for name in names if not name.startswith("workbench/")}
    assert outside == {f"agent_rl_workbench-{workbench.__version__}.dist-info"}


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("train", "frozenlake", *SMALL, "--out", "first"), "1 step committed"),
        (("demo", "--task", "frozenlake", *SMALL), "look at a run"),
        (("rollout", "search-discovery"), "success"),
        (("rollout", "code-vague"), "success"),
        (("chat", "search", "--ask", "Where does Zeve live?"), "answer"),
        (("presets-of-notebooks",), "1 group from a notebook"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_the_wheel_works_outside_the_checkout(installed, tmp_path, words, expected):
    command = ("-m", "workbench.cli", *words)
    if words == ("presets-of-notebooks",):
        command = ("-c", EVERY_PRESET)
    done = ask(installed, tmp_path, *command)
    assert expected in done.stdout, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_an_unknown_policy_is_answered_with_those_that_there_are(installed, tmp_path):
    words = ("-m", "workbench.cli", "rollout", "frozenlake", "--set", "policy.name=frozenlake-tny")
    done = ask(installed, tmp_path, *words)
    assert done.returncode == 2
    assert "did you mean 'frozenlake-tiny'" in done.stderr
    assert all(name in done.stderr for name in shipped_policies())


@pytest.mark.full
def test_without_the_policies_the_same_command_fails(installed, tmp_path):
    """The negative control: it is the wheel's own policies that the tests above find."""
    shutil.copytree(installed.parent, tmp_path / "venv", symlinks=True)
    [policies] = (tmp_path / "venv").glob("lib/python*/site-packages/workbench/data")
    shutil.rmtree(policies)
    done = ask(tmp_path / "venv/bin", tmp_path, "-m", "workbench.cli", "rollout", "frozenlake")
    assert done.returncode == 2 and "Shipped policies: none found" in done.stderr
