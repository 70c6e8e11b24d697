"""Compare two values to the bit: groups, credit tables, metrics, settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any

import numpy as np

from workbench.values import Group


def first_difference(a: Any, b: Any, where: str = "groups") -> str | None:
    """The path to the first difference of two values of the types of this package; None where they are exactly equal.

    Arrays must agree in type, length and every bit; floats in every bit (0.0 is not -0.0, NaN is NaN); None is not
    zero; True is not 1. A tuple and a list of the same entries are equal (JSON has only one), and so are 1 and 1.0.
    """
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return _array_difference(a, b, where)
    a = a.item() if isinstance(a, np.generic) else a
    b = b.item() if isinstance(b, np.generic) else b
    if is_dataclass(a) or is_dataclass(b):
        if type(a) is not type(b):
            return f"{where}: {type(a).__name__} is not {type(b).__name__}"
    elif isinstance(a, Mapping) and isinstance(b, Mapping):
        if set(a) != set(b):
            return f"{where}: keys {sorted(map(str, a))} are not {sorted(map(str, b))}"
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return f"{where}: {len(a)} entries are not {len(b)}"
    else:
        return None if _same_scalar(a, b) else f"{where}: {a!r} is not {b!r}"
    for x, y, part in _parts(a, b):
        difference = first_difference(x, y, f"{where}{part}")
        if difference is not None:
            return difference
    return None


def _parts(a: Any, b: Any) -> Iterator[tuple[Any, Any, str]]:
    """(part of a, part of b, its name in a path), of two values that have the same parts."""
    if is_dataclass(a):
        for field in fields(a):
            yield getattr(a, field.name), getattr(b, field.name), f".{field.name}"
    elif isinstance(a, Mapping):
        for key in a:
            yield a[key], b[key], f"[{key!r}]"
    else:
        for number, (x, y) in enumerate(zip(a, b)):
            yield x, y, f"[{number}]"


def _array_difference(a: Any, b: Any, where: str) -> str | None:
    """The first entry of which a bit differs, and how many do; or how type or shape differ."""
    if type(a) is not type(b) or a.dtype != b.dtype or a.shape != b.shape:
        return f"{where}: {_kind(a)} is not {_kind(b)}"
    differs = np.flatnonzero(differing_bits(a, b))
    if not len(differs):
        return None
    index = np.unravel_index(differs[0], a.shape)
    position = [int(i) for i in index]
    values = f"{a[index].item()!r} is not {b[index].item()!r}"
    return f"{where}{position}: {values} ({len(differs)} of {a.size} entries differ)"


def _kind(value: Any) -> str:
    """Type and shape of an array; the type of anything else."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__


def differing_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """For each entry of two arrays of one type and shape, flat: does any bit differ? NaN equals the same NaN, 0.0 is
    not -0.0."""
    return (_bytes_of(a) != _bytes_of(b)).any(axis=1)


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """uint8 [entries, bytes of an entry]"""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(array.size, array.itemsize)


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
    # As many as each says that it has: iterating over a sequence of somebody's own may have no end.
    entries = [list(islice(groups, len(groups))) for groups in (a, b)]
    return first_difference(*entries) is None
