"""One driver of the grid that tests/faults/grid_soak.py disturbs, and what it does with a job; it is begun often."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.extensions.ablation import work
from workbench.extensions.ablation.drive import DONE
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


def do_noted(job, plan, out, cwd, cell_limit_s=None):
    """As `work.do`; the ledger gets a line before it and one after it."""
    name, stands = work.name_of(plan, job), work.ended(plan, job, out) or {}
    ledger = out / "ledger.jsonl"
    append_line(
        ledger, {"job": name, "begun": _state(stands), "tries": stands.get("tries", 0)}, sync=False
    )
    facts = work.do(job, plan, out, cwd, cell_limit_s)
    append_line(
        ledger, {"job": name, "ended": _state(facts), "tries": facts.get("tries", 0)}, sync=False
    )
    return facts


class NoLock:
    """Stands for a lock that everybody has at once."""

    def __init__(self, folder: Path, wait: bool = False):
        self.folder = folder

    def release(self) -> None:
        """Nothing was held."""


def _state(facts: Mapping[str, Any]) -> str:
    return facts.get("state", DONE) if facts else ""


def drive_here(plan: str, out: str, on: str = "local", locks: str = "kept") -> None:
    """As `workbench ablate PLAN --out OUT --on ON --retry`, without its report."""
    from workbench.extensions.ablation import door

    way = replace(door.way_of(AT_ONCE[on], on=on), retry=True, do=do_noted)
    if locks == "ignored":  # the negative control
        from tests.faults.grid_unlocked import do_unlocked

        door.FolderLock = NoLock
        way = replace(way, do=do_unlocked)
    door.carry_out(
        door.ask(plan, out), way, lambda line: print(f"{os.getpid()}: {line}", flush=True)
    )


if __name__ == "__main__":
    from tests.faults import (
        grid_driver,
    )  # the functions that are sent have a module, which `__main__` is not elsewhere

    grid_driver.drive_here(*sys.argv[1:])
