"""A program that does the same twice: clock, chance and the order of listings, made a function of a seed.

What stands still: `time` and `datetime`, by a clock that begins at `START` and goes on by a microsecond whenever it is
read, and by what is slept; `random`, `os.urandom`, `uuid`, `secrets`, by the seed; `os.listdir`, `os.scandir` and all
that is built on them, sorted. Hashes stand still by how the process was begun.

What does not: addresses of objects (they are the same more often than not), times of files, what C draws or measures by
itself, and programs that go round Python (ctypes) or use threads: docs/guides/code.md has both lists, which a test walks. This is a service to programs that want to be repeated, not part of what shuts them in.
Standard library only.
"""

from __future__ import annotations

import os
import posix
import sys
import time
from collections.abc import Callable
from typing import Any

_at_fork = os.register_at_fork
os.register_at_fork = lambda **_: None
import random  # noqa: E402  (here, so that it does not draw a new seed in every child)
import uuid  # noqa: E402

os.register_at_fork = _at_fork
# The one in C reads the machine's clock; the one in Python asks `time`.
sys.modules["_datetime"] = None
import datetime as _in_python  # noqa: E402

# Whoever is not made the same twice imports the usual one.
del sys.modules["datetime"], sys.modules["_datetime"]

START = 1_767_225_600  # seconds: 2026-01-01, 00:00 UTC
STEP = 1_000  # nanoseconds that each look at the clock takes


def install(seed: int, alone: bool) -> None:
    """In a process that has not imported datetime yet. `alone`: it has no process space of its own, in which its
    number would be the same twice, and no children."""
    if alone:
        os.getpid = lambda: 2
        os.getppid = lambda: 1
        os.getpgrp = lambda: 2
        os.getpgid = os.getsid = lambda pid: 2
    _fix_clock()
    os.times = lambda: _spent(time.perf_counter())
    _fix_chance(seed)
    _fix_listings()
    sys.modules["_datetime"] = None
    sys.modules["datetime"] = _in_python
    uuid._generate_time_safe = uuid._UuidCreate = None
    uuid._node = 0x02_00_00_00_00_01


def _fix_clock() -> None:
    since = [0]  # nanoseconds

    def look() -> int:
        since[0] += STEP
        return since[0]

    def now() -> int:
        return START * 1_000_000_000 + look()

    def sleep(seconds: float) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        since[0] += int(seconds * 1e9)

    def of_now(function: Callable) -> Callable:
        return lambda seconds=None: function(now() / 1e9 if seconds is None else seconds)

    strftime = time.strftime
    asctime = time.asctime
    time.time = lambda: now() / 1e9
    time.time_ns = now
    time.sleep = sleep
    for name in ("monotonic", "perf_counter", "process_time", "thread_time"):
        setattr(time, name, lambda: look() / 1e9)
        setattr(time, f"{name}_ns", look)
    time.clock_gettime = lambda clock: (now() if clock == time.CLOCK_REALTIME else look()) / 1e9
    time.clock_gettime_ns = lambda clock: now() if clock == time.CLOCK_REALTIME else look()
    time.localtime, time.gmtime, time.ctime = map(of_now, (time.localtime, time.gmtime, time.ctime))
    time.strftime = lambda form, moment=None: strftime(
        form, time.localtime() if moment is None else moment
    )
    time.asctime = lambda moment=None: asctime(time.localtime() if moment is None else moment)


def _spent(seconds: float) -> os.times_result:
    return os.times_result((seconds, 0.0, 0.0, 0.0, seconds))


def _fix_chance(seed: int) -> None:
    source = random.Random(seed)
    seeded = random.Random.seed

    def chance(count: int, flags: int = 0) -> bytes:
        return source.randbytes(count)

    def seed_of(self: random.Random, a: Any = None, version: int = 2) -> None:
        seeded(self, source.getrandbits(256) if a is None else a, version)

    os.urandom = os.getrandom = random._urandom = posix.urandom = posix.getrandom = chance
    random.Random.seed = seed_of
    random.seed = random._inst.seed
    random.seed(seed)


def _fix_listings() -> None:
    listed = os.listdir
    scanned = os.scandir
    os.listdir = lambda path=".": sorted(listed(path))
    os.scandir = lambda path=".": _Entries(sorted(scanned(path), key=lambda entry: entry.name))


class _Entries:
    """As os.scandir gives them."""

    def __init__(self, entries: list) -> None:
        self._left = iter(entries)

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> Any:
        return next(self._left)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._left = iter(())
