"""Pythons of environments beside this one, for packages that exclude ours: `make test-readers` sets them up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def python_beside(variable: str, place: str) -> Path:
    """The Python that `variable` names, or the one in `place`; the test is skipped where there is none, and fails where
    WORKBENCH_READERS says that there is."""
    python = Path(os.environ.get(variable) or ROOT / place / "bin/python")
    if variable not in os.environ and not (ROOT / place / ".ready").exists():
        if os.environ.get("WORKBENCH_READERS"):
            pytest.fail(f"{python} is not there, although WORKBENCH_READERS says that it is")
        pytest.skip(
            f"needs {place}, an environment of its own: make test-readers (or {variable}=PYTHON)"
        )
    return python


def environment_beside() -> dict[str, str]:
    """What a process there is started with: without what leads to our packages."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
