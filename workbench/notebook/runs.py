"""The runs of a folder side by side: which are at work, how far each came, and what it reached beside its neighbours.

found = wb.runs()          those in "runs" and one folder further down, the newest first
wb.show(found[0])
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.notebook.live_run import attach
from workbench.run.store import Run, open_run
from workbench.types import View
from workbench.types.errors import StoreError, WorkbenchError
from workbench.types.view import ShownTuple
from workbench.views import runs as views_runs
from workbench.views import words


class Runs(ShownTuple[Run]):
    """Runs in order. As the last line of a cell: a row each."""

    def __repr__(self) -> str:
        return f"<{words.count(len(self), 'run')}: {', '.join(run.name for run in self[:8])}{', ...' * (len(self) > 8)}>"


def runs(folder: str | os.PathLike = "runs") -> Runs:
    """The runs that lie in `folder`, and one folder further down, the newest first; `folder` itself where it is a run.

    Links are not followed. What only looks like a run is left out. Raises StoreError where there is no such folder."""
    folder = Path(folder)
    if not folder.is_dir():
        raise StoreError(
            f"there is no folder {folder}; runs lie where `wb.train(config, path)` put them, by habit in runs/"
        )
    found = {}
    for path in (
        folder,
        *_folders(folder),
        *(inner for outer in _folders(folder) for inner in _folders(outer)),
    ):
        try:
            found[path] = (
                (path / "metrics.jsonl").stat().st_mtime if (path / "run.json").is_file() else None
            )
        except OSError:
            found[path] = 0.0
    whole = []
    for path in sorted(
        (path for path, at in found.items() if at is not None), key=lambda path: -found[path]
    ):
        try:
            whole.append(open_run(path))
        except WorkbenchError:
            continue
    return Runs(whole)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


def show_runs(found: Sequence[Run]) -> View:
    """A row per run: state, committed steps, and held-out success (or return) when it was last measured, beside random
    play, the untrained policy and the solver."""
    return views_runs.show_runs([_row(run) for run in found])


def _row(run: Run) -> views_runs.RunRow:
    try:
        status = attach(run.path).status
        reports = [report for report in run.evaluations().values() if "step" in report]
    except WorkbenchError as error:
        return views_runs.RunRow(run.name, "damaged", problem=str(error))
    last = max(reports, key=lambda report: report["step"], default=None)
    rows = {} if last is None else {(row["policy"], row["mode"]): row for row in last["rows"]}
    return views_runs.RunRow(
        run.name,
        status.state,
        f"{status.step} of {status.steps}",
        "" if last is None else f"after step {last['step']}",
        [_reached(rows, name) for name in ("trained", *views_runs.NEIGHBOURS)],
    )


def _reached(rows: Mapping[tuple[str, str], Mapping[str, Any]], policy: str) -> str:
    row = rows.get((policy, "sampled")) or rows.get((policy, "greedy"))
    if row is None:
        return "—"
    return (
        f"return {words.signed(row['reward'])}"
        if row["success"] is None
        else words.percent(row["success"])
    )
