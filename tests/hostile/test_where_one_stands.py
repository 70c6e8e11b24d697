"""No import is answered by the folder one stands in, but for a name that the user gave and what that imports beside it."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from store_values import stored_run

from tests.hostile import standing
from tests.hostile.sweep import COMMANDS, REFUSED, lay_out, sound_run
from workbench.basics import beside
from workbench.basics.plugins import load_named
from workbench.tools.workers.supervisor import release, start_supervisor
from workbench.values.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "workbench"
# Looked for by pandas, torch, httpx, transformers, where they are not installed (`python -m tests.hostile.standing`).
OPTIONAL = ("numexpr", "bottleneck", "torch_xla", "torch_mlu", "brotli", "h2", "socksio", "hqq")
# What starts other interpreters with the variable, since those start further ones, or with none of Python's.
BY_VARIABLE = ("doctor/plan.py", "doctor/probes.py", "doctor/trials.py")
APPENDED = "import sys, os; sys.path.append(os.getcwd()); "  # as it was


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A folder to stand in; what is remembered of names is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(beside, "_given", set())
    monkeypatch.setattr(beside, "_served", set())
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and name.startswith("lies_here"):
            del sys.modules[name]


def test_a_named_module_is_found_and_what_it_imports_beside_it(stranger):
    (stranger / "lies_here.py").write_text("import lies_here_too\nNAME = lies_here_too.NAME\n")
    (stranger / "lies_here_too.py").write_text(
        "NAME = 3\ndef later():\n    import lies_here_last\n    return lies_here_last.NAME\n"
    )
    (stranger / "lies_here_last.py").write_text("NAME = 4\n")
    (stranger / "lies_here_for_others.py").write_text("NAME = 5\n")
    with pytest.raises(ConfigError, match="there is no module"):
        load_named("lies_here:NAME", "env.kind")  # nobody looks here yet
    beside.look_here()
    assert load_named("lies_here:NAME", "env.kind") == 3
    assert sys.modules["lies_here_too"].later() == 4
    for name in ("lies_here_for_others", "lies_here_for_others.x"):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)
    sys.path.append(str(stranger))  # negative control
    assert importlib.import_module("lies_here_for_others").NAME == 5


def test_the_packages_own_code_and_installed_code_are_not_answered(stranger):
    """Not even after the package's own name was given, as it is for every line of a table."""
    (stranger / "lies_here.py").write_text("")
    beside.look_here()
    load_named("workbench.basics.plugins:Origin", "a table")
    source = "def ask():\n    import lies_here\n"
    for name in ("workbench.basics.plugins", "pandas.compat", "__main__", ""):
        space: dict = {"__name__": name}
        exec(source, space)
        with pytest.raises(ModuleNotFoundError):
            space["ask"]()
    beside.look_here("__main__")  # a kernel's own cells
    exec(source + "ask()", {"__name__": "__main__"})


def test_what_python_put_on_the_path_is_taken_off(stranger, monkeypatch):
    other = stranger / "other"
    other.mkdir()
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", object(), raising=False)  # python -m
    monkeypatch.setenv("PYTHONPATH", f"{other}{os.pathsep}")
    monkeypatch.setattr(sys, "path", [str(stranger), str(other), str(ROOT)])
    beside.leave_working_folder()
    assert sys.path == [str(other), str(ROOT)]
    monkeypatch.setenv("PYTHONPATH", str(stranger))  # named in full: the user's own word
    monkeypatch.setattr(sys, "path", [str(stranger), str(ROOT)])
    beside.leave_working_folder()
    assert sys.path == [str(stranger), str(ROOT)]
    monkeypatch.chdir(ROOT)  # a checkout, which the package itself comes from
    beside.leave_working_folder()
    assert str(ROOT) in sys.path


def test_every_interpreter_that_is_started_is_kept_from_its_folder():
    found = 0
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text()
        nodes = ast.walk(ast.parse(source)) if "sys.executable" in source else ()
        for node in nodes:
            words = [ast.unparse(word) for word in getattr(node, "elts", [])]
            if "sys.executable" not in words[:-1]:
                continue
            found += 1
            if str(path).endswith(BY_VARIABLE):
                assert "VARIABLE: '1'" in source or 'VARIABLE: "1"' in source, path
            else:
                after = words[words.index("sys.executable") + 1]
                assert after in ("SAFE", "*sys.orig_argv[1:]"), f"{path}: {after}"
    assert found >= 9


def test_workers_look_for_nothing_where_the_trainer_stands(stranger):
    mark = stranger / "mark"
    for name in ("json", "numpy", "argparse", "socket"):
        (stranger / f"{name}.py").write_text(f"open({str(mark)!r}, 'w')\nraise ImportError\n")
    process, control = start_supervisor("workbench.tools.workers.frames:serve_calls")
    try:
        assert control.recv(1) == b"!"
    finally:
        release(os.getpid(), process, control)
    assert not mark.exists()
    subprocess.run([sys.executable, "-c", "import json"], capture_output=True)  # negative control
    assert mark.exists()


@pytest.fixture(scope="module")
def run_here(tmp_path_factory):
    """A run of one step; nothing was computed."""
    return stored_run(tmp_path_factory.mktemp("stored") / "run")


@pytest.mark.parametrize("before", ["", APPENDED])
def test_a_command_in_a_strangers_folder_runs_nothing_of_it(run_here, tmp_path, before):
    """And with the folder on the path, as it was, something ran: the stubs would have."""
    ran, answer = standing.ran("show step", list(OPTIONAL), run_here, tmp_path, [], before)
    assert bool(ran) == bool(before), ran
    assert answer.reached("show step")


@pytest.mark.full
@pytest.mark.parametrize("command", ["show step", "rollout", "export --to", "doctor --plan"])
def test_no_name_that_is_looked_for_is_found_there(command, tmp_path):
    sound = sound_run(tmp_path)
    lay_out(sound, tmp_path / "stand-in")
    one = standing.tried(command, sound, tmp_path / "scratch", [])
    assert one.names and not one.ran and one.reached, one.answers


@pytest.mark.full
def test_a_notebook_that_is_run_finds_what_its_cells_name_and_no_more(stranger):
    import nbformat

    from workbench.extensions.ablation.notebooks import run_notebook

    for name in ("ipykernel_launcher", "json", "numexpr", "torch_xla"):
        (stranger / f"{name}.py").write_text("open('mark', 'a').write(__name__)\n")
    (stranger / "lies_here.py").write_text("NAME = 3\n")
    cells = [
        "import lies_here; assert lies_here.NAME == 3",
        "import pandas, os",
        "assert 'PYTHONSAFEPATH' not in os.environ",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "", "language": "python"}
    nbformat.write(notebook, stranger / "it.ipynb")
    assert run_notebook(stranger / "it.ipynb", stranger / "out.ipynb", {}, cwd=stranger) is None
    assert not (stranger / "mark").exists()


def test_every_command_is_among_those_that_are_tried_and_none_with_words_that_are_refused():
    assert set(COMMANDS) <= set(standing.ENTRIES)
    assert {*standing.LATE, standing.NOTHING_TO_SERVE} <= set(standing.ENTRIES)
    assert set(REFUSED) - {standing.NOTHING_TO_SERVE} <= set(standing.RIGHT)


def test_a_command_that_is_refused_or_ended_here_has_shown_nothing():
    for status, said in ((2, ""), (3, ""), (None, ""), (1, "Traceback")):
        assert not standing.Answer(status, 0.0, said).reached("show")
    assert standing.Answer(1, 0.0, "").reached("show")
    assert not standing.Answer(None, 0.0, "").reached("retriever")
    assert standing.Answer(None, 0.0, "serving").reached("retriever")
