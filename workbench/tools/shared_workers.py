"""The worker processes for the tools of this process: which one is idle, which one is busy, which one is killed.

One pool for all executors, begun with the first call that needs it. A worker answers one call at a time, for one thread
at a time; that thread listens to it, so the pool has no thread of its own. Tools without state take any idle worker.
Tools with state have workers of their own: of one trajectory, killed when its executor is closed.

A call that has run for `PATIENCE_S` no longer counts against `workers`: what hangs does not keep others waiting until
its deadline.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Set

from workbench.tools.workers.pool import WorkerPool, room_for_another
from workbench.tools.workers.worker import Worker

SERVE = "workbench.tools.worker:serve"
# How long a call counts as one of those at work; then another one may begin beside it.
PATIENCE_S = 1.0
Owner = tuple[int, str]  # the number of an executor, and the home of its tools with state


class ToolWorkers:
    """Safe to use from several threads. A worker that was taken belongs to the caller until `give_back` or `kill`;
    `pool` listens to it."""

    def __init__(self) -> None:
        self.pool = WorkerPool(SERVE)
        self._lock = self.pool.lock
        self._busy: dict[Worker, float] = {}  # since when

    def take(self, key: str, owner: Owner | None, most: int) -> Worker | None:
        """An idle worker of this owner, best one that has the tool `key` open, or a new one; None where `most` calls
        are at work. An owner's worker is handed over dead or alive: what it held is lost then, and the call tells."""
        with self._lock:
            late = time.monotonic() - PATIENCE_S
            stuck = sum(since <= late for since in self._busy.values())
            if not room_for_another(len(self._busy), stuck, most):
                return None
            fitting = self._idle(lambda other: other == owner)
            for worker in sorted(fitting, key=lambda worker: key not in worker.residents):
                if worker.is_silent or owner is not None:
                    break
                self.kill(worker)
            else:
                worker = self.pool.start(owner)
            self._busy[worker] = time.monotonic()
            return worker

    def give_back(self, worker: Worker, keep: int) -> None:
        """The call is over. No more than `keep` workers are kept for anyone."""
        with self._lock:
            self._busy.pop(worker, None)
            for surplus in self._idle(lambda owner: owner is None)[:-keep]:
                self.kill(surplus)

    def kill(self, worker: Worker) -> None:
        with self._lock:
            self._busy.pop(worker, None)
            self.pool.kill(worker)

    def release(self, number: int) -> None:
        """Kill the workers of an executor that is closed, with all that they started."""
        with self._lock:
            for worker in self._idle(lambda owner: owner is not None and owner[0] == number):
                self.kill(worker)

    def forget(self, keys: Set[str]) -> None:
        """Kill the workers that anyone may take in which one of these tools is open, with all that they started."""
        with self._lock:
            for worker in self._idle(lambda owner: owner is None):
                if not worker.residents.isdisjoint(keys):
                    self.kill(worker)

    def shutdown(self) -> None:
        """Kill all workers and the supervisor; returns once they are gone. A call that is still going on dies with it."""
        with self._lock:
            for worker in self._idle(lambda owner: True):
                self.kill(worker)
            self.pool.shutdown()

    def _idle(self, whose: Callable[[Owner | None], bool]) -> list[Worker]:
        return [
            worker
            for worker in self.pool.workers.values()
            if worker not in self._busy and whose(worker.owner)
        ]


_SHARED: dict[int, ToolWorkers] = {}
_SHARED_LOCK = threading.RLock()  # an executor that is collected as garbage asks for it too


def shared_workers() -> ToolWorkers:
    """The workers of this process; a forked child has its own."""
    with _SHARED_LOCK:
        if os.getpid() not in _SHARED:
            _SHARED[os.getpid()] = ToolWorkers()
        return _SHARED[os.getpid()]
