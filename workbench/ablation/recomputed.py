"""What can be made anew from a run folder or the folder of a grid, to hold a notebook's numbers against."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from workbench.ablation.cells import read_table
from workbench.notebook.lint import lint
from workbench.notebook.paired import paired
from workbench.notebook.show import show
from workbench.notebook.stored import show_replay
from workbench.run.store import Run, open_run
from workbench.training.stored import config_of_run
from workbench.types import Groups, View
from workbench.types.errors import WorkbenchError

MOST_RUNS = 8  # of one notebook
Views = dict[str, View]


def views_of_run(run: Run) -> Views:
    """What notebooks show of a run: its curves, and the evaluation after every step."""
    makers: dict[str, Callable[[], View]] = {f"wb.show({run.name})": lambda: show(run)}
    for step in sorted({report["step"] for report in run.evaluations().values()}):
        makers[f"wb.show({run.name}, evaluation={step})"] = lambda step=step: show(
            run, evaluation=step
        )
    return made(makers)


def asked_views(run: Run, code: str, base: str) -> Views:
    """What takes longer, or needs a word of the notebook: made where its code speaks of it."""
    makers: dict[str, Callable[[], View]] = {}
    if "paired(" in code:
        makers[f"wb.paired({run.name})"] = lambda: show(paired(run))
    if "assert_clean" in code or "lint(" in code:
        makers[f"wb.lint({run.name})"] = lambda: show(lint(run))
    if base:
        makers[f"the settings of {run.name}"] = lambda: show(config_of_run(run), preset=base)
    for step in {int(step) for step in re.findall(r"show_replay\(\w+, (\d+)\)", code)} & {
        *run.steps()
    }:
        makers[f"wb.show_replay({run.name}, {step})"] = lambda step=step: show_replay(run, step)
    return made(makers)


def views_of_report(parameters: Mapping[str, Any]) -> Views:
    """What the report of a grid shows, by the parameters of its notebook."""

    def maker(name: str) -> Callable[[], View]:
        return lambda: getattr(table, name)()

    try:
        table = read_table(
            **{key: parameters[key] for key in ("plan", "out", "seeds", "arms", "settings")}
        )
    except (KeyError, WorkbenchError, OSError):
        return {}
    return made(
        {
            f"table.{name}()": maker(name)
            for name in (
                "show",
                "forest",
                "curves",
                "checks",
                "dose",
                "heat",
                "interaction",
                "power",
            )
        }
    )


def made(makers: Mapping[str, Callable[[], View]]) -> Views:
    """Those that can be made: a run without attempts has no pairs, a plan without numeric axes no heat map."""
    found = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except (WorkbenchError, ValueError, KeyError):
            continue
    return found


def runs_named(texts: Iterator[str] | list[str], folders: list[Path]) -> list[Run]:
    """The run folders among `texts`, looked for below each of `folders`."""
    found: dict[Path, Run] = {}
    for text in texts:
        for folder in folders:
            path = folder / text
            try:
                if (
                    text
                    and (path / "run.json").is_file()
                    and path.resolve() not in found
                    and len(found) < MOST_RUNS
                ):
                    found[path.resolve()] = open_run(path.resolve())
            except (OSError, ValueError, WorkbenchError):
                continue
    return [*found.values()]


# ------------------------------------------------------------------------------------------------ task by task


def tasks_of_run(run: Run) -> dict[str, list[float | None]]:
    """Where it came from -> success (or return) of every held-out task: counted again from the stored attempts, and
    as the evaluation's own table has it where no attempts were kept."""
    found: dict[str, list[float | None]] = {}
    for name, report in sorted(run.evaluations().items(), key=lambda each: -each[1]["step"]):
        attempts = run.evaluated(name)
        for row in report["rows"]:
            side = f"{row['policy']}-{row['mode']}"
            if side in attempts:
                found |= {
                    f"{kind} of {side} in {name}, from its attempts": values
                    for kind, values in by_task_again(attempts[side]).items()
                }
                continue
            found |= {
                f"{kind} of {side} in {name}, from its table": [*row[key]]
                for kind, key in (("success", "by_task"), ("return", "reward_by_task"))
                if row.get(key)
            }
    return found


def by_task_again(groups: Groups) -> dict[str, list[float | None]]:
    """Success and return of every task, from its attempts, as an evaluation counts them."""
    found = {}
    if any(attempt.success is not None for group in groups for attempt in group):
        found["success"] = [
            float(np.mean([bool(attempt.success) for attempt in group])) for group in groups
        ]
    rewards = [
        [attempt.reward for attempt in group if attempt.reward is not None] for group in groups
    ]
    found["return"] = [float(np.mean(each)) if each else None for each in rewards]
    return found


def courses_of_run(run: Run) -> dict[str, list[float | None]]:
    """Every metric of the run over its steps."""
    metrics = run.metrics()
    return {
        str(name): [
            None if np.isnan(value) else float(value) for value in metrics[name].astype(float)
        ]
        for name in metrics.columns
        if metrics[name].dtype.kind in "fiub"
    }
