"""A package that is not installed, or is and cannot be imported, is named with the command that mends it.

this needs torch, which cannot be imported (OSError('libcudart.so.12: cannot open ...')): pip install --force-reinstall ...
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from typing import Any

from workbench.basics.extras import Missing
from workbench.values.errors import MissingPackageError, shortened


def find_package(name: str, extra: str) -> ModuleSpec:
    """Where the package lies, by whichever finder knows it. `extra`: that brings it. Raises MissingPackageError where no
    finder knows it; so does the import itself, where the package's own code raises."""
    finders = [finder for finder in sys.meta_path if finder is not Missing]
    specs = (finder.find_spec(name, None, None) for finder in finders)
    spec = next(filter(None, specs), None)
    if spec is None:
        raise _mended(name, "is not installed", f"'agent-rl-workbench[{extra}]'")
    if spec.loader is not None:
        _guard(spec.loader, name, extra)
    return spec


def _guard(loader: Any, name: str, extra: str) -> None:
    """Its next module is executed under guard; then the loader is as it was."""

    def execute(module: object) -> None:
        del loader.exec_module
        try:
            loader.exec_module(module)
        except Exception as error:
            why = f"cannot be imported ({shortened(error.__cause__ or error, 300)})"
            anew = f"--force-reinstall 'agent-rl-workbench[{extra}]'"
            raise _mended(name, why, anew) from error

    loader.exec_module = execute


def _mended(name: str, why: str, wanted: str) -> MissingPackageError:
    error = MissingPackageError(f"this needs {name}, which {why}: pip install {wanted}")
    error.name = name
    return error
