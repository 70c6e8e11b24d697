"""How a run is asked to stop: Ctrl-C, the kernel's stop button, SIGTERM. The first time the step under way is abandoned
and everything committed stays; the second time the process ends at once. Both are safe, because a kill would be.
"""
from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

GRACE_S = 5.0  # then the process ends, whatever it is in the middle of


class Asked(KeyboardInterrupt):
    """A signal asked this process to stop; `signal` is its number. To whoever does not care it is a Ctrl-C."""

    def __init__(self, words: str = "", number: int = signal.SIGINT) -> None:
        super().__init__(words)
        self.signal = number


@contextmanager
def heeding(*numbers: int, grace_s: float | None = GRACE_S) -> Iterator[None]:
    """In this block the first of these signals raises `Asked`, the next one ends the process; so does the end of
    `grace_s`, for code that does not come back (a long kernel, a peer that is gone). Only the main thread can heed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}

    def ask(number: int, _frame: FrameType | None) -> None:
        for other in numbers:
            signal.signal(other, signal.SIG_DFL)
        if grace_s is not None:
            last = threading.Timer(grace_s, _end, (number,))
            last.daemon = True
            last.start()
        raise Asked(number=number)

    for number in numbers:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def heeding_if_alone(number: int) -> Iterator[None]:
    """Heed a signal that nobody heeds yet: in a script that calls a cell. A command has seen to it already."""
    if signal.getsignal(number) is not signal.SIG_DFL:
        yield
        return
    with heeding(number, grace_s=None):
        yield


def _end(number: int) -> None:
    print(f"workbench: ended {GRACE_S:g} s after it was asked to; committed steps are kept", file=sys.stderr, flush=True)
    os._exit(128 + number)
