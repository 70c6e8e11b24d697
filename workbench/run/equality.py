"""Where two values first differ, to the bit: groups, credit tables, metrics, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from workbench.types import Group


def first_difference(a: Any, b: Any, where: str = "groups") -> str | None:
    """Where two values of the types of this package first differ, as a path; None where they are exactly equal.

    Arrays must agree in type, length and every bit; floats in every bit (0.0 is not -0.0, NaN is NaN); None is not
    zero; True is not 1. A tuple and a list of the same entries are equal (JSON has only one), and so are 1 and 1.0.
    """
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return _array_difference(a, b, where)
    a, b = (value.item() if isinstance(value, np.generic) else value for value in (a, b))
    if is_dataclass(a) or is_dataclass(b):
        if type(a) is not type(b):
            return f"{where}: {type(a).__name__} is not {type(b).__name__}"
        parts = ((getattr(a, f.name), getattr(b, f.name), f"{where}.{f.name}") for f in fields(a))
    elif isinstance(a, Mapping) and isinstance(b, Mapping):
        if set(a) != set(b):
            return f"{where}: keys {sorted(map(str, a))} are not {sorted(map(str, b))}"
        parts = ((a[key], b[key], f"{where}[{key!r}]") for key in a)
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return f"{where}: {len(a)} entries are not {len(b)}"
        parts = ((x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b)))
    else:
        return None if _same_scalar(a, b) else f"{where}: {a!r} is not {b!r}"
    return next(
        (found for a, b, where in parts if (found := first_difference(a, b, where)) is not None),
        None,
    )


def _array_difference(a: Any, b: Any, where: str) -> str | None:
    """The first entry of which a bit differs, and how many do; or in what the arrays as such are not alike."""
    if type(a) is not type(b) or a.dtype != b.dtype or a.shape != b.shape:
        kinds = (
            f"{x.dtype}{list(x.shape)}" if isinstance(x, np.ndarray) else type(x).__name__
            for x in (a, b)
        )
        return f"{where}: " + " is not ".join(kinds)
    differs = np.flatnonzero(differing_bits(a, b))
    if not len(differs):
        return None
    index = np.unravel_index(differs[0], a.shape)
    x, y = a[index].item(), b[index].item()
    return f"{where}{[int(i) for i in index]}: {x!r} is not {y!r} ({len(differs)} of {a.size} entries differ)"


def differing_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """For each entry of two arrays of one type and shape, flat: does any bit differ? NaN equals the same NaN, 0.0 is
    not -0.0."""
    a, b = (
        np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, x.itemsize)
        for x in (a, b)
    )
    return (a != b).any(axis=1)


def _same_scalar(a: Any, b: Any) -> bool:
    if isinstance(a, bool) != isinstance(b, bool) or (a is None) != (b is None):
        return False
    if isinstance(a, float) or isinstance(b, float):
        if not (isinstance(a, (int, float)) and isinstance(b, (int, float))):
            return False
        return np.float64(a).tobytes() == np.float64(b).tobytes() or (a != a and b != b)
    return a == b


def groups_equal(a: Sequence[Group], b: Sequence[Group]) -> bool:
    """True where two lists of groups hold exactly the same; `first_difference` says where they do not."""
    return first_difference(list(a), list(b)) is None
