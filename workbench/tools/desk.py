"""Where an environment hands in the calls of one turn, and gets back one result each, in the same order.

The desk never raises for what a tool does: whatever goes wrong is a `ToolResult` with the kind of failure and a text
that the agent can act on. Trusted tools run in the caller's thread, one after the other, so that they are bit-exact
(law 8); all others run side by side in worker processes, and whatever misses its deadline is killed.
"""
from __future__ import annotations

import itertools
import json
import selectors
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.errors import StoreError, ToolError
from workbench.sealed import plain
from workbench.tools.base import Tool, ToolResult, refusal_of
from workbench.tools.pool import REPORT_S, Described, ToolPool, Worker, describe_tool, shared_pool, task_content
from workbench.tools.results import as_result, from_json, most_content, raised
from workbench.types import Task, ToolCall

BEGIN_S = 60.0     # within which a worker process must have begun, on a machine however busy
WAIT_S = 0.02      # how often to ask for a worker, where all are busy for others
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class ToolLimits:
    """What one call may take.

    deadline_s   seconds of the wall clock, from when the call begins
    most_bytes   of its text (UTF-8); the rest is cut, with a mark
    most_calls   in one turn; the rest is not run
    workers      calls at work at once in worker processes, for all desks of this process together
    open_s       seconds in which a tool must be ready for its first call in a worker: its module, its constructor
    most_memory  bytes of address space that a call may take on top of what its worker has
    """

    deadline_s: float = 5.0
    most_bytes: int = 2000
    most_calls: int = 4
    workers: int = 2
    open_s: float = 30.0
    most_memory: int = 2 << 30

    def __post_init__(self) -> None:
        for name in ("deadline_s", "open_s"):
            if not getattr(self, name) > 0:
                raise ToolError(f"{name} is a positive number of seconds, got {getattr(self, name)!r}")
        for name in ("most_bytes", "most_calls", "workers", "most_memory"):
            if getattr(self, name) < 1:
                raise ToolError(f"{name} is at least 1, got {getattr(self, name)!r}")


class ToolDesk:
    """The tools of one attempt, and how they are run. Used by one thread at a time; `close` it when the attempt is over.

    `task`: the attempt's; tools with state, and those that ask for the task, are made for it: trusted ones here, others
    where they run. Raises ToolError where two tools have one name, and for a tool that is neither trusted nor can be
    imported by a worker process.
    """

    def __init__(self, tools: Sequence[Tool], limits: ToolLimits = ToolLimits(), task: Task | None = None) -> None:
        names = [tool.name for tool in tools]
        if len(set(names)) < len(names):
            raise ToolError(f"every tool of a desk has a name of its own, got {', '.join(names)}")
        self.limits, self.number = limits, next(_NUMBERS)
        self._described = {tool.name: describe_tool(tool) for tool in tools if not tool.trusted}
        self._task = None if task is None else task_content(task)
        self.tools: dict[str, Tool] = {
            tool.name: tool.for_attempt(task) if tool.trusted and task is not None else tool for tool in tools}
        self._own: dict[str, Worker] = {}   # by home: the workers in which this attempt's tools with state live
        self._slots: set[str] = set()       # tools made for this attempt, open in workers of the pool
        self._let_go = weakref.finalize(self, _let_go, self._own, self._slots)

    def run(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """One result for each call, in the order of the calls."""
        results: dict[int, ToolResult] = {}
        waiting: list[_Job] = []
        for index, call in enumerate(calls):
            if index >= self.limits.most_calls:
                results[index] = ToolResult(f"Error: not run: {len(calls)} calls in one turn, and at most "
                                            f"{self.limits.most_calls} are taken.", error="too_many")
            elif call.name not in self._described:
                results[index] = self._run_here(call)
            else:
                job = self._job(index, call)
                waiting += [job] if isinstance(job, _Job) else []
                results |= {} if isinstance(job, _Job) else {index: job}
        if waiting:
            results |= _Shift(shared_pool(), self.limits, self._own, waiting).work()
        return [results[index] for index in range(len(calls))]

    def close(self) -> None:
        """The attempt is over: what its tools hold in worker processes is given back. May be called again."""
        self._let_go()
        self._let_go = weakref.finalize(self, _let_go, self._own, self._slots)

    def _run_here(self, call: ToolCall) -> ToolResult:
        if refused := refusal_of(call, self.tools):
            return refused
        try:
            return as_result(self.tools[call.name].call(call.arguments), self.limits.most_bytes)
        except (Exception, SystemExit) as error:  # a tool may raise anything (law 10); Ctrl-C is the user's
            return raised(call.name, error, self.limits.most_bytes)

    def _job(self, index: int, call: ToolCall) -> _Job | ToolResult:
        described = self._described[call.name]
        slot = f"{self.number} {described.name}" if described.per_attempt else described.key
        if described.per_attempt and not described.stateful:
            self._slots.add(slot)
        try:
            arguments = plain(dict(call.arguments), f"the arguments of {call.name}")
        except StoreError as error:
            return ToolResult(f"Error: {error}", error="bad_arguments")
        return _Job(index, described, slot, self._task if described.per_attempt else None, arguments)


def _let_go(own: dict[str, Worker], slots: set[str]) -> None:
    """Where an attempt is over. Its workers are killed: what tools with state held is nobody else's."""
    pool = shared_pool() if own or slots else None
    for name in list(own):
        pool.lose(own.pop(name))
    if slots:
        pool.drop(slots)
        slots.clear()


# ------------------------------------------------------------------------------------------------ side by side


@dataclass(frozen=True)
class _Job:
    """A call for a worker process."""

    index: int
    described: Described
    slot: str
    task: dict[str, Any] | None
    arguments: dict[str, Any]

    @property
    def name(self) -> str:
        return self.described.name


@dataclass
class _Flight:
    """A job with its worker: what the worker is to answer next, and until when."""

    job: _Job
    worker: Worker
    step: str = "begin"  # then "open" where the worker does not have the tool yet, then "call"
    until: float = 0.0


class _Shift:
    """The calls of one turn that need workers, from the first to the last answer."""

    def __init__(self, pool: ToolPool, limits: ToolLimits, own: dict[str, Worker], jobs: list[_Job]) -> None:
        self.pool, self.limits, self.own, self.waiting = pool, limits, own, jobs
        self.flights: dict[Worker, _Flight] = {}
        self.results: dict[int, ToolResult] = {}
        self.selector = selectors.DefaultSelector()

    def work(self) -> dict[int, ToolResult]:
        try:
            while self.waiting or self.flights:
                self._begin_what_may()
                self._listen()
                for flight in [f for f in self.flights.values() if f.until <= time.monotonic()]:
                    self._overdue(flight)
            return self.results
        finally:  # the caller was interrupted: nobody would notice if these never came back
            for flight in list(self.flights.values()):
                self._end(flight, None)
            self.selector.close()

    def _begin_what_may(self) -> None:
        for job in list(self.waiting):
            if job.described.stateful and any(f.job.described.home == job.described.home
                                                      for f in self.flights.values()):
                continue  # calls of a tool with state come one after the other, in their order
            worker = self._worker_for(job)
            if worker is None:
                if job.described.stateful:
                    continue
                break
            self.waiting.remove(job)
            flight = self.flights[worker] = _Flight(job, worker)
            self.selector.register(worker.connection, selectors.EVENT_READ, flight)
            if worker.begun:
                self._next(flight)
            else:
                flight.until = time.monotonic() + BEGIN_S

    def _worker_for(self, job: _Job) -> Worker | None:
        if not job.described.stateful:
            return self.pool.take(job.slot, self.limits.workers)
        if own := self.own.get(job.described.home):
            return own if self.pool.begin_own(own, self.limits.workers) else None
        if worker := self.pool.new_own(self.limits.workers):
            self.own[job.described.home] = worker
        return worker

    def _next(self, flight: _Flight) -> None:
        """Tell a worker that waits what to do next; from now on the time counts."""
        job, limits = flight.job, self.limits
        if job.slot in flight.worker.slots:
            flight.step, flight.until = "call", time.monotonic() + limits.deadline_s
            call = ["call", job.slot, job.arguments, limits.most_bytes, limits.most_memory]
        else:
            flight.step, flight.until = "open", time.monotonic() + limits.open_s
            call = ["open", job.slot, job.described.content, job.task]
        try:
            flight.worker.send(call)
        except OSError:
            self._died(flight)

    def _listen(self) -> None:
        soonest = min((flight.until for flight in self.flights.values()), default=0.0)
        wait_s = soonest - time.monotonic()
        if self.waiting:
            wait_s = min(wait_s, WAIT_S) if self.flights else WAIT_S
        if not self.flights:
            time.sleep(WAIT_S)
        for ready, _ in self.selector.select(max(0.0, wait_s)) if self.flights else ():
            if ready.data.worker in self.flights:
                self._hear(ready.data)
        for flight in list(self.flights.values()):
            if flight.worker.outgoing:
                try:
                    flight.worker.flush()
                except OSError:
                    self._died(flight)

    def _hear(self, flight: _Flight) -> None:
        """What a worker said. Nothing that is longer than a bounded result is ever read whole."""
        try:
            for content in flight.worker.hear(most_content(self.limits.most_bytes)):
                if flight.step == "call":
                    result = from_json(content, self.limits.most_bytes)
                    return self._end(flight, result, keep=result.error != "died")  # what stands behind a tool may die too
                if flight.step == "open" and (complaint := _complaint(content)):
                    return self._end(flight, ToolResult(f"Error: {flight.job.name} could not be started: {complaint}",
                                                        error="raised"), keep=False)
                flight.worker.begun = True
                if flight.step == "open":
                    flight.worker.slots.add(flight.job.slot)
                self._next(flight)
        except EOFError:
            self._died(flight)
        except ValueError as error:
            self._end(flight, self._failed(flight, "died", f"wrote into its worker's connection and was stopped: {error}"))

    # ------------------------------------------------------------------------------------------ ends

    def _overdue(self, flight: _Flight) -> None:
        said = {"begin": f"could not be run: no worker process began within {BEGIN_S:g} s",
                "open": f"was not ready within {self.limits.open_s:g} s and was stopped",
                "call": f"gave no answer within {self.limits.deadline_s:g} s and was stopped"}
        self._end(flight, self._failed(flight, "timeout", said[flight.step]))

    def _died(self, flight: _Flight) -> None:
        self._end(flight, self._failed(flight, "died", "died during the call"))

    def _failed(self, flight: _Flight, kind: str, what: str) -> ToolResult:
        """Its worker is killed; where that held state, the agent is told."""
        self._forget(flight)
        cause = self.pool.lose(flight.worker, REPORT_S if kind == "died" else 0.0)
        words = f"Error: {flight.job.name} {what}{f' by {cause}' if cause and kind == 'died' else ''}."
        if flight.job.described.stateful:
            words += " Its state is lost: the next call begins anew."
        return ToolResult(words, error=kind)

    def _end(self, flight: _Flight, result: ToolResult | None, keep: bool = True) -> None:
        """Give the worker back where it is fit for more, and note the result."""
        if flight.worker in self.flights:
            self._forget(flight)
            if result is None or not keep or flight.worker.incoming or flight.worker.outgoing:
                self.pool.lose(flight.worker)
            elif flight.job.described.stateful:
                self.own[flight.job.described.home] = flight.worker
                self.pool.rest_own(flight.worker)
            else:
                self.pool.give_back(flight.worker, self.limits.workers)
        if result is not None:
            self.results[flight.job.index] = result

    def _forget(self, flight: _Flight) -> None:
        if self.flights.pop(flight.worker, None) is not None:
            self.selector.unregister(flight.worker.connection)
        if flight.job.described.stateful:
            self.own.pop(flight.job.described.home, None)


def _complaint(content: bytes) -> str:
    """Why a tool could not be opened, "" where it could. Raises ValueError for what is no answer."""
    held = json.loads(content)
    if not isinstance(held, dict):
        raise ValueError("no answer of this program")
    return str(held.get("complaint", ""))
