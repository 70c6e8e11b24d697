"""`workbench audit-notebook`: an executed notebook, every number of it recomputed from the folders that it speaks of,
taken on trust, or different.

No code of the notebook is run. Of a job of a grid the parameters and the code of its cells must come to its key, its
result is held against the sealed record of the job and against the run that it names; of any notebook, what it printed
is held against the same views made anew. Pictures are not read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.ablation.audited_job import audited_job, job_of
from workbench.ablation.audited_result import audited_result
from workbench.ablation.cell import RESULT, result_said
from workbench.ablation.numbers import (
    DIFFERENT,
    AuditedNumber,
    audited_lines,
    lines_of_html,
    view_of,
)
from workbench.ablation.provenance import parameters_of_notebook
from workbench.ablation.recomputed import asked_views, runs_named, views_of_report, views_of_run
from workbench.run.store import Run
from workbench.types import View
from workbench.types.errors import DataError
from workbench.types.regular_files import parse_json, read_regular
from workbench.types.view import HasView
from workbench.views import show_notebook_audit

Cell = Mapping[str, Any]
MOST_NOTEBOOK_BYTES = 256 << 20


@dataclass(frozen=True, eq=False, repr=False)
class NotebookAudit(HasView):
    """What came of it. `origin`: by which code, data, seeds and versions, in words; `numbers`: every one, marked."""

    path: Path
    origin: Mapping[str, str]
    numbers: tuple[AuditedNumber, ...]

    @property
    def differ(self) -> list[AuditedNumber]:
        return [one for one in self.numbers if one.mark == DIFFERENT]

    def view(self) -> View:
        return show_notebook_audit(
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
    said = [said["run"] for _, said in _results(cells) if said.get("run")]
    named = [*map(str, runs), *_texts(parameters), *_texts(job), *said]
    found = runs_named(
        named,
        [Path.cwd(), path.absolute().parent, *([job["out"] / "runs", job["out"]] if job else [])],
    )
    _check_given(runs, found)
    origin, numbers = audited_job(path, notebook, job, found) if job else ({}, [])
    for number, said in _results(cells):
        numbers += audited_result(number, said, job, found)
    origin |= _origin(cells, parameters, found)
    views = _views(parameters, found, "\n".join("".join(cell["source"]) for cell in cells))
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


def _texts(values: Mapping[str, Any] | None) -> Iterator[str]:
    return (
        value for value in (values or {}).values() if isinstance(value, str) and "\n" not in value
    )


def _check_given(runs: Sequence[str | Path], found: Sequence[Run]) -> None:
    there = {run.path.resolve() for run in found}
    for run in runs:
        if Path(run).resolve() not in there:
            raise DataError(
                f"--run {run}: expected a run folder (with run.json in it), and there is none"
            )


def _results(cells: Sequence[Cell]) -> list[tuple[int, dict[str, Any]]]:
    return [
        (number, output["data"][RESULT])
        for number, cell in enumerate(cells, 1)
        for output in cell["outputs"]
        if isinstance(output.get("data", {}).get(RESULT), dict)
    ]


def _origin(
    cells: Sequence[Cell], parameters: Mapping[str, Any], runs: Sequence[Run]
) -> dict[str, str]:
    """By what its numbers came, as far as anything says so."""
    given = ", ".join(f"{name} = {value!r:.60}" for name, value in parameters.items())
    origin = {"parameters": given} if given else {}
    for _, said in _results(cells):
        if isinstance(made := said.get("made"), dict):
            origin["made by"] = ", ".join(f"{name} {value}" for name, value in made.items())
    for run in runs:
        machine = run.machines()[-1][1] if run.machines() else {}
        says = ", ".join(f"{name} {value}" for name, value in machine.items())
        origin[f"run {run.name}"] = (
            f"{len(run.steps())} steps, seed {run.config.get('seed')}, digest "
            f"{run.digest()[:16]}; {says or 'it says nothing of code and versions'}"
        )
    return (
        origin
        if runs
        else origin | {"run": "it names none that is here; --run FOLDER says where one lies"}
    )


def _views(parameters: Mapping[str, Any], runs: Sequence[Run], code: str) -> dict[str, View]:
    found = views_of_report(parameters) if {"plan", "out", "seeds"} <= {*parameters} else {}
    for run in runs:
        found |= views_of_run(run)
    if len(runs) == 1:  # which of several runs it is of, they do not say
        found |= asked_views(
            runs[0], code, parameters.get("base") or parameters.get("preset") or ""
        )
    return found


def _printed(number: int, cell: Cell, views: Mapping[str, View]) -> list[AuditedNumber]:
    """Every number that a cell printed, as text and as a page."""
    found: list[AuditedNumber] = []
    for at, output in enumerate(cell["outputs"], 1):
        data = output.get("data", {})
        own = _shown(data.get(RESULT))
        made = {"the result beside it": own} if own is not None else views
        text = "".join(data.get("text/plain", output.get("text", ""))).split("\n")
        by = view_of(text, {name: view.text.split("\n") for name, view in made.items()})
        now = (made[by].text.split("\n"), lines_of_html(made[by].html)) if by else ([], [])
        found += audited_lines(number, f"output {at}, text/plain", text, now[0], by)
        page = lines_of_html("".join(data.get("text/html", "")))
        found += audited_lines(number, f"output {at}, text/html", page, now[1], by)
    return found


def _shown(said: Any) -> View | None:
    """How a result would be shown; None: there is none, or it is no result (which is said elsewhere)."""
    try:
        return result_said(said).show() if isinstance(said, dict) else None
    except (DataError, KeyError, TypeError, AttributeError):
        return None
