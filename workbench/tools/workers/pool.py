"""Worker processes under one supervisor: calls go in, answers and ends come out.

The pool starts workers, listens to them and kills them. Which call goes to which worker, and what a late or a dead one
means, is for its two users to say:

    environments  `ProcessRunner` (env_runner): many environments in a worker; what a dead worker held is made again
    tools         `ToolExecutor` (workbench.tools.executor): one call at a time in a worker, each with a deadline

No thread is started: the caller that waits for a worker listens to it.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from workbench.tools.workers.supervisor import ORDER, REPORT, cause_of, release, start_supervisor
from workbench.tools.workers.worker import READ, Worker, WorkerAnswer, WorkerFailure

# Processes there may be for each one that is asked for: the others are stuck in a call.
MOST_PER_WORKER = 16
REPORT_WAIT_S = 0.01  # how often to look for the report on a worker whose connection has ended: others read it too


def room_for_another(at_work: int, stuck: int, most: int) -> bool:
    """Whether one more worker may be at work beside `at_work` others, of which `stuck` have been in one call for long.

    A call that hangs does not delay others until its deadline: it no longer counts against `most`, up to a bound.
    """
    return at_work - stuck < most and at_work < most * MOST_PER_WORKER


class WorkerPool:
    """Workers that all do the same: `serve`, "module:function", with their connection and `settings`.

    Safe to use from several threads, as long as each worker is used by one of them at a time. A supervisor that has
    ended is replaced when the next worker is started.
    """

    def __init__(self, serve: str, *settings: int) -> None:
        self.serve = serve
        self.settings = settings
        self.lock = threading.RLock()
        self.workers: dict[int, Worker] = {}
        self.supervisors = 0  # started so far
        self._ready = False  # has the newest supervisor said that it is
        self._numbers = 0
        self._control: socket.socket | None = None
        self._process: subprocess.Popen | None = None
        self._reports = bytearray()
        self._release = lambda: None

    @property
    def supervisor_pid(self) -> int | None:
        """The process that all workers are children of; None while there is none."""
        return self._process.pid if self._control is not None else None

    @property
    def alive(self) -> int:
        """How many worker processes there are now."""
        with self.lock:
            self._read_reports()
            return sum(worker.report is None for worker in list(self.workers.values()))

    def start(self, owner: Any = None) -> Worker:
        """`owner`: who alone may use it, as its user names that."""
        with self.lock:
            self._read_reports()
            if self._control is None:
                self._start_supervisor()
            self._numbers += 1
            ours, theirs = socket.socketpair()
            # A supervisor that has just died is noticed by its silence.
            with theirs, suppress(OSError):
                socket.send_fds(self._control, [ORDER.pack(b"+", self._numbers)], [theirs.fileno()])
            ours.setblocking(False)
            worker = self.workers[self._numbers] = Worker(self._numbers, ours, owner)
            return worker

    def listen(
        self, workers: Sequence[Worker], most_bytes: int, wait_s: float
    ) -> list[WorkerAnswer | WorkerFailure]:
        """Answers of these workers, and which of them have ended; waits up to `wait_s` for the first of it.

        Answers that a worker gave before it ended come before its end. One that has ended is killed for good here.
        """
        looked = time.monotonic()
        poll = select.poll()
        for worker in workers:
            worker.flush()
            if worker.cut_off:
                wait_s = min(wait_s, REPORT_WAIT_S)
            else:
                wanted = select.POLLIN | select.POLLOUT if worker.outgoing else select.POLLIN
                poll.register(worker.connection, wanted)
            if worker.calls:
                wait_s = min(wait_s, worker.late_at - looked)
        with self.lock:
            if self._control is not None:
                poll.register(self._control, select.POLLIN)
        poll.poll(1000 * max(0.0, wait_s))
        with self.lock:
            self._read_reports()
        events: list[WorkerAnswer | WorkerFailure] = []
        for worker in workers:
            events += self._events_of(worker, most_bytes, looked)
        return events

    def kill(self, worker: Worker) -> None:
        """Kill a worker with all that it has started. It is no longer listened to."""
        with self.lock:
            if self.workers.pop(worker.number, None) is not None:
                self._order_kill(worker)
            worker.connection.close()

    def let_end(self, workers: Sequence[Worker], wait_s: float) -> None:
        """Tell these workers that no call will come; waits up to `wait_s` for them to end by themselves."""
        until = time.monotonic() + wait_s
        for worker in workers:
            worker.flush()
            with suppress(OSError):
                worker.connection.shutdown(socket.SHUT_WR)
        while time.monotonic() < until and self._control is not None:
            with self.lock:
                self._read_reports()
            if all(worker.report is not None for worker in workers):
                return
            time.sleep(REPORT_WAIT_S)

    def shutdown(self) -> None:
        """Kill all workers and the supervisor; returns once they are gone. A call that is still going on dies with it."""
        with self.lock:
            self._supervisor_is_gone()
            self.workers = {}

    def _events_of(
        self, worker: Worker, most_bytes: int, looked: float
    ) -> list[WorkerAnswer | WorkerFailure]:
        """`looked`: when this look began. Deadlines are judged by that time: the trainer may have been away, and what
        was answered meanwhile counts."""
        # Before the answers: then none is left unread behind it.
        report = worker.report
        was_cut_off = worker.cut_off
        events: list[WorkerAnswer | WorkerFailure] = [*worker.take_in(most_bytes)]
        end = report
        if worker.garbled:
            end = WorkerFailure(worker, "garbled", worker.garbled)
        elif end is None and worker.calls and worker.late_at <= looked:
            end = WorkerFailure(worker, "late")
        if end is not None:
            self.kill(worker)
            events.append(end)
        elif worker.cut_off and not was_cut_off:
            # Dying, or it has closed what it should not: make sure.
            with self.lock:
                self._order_kill(worker)
        return events

    # ------------------------------------------------------------------------------------------ inside the lock

    def _order_kill(self, worker: Worker) -> None:
        if self._control is not None:
            with suppress(OSError):
                self._control.send(ORDER.pack(b"-", worker.number))

    def _start_supervisor(self) -> None:
        self.supervisors += 1
        self._ready = False
        self._reports = bytearray()
        self._process, self._control = start_supervisor(self.serve, *self.settings)
        self._release = weakref.finalize(self, release, os.getpid(), self._process, self._control)

    def _supervisor_is_gone(self) -> None:
        """All workers have died with it."""
        self._release()
        self._release = lambda: None
        self._control = None
        words = "" if self._ready else "before it could start one"
        for worker in list(self.workers.values()):
            worker.report = worker.report or WorkerFailure(worker, "supervisor", words)

    def _read_reports(self) -> None:
        """Take in what workers have died of."""
        while self._control is not None:
            try:
                data = self._control.recv(READ, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                return self._supervisor_is_gone()
            self._ready = True
            self._reports += data
            while len(self._reports) >= REPORT.size:
                kind, number, status = REPORT.unpack_from(self._reports)
                del self._reports[: REPORT.size]
                if kind == b"x" and (worker := self.workers.get(number)) is not None:
                    worker.report = WorkerFailure(worker, "died", cause_of(status))
