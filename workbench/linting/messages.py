"""What the words of findings are made of."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from workbench.types.findings import ERROR, Finding, Place


def at_first(wrong: np.ndarray, say: Callable[[int], str], place: Callable[[int], Place],
             severity: str = ERROR) -> Iterator[Finding]:
    """One finding for all that is wrong (bool, or indices), at the first of them; none where nothing is."""
    at = np.flatnonzero(wrong) if wrong.dtype == bool else wrong
    if len(at):
        first = int(at[0])
        yield Finding(say(first), place(first), severity, len(at))


def many(count: int, word: str = "token") -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def shortened(value: Any, most: int = 60) -> str:
    words = repr(value)
    return words if len(words) <= most else words[:most - 3] + "..."


def number_in_words(value: Any) -> str:
    """NaN, which stands for None in arrays, is "none"."""
    return "none" if value != value else f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)
