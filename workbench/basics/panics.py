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
    except BaseException as error:
        refuse_panic(error, made)
        raise


def refuse_panic(error: BaseException, made: Callable[[str], Exception]) -> None:
    """Raise what `made` makes of the words of a panic, from it; nothing for any other error."""
    if not isinstance(error, _OTHERS):
        raise made(f"{type(error).__name__}: {error}"[:MOST_WORDS]) from error
