"""Some of many, evenly chosen: steps that are read, rows that are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def evenly(values: Sequence[Any], most: int) -> list[Any]:
    """At most `most` of the values, which rise, evenly, the last among them."""
    if len(values) <= max(most, 1):
        return list(values)
    return sorted(
        {values[round(each * (len(values) - 1) / max(most - 1, 1))] for each in range(max(most, 1))}
        | {values[-1]}
    )
