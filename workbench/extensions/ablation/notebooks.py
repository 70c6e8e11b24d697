"""One notebook under papermill: a whole notebook or none is on the disk, and its success is not asked of the notebook.

Two things differ here from plain papermill. It writes a notebook in place, so that a kill leaves half a file that no
program reads; here every write goes through the one writer (invariant 14). And after a dead kernel or a missed deadline its
notebook says of every cell that it was completed; here such a notebook is marked, and the caller gets the reason.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.basics.beside import KERNEL, safe_children
from workbench.run.writer import make_folder, write_file
from workbench.values.errors import ConfigError, WorkbenchError, nearest

# How long a finished cell is waited for until its output is here. nbclient gives it 4 s, too little on a busy machine.
OUTPUT_WAIT_S = 120

ERROR = "failed"
DEAD = "dead kernel"
TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Failure:
    """Why a notebook did not come to its end. `state`: an error in a cell, a dead kernel, a cell that took too long;
    `cell`: the first line of the cell, where it is known."""

    state: str
    words: str
    cell: str = ""

    def __str__(self) -> str:
        return f"{self.words} (in the cell `{self.cell}`)" if self.cell else self.words


def run_notebook(
    notebook: Path,
    output: Path,
    parameters: Mapping[str, Any],
    *,
    cwd: Path | None = None,
    cell_limit_s: float | None = None,
) -> Failure | None:
    """Run `notebook` with `parameters`, its state in `output` after every cell. None: every cell came to its end; else
    why not.

    `cwd`: the kernel's working directory; `cell_limit_s`: wall seconds that one cell may take. Raises ConfigError for a
    parameter that the notebook does not have (papermill only warns), WorkbenchError where papermill is missing,
    StoreError for what the disk refuses.
    """
    papermill = _papermill()
    notebook = Path(os.path.abspath(notebook))
    output = Path(os.path.abspath(output))
    _check_parameters(papermill, notebook, parameters)
    make_folder(output.parent)
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillException, PapermillExecutionError

    try:
        with safe_children(), _transport() as config:
            papermill.execute_notebook(
                str(notebook),
                str(output),
                dict(parameters),
                progress_bar=False,
                cwd=cwd,
                execution_timeout=cell_limit_s,
                iopub_timeout=OUTPUT_WAIT_S,
                config=config,
                extra_arguments=KERNEL,
            )
        return None
    except PapermillExecutionError as error:
        # papermill marks the cell itself
        last = f"{error.evalue}".strip().splitlines()[-1:] or [""]
        return Failure(ERROR, f"{error.ename}: {last[0]}", first_line(error.source))
    except WorkbenchError:
        raise  # of the writer: it is no use to write down that nothing can be written
    except DeadKernelError:
        failure = Failure(
            DEAD,
            "its kernel died; perhaps something killed it for want of memory",
            _reached(output),
        )
    except CellTimeoutError as error:
        # Also raised where a cell is done and its output does not come.
        words = _words_of(error)
        if cell_limit_s is not None:
            words = f"a cell took longer than {cell_limit_s:g} s"
        failure = Failure(TIMED_OUT, words, _reached(output))
    except (PapermillException, RuntimeError, OSError) as error:
        # A kernel that ends while it starts has no error of its own.
        state = DEAD if "Kernel died before" in f"{error}" else ERROR
        failure = Failure(state, _words_of(error))
    _mark(output, f"{failure}")
    return failure


def _words_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def first_line(source: str) -> str:
    return next((line for line in source.splitlines() if line.strip()), "")[:80]


def _reached(output: Path) -> str:
    """The first line of the cell in which a notebook stopped: the last that papermill began. Its word on how that cell ended
    is not asked: after a time-out it says of every cell, begun or not, that it was completed."""
    if not output.is_file():
        return ""
    cells = json.loads(output.read_bytes())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    begun = [cell for cell in code if cell["metadata"].get("papermill", {}).get("start_time")]
    return first_line("".join(begun[-1]["source"])) if begun else ""


def _papermill() -> Any:
    """papermill, whose files go through the one writer from now on."""
    try:
        import papermill
        from papermill.iorw import LocalHandler, papermill_io
    except ImportError as error:
        raise WorkbenchError(
            "ablations run notebooks with papermill: pip install 'agent-rl-workbench[lab]'"
        ) from error
    logging.getLogger("papermill").setLevel(logging.ERROR)

    class Whole(LocalHandler):
        """Absolute paths: the whole file by one rename, or what was there before."""

        def write(self, buf: str | bytes, path: str) -> None:
            write_file(Path(path), buf.encode() if isinstance(buf, str) else buf, replace=True)

    if not any(scheme == "/" for scheme, _ in papermill_io._handlers):
        papermill_io.register(
            "/", Whole()
        )  # not "local": the stock handler of that name wins over any other
    return papermill


@contextmanager
def _transport() -> Iterator[Any]:
    """How to talk to the kernel: through files of its own, where there are such. Free TCP ports are looked for and then
    taken, so that two kernels that start at once may be given the same one; and every user of the machine could listen.
    """
    from traitlets.config import Config

    if os.name != "posix":
        yield Config()
        return
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder:
        yield Config(KernelManager={"transport": "ipc", "ip": f"{folder}/socket"})


def _check_parameters(papermill: Any, notebook: Path, parameters: Mapping[str, Any]) -> None:
    if not notebook.is_file():
        raise ConfigError(f"there is no notebook {notebook}")
    known = papermill.inspect_notebook(str(notebook))
    for name in parameters:
        if name not in known:
            raise ConfigError(f"{notebook.name} has no parameter {name!r}; {nearest(name, known)}")


def _mark(output: Path, words: str) -> None:
    """Say in the notebook that it did not come to its end: its own metadata may claim otherwise."""
    import nbformat

    if not output.is_file():
        return
    notebook = nbformat.read(output, as_version=4)
    notebook.metadata.setdefault("papermill", {})["exception"] = True
    cell = nbformat.v4.new_markdown_cell(f"**This notebook did not come to its end**: {words}")
    notebook.cells.insert(0, cell)
    write_file(output, nbformat.writes(notebook).encode(), replace=True)
