"""How a run is asked to stop: Ctrl-C, the kernel's stop button, SIGTERM. The first time the step under way is abandoned
and everything committed stays; the second time the process ends at once. Both are safe, because a kill would be.

Python runs a handler only between two of its own instructions, so code that is somewhere in C never hears of the
first signal. The second one is therefore left to the kernel, and the grace to a thread that the interpreter's C handler wakes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import FrameType

GRACE_S = 5.0  # then the process ends, whatever it is in the middle of
SAY_S = 1.0  # for the last words: whoever reads them may have stopped reading
_LEFT = b"\0"  # no signal has this number


class StopRequested(KeyboardInterrupt):
    """A signal asked this process to stop; `signal` is its number. To whoever does not care it is a Ctrl-C."""

    def __init__(self, words: str = "", number: int = signal.SIGINT) -> None:
        super().__init__(words)
        self.signal = number


@contextmanager
def stop_on_signals(*numbers: int, grace_s: float | None = GRACE_S) -> Iterator[None]:
    """In this block the first of these signals raises `StopRequested`, the next one ends the process; so does the end of
    `grace_s`, for code that does not come back (a long kernel, a peer that is gone). Only the main thread can heed.

    What keeps the interpreter to itself for longer (one endless call that holds its lock) outlives the grace: only the
    same signal again ends that, and only where the C library knows one-shot handlers (glibc does).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}

    def ask(number: int, _frame: FrameType | None) -> None:
        for other in numbers:
            signal.signal(other, signal.SIG_DFL)
        raise StopRequested(number=number)

    with _grace(numbers, grace_s):
        for number in numbers:
            signal.signal(number, ask)
            _once(number)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def stop_on_signals_if_alone(number: int) -> Iterator[None]:
    """Heed a signal that nobody heeds yet: in a script that calls a cell. A command has seen to it already."""
    if signal.getsignal(number) is not signal.SIG_DFL:
        yield
        return
    with stop_on_signals(number, grace_s=None):
        yield


def _once(number: int) -> None:
    """Let the kernel take the handler away when it calls it: the same signal again then ends the process, even where
    Python has not come to know of the first one."""
    libc = ctypes.CDLL(None)
    one_shot = getattr(libc, "sysv_signal", None)
    if one_shot is None:  # then the thread of `_grace` ends it
        return
    for function in (libc.signal, one_shot):
        function.argtypes = (ctypes.c_int, ctypes.c_void_p)
        function.restype = ctypes.c_void_p
    one_shot(number, libc.signal(number, None))


# ------------------------------------------------------------------------------------------------ the grace


# The processes whose signals wake a thread: a forked child is none of them.
_waking: set[int] = set()


@contextmanager
def _grace(numbers: tuple[int, ...], grace_s: float | None) -> Iterator[None]:
    """While the block lasts, a thread counts `grace_s` from the first signal on. Leaving the block ends that."""
    if grace_s is None:
        yield
        return
    _part_at_fork()
    process = os.getpid()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    threading.Thread(target=_count_down, args=(theirs, numbers, grace_s), daemon=True).start()
    before = signal.set_wakeup_fd(ours.fileno(), warn_on_full_buffer=False)
    _waking.add(process)
    try:
        yield
    finally:
        if os.getpid() == process:
            _waking.discard(process)
            signal.set_wakeup_fd(before)
            # Nobody reads any more, or too much was unread: then closing says it.
            with suppress(OSError):
                ours.send(_LEFT)
        ours.close()


def _count_down(channel: socket.socket, numbers: tuple[int, ...], grace_s: float) -> None:
    asked: int | None = None  # the signal that asked first
    end: float | None = None  # when the grace is over
    with channel:
        while True:
            channel.settimeout(None if end is None else max(0.001, end - time.monotonic()))
            try:
                byte = channel.recv(1)
            except TimeoutError:
                _end(asked, f"{grace_s:g} s after it was asked to")
            if byte in (b"", _LEFT):
                return
            number = byte[0]
            if number in numbers and asked is not None:
                _end(number, "when it was asked to again")
            if number in numbers:
                asked = number
                end = time.monotonic() + grace_s


def _end(number: int, when: str) -> None:
    words = f"workbench: ended {when}; committed steps are kept"
    last = threading.Thread(
        target=print, args=(words,), kwargs={"file": sys.stderr, "flush": True}, daemon=True
    )
    last.start()
    last.join(SAY_S)
    os._exit(128 + number)


@cache
def _part_at_fork() -> None:
    """A signal to a forked child is not one to its parent, whose thread would hear it."""
    os.register_at_fork(after_in_child=lambda: _waking and signal.set_wakeup_fd(-1))
