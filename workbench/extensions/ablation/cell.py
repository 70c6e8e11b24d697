"""A notebook as the cell of a grid: the parameters that it takes, what it says, and the result that it ends in."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from workbench.basics.canonical_json import json_bytes, plain
from workbench.extensions.ablation.provenance import made_by
from workbench.look.records import text_view
from workbench.values import View
from workbench.values.errors import ConfigError, DataError, WorkbenchError, shortened
from workbench.values.parts import bounded
from workbench.values.view import HasView

RESULT = "application/vnd.agent-rl-workbench.result+json"  # kind of the output that a result is, in a notebook
VERSION = 1
LONGEST = 1 << 20  # tasks, or points of a curve


# ------------------------------------------------------------------------------------------------ what it takes


def parameters_in(notebook: Path) -> tuple[str, ...]:
    """Names in the cell tagged `parameters`. ConfigError where there is no such notebook or cell."""
    return _parameters(notebook, _moment(notebook))


def source_hash(notebook: Path) -> str:
    """Of what its code cells say; outputs and prose are left out, so that looking at a notebook changes nothing."""
    return _hash(notebook, _moment(notebook))


def _moment(notebook: Path) -> int:
    try:
        return os.stat(notebook).st_mtime_ns
    except OSError as error:
        raise ConfigError(f"there is no notebook {notebook}") from error


@lru_cache(maxsize=64)
def _parameters(notebook: Path, _moment: int) -> tuple[str, ...]:
    try:
        from papermill import inspect_notebook
    except ImportError as error:
        raise WorkbenchError(
            "ablations run notebooks with papermill: pip install 'agent-rl-workbench[lab]'"
        ) from error
    _cells(notebook)
    try:
        return tuple(inspect_notebook(str(notebook)))
    except ValueError as error:  # it does not say in which language it is written
        raise ConfigError(
            f"cannot read the parameters of {notebook}: {error} Save it once from JupyterLab, which writes the "
            "kernel's name and language into it"
        ) from error


@lru_cache(maxsize=64)
def _hash(notebook: Path, _moment: int) -> str:
    cells = [cell for cell in _cells(notebook) if cell["cell_type"] == "code"]
    return code_hash(["".join(cell["source"]) for cell in cells])


def code_hash(code: Sequence[str]) -> str:
    """Of the sources of code cells, in their order."""
    return blake2b(json_bytes(code, "a notebook"), digest_size=6).hexdigest()


def _cells(notebook: Path) -> list[Mapping[str, Any]]:
    try:
        cells = json.loads(notebook.read_bytes())["cells"]
        has_parameters = any("parameters" in cell["metadata"].get("tags", ()) for cell in cells)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{notebook} is no notebook: {type(error).__name__}: {error}") from error
    if not has_parameters:
        raise ConfigError(
            f"{notebook} has no cell tagged `parameters`; a grid sets what stands there, one a line: "
            "`name: type = default  # help`"
        )
    return cells


# ------------------------------------------------------------------------------------------------ what it ends in


@dataclass(frozen=True, eq=False, repr=False)
class JobResult(HasView):
    """What a job's notebook found (`result` says what is in it). The last line of a cell shows it, and so hands it
    over: it is read from the notebook."""

    facts: Mapping[str, Any] = field(default_factory=dict)

    def show(self) -> View:
        result = self.facts
        tasks = result["per_task"]
        of_tasks = f", of {len(tasks)} tasks" if len(tasks) > 1 else ""
        lines = [f"{result['measure']}: {np.mean(tasks):.4g}{of_tasks}"]
        lines += [f"{name}: {value:.6g}" for name, value in sorted(result["numbers"].items())]
        lines += [
            f"{name}: {len(course)} points" for name, course in sorted(result["curves"].items())
        ]
        return text_view("\n".join(lines), title="result")

    view = show

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, Any]:
        return super()._repr_mimebundle_() | {
            RESULT: {"version": VERSION, **self.facts, "made": made_by()}
        }


def result(
    success: float | None = None,
    per_task: Sequence[float] | None = None,
    *,
    returns: float | None = None,
    curves: Mapping[str, Sequence[float]] | None = None,
    run: str | os.PathLike | None = None,
    **numbers: float,
) -> JobResult:
    """The result of a job: the last line of a grid's notebook. `success`, `returns` or `per_task` is enough.

    success: a share from 0 to 1.
    per_task: the same task by task, in the same order and on the same tasks in every job, so that arms can be paired.
    returns: any number, instead of a success.
    curves: courses by name, such as {"success": [...]}, one number a step.
    run: a run folder that it speaks of, to be found again.
    numbers: any other number by name; it stands in the data frame.

    DataError for what is no finite number, and for a `success` that is not the mean of `per_task`."""
    if success is not None and returns is not None:
        raise DataError(
            "a result has one measure: success (a share from 0 to 1) or returns, not both"
        )
    given = success if returns is None else returns
    if per_task is None and given is None:
        raise DataError("a result needs success=..., returns=... or per_task=[...]")
    tasks = _finite("per_task", [given] if per_task is None else per_task)
    mean = float(np.mean(tasks))
    if given is not None and abs(_finite("success or returns", [given])[0] - mean) > 1e-6:
        raise DataError(
            f"success (or returns) is the mean of per_task: {given} is not {np.mean(tasks)}"
        )
    if returns is None and not 0 <= min(tasks) <= max(tasks) <= 1:
        raise DataError(
            f"success is a share from 0 to 1, got {min(tasks)} to {max(tasks)}; give other measures as "
            "returns=..."
        )
    facts = {
        "measure": "success" if returns is None else "return",
        "per_task": tasks,
        "numbers": {name: _finite_number(name, value) for name, value in numbers.items()},
        "curves": {str(name): _finite(name, course) for name, course in (curves or {}).items()},
        "run": None if run is None else os.fspath(run),
    }
    return JobResult(facts)


def _finite_number(name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except Exception as error:
        raise DataError(
            f"{name}: expected a number, got {shortened(value)} ({type(error).__name__}: {error})"
        ) from error
    if not math.isfinite(number):
        raise DataError(f"{name}: expected a finite number, got {shortened(value)}")
    return number


def _finite(name: str, values: Any) -> list[float]:
    if hasattr(values, "__len__") and len(values) > LONGEST:
        raise DataError(f"{name}: expected 1 to {LONGEST:,} finite numbers, got {len(values):,}")
    try:
        numbers = np.asarray(bounded(values, LONGEST))
        if numbers.size and numbers.dtype.kind not in "biufO":
            raise TypeError(
                "they are of another kind"
            )  # texts and dates, and complex ones, half of which is lost
        array = numbers.astype(np.float64)
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        raise DataError(f"{name}: expected numbers, got {shortened(values)} ({words})") from error
    if array.ndim != 1 or not 1 <= len(array) <= LONGEST or not np.isfinite(array).all():
        raise DataError(
            f"{name}: expected 1 to {LONGEST:,} finite numbers, got {shortened(values)}"
        )
    return array.tolist()


def result_in(notebook: Path) -> dict[str, Any]:
    """The result in a notebook that was run. DataError where there is none, or several."""
    results: list[Mapping[str, Any]] = []
    for cell in json.loads(notebook.read_bytes())["cells"]:
        shown = [output.get("data", {}) for output in cell.get("outputs", ())]
        results += [data[RESULT] for data in shown if RESULT in data]
    if len(results) != 1:
        raise DataError(
            f"the notebook ended with {len(results)} results, expected one: `wb.result(success=...)` as the last "
            "line of its last cell"
        )
    return plain(result_said(results[0]).facts, "a result")


def result_said(stored: Mapping[str, Any]) -> JobResult:
    """A result as a notebook holds it: read as data, through the same checks as when it was made."""
    measure = "returns" if stored.get("measure") == "return" else "success"
    try:
        mean = float(np.mean(_finite("per_task", stored["per_task"])))
        return result(
            per_task=stored["per_task"],
            curves=stored["curves"],
            run=stored["run"],
            **{measure: mean},
            **dict(stored["numbers"].items()),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"expected a result as `wb.result` makes it, got {type(error).__name__}: {error}"
        ) from error
