"""What can be made anew from a run folder or the folder of a grid, to hold a notebook's numbers against."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np

from workbench.extensions.ablation.cells import read_table
from workbench.look.cells.lint import lint
from workbench.look.cells.show import show
from workbench.look.cells.stored import show_replay
from workbench.look.pairs import paired
from workbench.run.store import Run, open_run
from workbench.training.stored import config_of_run
from workbench.values import Group, Groups, View
from workbench.values.errors import WorkbenchError

MOST_RUNS = 8  # of one notebook
REPORT_PARAMETERS = ("plan", "out", "seeds", "arms", "settings")
REPORT_VIEWS = ("show", "forest", "curves", "checks", "dose", "heat", "interaction", "power")
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
    replayed = {int(step) for step in re.findall(r"show_replay\(\w+, (\d+)\)", code)}
    for step in replayed & {*run.steps()}:
        makers[f"wb.show_replay({run.name}, {step})"] = lambda step=step: show_replay(run, step)
    return made(makers)


def views_of_report(parameters: Mapping[str, Any]) -> Views:
    """What the report of a grid shows, by the parameters of its notebook."""
    try:
        table = read_table(**{key: parameters[key] for key in REPORT_PARAMETERS})
    except (KeyError, WorkbenchError, OSError):
        return {}
    return made({f"table.{name}()": getattr(table, name) for name in REPORT_VIEWS})


def made(makers: Mapping[str, Callable[[], View]]) -> Views:
    """Those that can be made: a run without trajectories has no pairs, a plan without numeric axes no heat map."""
    views = {}
    for name, make in makers.items():
        with suppress(WorkbenchError, ValueError, KeyError):
            views[name] = make()
    return views


def runs_named(texts: Iterable[str], folders: Sequence[Path]) -> list[Run]:
    """The run folders among `texts`, looked for below each of `folders`."""
    runs: dict[Path, Run] = {}
    for text, folder in product(filter(None, texts), folders):
        with suppress(OSError, ValueError, WorkbenchError):
            if (folder / text / "run.json").is_file() and len(runs) < MOST_RUNS:
                path = (folder / text).resolve()
                runs[path] = runs.get(path) or open_run(path)
    return [*runs.values()]


# ------------------------------------------------------------------------------------------------ task by task


def tasks_of_run(run: Run) -> dict[str, list[float | None]]:
    """Where it came from -> success (or return) of every held-out task: counted again from the stored trajectories, and
    as the evaluation's own table has it where no trajectories were kept."""
    sources: dict[str, list[float | None]] = {}
    reports = sorted(run.evaluations().items(), key=lambda entry: -entry[1]["step"])
    for name, report in reports:
        trajectories = run.evaluated(name)
        for row in report["rows"]:
            side = f"{row['policy']}-{row['mode']}"
            if side in trajectories:
                origin = "its trajectories"
                by_kind = by_task_again(trajectories[side])
            else:
                origin = "its table"
                by_kind = {"success": row.get("by_task"), "return": row.get("reward_by_task")}
            for kind, values in by_kind.items():
                if values:
                    sources[f"{kind} of {side} in {name}, from {origin}"] = [*values]
    return sources


def by_task_again(groups: Groups) -> dict[str, list[float | None]]:
    """Success and return of every task, from its trajectories, as an evaluation counts them."""
    by_kind = {}
    if any(trajectory.success is not None for trajectory in chain.from_iterable(groups)):
        by_kind["success"] = [*map(_success, groups)]
    by_kind["return"] = [*map(_return, groups)]
    return by_kind


def _success(group: Group) -> float | None:
    return _mean([bool(trajectory.success) for trajectory in group])


def _return(group: Group) -> float | None:
    return _mean([trajectory.reward for trajectory in group if trajectory.reward is not None])


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def courses_of_run(run: Run) -> dict[str, list[float | None]]:
    """Every metric of the run over its steps."""
    metrics = run.metrics()
    courses = {}
    for name in metrics.columns:
        if metrics[name].dtype.kind in "fiub":
            values = metrics[name].astype(float)
            courses[str(name)] = [None if np.isnan(value) else float(value) for value in values]
    return courses
