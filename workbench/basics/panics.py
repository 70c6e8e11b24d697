"""A library written in Rust that breaks down (tokenizers, safetensors) raises what is no `Exception`: nothing that is ready for
any error of a library would catch it.

    with panics_as(lambda words: PolicyError(f"... {words}")): ...      what it raised is an error of ours
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

# What is not meant for whoever called: a stop, an end, and what every `except Exception` sees.
_OTHERS = (Exception, KeyboardInterrupt, SystemExit, GeneratorExit)
MOST_WORDS = 200  # characters of what it says


@contextmanager
def panics_as(made: Callable[[str], Exception]) -> Iterator[None]:
    """Raise what `made` makes of the words of a panic in this block, in which nothing is awaited."""
    try:
        yield
    except _OTHERS:
        raise
    except BaseException as panic:
        raise made(f"{type(panic).__name__}: {panic}"[:MOST_WORDS]) from panic
