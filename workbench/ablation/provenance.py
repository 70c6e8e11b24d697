"""By what the numbers of a notebook came: code, versions, parameters."""

from __future__ import annotations

import ast
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from workbench.types.fingerprint import code_fingerprint

PACKAGES = ("numpy", "torch", "transformers")  # those whose version changes numbers
INJECTED, GIVEN = "injected-parameters", "parameters"


def made_by() -> dict[str, str]:
    """The code and the versions of this process; of packages by their metadata, without importing them."""
    return {"code": code_fingerprint(), "python": platform.python_version()} | {
        name: found for name in PACKAGES if (found := _version(name))
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def parameters_of_notebook(notebook: Mapping[str, Any]) -> dict[str, Any]:
    """What its cells were given, in the order of the cell that says so: the one papermill put in over the one tagged
    `parameters`. Only plain literals; nothing is run."""
    found: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if {*cell["metadata"].get("tags", ())} & {INJECTED, GIVEN}:
            found |= literals("".join(cell["source"]))
    return found


def injected_parameters(notebook: Mapping[str, Any]) -> dict[str, Any]:
    """The same of the cell that papermill put in alone."""
    cells = [cell for cell in notebook["cells"] if INJECTED in cell["metadata"].get("tags", ())]
    return literals("".join(cells[0]["source"])) if cells else {}


def literals(source: str) -> dict[str, Any]:
    """name -> value of every line that gives a name a literal."""
    try:
        lines = ast.parse(source).body
    except SyntaxError:
        return {}
    found = {}
    for line in lines:
        targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
        if isinstance(target := targets[0], ast.Name) and getattr(line, "value", None) is not None:
            try:
                found[target.id] = ast.literal_eval(line.value)
            except ValueError:
                continue
    return found
