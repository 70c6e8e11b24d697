"""By what the numbers of a notebook came: code, versions, parameters."""

from __future__ import annotations

import ast
import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from workbench.basics.fingerprint import code_fingerprint

PACKAGES = ("numpy", "torch", "transformers")  # those whose version changes numbers
INJECTED = "injected-parameters"
GIVEN = "parameters"


def made_by() -> dict[str, str]:
    """The code and the versions of this process; of packages by their metadata, without importing them."""
    versions = {"code": code_fingerprint(), "python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def parameters_of_notebook(notebook: Mapping[str, Any]) -> dict[str, Any]:
    """What its cells were given, in the order of the cell that says so: the one papermill put in over the one tagged
    `parameters`. Only plain literals; nothing is run."""
    parameters: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if {*cell["metadata"].get("tags", ())} & {INJECTED, GIVEN}:
            parameters |= literals("".join(cell["source"]))
    return parameters


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
    values = {}
    for line in lines:
        target = line.targets[0] if isinstance(line, ast.Assign) else getattr(line, "target", None)
        if isinstance(target, ast.Name) and getattr(line, "value", None) is not None:
            with suppress(ValueError):
                values[target.id] = ast.literal_eval(line.value)
    return values
