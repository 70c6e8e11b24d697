"""A function of a class, a module or an object is another one for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Callable], Callable]) -> Iterator[None]:
    """For this block `owner.name` is what `make` makes of it. Afterwards it is what it was, also where it was inherited."""
    own = vars(owner)
    is_own = name in own
    before = own.get(name)
    straight = getattr(owner, name)
    setattr(owner, name, wraps(straight)(make(straight)))
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
