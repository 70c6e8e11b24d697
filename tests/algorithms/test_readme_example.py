"""The documented way to add an algorithm, taken at its word: one file, one line, in a copy of the tree."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.mutants.run import copy_tree

ROOT = Path(__file__).resolve().parents[2]


def block_after(comment: str) -> str:
    return re.search(rf"<!-- {comment} -->\n```python\n(.*?)```", (ROOT / "docs/extend/algorithm.md").read_text(), re.DOTALL)[1]


def test_one_file_and_one_line_make_an_algorithm(tmp_path):
    copy_tree(ROOT, tmp_path / "tree")
    rooms = tmp_path / "tree" / "workbench" / "learn" / "algorithms"
    (rooms / "ranks.py").write_text(block_after("an algorithm"))
    table = (rooms / "__init__.py").read_text()
    line = "ALGORITHMS = {\n"
    assert table.count(line) == 1
    (rooms / "__init__.py").write_text(table.replace(line, "from workbench.learn.algorithms.ranks import Ranks\n\n" + line
                                                     + block_after("its line in the table")))
    says = ("import pytest, sys; from workbench.training.config import load_config; "
            "print(load_config('frozenlake', {'algorithm.kind': 'ranks', 'algorithm.entropy_coef': 0.01}).algorithm); "
            "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', 'tests/algorithms/test_properties.py', '-k', 'ranks']))")
    told = subprocess.run([sys.executable, "-c", says], cwd=tmp_path / "tree", capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path / "tree"), "PYTHONDONTWRITEBYTECODE": "1"})
    assert told.returncode == 0, told.stdout + told.stderr
    assert "Ranks(objective='clip'" in told.stdout and "entropy_coef=0.01" in told.stdout
    assert int(re.search(r"(\d+) passed", told.stdout)[1]) >= 8  # every property that holds for group baselines, too
