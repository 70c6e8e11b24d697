"""Importing a package that an adapter plays, or saying how to get it; and what adapters have in common."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from workbench.tools.action_format import refusal
from workbench.values import Message, Observation, StepResult, Text
from workbench.values.errors import MissingPackageError

SEEDS = 2**31  # of third-party generators


def package(module: str, distribution: str) -> ModuleType:
    """The module, imported. Raises MissingPackageError that says what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"this environment needs the package {distribution}, and {error.name!r} is not installed "
            f"here; pip install {distribution}"
        ) from error


def refused(
    complaint: str, quote: str, example: str, penalty: float, after: str, known: Mapping[str, Any]
) -> StepResult:
    """The answer to a text that could not be read: nothing was done, and `after` shows what is still the case. `known`:
    what else the info says."""
    texts = (*refusal(complaint, quote, example), Text(after))
    return StepResult(
        Observation((Message("user", texts),)),
        penalty,
        {"reward": 0.0, "format": penalty},
        info={**known, "valid_format": False, "complaint": complaint, "moves": []},
    )
