"""The README's own environment, tool and algorithm are what docs/extend says, and that works when taken at its word.

The algorithm of docs/extend/algorithm.md is tried in tests/algorithms/test_readme_example.py.
"""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import workbench as wb
from tests.mutants.run import copy_tree

ROOT = Path(__file__).resolve().parents[1]
SMALL = ("env.kind=guess", "env.max_turns=2", "train.steps=1", "train.tasks_per_step=2", "train.group_size=2",
         "evaluation.num_tasks=2", "collect.max_turn_tokens=8", "lint.start=false")


def block_after(comment: str, page: str) -> str:
    return re.search(rf"<!-- {comment} -->\n```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)[1]


def code_only(text: str) -> str:
    """Without comments and empty lines: a page may explain more than the other."""
    lines = (re.sub(r"\s+#.*", "", line).rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def test_what_the_readme_shows_is_what_the_pages_show():
    for comment, page, shown in (("an environment", "docs/extend/environment.md", "an environment"),
                                 ("a tool", "docs/extend/tool.md", "a tool"),
                                 ("the heart of an algorithm", "docs/extend/algorithm.md", "an algorithm")):
        part, whole = code_only(block_after(comment, "README.md")), code_only(block_after(shown, page))
        assert part in whole, f"the block after <!-- {comment} --> of the README does not stand in {page}"
        assert len(part.splitlines()) <= 12, "a reader expects about ten lines"


def test_an_environment_trains_after_one_file_and_one_line(tmp_path):
    copy_tree(ROOT, tmp_path / "tree")
    room = tmp_path / "tree/workbench/envs"
    (room / "guess.py").write_text(block_after("an environment", "docs/extend/environment.md"))
    table, opening = (room / "__init__.py").read_text(), "ENVS: Mapping[str, type] = MappingProxyType({\n"
    assert table.count(opening) == 1
    line = block_after("its line in the table", "docs/extend/environment.md")
    (room / "__init__.py").write_text(
        table.replace(opening, f"from workbench.envs.guess import Guessing\n\n{opening}{line}"))
    command = [sys.executable, "-m", "workbench.cli", "train", "bandit", "--out", str(tmp_path / "run")]
    settings = [word for setting in SMALL for word in ("--set", setting)]
    done = subprocess.run([*command, *settings], cwd=tmp_path / "tree",
                          env={**os.environ, "PYTHONPATH": str(tmp_path / "tree"), "PYTHONDONTWRITEBYTECODE": "1"},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    run = wb.open_run(tmp_path / "run")
    rows = {row["policy"]: row for row in list(run.evaluations().values())[-1]["rows"]}
    assert rows["solver"]["success"] == 1.0 and run.config["env"]["kind"] == "guess"
    assert "Guess my number" in wb.show_trajectory(run.groups(1)[0][0]).text


def test_a_tool_is_offered_called_and_its_mistakes_are_answered(tmp_path, monkeypatch):
    (tmp_path / "my_tools.py").write_text(block_after("a tool", "README.md"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))  # of the process that it runs in
    [found] = wb.tools_named(["my_tools:population"])
    told = wb.schema_of(found)["function"]
    assert told["description"] == "How many people live in a city." and told["parameters"]["required"] == ["city"]
    calls = ("population", {"city": "Rapoke"}), ("population", {"town": "Ulm"})
    text = wb.show_calls("my_tools:population", *calls).text
    assert "1200" in text and "Missing: city" in text
