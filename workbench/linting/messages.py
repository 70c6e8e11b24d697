"""Where arrays differ, and what the words of findings are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from workbench.basics.findings import ERROR, Finding, Place


def at_first(
    wrong: np.ndarray,
    say: Callable[[int], str],
    place: Callable[[int], Place],
    severity: str = ERROR,
) -> Iterator[Finding]:
    """One finding for all that is wrong (bool, or indices), at the first of them; none where nothing is."""
    at = np.flatnonzero(wrong) if wrong.dtype == bool else wrong
    if len(at):
        first = int(at[0])
        yield Finding(say(first), place(first), severity, len(at))


def unequal(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """bool: where two arrays differ. NaN equals NaN."""
    return (ours != theirs) & ~((ours != ours) & (theirs != theirs))


def each_row(at: np.ndarray, row_T: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Token numbers by the trajectory that they stand in: (row, those in it)."""
    row_at = row_T[at]
    for row in np.unique(row_at).tolist():
        yield row, at[row_at == row]


def run_length(at: np.ndarray) -> int:
    """How many of these tokens stand one after the other, from the first on."""
    return int(np.append(np.diff(at) != 1, True).argmax()) + 1


def many(count: int, word: str = "token") -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def number_in_words(value: Any) -> str:
    """NaN, which stands for None in arrays, is "none"."""
    if value != value:
        return "none"
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)
