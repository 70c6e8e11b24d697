"""The contract that Inspect holds its sandboxes to, held by a sandbox: in an environment of its own (`make test-readers`)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.beside import environment_beside, python_beside
from tests.sandbox.grounds import need_tier

# A second user needs a range of the machine's user numbers, which only root can give a sandbox.
NOT_HELD = {} if os.geteuid() == 0 else {"test_exec_as_user": "SandboxUserUnsupportedError"}
CHECKS = 44  # of inspect-ai 0.3.285
ROOT = Path(__file__).resolve().parents[2]
CHECKED_BY = ROOT / "tests/exported/readers/inspect_checks.py"


def test_a_sandbox_holds_inspects_contract():
    need_tier("namespaces")
    python = python_beside("WORKBENCH_INSPECT_PYTHON", ".venv-readers")
    done = subprocess.run(
        [python, CHECKED_BY], capture_output=True, text=True, timeout=600, env=environment_beside()
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == CHECKS
    failed = {name: why for name, why in found.items() if why}
    assert failed.keys() == NOT_HELD.keys(), failed
    assert all(NOT_HELD[name] in why for name, why in failed.items())


@pytest.mark.parametrize(
    ("without", "by", "checks"),
    [
        ("programs=True", "programs=False", ["test_exec_output", "test_exec_returncode"]),
        ("users=SETTINGS.programs", "users=False", ["test_exec_as_user"]),
    ],
)
def test_negative_control_a_sandbox_without_them_does_not(without, by, checks, tmp_path):
    need_tier("namespaces")
    python = python_beside("WORKBENCH_INSPECT_PYTHON", ".venv-readers")
    text = CHECKED_BY.read_text()
    assert text.count(without) == 1
    text = text.replace(without, by).replace(
        "str(Path(__file__).resolve().parents[3])", repr(str(ROOT))
    )
    (tmp_path / "without.py").write_text(text)
    done = subprocess.run(
        [python, tmp_path / "without.py", *checks],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment_beside(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert all(json.loads(done.stdout.splitlines()[-1]).values())
