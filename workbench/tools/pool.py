"""The worker processes of this process for tools: which one is warm, which one is busy, which one is killed.

One pool for all desks, begun with the first call that needs it. A worker answers one call at a time, for one thread at a
time; whoever waits for it reads its connection, so there is no thread of the pool's own. Who misses its deadline is
killed with all that it started.

    shared   tools without state: any idle worker does, best one that has the tool already
    own      tools with state: a worker for one tool of one attempt, dismissed when the desk is closed

A call that has run for `PATIENCE_S` no longer counts against `workers`: what hangs does not keep others waiting until
its deadline.
"""
from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from workbench.errors import EnvError, ToolError
from workbench.processes.frames import frame, take_frames
from workbench.processes.supervisor import ORDER, REPORT, cause_of, let_go, start_supervisor
from workbench.processes.values import describe, name_of
from workbench.sealed import json_bytes
from workbench.tools.base import FunctionTool, Tool, task_arguments
from workbench.types import Task

SERVE = "workbench.tools.worker:serve"
PATIENCE_S = 1.0       # how long a call counts as one of those at work; then another one may begin beside it
MOST_PER_WORKER = 16   # processes there may be for each one at work: the rest are waited for until their deadline
REPORT_S = 0.2         # within which the supervisor says what a worker died of
READ = 1 << 16
OTHERWISE = "mark it trusted=True: then it runs in this process, and cannot be stopped where it hangs"


@dataclass(frozen=True)
class Described:
    """A tool as a worker can make it. `per_attempt`: it is made for one task. `home`: stateful tools of one home share
    their state, so they live in one worker. `key` says all that makes it what it is."""

    name: str
    content: Any
    stateful: bool
    per_attempt: bool
    home: str

    @property
    def key(self) -> str:
        return json_bytes(self.content, f"tool {self.name!r}").decode()


def describe_tool(tool: Tool) -> Described:
    """How a worker makes the same tool. Raises ToolError for one that it could not import, saying what to do."""
    where = f"tool {tool.name!r}"
    try:
        if isinstance(tool, FunctionTool):
            content = {"function": name_of(tool.function, where, OTHERWISE), "name": tool.name,
                       "description": tool.description, "parameters": dict(tool.parameters)}
            asks = bool(tool.stateful or task_arguments(tool.function))
            return Described(tool.name, content, tool.stateful, asks, tool.name)
        if not is_dataclass(tool):
            raise ToolError(f"{where} is a {type(tool).__name__}, which worker processes cannot be handed: write it as a "
                            f"function or a class with a method call, both by @tool, or as a frozen dataclass; or {OTHERWISE}")
        described = describe(tool, where, OTHERWISE)
    except (EnvError, AttributeError) as error:
        raise ToolError(str(error)) from error
    return Described(tool.name, {"tool": described}, tool.stateful, tool.stateful, getattr(tool, "home", tool.name))


@dataclass(eq=False)
class Worker:
    """The trainer's end of one worker process."""

    number: int
    connection: socket.socket
    slots: set[str] = field(default_factory=set)  # tools that are open in it
    incoming: bytearray = field(default_factory=bytearray)
    outgoing: bytearray = field(default_factory=bytearray)
    begun: bool = False  # has it said its first word

    def send(self, call: list) -> None:
        self.outgoing += frame(json_bytes(call, "a call of a tool"))
        self.flush()

    def flush(self) -> None:
        """Raises OSError where the worker is gone."""
        with suppress(BlockingIOError):
            while self.outgoing:
                del self.outgoing[: self.connection.send(self.outgoing)]

    def hear(self, limit: int) -> list[bytes]:
        """Whole answers among what it has sent so far. Raises ValueError for one that says it is longer than `limit`
        (nothing of it is read then), EOFError where the worker is gone."""
        while True:
            try:
                data = self.connection.recv(READ)
            except BlockingIOError:
                return []
            except OSError:
                data = b""
            if not data:
                raise EOFError
            self.incoming += data
            if frames := take_frames(self.incoming, limit):
                return frames


class ToolPool:
    """Worker processes under one supervisor; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._idle: list[Worker] = []
        self._busy: dict[Worker, float] = {}      # since when
        self._causes: dict[int, str] = {}         # what workers died of that somebody still holds
        self._alive: set[int] = set()
        self._numbers = 0
        self._control: socket.socket | None = None
        self._process: subprocess.Popen | None = None
        self._reports = bytearray()
        self._let_go = lambda: None

    @property
    def supervisor_pid(self) -> int | None:
        """The process that all workers are children of; None while there is none."""
        return self._process.pid if self._control is not None else None

    @property
    def workers(self) -> int:
        """Worker processes that there are now, idle ones and those of attempts included."""
        with self._lock:
            self._read_reports(0.0)
            return len(self._alive)

    def take(self, slot: str, most: int) -> Worker | None:
        """An idle worker, best one that has `slot` open, or a new one; None where `most` calls are at work. It belongs
        to the caller until `give_back` or `lose`."""
        with self._lock:
            if not self._may_begin(most):
                return None
            fit = sorted(self._idle, key=lambda worker: slot in worker.slots)
            while fit:
                worker = fit.pop()
                self._idle.remove(worker)
                if not select.select([worker.connection], [], [], 0)[0]:  # silent, as it should be: it lives
                    self._busy[worker] = time.monotonic()
                    return worker
                self.lose(worker)
            return self._new()

    def new_own(self, most: int) -> Worker | None:
        """A new worker for one tool of one attempt; None where `most` calls are at work."""
        with self._lock:
            return self._new() if self._may_begin(most) else None

    def begin_own(self, worker: Worker, most: int) -> bool:
        """Whether the worker of an attempt may begin another call now; from then on it counts as at work."""
        with self._lock:
            if free := self._may_begin(most):
                self._busy[worker] = time.monotonic()
            return free

    def rest_own(self, worker: Worker) -> None:
        """Its call is over; it stays the attempt's."""
        with self._lock:
            self._busy.pop(worker, None)

    def give_back(self, worker: Worker, keep: int) -> None:
        """Its call is over, and any desk may have it next; no more than `keep` are kept warm."""
        with self._lock:
            self._busy.pop(worker, None)
            self._idle.append(worker)
            for surplus in self._idle[:-keep]:
                self._idle.remove(surplus)
                self.lose(surplus)

    def lose(self, worker: Worker, wait_s: float = 0.0) -> str:
        """Kill a worker. Says what it had died of by itself, as far as that is known within `wait_s`."""
        with self._lock:
            self._read_reports(wait_s, worker.number)
            cause = self._causes.pop(worker.number, "")
            self._busy.pop(worker, None)
            if worker.number in self._alive:
                self._alive.discard(worker.number)
                with suppress(OSError):
                    self._control.send(ORDER.pack(b"-", worker.number))
            worker.connection.close()
            return cause

    def shutdown(self) -> None:
        """Kill all workers and the supervisor; returns once they are gone. A call that is still going on dies with it.
        """
        with self._lock:
            for worker in self._idle:
                worker.connection.close()
            self._idle, self._causes, self._alive = [], {}, set()
            self._let_go()
            self._let_go, self._control, self._reports = (lambda: None), None, bytearray()

    def drop(self, slots: set[str]) -> None:
        """Have idle workers forget tools that were made for an attempt which is over."""
        with self._lock:
            for worker in list(self._idle):
                for slot in worker.slots & slots:
                    worker.slots.discard(slot)
                    try:
                        worker.send(["drop", slot])
                    except OSError:
                        self._idle.remove(worker)
                        self.lose(worker)
                        break

    def forget(self, slots: set[str]) -> None:
        """Kill the idle workers in which one of these tools is open, with what it started."""
        with self._lock:
            for worker in [worker for worker in self._idle if worker.slots & slots]:
                self._idle.remove(worker)
                self.lose(worker)

    # ------------------------------------------------------------------------------------------ inside the lock

    def _may_begin(self, most: int) -> bool:
        fresh = time.monotonic() - PATIENCE_S
        return sum(since > fresh for since in self._busy.values()) < most and len(self._busy) < most * MOST_PER_WORKER

    def _new(self) -> Worker:
        self._read_reports(0.0)
        if self._control is None:
            self._process, self._control = start_supervisor(SERVE)
            self._reports = bytearray()
            self._let_go = weakref.finalize(self, let_go, os.getpid(), self._process, self._control)
        self._numbers += 1
        ours, theirs = socket.socketpair()
        with theirs, suppress(OSError):  # a supervisor that has just died is noticed by the silence of its worker
            socket.send_fds(self._control, [ORDER.pack(b"+", self._numbers)], [theirs.fileno()])
        ours.setblocking(False)
        worker = Worker(self._numbers, ours)
        self._alive.add(worker.number)
        self._busy[worker] = time.monotonic()
        return worker

    def _read_reports(self, wait_s: float, number: int | None = None) -> None:
        """Take in what workers have died of; waits for that of worker `number`."""
        until = time.monotonic() + wait_s
        while self._control is not None and number not in self._causes:
            if not select.select([self._control], [], [], max(0.0, until - time.monotonic()))[0]:
                return
            try:
                data = self._control.recv(READ)
            except OSError:
                data = b""
            if not data:  # all workers have died with it; the next call starts another one
                self._let_go()
                self._let_go, self._control = (lambda: None), None
                self._alive = set()
                return
            self._reports += data
            while len(self._reports) >= REPORT.size:
                kind, dead, status = REPORT.unpack_from(self._reports)
                del self._reports[: REPORT.size]
                if kind == b"x" and dead in self._alive:  # others were killed here, and nobody asks what of
                    self._alive.discard(dead)
                    self._causes[dead] = cause_of(status)


_POOLS: dict[int, ToolPool] = {}
_POOLS_LOCK = threading.Lock()


def shared_pool() -> ToolPool:
    """The pool of this process; a forked child has one of its own."""
    with _POOLS_LOCK:
        if os.getpid() not in _POOLS:
            _POOLS[os.getpid()] = ToolPool()
        return _POOLS[os.getpid()]


def task_content(task: Task) -> dict[str, Any]:
    return {"id": task.id, "env": task.env, "task_seed": task.task_seed, "payload": task.payload,
            "metadata": task.metadata}
