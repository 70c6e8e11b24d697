"""Every job of an ablation as a line of one data frame, and of `results.tsv`."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.extensions.ablation.drive import DONE, JobState
from workbench.extensions.ablation.facts import facts_of
from workbench.extensions.ablation.grid import short_names
from workbench.extensions.ablation.plan import Plan, seed_of
from workbench.extensions.ablation.tuning import states_by_part
from workbench.run.writer import make_folder, write_file

if TYPE_CHECKING:
    import pandas as pd

FIRST = ("arm", "label", "seed", "state")
LAST = ("tasks", "cpu_seconds", "notebook", "run", "why")
RESULTS = "results.tsv"


def frame_of(plan: Plan, seeds: Sequence[int], out: Path) -> pd.DataFrame:
    """One line a job, in the order of the plan, trials first: arm, seed, state, its place in the grid, what it found (`success` or
    `return` over all tasks, then the result's other numbers), cost, and where its notebook and run lie below the
    folder. What is not there is NaN or None, never zero."""
    import pandas as pd

    parts = states_by_part(plan, seeds, out)
    settings: dict[str, None] = {}
    for part, _ in parts:
        for arm in part.arms:
            settings |= dict.fromkeys(arm.at)
    axes = short_names([*settings])
    rows = []
    for part, jobs in parts:
        rows += [_row(part, job, out, axes) for job in jobs]
    names = dict.fromkeys(chain.from_iterable(rows))
    between = [name for name in names if name not in (*FIRST, *LAST)]
    return pd.DataFrame(rows, columns=[*FIRST, *between, *LAST])


def _row(plan: Plan, one: JobState, out: Path, axes: dict[str, str]) -> dict[str, Any]:
    arm = plan.arm(one.job.arm)
    row = {
        "arm": arm.name,
        "label": arm.label,
        "seed": seed_of(plan, one.job),
        "state": one.state,
        "why": one.why,
    }
    if plan.starts:
        row["start"] = one.job.start
    row |= {short: arm.at.get(name) for name, short in axes.items()}
    if one.facts is not None:
        row |= {"cpu_seconds": one.facts["cpu_seconds"], "notebook": one.facts["notebook"]}
    if one.state == DONE and one.facts is not None:
        row |= _results(plan, facts_of(plan, one.job, out, one.facts), axes)
    return row


def _results(plan: Plan, facts: Mapping[str, Any], axes: dict[str, str]) -> dict[str, Any]:
    """What a job found. A number that is called as another column gets a name of its own."""
    measure = facts.get("measure", "success")
    results = {measure: float(np.mean(facts["sampled"])), "tasks": facts["tasks"]}
    taken = (*FIRST, *LAST, *axes.values())
    for name, value in facts.get("numbers", {}).items():
        results[f"{name}_found" if name in taken else name] = value
    results["run"] = facts["run"] if plan.notebook else f"runs/{facts['run']}"
    if "greedy" in facts:
        results["greedy"] = float(np.mean(facts["greedy"]))
    return results


def write_results(frame: pd.DataFrame, out: Path) -> Path:
    """`results.tsv` in the folder: the frame, one line a job, columns separated by tabs."""
    buffer = io.StringIO()
    frame.to_csv(buffer, sep="\t", index=False)
    make_folder(out)
    write_file(out / RESULTS, buffer.getvalue().encode(), replace=True)
    return out / RESULTS


def results_are_of(plan: Plan, seeds: Sequence[int], out: Path) -> bool:
    """Whether `results.tsv` tells how the jobs stand: it does not where a driver was killed between its last job and
    writing it. What a job took tells one end of it from another."""
    if not (out / RESULTS).is_file():
        return False
    with (out / RESULTS).open(newline="", encoding="utf-8") as file:
        written = {
            (row["arm"], row["seed"], row.get("start", ""), row["state"], row["cpu_seconds"])
            for row in csv.DictReader(file, delimiter="\t")
        }
    now = set()
    for part, jobs in states_by_part(plan, seeds, out):
        for one in jobs:
            cost = str(one.facts["cpu_seconds"]) if one.facts else ""
            seed = str(seed_of(part, one.job))
            now.add((one.job.arm, seed, one.job.start, one.state, cost))
    return written >= now
