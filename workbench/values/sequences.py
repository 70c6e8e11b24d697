"""Where two sequences differ: tokens, characters, or any other values in order."""

from __future__ import annotations

from collections.abc import Sequence


def first_difference(first: Sequence, second: Sequence) -> int | None:
    """The first index at which two sequences differ (the end of the shorter one counts), None: they are equal."""
    for index, (one, other) in enumerate(zip(first, second)):
        if one != other:
            return index
    return None if len(first) == len(second) else min(len(first), len(second))
