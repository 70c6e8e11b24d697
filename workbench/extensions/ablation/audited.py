"""`workbench audit-notebook`: an executed notebook, every number of it recomputed from the folders that it speaks of,
taken on trust, or different.

No code of the notebook is run. Of a job of a grid the parameters and the code of its cells must come to its key, its
result is compared with the sealed record of the job and against the run that it names; of any notebook, what it printed
is compared with the same views made anew. Pictures are not read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.basics.regular_files import parse_json, read_regular
from workbench.extensions.ablation.audited_job import audited_job, job_of
from workbench.extensions.ablation.audited_result import audited_result
from workbench.extensions.ablation.cell import RESULT, result_said
from workbench.extensions.ablation.numbers import (
    DIFFERENT,
    AuditedNumber,
    audited_lines,
    lines_of_html,
    view_of,
)
from workbench.extensions.ablation.provenance import parameters_of_notebook
from workbench.extensions.ablation.recomputed import (
    asked_views,
    runs_named,
    views_of_report,
    views_of_run,
)
from workbench.extensions.ablation.views.audits import notebook_audit_view
from workbench.run.store import Run
from workbench.values import View
from workbench.values.errors import DataError
from workbench.values.view import HasView

Cell = Mapping[str, Any]
MOST_NOTEBOOK_BYTES = 256 << 20


@dataclass(frozen=True, eq=False, repr=False)
class NotebookAudit(HasView):
    """What came of an audit.

    origin: by which code, data, seeds and versions, in words.
    numbers: every one, marked.
    """

    path: Path
    origin: Mapping[str, str]
    numbers: tuple[AuditedNumber, ...]

    @property
    def differ(self) -> list[AuditedNumber]:
        return [one for one in self.numbers if one.mark == DIFFERENT]

    def view(self) -> View:
        return notebook_audit_view(
            self.path.name, self.origin, [one.as_dict() for one in self.numbers]
        )

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "notebook": self.path.name,
            "origin": dict(self.origin),
            "marks": dict(Counter(one.mark for one in self.numbers)),
            "numbers": [one.as_dict() for one in self.numbers],
        }


def audit_notebook(path: str | Path, runs: Sequence[str | Path] = ()) -> NotebookAudit:
    """Audit an executed notebook: a job's, a report's, or a published one. `runs`: run folders that it speaks of, where
    its parameters do not name them, or where they lie elsewhere now. DataError for what is no executed notebook,
    StoreError for a run folder that was changed."""
    path = Path(path)
    notebook = _read(path)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    parameters = parameters_of_notebook(notebook)
    job = job_of(path)
    results = _results(cells)
    named = [*map(str, runs), *_texts(parameters), *_texts(job or {})]
    named += [result["run"] for _, result in results if result.get("run")]
    folders = [Path.cwd(), path.absolute().parent]
    if job:
        folders += [job["out"] / "runs", job["out"]]
    opened = runs_named(named, folders)
    _check_given(runs, opened)
    origin, numbers = audited_job(path, notebook, job, opened) if job else ({}, [])
    for number, result in results:
        numbers += audited_result(number, result, job, opened)
    origin |= _origin(results, parameters, opened)
    views = _views(parameters, opened, "\n".join("".join(cell["source"]) for cell in cells))
    for number, cell in enumerate(cells, 1):
        numbers += _printed(number, cell, views)
    return NotebookAudit(path, origin, tuple(numbers))


def _read(path: Path) -> dict[str, Any]:
    try:
        notebook = parse_json(read_regular(path.resolve(), most=MOST_NOTEBOOK_BYTES))
        ran = any(cell.get("outputs") for cell in notebook["cells"] if cell["cell_type"] == "code")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is no notebook: {type(error).__name__}: {error}") from error
    if not ran:
        raise DataError(
            f"{path} has no outputs: expected a notebook that was executed and saved with them; run it "
            "first"
        )
    return notebook


def _texts(values: Mapping[str, Any]) -> list[str]:
    """Values that may name a folder."""
    return [value for value in values.values() if isinstance(value, str) and "\n" not in value]


def _check_given(runs: Sequence[str | Path], opened: Sequence[Run]) -> None:
    there = {run.path.resolve() for run in opened}
    for run in runs:
        if Path(run).resolve() not in there:
            raise DataError(
                f"--run {run}: expected a run folder (with run.json in it), and there is none"
            )


def _results(cells: Sequence[Cell]) -> list[tuple[int, dict[str, Any]]]:
    """(number of the cell, result that it ended in)."""
    results = []
    for number, cell in enumerate(cells, 1):
        for output in cell["outputs"]:
            result = output.get("data", {}).get(RESULT)
            if isinstance(result, dict):
                results.append((number, result))
    return results


def _origin(
    results: Sequence[tuple[int, Mapping[str, Any]]],
    parameters: Mapping[str, Any],
    runs: Sequence[Run],
) -> dict[str, str]:
    """By what its numbers came, as far as anything says so."""
    origin = {}
    if parameters:
        given = [f"{name} = {value!r:.60}" for name, value in parameters.items()]
        origin["parameters"] = ", ".join(given)
    for _, result in results:
        if isinstance(result.get("made"), dict):
            origin["made by"] = _listed(result["made"])
    for run in runs:
        machine = _listed(run.machines()[-1][1]) if run.machines() else ""
        origin[f"run {run.name}"] = (
            f"{len(run.steps())} steps, seed {run.config.get('seed')}, digest "
            f"{run.digest()[:16]}; {machine or 'it says nothing of code and versions'}"
        )
    if not runs:
        origin["run"] = "it names none that is here; --run FOLDER says where one lies"
    return origin


def _listed(versions: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _views(parameters: Mapping[str, Any], runs: Sequence[Run], code: str) -> dict[str, View]:
    """By name, what a notebook of these parameters, runs and code may have shown."""
    views = views_of_report(parameters) if {"plan", "out", "seeds"} <= {*parameters} else {}
    for run in runs:
        views |= views_of_run(run)
    if len(runs) == 1:  # which of several runs it is of, they do not say
        base = parameters.get("base") or parameters.get("preset") or ""
        views |= asked_views(runs[0], code, base)
    return views


def _printed(number: int, cell: Cell, views: Mapping[str, View]) -> list[AuditedNumber]:
    """Every number that a cell printed, as text and as a page."""
    audited: list[AuditedNumber] = []
    for at, output in enumerate(cell["outputs"], 1):
        data = output.get("data", {})
        own = _shown(data.get(RESULT))
        remade = views if own is None else {"the result beside it": own}
        text = "".join(data.get("text/plain", output.get("text", ""))).split("\n")
        page = lines_of_html("".join(data.get("text/html", "")))
        by = view_of(text, {name: view.text.split("\n") for name, view in remade.items()})
        text_now = remade[by].text.split("\n") if by else []
        page_now = lines_of_html(remade[by].html) if by else []
        audited += audited_lines(number, f"output {at}, text/plain", text, text_now, by)
        audited += audited_lines(number, f"output {at}, text/html", page, page_now, by)
    return audited


def _shown(result: Any) -> View | None:
    """How a result would be shown; None: there is none, or it is no result (which is reported elsewhere)."""
    try:
        return result_said(result).show() if isinstance(result, dict) else None
    except (DataError, KeyError, TypeError, AttributeError):
        return None
