"""Where an environment hands in the calls of one turn, and gets back one result each, in the same order.

Nothing that a tool does is raised: whatever goes wrong is a `ToolResult` with the kind of failure and a text that the
agent can act on. Trusted tools run in the caller's thread, one after the other, so that they are bit-exact (invariant 8); all
others run side by side in worker processes, and one that misses its deadline is killed.
"""

from __future__ import annotations

import itertools
import json
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from workbench.basics.canonical_json import plain
from workbench.basics.settings import above, at_least, check_settings
from workbench.tools.awaited import DeadlineError, settled
from workbench.tools.base import Tool, ToolResult, refusal_of
from workbench.tools.handover import ToolRecipe, describe_tool
from workbench.tools.results import as_result, from_json, most_content, raised
from workbench.tools.shared_workers import Owner, ToolWorkers, shared_workers
from workbench.tools.workers.values import describe_task
from workbench.tools.workers.worker import START_S, Worker, WorkerAnswer, WorkerCall, WorkerFailure
from workbench.values import Task, ToolCall
from workbench.values.errors import MissingPackageError, StoreError, ToolError

WAIT_S = 0.02  # how often to ask for a worker, where all are busy for others
_NUMBERS = itertools.count()


@dataclass(frozen=True)
class ToolLimits:
    """Limits of one call."""

    deadline_s: Annotated[
        float, above(0), "seconds of the wall clock, from when the call begins"
    ] = 5.0
    most_bytes: Annotated[
        int, at_least(1, most=100_000_000), "of its text (UTF-8); the rest is cut, with a mark"
    ] = 2000
    most_calls: Annotated[int, at_least(1, most=10_000), "in one turn; the rest is not run"] = 4
    workers: Annotated[
        int,
        at_least(1, most=10_000),
        "calls at work at once in worker processes, for all executors together",
    ] = 2
    open_s: Annotated[
        float, above(0), "seconds in which a tool must be ready for its first call in a worker"
    ] = 30.0
    most_memory: Annotated[
        int,
        at_least(1, most=1_125_899_906_842_624),
        "bytes of address space on top of what the worker has",
    ] = 2 << 30

    def __post_init__(self) -> None:
        check_settings(self)


class ToolExecutor:
    """The tools of one trajectory, and how they are run. Used by one thread at a time; `close` it when the trajectory is over.

    `task`: the trajectory's; tools with state, and those that ask for the task, are made for it: trusted ones here, others
    where they run. Raises ToolError where two tools have one name, and for a tool that is neither trusted nor can be
    imported by a worker process.
    """

    def __init__(
        self, tools: Sequence[Tool], limits: ToolLimits = ToolLimits(), task: Task | None = None
    ) -> None:
        names = [tool.name for tool in tools]
        if len(set(names)) < len(names):
            raise ToolError(
                f"every tool of an executor has a name of its own, got {', '.join(names)}"
            )
        self.limits = limits
        self.number = next(_NUMBERS)
        self._described = {tool.name: describe_tool(tool) for tool in tools if not tool.trusted}
        self._task = None if task is None else describe_task(task)
        self.tools: dict[str, Tool] = {
            tool.name: tool.for_trajectory(task) if tool.trusted and task is not None else tool
            for tool in tools
        }
        self._release = weakref.finalize(self, _release, self.number)

    def run(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """One result for each call, in the order of the calls."""
        results: dict[int, ToolResult] = {}
        waiting: list[_WaitingCall] = []
        for index, call in enumerate(calls):
            if index >= self.limits.most_calls:
                results[index] = ToolResult(
                    f"Error: not run: {len(calls)} calls in one turn, and at most "
                    f"{self.limits.most_calls} are taken.",
                    error="too_many",
                )
            elif call.name not in self._described:
                results[index] = self._run_here(call)
            else:
                try:
                    waiting.append(self._waiting_call(index, call))
                except StoreError as error:
                    results[index] = ToolResult(f"Error: {error}", error="bad_arguments")
        if waiting:
            results |= ToolTurn(shared_workers(), self.limits, waiting).run()
        return [results[index] for index in range(len(calls))]

    def close(self) -> None:
        """The trajectory is over: workers that hold state of its tools are killed, and trusted tools with state give back what
        they hold. May be called again."""
        for tool in self.tools.values():
            if tool.trusted and tool.stateful and hasattr(tool, "close"):
                tool.close()
        self._release()
        self._release = weakref.finalize(self, _release, self.number)

    def _run_here(self, call: ToolCall) -> ToolResult:
        if refused := refusal_of(call, self.tools):
            return refused
        try:
            came = settled(self.tools[call.name].call(call.arguments), self.limits.deadline_s)
            return as_result(came, self.limits.most_bytes)
        except DeadlineError:
            return ToolResult(
                f"Error: {call.name} gave no answer within {self.limits.deadline_s:g} s and was stopped.",
                error="timeout",
            )
        # A tool may raise anything (invariant 10); Ctrl-C is the user's.
        except MissingPackageError:  # no fault of the tool or of who calls it
            raise
        except (Exception, SystemExit) as error:
            return raised(call.name, error, self.limits.most_bytes)

    def _waiting_call(self, index: int, call: ToolCall) -> _WaitingCall:
        """Raises StoreError for arguments that JSON would lose."""
        tool = self._described[call.name]
        arguments = plain(dict(call.arguments), f"the arguments of {call.name}")
        owner = (self.number, tool.home) if tool.stateful else None
        task = self._task if tool.asks else None
        return _WaitingCall(index, tool, owner, task, arguments)


def _release(number: int) -> None:
    shared_workers().release(number)


# ------------------------------------------------------------------------------------------------ side by side


@dataclass(frozen=True)
class _WaitingCall:
    """A call for a worker process. `owner`: of the only worker that may run it, for a tool with state."""

    index: int
    tool: ToolRecipe
    owner: Owner | None
    task: dict[str, Any] | None
    arguments: dict[str, Any]


class ToolTurn:
    """The calls of one turn that need workers, from the first to the last answer.

    A worker that does not have the tool yet gets two calls, to open it and to call it, each with a deadline.
    """

    def __init__(
        self, workers: ToolWorkers, limits: ToolLimits, waiting: list[_WaitingCall]
    ) -> None:
        self.workers = workers
        self.limits = limits
        self.waiting = waiting
        self.in_flight: dict[Worker, _WaitingCall] = {}
        self.results: dict[int, ToolResult] = {}

    def run(self) -> dict[int, ToolResult]:
        try:
            while self.waiting or self.in_flight:
                self._begin_calls()
                wait_s = WAIT_S if self.waiting else START_S
                most_bytes = most_content(self.limits.most_bytes)
                for event in self.workers.pool.listen(list(self.in_flight), most_bytes, wait_s):
                    if event.worker not in self.in_flight:
                        continue
                    if isinstance(event, WorkerAnswer):
                        self._on_answer(event)
                    else:
                        self._on_end(event)
            return self.results
        finally:  # the caller was interrupted: otherwise these might go on without end
            for worker in list(self.in_flight):
                self._kill(worker)

    def _begin_calls(self) -> None:
        for call in list(self.waiting):
            at_work = {other.owner for other in self.in_flight.values()}
            if call.owner is not None and call.owner in at_work:
                continue  # calls of a tool with state come one after the other, in their order
            worker = self.workers.take(call.tool.key, call.owner, self.limits.workers)
            if worker is None:
                return
            self.waiting.remove(call)
            self.in_flight[worker] = call
            self._send(call, worker)

    def _send(self, call: _WaitingCall, worker: Worker) -> None:
        tool = call.tool
        limits = self.limits
        to_open = call.task if tool.stateful else None
        to_call = None if tool.stateful else call.task
        if tool.key not in worker.residents:
            opening = WorkerCall("open", limits.open_s, _complaint)
            worker.send(["open", tool.key, tool.content, to_open], opening)
        calling = WorkerCall(
            "call", limits.deadline_s, lambda content, _: from_json(content, limits.most_bytes)
        )
        worker.send(
            ["call", tool.key, to_call, call.arguments, limits.most_bytes, limits.most_memory],
            calling,
        )

    def _on_answer(self, event: WorkerAnswer) -> None:
        worker = event.worker
        call = self.in_flight[event.worker]
        if event.call.owner == "open" and not event.value:
            worker.residents.add(call.tool.key)
        elif event.call.owner == "open":
            self._kill(worker)
            self.results[call.index] = ToolResult(
                f"Error: {call.tool.name} could not be started: {event.value}", error="raised"
            )
        else:
            self.results[call.index] = event.value
            # What stands behind a tool may have died too, and what was left unread is no answer to a later call.
            if event.value.error == "died" or worker.incoming or worker.outgoing:
                self._kill(worker)
            else:
                del self.in_flight[worker]
                self.workers.give_back(worker, self.limits.workers)

    def _on_end(self, event: WorkerFailure) -> None:
        """A worker is gone; where it held state, the agent is told."""
        call = self._kill(event.worker)
        limits = self.limits
        if event.how == "garbled":
            what = f"wrote into its worker's connection and was stopped: {event.words}"
        elif event.how == "died":
            what = f"died during the call by {event.words}"
        elif event.how == "supervisor":
            what = "died during the call"
        elif event.worker.last_ended is None:
            what = f"could not be run: no worker process began within {START_S:g} s"
        elif event.worker.calls[0].owner == "open":
            what = f"was not ready within {limits.open_s:g} s and was stopped"
        else:
            what = f"gave no answer within {limits.deadline_s:g} s and was stopped"
        lost = " Its state is lost: the next call begins anew." if call.tool.stateful else ""
        self.results[call.index] = ToolResult(
            f"Error: {call.tool.name} {what}.{lost}",
            error="timeout" if event.how == "late" else "died",
        )

    def _kill(self, worker: Worker) -> _WaitingCall:
        """The call that it was busy with."""
        self.workers.kill(worker)
        return self.in_flight.pop(worker)


def _complaint(content: bytes, seconds: float) -> str:
    """Why a tool could not be opened, "" where it could. Raises ValueError for what is no answer."""
    held = json.loads(content)
    if not isinstance(held, dict):
        raise ValueError("no answer of this program")
    return str(held.get("complaint", ""))
