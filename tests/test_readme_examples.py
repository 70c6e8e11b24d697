"""The README's own environment, tool and algorithm are what docs/extend says, and that works when taken at its word.

The algorithm of docs/extend/algorithm.md is tried in tests/algorithms/test_readme_example.py.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import workbench as wb
from workbench.values.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
SMALL = (
    "env.max_turns=2",
    "train.steps=1",
    "train.tasks_per_step=2",
    "train.group_size=2",
    "evaluation.num_tasks=2",
    "collect.max_turn_tokens=8",
    "lint.start=false",
)


def block_of(language: str, comment: str, page: str) -> str:
    return re.search(
        rf"<!-- {comment} -->\n```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL
    )[1]


def code_only(text: str) -> str:
    """Without comments and empty lines: a page may explain more than the other."""
    lines = (re.sub(r"\s+#.*", "", line).rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def test_what_the_readme_shows_is_what_the_pages_show():
    for comment, page, shown in (
        ("an environment", "docs/extend/environment.md", "an environment"),
        ("a tool", "docs/extend/tool.md", "a tool"),
        ("the heart of an algorithm", "docs/extend/algorithm.md", "an algorithm"),
    ):
        part, whole = (
            code_only(block_of("python", comment, "README.md")),
            code_only(block_of("python", shown, page)),
        )
        assert part in whole, (
            f"the block after <!-- {comment} --> of the README does not stand in {page}"
        )
        assert len(part.splitlines()) <= 12, "a reader expects about ten lines"


@pytest.mark.full
def test_an_environment_of_ones_own_trains_by_name_from_a_file_of_settings(tmp_path):
    page = "docs/extend/environment.md"
    (tmp_path / "my_env.py").write_text(block_of("python", "an environment", page))
    (tmp_path / "mine.toml").write_text(block_of("toml", "by name: a file of settings", page))
    settings = [word for setting in SMALL for word in ("--set", setting)]
    # as the command itself starts, which does not look in its folder by itself
    command = [
        sys.executable,
        "-P",
        "-c",
        "import sys; from workbench.cli import main; sys.exit(main())",
        "train",
    ]
    done = subprocess.run(
        [*command, "mine.toml", "--out", "run", *settings],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = wb.open_run(tmp_path / "run")
    rows = {row["policy"]: row for row in list(run.evaluations().values())[-1]["rows"]}
    assert rows["solver"]["success"] == 1.0 and run.config["env"] == {
        "kind": "my_env:Guessing",
        "max_turns": 2,
    }
    assert "Guess my number" in wb.show(run.groups(1)[0][0]).text


def run_cell(code: str, kernel: dict) -> None:
    exec(compile(code, "cell", "exec", dont_inherit=True), kernel)


def test_an_environment_that_a_notebook_defines_trains_in_its_kernel(tmp_path, monkeypatch):
    page = "docs/extend/environment.md"
    (tmp_path / "my_env.py").write_text(block_of("python", "an environment", page))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    kernel = {"__name__": "__main__", "wb": wb, "dataclasses": dataclasses}
    run_cell(block_of("python", "an environment", page), kernel)
    monkeypatch.setattr(
        sys.modules["__main__"], "Guessing", kernel["Guessing"], raising=False
    )  # as a cell's class is
    small = dict(setting.split("=") for setting in SMALL if not setting.startswith("env."))
    run_cell(
        block_of("python", "by name: in Python", page).replace('{"train.steps": 2}', repr(small)),
        kernel,
    )
    run = kernel["run"]
    assert run.config["env"] == {"kind": "__main__:Guessing", "max_turns": 2} and run.steps() == [1]
    assert not wb.lint(run).report.errors
    with pytest.raises(ConfigError, match="%%writefile my_code.py.*wb.train_here"):
        wb.train(kernel["config"], tmp_path / "other")
    assert not list(tmp_path.glob("other*"))


def test_a_tool_is_offered_called_and_its_mistakes_are_answered(tmp_path, monkeypatch):
    (tmp_path / "my_tools.py").write_text(block_of("python", "a tool", "README.md"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)])
    )  # of the process that it runs in
    [found] = wb.tools_named(["my_tools:population"])
    told = wb.schema_of(found)["function"]
    assert told["description"] == "How many people live in a city." and told["parameters"][
        "required"
    ] == ["city"]
    calls = ("population", {"city": "Rapoke"}), ("population", {"town": "Ulm"})
    text = wb.show_calls("my_tools:population", *calls).text
    assert "1200" in text and "Missing: city" in text
