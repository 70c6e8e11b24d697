"""A job without a kernel: what a driver does with jobs is the same, and takes milliseconds."""

from __future__ import annotations

import json
import time
from pathlib import Path

from workbench.extensions.ablation import work
from workbench.run.writer import append_line

PLAN = """
title = "Quick"
notebook = "quick.ipynb"
seeds = 3
baseline = "lr-0.1"
[grid]
lr = [0.1, 0.2]
"""


def notebook_at(
    path: Path,
    *cells: str,
    parameters: str = "lr: float = 0.1  # step\nseed: int = 0  # of all\nout: str = ''  # folder",
) -> Path:
    # Not above: every job is a process that imports this module, and nbformat takes seconds.
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook

    made = new_notebook(
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
        }
    )
    made.cells = [
        new_code_cell(parameters, metadata={"tags": ["parameters"]}),
        *map(new_code_cell, cells),
    ]
    nbformat.write(made, path)
    return path


def plan_at(folder: Path, text: str = PLAN) -> Path:
    notebook_at(folder / "quick.ipynb", "import workbench as wb\nwb.result(success=lr)")
    (folder / "quick.toml").write_text(text)
    return folder / "quick.toml"


def do(job, plan, out, cwd, cell_limit_s=None):
    """As `work.do`, with a notebook that is not run: its number is a function of the arm and the seed. Every start is
    written down, and every end."""
    name = work.name_of(plan, job)
    append_line(out / "begun.jsonl", {"job": name})

    def pretended(notebook, output, parameters, *, cwd=None, cell_limit_s=None):
        time.sleep(0.15)
        output.parent.mkdir(exist_ok=True)
        from workbench.extensions.ablation.cell import RESULT, result

        bundle = result(
            success=0.5 + parameters["lr"] / 10 + parameters["seed"] / 100
        )._repr_mimebundle_()
        output.write_text(
            json.dumps({"cells": [{"outputs": [{"data": {RESULT: bundle[RESULT]}}]}]})
        )
        if (cwd / "fail").exists() and f"{parameters['lr']}" in (cwd / "fail").read_text():
            return work.Failure("failed", "ValueError: no", "1 / 0")
        return None

    before, work.run_notebook = work.run_notebook, pretended
    try:
        facts = work.do(job, plan, out, cwd, cell_limit_s)
    finally:
        work.run_notebook = before
    append_line(out / "ended.jsonl", {"job": name})
    return facts
