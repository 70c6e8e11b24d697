"""What a grid of 1,000 jobs costs besides its jobs: planned, listed, resumed. The jobs themselves take no time here.

    python -m experiments.grid_overhead [--json FILE]

Of training runs (200 configurations that are loaded and checked, five seeds each) and of a notebook of the user's own.
Status 1 where planning, listing and resuming together take ten CPU-seconds or more.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from workbench.basics.canonical_json import sealed_json
from workbench.basics.fingerprint import code_fingerprint
from workbench.extensions.ablation import work
from workbench.extensions.ablation.cell import result
from workbench.extensions.ablation.door import ask
from workbench.extensions.ablation.drive import JobSettings, drive, states
from workbench.extensions.ablation.forecast import forecast
from workbench.extensions.ablation.plan import Job, Plan
from workbench.extensions.ablation.views.plans import show_forecast
from workbench.run.writer import write_file

LEFT, LIMIT_S = 3, 10.0
JUDGED = {"title": "A thousand jobs", "seeds": 5, "analysis": {"margin": 2}}
TRAINING = {
    "base": "bandit",
    "grid": {
        "learner.lr": {"from": 1e-5, "to": 1e-3, "steps": 10, "scale": "log"},
        "train.steps": {"from": 1, "to": 10, "steps": 10},
        "algorithm.estimator.normalize_std": [True, False],
    },
}


def pretended(job: Job, plan: Plan, out: Path, *_: Any) -> dict[str, Any]:
    """The record of a job that took no time."""
    facts: dict[str, Any] = {
        "code": code_fingerprint(),
        "notebook": "none",
        "cpu_seconds": 0.0,
        "tries": 1,
    }
    facts |= {"result": dict(result(success=0.5).facts)} if plan.notebook else {"run": "."}
    write_file(
        work.record_of(plan, job, out), sealed_json(facts, kind=work.KIND, version=work.VERSION)
    )
    return facts


def own_notebook(folder: Path) -> Path:
    given = new_code_cell(
        "rate: float = 0.1  # step\nseed: int = 0  # of everything",
        metadata={"tags": ["parameters"]},
    )
    ended = new_code_cell("import workbench as wb\nwb.result(success=rate)")
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=[given, ended], metadata=kernel), folder / "own.ipynb")
    return folder / "own.ipynb"


def measure(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """CPU-seconds of each thing that is done besides the jobs."""
    found: dict[str, float] = {}

    def took(what: str, begun: float) -> float:
        found[what] = time.process_time() - begun
        return time.process_time()

    begun = time.process_time()
    asked = ask(tree, folder / "out", name="thousand")
    begun = took("planned", begun)
    show_forecast(forecast(asked.plan, asked.seeds, asked.out))
    took("printed", begun)
    (asked.out / "jobs").mkdir()
    (asked.out / "runs").mkdir()
    listed = states(asked.plan, asked.seeds, asked.out)
    for one in listed[:-LEFT]:
        pretended(one.job, asked.plan, asked.out)
    begun = time.process_time()
    states(asked.plan, asked.seeds, asked.out)
    begun = took("listed", begun)
    drive(
        asked.plan, asked.seeds, asked.out, folder, JobSettings(0, do=pretended), lambda line: None
    )
    took("resumed", begun)
    return {"jobs": len(listed), "cpu_seconds": found}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.grid_overhead", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--json", type=Path, help="keep the numbers in this file")
    options = parser.parse_args(arguments)
    made = {}
    for kind in ("training runs", "a notebook of one's own"):
        with tempfile.TemporaryDirectory() as folder:
            own = {
                "notebook": str(own_notebook(Path(folder))),
                "grid": {"rate": {"from": 0.1, "to": 0.9, "steps": 200}},
            }
            made[kind] = measure(
                JUDGED | (TRAINING if kind == "training runs" else own), Path(folder)
            )
        print(
            f"{kind}: {made[kind]['jobs']:,} jobs: "
            + ", ".join(
                f"{what} {seconds:.2f} CPU s" for what, seconds in made[kind]["cpu_seconds"].items()
            )
        )
    if options.json:
        options.json.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return 0 if all(sum(one["cpu_seconds"].values()) < LIMIT_S for one in made.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
