"""What a value is made of, looked at as it is made: a wrong part is refused here, in words, and not where it is missed."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from itertools import islice
from numbers import Integral
from typing import Any

import numpy as np

from workbench.values.errors import DataError, shortened

MOST_NUMBERS = 100_000_000  # of one array


def as_parts(values: Iterable[Any], kind: type, what: str) -> tuple[Any, ...]:
    """The parts as a tuple. Raises DataError, which begins with `what`, unless each is of this kind: at the first one that
    is not, so that what never ends is no danger."""
    made = []
    try:
        for part in values:
            if not isinstance(part, kind):
                raise DataError(f"{what}: each is a {kind.__name__}, got {_shown(part)}")
            made.append(part)
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"{what}: a tuple of {kind.__name__}, got {_shown(values)} ({type(error).__name__}: {error})"
        ) from error
    return tuple(made)


def is_of(value: Any, kind: type | tuple[type, ...]) -> bool:
    """`isinstance`, but false where that raises: it refers to something that is gone, or will not be asked for its class."""
    try:
        return isinstance(value, kind)
    except Exception:
        return False


def expect(value: Any, kind: type | tuple[type, ...], what: str, words: str) -> None:
    """Raises DataError unless the value is of this kind; `words` say which one that is."""
    if not is_of(value, kind):
        raise DataError(f"{what} is {words}, got {_shown(value)}")


def whole(what: str, number: Any) -> int:
    """The number, as Python's own. Raises DataError for what is no whole number."""
    if type(number) is int:
        return number
    if not is_of(number, Integral) or is_of(number, bool):
        raise DataError(f"{what} is a whole number, got {_shown(number)}")
    return int(number)


def frozen_array(values: Any, dtype: Any, what: str) -> np.ndarray:
    """A copy [len] of numbers that nobody can write to. Raises DataError for what is no sequence of numbers, for a whole number
    that the type does not hold, and for fractions where whole numbers are meant: none is rounded without a word."""
    whole = np.issubdtype(dtype, np.integer)
    try:
        numbers = np.asarray(bounded(values))
        is_right = not numbers.size or numbers.dtype.kind in ("iu" if whole else "iuf")
        if is_right and numbers.size and whole and not np.can_cast(numbers.dtype, dtype):
            held = np.iinfo(dtype)
            is_right = held.min <= numbers.min() and numbers.max() <= held.max
        # Always a copy: nobody else holds a writable view.
        array = np.array(numbers, dtype=dtype) if is_right else None
    except Exception as error:
        raise DataError(
            f"{what} are {_numbers(whole)}, got {_shown(values)} ({type(error).__name__}: {error})"
        ) from error
    if array is None:
        raise DataError(f"{what} are {_numbers(whole)}, got {_shown(values)}")
    if array.ndim != 1:
        raise DataError(f"{what} must be one-dimensional, got shape {array.shape}")
    array.flags.writeable = False
    return array


def bounded(values: Any, most: int = MOST_NUMBERS) -> Any:
    """As it is if it is a list or an array; else as many parts as it says it has: numpy would take whatever it gives.
    Raises ValueError for what does not say how many, or more than `most`."""
    if isinstance(values, (list, tuple)) or hasattr(values, "__array__"):
        return values
    if not isinstance(values, Sized) or len(values) > most:
        raise ValueError(f"a sequence of at most {most:,} numbers is taken")
    return list(islice(values, len(values)))


def _numbers(whole: bool) -> str:
    return "whole numbers of at most 32 bits" if whole else "numbers"


def _shown(value: Any) -> str:
    return f"{shortened(value)} ({type(value).__name__})"
