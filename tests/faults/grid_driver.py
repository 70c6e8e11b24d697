"""One driver of the grid that tests/faults/grid_soak.py disturbs, and what it does with a job; it is begun often."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.ablation import work
from workbench.ablation.drive import DONE
from workbench.ablation.leases import Lease, Leases
from workbench.run.writer import append_line

PLAN = """
title = "Soak"
notebook = "soak.ipynb"
seeds = {seeds}
[grid]
rate = [0.1, 0.3, 0.5, 0.7, 0.8, 0.9]
"""
CELLS = (
    "import time\nimport numpy as np\nluck = np.random.default_rng([0, seed])\ntime.sleep(luck.uniform(0, 1))",
    "import workbench as wb\nwb.result(per_task=luck.random(200) < rate, drawn=luck.random())",
)
AT_ONCE = {"local": 2, "slurm": 4, "ray": 4}  # jobs of one driver


def plan_at(folder: Path, seeds: int) -> Path:
    from tests.ablation import quick  # a driver does not need it

    quick.notebook_at(
        folder / "soak.ipynb",
        *CELLS,
        parameters="rate: float = 0.1  # chance\nseed: int = 0  # of all",
    )
    (folder / "soak.toml").write_text(PLAN.format(seeds=seeds))
    return folder / "soak.toml"


def do_noted(job, plan, out, cwd, cell_limit_s=None, leased=False):
    """As `work.do`; the ledger gets a line before it and one after it."""
    name, stands = work.name_of(plan, job), work.ended(plan, job, out) or {}
    ledger = out / "ledger.jsonl"
    append_line(
        ledger, {"job": name, "begun": _state(stands), "tries": stands.get("tries", 0)}, sync=False
    )
    facts = work.do(job, plan, out, cwd, cell_limit_s, leased)
    append_line(
        ledger, {"job": name, "ended": _state(facts), "tries": facts.get("tries", 0)}, sync=False
    )
    return facts


def do_unleased(job, plan, out, cwd, cell_limit_s=None, leased=False):
    """The same, whoever holds the job: for a driver that ignores leases."""
    return do_noted(job, plan, out, cwd, cell_limit_s, False)


def _state(facts: Mapping[str, Any]) -> str:
    return "" if not facts else "elsewhere" if "elsewhere" in facts else facts.get("state", DONE)


def drive_here(plan: str, out: str, on: str = "local", leases: str = "kept") -> None:
    """As `workbench ablate PLAN --out OUT --on ON --retry`, without its report."""
    from workbench.ablation.door import ask, carry_out, way_of

    way = replace(way_of(AT_ONCE[on], on=on), retry=True, do=do_noted)
    if leases == "ignored":  # the negative control
        Leases.take = lambda self, name, over=0: Lease(self.folder / name)
        way = replace(way, do=do_unleased)
    carry_out(ask(plan, out), way, lambda line: print(f"{os.getpid()}: {line}", flush=True))


if __name__ == "__main__":
    from tests.faults import (
        grid_driver,
    )  # the functions that are sent have a module, which `__main__` is not elsewhere

    grid_driver.drive_here(*sys.argv[1:])
