"""Costly sweeps: which of their cases `make test` tries. `.ci/run` tries the others, too (`-m full`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def cases_of(text: str) -> frozenset[str]:
    """The node ids of tests/fuller.txt: a line each, comments left out."""
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


def reduced(cases: Iterable[Any], quick: Collection[Any], *, several: bool = False) -> list[Any]:
    """Parameters for `parametrize`: the cases that are among `quick` as they are, the others as fuller counts.
    `several`: a case is a tuple, of a value for each of several names.

    Raises ValueError for one of `quick` that is no case: the sweep would be shorter than it looks.
    """
    cases = list(cases)
    if unknown := [name for name in quick if name not in cases]:
        raise ValueError(f"{unknown}: expected some of {cases}")
    return [
        case
        if case in quick
        else pytest.param(*case if several else (case,), marks=pytest.mark.full)
        for case in cases
    ]
