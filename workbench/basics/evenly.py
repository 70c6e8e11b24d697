"""Some of many, evenly chosen: steps that are read, rows that are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def evenly(values: Sequence[Any], most: int) -> list[Any]:
    """Choose at most `most` of rising values, evenly, the last one among them."""
    count = max(most, 1)
    if len(values) <= count:
        return list(values)
    last = len(values) - 1
    indices = {round(number * last / max(count - 1, 1)) for number in range(count)}
    return sorted({values[index] for index in indices} | {values[last]})
