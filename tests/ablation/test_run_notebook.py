"""A notebook under papermill: whole or not at all, and a failure is never taken for a success."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from workbench.extensions.ablation import notebooks
from workbench.extensions.ablation.notebooks import run_notebook
from workbench.values.errors import ConfigError, StoreError, WorkbenchError

DIES = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"


def notebook(folder, *cells):
    made = new_notebook(
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
        }
    )
    parameters = new_code_cell("n: int = 1  # how many", metadata={"tags": ["parameters"]})
    made.cells = [parameters, *map(new_code_cell, cells)]
    nbformat.write(made, folder / "small.ipynb")
    return folder / "small.ipynb"


def test_parameters_reach_it_and_every_write_is_whole(tmp_path, monkeypatch):
    written, write = [], notebooks.write_file

    def watched(path, content, *, replace=False):
        written.append(path)
        return write(path, content, replace=replace)

    monkeypatch.setattr(notebooks, "write_file", watched)
    (tmp_path / "here").mkdir()
    path = notebook(tmp_path, "import os\n(n + 1, os.path.basename(os.getcwd()))")
    assert (
        run_notebook(path, tmp_path / "deep" / "ran.ipynb", {"n": 41}, cwd=tmp_path / "here")
        is None
    )
    ran = nbformat.read(tmp_path / "deep" / "ran.ipynb", as_version=4)
    assert ran.cells[-1].outputs[0]["data"]["text/plain"] == "(42, 'here')"
    assert len(written) >= 3 and {*written} == {tmp_path / "deep" / "ran.ipynb"}, (
        "papermill's own writer was used"
    )


@pytest.mark.parametrize(
    ("cell", "limit", "state", "words"),
    [
        ("1 / 0", None, "failed", "ZeroDivisionError: division by zero"),
        pytest.param(DIES, None, "dead kernel", "its kernel died", marks=pytest.mark.full),
        pytest.param(
            "import time\ntime.sleep(60)", 2, "timed out", "longer than 2 s", marks=pytest.mark.full
        ),
    ],
)
def test_a_failure_is_told_and_stands_in_the_notebook(tmp_path, cell, limit, state, words):
    told = run_notebook(
        notebook(tmp_path, cell, "n"), tmp_path / "ran.ipynb", {}, cell_limit_s=limit
    )
    assert (
        told is not None
        and words in told.words
        and (told.state, told.cell) == (state, cell.splitlines()[0])
    )
    ran = nbformat.read(tmp_path / "ran.ipynb", as_version=4)
    assert ran.metadata.papermill.exception is True and ran.cells[-1].execution_count is None


def test_a_finished_cell_whose_output_does_not_come_is_told_without_a_limit(tmp_path, monkeypatch):
    """Seen on a busy machine: nbclient's own wait ran out, no limit was set, and the words for it could not be made."""
    import papermill
    from nbclient.exceptions import CellTimeoutError

    asked = {}

    def busy(*_, **options):
        asked.update(options)
        (tmp_path / "ran.ipynb").write_text(given.read_text())
        raise CellTimeoutError("Timeout waiting for IOPub output")

    given = notebook(tmp_path, "1 + 1", "n")
    monkeypatch.setattr(papermill, "execute_notebook", busy)
    assert "IOPub output" in run_notebook(given, tmp_path / "ran.ipynb", {}).words
    assert asked["iopub_timeout"] > 4 and asked["execution_timeout"] is None


def test_a_kernel_that_is_killed_while_it_starts_is_a_dead_one(tmp_path, monkeypatch):
    import inspect

    import papermill
    from jupyter_client import client

    words = "Kernel died before replying to kernel_info"
    assert words in inspect.getsource(client), (
        "it has no error of its own, and is known by these words"
    )

    def killed(*_, **__):
        raise RuntimeError(words)

    monkeypatch.setattr(papermill, "execute_notebook", killed)
    assert run_notebook(notebook(tmp_path, "n"), tmp_path / "ran.ipynb", {}).state == "dead kernel"
    words = "another"
    assert run_notebook(notebook(tmp_path, "n"), tmp_path / "ran.ipynb", {}).state == "failed"


def test_an_unknown_parameter_is_refused_and_not_only_warned_of(tmp_path):
    path = notebook(tmp_path)
    with pytest.raises(ConfigError, match="small.ipynb has no parameter 'm'; known: n"):
        run_notebook(path, tmp_path / "ran.ipynb", {"m": 1})
    with pytest.raises(ConfigError, match="there is no notebook"):
        run_notebook(tmp_path / "none.ipynb", tmp_path / "ran.ipynb", {})
    assert not (tmp_path / "ran.ipynb").exists()


def test_what_the_disk_refuses_keeps_the_notebook_that_was_there(tmp_path, monkeypatch):
    path, ran = notebook(tmp_path, "n"), tmp_path / "ran.ipynb"
    ran.write_text("as it was")

    def full(path, content, *, replace=False):
        raise StoreError("could not write: no space left")

    monkeypatch.setattr(notebooks, "write_file", full)
    with pytest.raises(WorkbenchError, match="no space left"):
        run_notebook(path, ran, {})
    assert ran.read_text() == "as it was"
