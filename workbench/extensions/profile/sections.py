"""Seconds of named parts of a program, each without the parts within it.

sections = Sections()
with sections.within("collect"):
    ...
sections.taken()      {"collect": 1.2, "collect_cpu": 1.1}, and from there on anew
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Sections:
    """Seconds of the wall and of the CPU by name, of all threads together; a section within another one is not counted to
    it. `settle`: called before a time is read, for a device that works on while the program goes on."""

    def __init__(self, settle: Callable[[], None] = lambda: None) -> None:
        self._settle = settle
        self._open = threading.local()
        self._lock = threading.Lock()
        self._totals: dict[str, float] = {}

    @contextmanager
    def within(self, name: str) -> Iterator[None]:
        """A section, in this thread, for as long as this block lasts."""
        self._charge()
        names = self._names()
        names.append(name)
        try:
            yield
        finally:
            self._charge()
            names.pop()

    def is_within(self, name: str) -> bool:
        return name in self._names()

    def count(self, name: str, amount: float) -> None:
        with self._lock:
            self._totals[name] = self._totals.get(name, 0) + amount

    def taken(self) -> dict[str, float]:
        """Seconds of each section (and `NAME_cpu`) and what was counted, since the last call."""
        self._charge()
        with self._lock:
            totals = self._totals
            self._totals = {}
        return totals

    def _names(self) -> list[str]:
        if not hasattr(self._open, "names"):
            self._open.names = []
        return self._open.names

    def _charge(self) -> None:
        """Add what went by in this thread to the innermost section."""
        self._settle()
        wall = time.perf_counter()
        cpu = time.thread_time()
        if names := self._names():
            since_wall, since_cpu = self._open.since
            self.count(names[-1], wall - since_wall)
            self.count(f"{names[-1]}_cpu", cpu - since_cpu)
        self._open.since = (wall, cpu)
