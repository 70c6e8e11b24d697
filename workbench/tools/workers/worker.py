"""The trainer's end of one worker process: calls that it was sent, and what it has answered.

A worker answers its calls in the order in which it was sent them, and a deadline counts from when the worker begins a
call, not from when it was sent. Nothing here waits: the socket is non-blocking.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from workbench.basics.canonical_json import json_bytes
from workbench.tools.workers.frames import LOOK_IN, TIMES, frame, take_frames
from workbench.tools.workers.values import import_path

START_S = 60.0  # within which a worker must have started, on a machine however busy
READ = 1 << 16  # bytes; more than that may have been more than a connection holds


@dataclass(frozen=True)
class WorkerCall:
    """A call that a worker was sent.

    owner       whatever its sender knows it by
    deadline_s  seconds from when the worker begins it
    read        what its answer means: (content, seconds it took) -> value; ValueError for what is no answer
    """

    owner: Any
    deadline_s: float
    read: Callable[[bytes, float], Any]
    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class WorkerAnswer:
    """A worker's answer to its oldest call, and the seconds that it took."""

    worker: Worker
    call: WorkerCall
    value: Any
    content: bytes
    seconds: float


@dataclass(frozen=True)
class WorkerFailure:
    """A worker that is gone. The call that it was busy with is still the first of its `calls`.

    how    "died" (`words`: what of), "late" (its call missed the deadline, and it was killed), "garbled" (it sent what
           is no answer, and was killed; `words`: what), or "supervisor" (all workers went with their supervisor;
           `words`: how early, if it had not got as far as working)
    """

    worker: Worker
    how: str
    words: str = ""


@dataclass(eq=False)
class Worker:
    """The trainer's end of one worker process."""

    number: int
    connection: socket.socket
    owner: Any = None  # who alone may use it, as its user names that
    calls: deque[WorkerCall] = field(default_factory=deque)  # answered in this order
    residents: set = field(default_factory=set)  # what lives in it, as its user names that
    incoming: bytearray = field(default_factory=bytearray)
    outgoing: bytearray = field(default_factory=bytearray)
    born: float = field(default_factory=time.monotonic)
    last_ended: float | None = None  # its last call, or its start; None: it has not begun to work
    has_answered: bool = False  # any call
    answering: float | None = (
        None  # when the first part of an answer was read whose rest is still to come
    )
    read: int = 0  # bytes, in the newest look at its connection
    looks_in: list[str] | None = None  # the folders that it was last told to look for modules in
    cut_off: bool = False  # its connection has ended; the supervisor will say why
    garbled: str = ""  # what it sent that is no answer
    report: WorkerFailure | None = None  # what the supervisor said of its end

    @property
    def began(self) -> float:
        """When what it is busy with began: a call, or handing over the answer. The time a worker takes to start is not
        charged to its first call."""
        if self.last_ended is None:
            return self.born + START_S
        return max(self.calls[0].at, self.last_ended, self.answering or 0.0)

    @property
    def late_at(self) -> float:
        """When the call that it is busy with misses its deadline."""
        return self.began + self.calls[0].deadline_s

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing to read. An idle worker that is not has ended, or is not to be trusted."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        return not poll.poll(0)

    def send(self, message: list, call: WorkerCall | None = None) -> None:
        """`call`: None for a message that is not answered. A worker looks for modules where this process does now: in a
        notebook a folder may be added long after the worker began."""
        if (folders := import_path()) != self.looks_in:
            self.looks_in = folders
            self.outgoing += frame(json_bytes([LOOK_IN, folders], "folders"))
        if call is not None:
            self.calls.append(call)
        self.outgoing += frame(json_bytes(message, "a call"))
        self.flush()

    def flush(self) -> None:
        try:
            while self.outgoing and not self.cut_off:
                del self.outgoing[: self.connection.send(self.outgoing)]
        except BlockingIOError:
            pass
        except OSError:  # its end is closed; what it sent before, and why it ended, are read later
            self.outgoing.clear()

    def take_in(self, most_bytes: int) -> list[WorkerAnswer]:
        """The whole answers in all that it has sent so far; one that says it is longer than `most_bytes` is not read."""
        answers: list[WorkerAnswer] = []
        self.read = 0
        while not self.cut_off and not self.garbled:
            try:
                data = self.connection.recv(READ)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.incoming += data
            self.read += len(data)
            try:
                frames = take_frames(self.incoming, most_bytes + TIMES.size)
                for content in frames:
                    answers += self._answer(content)
            except (ValueError, RecursionError) as error:
                self.garbled = str(error)
                break
            if frames or self.answering is None:
                self.answering = time.monotonic() if self.incoming else None
            self.cut_off = not data
            if len(data) < READ:
                break
        return answers

    def _answer(self, content: bytes) -> list[WorkerAnswer]:
        """One, or none for its first word, which answers no call. Raises ValueError for what is no answer."""
        if len(content) < TIMES.size or not (self.calls or self.last_ended is None):
            raise ValueError("something that nobody asked for")
        seconds, ready = TIMES.unpack_from(content)
        answers = []
        if self.last_ended is not None:
            body = content[TIMES.size :]
            answers = [
                WorkerAnswer(self, self.calls[0], self.calls[0].read(body, seconds), body, seconds)
            ]
            self.calls.popleft()
            self.has_answered = True
        # With much to read the worker may have waited for the trainer: then its next call begins only now.
        waited = max(self.read, len(content)) > READ
        self.last_ended = time.monotonic() if waited else min(ready, time.monotonic())
        return answers
