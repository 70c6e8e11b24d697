"""Which attempt lives in which worker, when a worker is killed, and how what it held goes on.

A worker holds several environments and answers one call after the other. The trainer keeps of every attempt how it
began and what was done in it, so an environment can be made again anywhere: from its seed, by the same actions, and its
answers must be the same ones. That gives three things.

    deadline   a call that is not answered in time is the end of its attempt and of its worker (SIGKILL)
    siblings   what else lived there is run again in another worker, when its turn comes; it is charged with nothing
    crash      whoever's call a worker died in is run again too, at most `retries` times

A call that takes unusually long (`_patience`) makes its worker *stuck*: it is not waited for, another one takes its
place. What waits behind it moves away as soon as it has waited as long as running it again takes.
"""
from __future__ import annotations

import os
import selectors
import socket
import subprocess
import time
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from workbench.envs.base import EnvFamily
from workbench.envs.runners import EnvAnswer
from workbench.errors import EnvError
from workbench.processes.frames import frame, take_frames
from workbench.processes.supervisor import ORDER, REPORT, cause_of, let_go, start_supervisor
from workbench.types import Task
from workbench.workers import wire

MOST_PER_WORKER = 16       # processes there may be for each worker that answers: the rest are stuck in a call
PATIENCE_S = (0.05, 1.0)   # a call counts as stuck after three times the slowest recent one, within these
RECENT = 100
SERVE = "workbench.workers.worker:serve"  # what every worker does
START_S = 60.0             # within which a worker must have started, on a machine however busy
READ = 1 << 16             # bytes; more than that may have been more than a connection holds
MOST_SUPERVISORS = 5       # supervisors that may be killed before the run gives up


@dataclass(eq=False)
class _Episode:
    """One attempt: how to make it again, and where it lives now."""

    key: str
    calls: list[list]                                   # how it is reset, then every action
    answers: list[bytes] = field(default_factory=list)  # one for each call that was answered
    worker: _Worker | None = None
    slot: str = ""         # its name in that worker; another one each time it is made again, "" while it is nowhere
    seconds: float = 0.0   # what its calls took, and so what making it again will take
    deaths: int = 0

    @property
    def waits(self) -> bool:
        return len(self.answers) < len(self.calls)


@dataclass(frozen=True)
class _Sent:
    """A call on its way through a worker; it belongs to nobody any more once its episode has another slot."""

    episode: _Episode
    slot: str
    index: int  # in `episode.calls`
    at: float

    @property
    def wanted(self) -> bool:
        return self.episode.slot == self.slot


@dataclass(eq=False)
class _Worker:
    number: int
    connection: socket.socket
    sent: deque[_Sent] = field(default_factory=deque)  # answered in this order
    residents: set[_Episode] = field(default_factory=set)
    incoming: bytearray = field(default_factory=bytearray)
    outgoing: bytearray = field(default_factory=bytearray)
    last_ended: float | None = None  # its last call, or its start; None: it has not begun to work
    answering: float | None = None   # when the first part of an answer was read whose rest is still to come
    read: int = 0                    # bytes, in the newest look at its connection
    cut_off: bool = False            # its connection has ended; the supervisor will say why
    born: float = field(default_factory=time.monotonic)

    @property
    def began(self) -> float:
        """When what it is busy with began: a call, or handing over the answer. A worker may take its time to start:
        that is no environment's."""
        if self.last_ended is None:
            return self.born + START_S
        return max(self.sent[0].at, self.last_ended, self.answering or 0.0)


class ProcessRunner:
    """`EnvRunner` over worker processes. `deadline_s` bounds each call by the wall clock, from when its worker begins
    it; it is enforced in `poll`, so at the latest one tick of the engine after it.

    Families are handed over by class and fields: they are importable, and their fields are settings that JSON holds.
    Raises EnvError for others, and where no worker can be started at all.
    """

    def __init__(self, deadline_s: float = 30.0, workers: int = 4, retries: int = 2,
                 answer_bytes: int = 1_000_000) -> None:
        if not deadline_s > 0 or workers < 1 or retries < 0 or answer_bytes < 1:
            raise ValueError("deadline_s and answer_bytes are positive, workers at least 1, retries at least 0; got "
                             f"{deadline_s}, {answer_bytes}, {workers}, {retries}")
        self.deadline_s, self.workers, self.retries, self.answer_bytes = deadline_s, workers, retries, answer_bytes
        self._episodes: dict[str, _Episode] = {}
        self._workers: dict[int, _Worker] = {}
        self._ready: list[EnvAnswer] = []
        self._homeless: dict[_Episode, None] = {}  # episodes that wait and are nowhere, in order
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._numbers = self._slots = self._supervisors = 0
        self._control: socket.socket | None = None
        self._process: subprocess.Popen | None = None
        self._selector: selectors.BaseSelector | None = None
        self._heard = False  # did this supervisor say that it is ready
        self._reports = bytearray()
        self._let_go = lambda: None

    @property
    def supervisor_pid(self) -> int | None:
        """The process that all workers are children of; None while there is none."""
        return self._process.pid if self._control is not None else None

    # ------------------------------------------------------------------------------------------ the protocol

    def reset(self, key: str, family: EnvFamily, task: Task, dynamics_seed: int) -> None:
        episode = self._episodes[key] = _Episode(key, [wire.reset_call(family, task, dynamics_seed)])
        self._place(episode)

    def step(self, key: str, action_text: str) -> None:
        episode = self._episodes[key]
        episode.calls.append(["step", action_text])
        if episode.worker is not None:
            self._send(episode, len(episode.calls) - 1)
        else:
            self._homeless[episode] = None

    def poll(self, wait_s: float = 0.0) -> list[EnvAnswer]:
        until = time.monotonic() + wait_s
        self._listen(0.0)
        while True:
            self._kill_overdue()
            self._move_away_from_stuck()
            for episode in list(self._homeless):
                self._place(episode)
            for worker in list(self._workers.values()):
                self._flush(worker)
            now = time.monotonic()
            if self._ready or now >= until or self._control is None:
                ready, self._ready = self._ready, []
                return ready
            self._listen(self._next_event(until) - now)

    def close(self, key: str) -> None:
        episode = self._episodes.pop(key, None)
        if episode is None:
            return
        self._ready = [answer for answer in self._ready if answer.key != key]
        worker = episode.worker
        busy = worker is not None and worker.sent and worker.sent[0].wanted and worker.sent[0].episode is episode
        self._leave(episode)
        if busy:  # closed in the middle of a call (an interrupt): nobody would notice if it never came back
            self._lose(worker)
        if not self._episodes:
            for surplus in list(self._workers.values())[self.workers:]:
                self._lose(surplus)

    def shutdown(self) -> None:
        """Kill all workers and the supervisor; returns once they are gone."""
        self._episodes, self._ready, self._homeless = {}, [], {}
        self._forget_workers()
        self._let_go()
        self._let_go, self._control = (lambda: None), None

    # ------------------------------------------------------------------------------------------ episodes

    def _place(self, episode: _Episode) -> None:
        """Send all of an episode's calls to the worker with least to do, or to a new one."""
        self._homeless.pop(episode, None)
        stuck = self._stuck()
        fit = [w for w in self._workers.values() if not w.cut_off and w not in stuck]
        best = min(fit, key=lambda w: (len(w.sent), len(w.residents), w.number), default=None)
        if (best is None or best.sent or best.residents) and len(fit) < self.workers \
                and len(self._workers) < self.workers * MOST_PER_WORKER:
            best = self._new_worker()
        if best is None:  # as many as may be are stuck: later, when a deadline has passed
            self._homeless[episode] = None
            return
        self._slots += 1
        episode.worker, episode.slot = best, str(self._slots)
        best.residents.add(episode)
        for index in range(len(episode.calls)):
            self._send(episode, index)

    def _send(self, episode: _Episode, index: int) -> None:
        verb, *rest = episode.calls[index]
        worker = episode.worker
        worker.sent.append(_Sent(episode, episode.slot, index, time.monotonic()))
        self._write(worker, [verb, episode.slot, *rest])

    def _leave(self, episode: _Episode) -> None:
        """Whatever its worker still says of it belongs to nobody."""
        self._homeless.pop(episode, None)
        if episode.worker is not None:
            episode.worker.residents.discard(episode)
            self._write(episode.worker, ["drop", episode.slot])
        episode.worker, episode.slot = None, ""

    def _end(self, episode: _Episode, error: str, *, timed_out: bool = False, seconds: float = 0.0) -> None:
        self._leave(episode)
        self._ready.append(EnvAnswer(episode.key, error=error, timed_out=timed_out, seconds=seconds))

    def _take(self, worker: _Worker, content: bytes) -> None:
        """One answer of a worker. Raises ValueError for what is none."""
        if len(content) < wire.TIMES.size or not (worker.sent or worker.last_ended is None):
            raise ValueError("something that nobody asked for")
        seconds, ended = wire.TIMES.unpack_from(content)
        if worker.last_ended is None:  # the first word of every worker: it has begun
            worker.last_ended = min(ended, time.monotonic())
            return
        body, sent = content[wire.TIMES.size:], worker.sent[0]
        answer = wire.decode_answer(sent.episode.key, body, seconds)  # before anything is changed by it
        worker.sent.popleft()
        # With much to read its worker may have waited for the trainer: then the next call begins only now.
        waited = max(worker.read, len(content)) > READ
        worker.last_ended = time.monotonic() if waited else min(ended, time.monotonic())
        if not sent.wanted:
            return
        self._recent.append(seconds)
        episode = sent.episode
        if sent.index == len(episode.answers):
            episode.answers.append(body)
            episode.seconds += seconds
            self._ready.append(answer)
        elif difference := wire.first_difference(episode.answers[sent.index], body):
            what = f"after action {sent.index}" if sent.index else "at its reset"
            self._end(episode, "the environment is not deterministic: run again from its seed by the same actions, it "
                               f"answered otherwise {what} ({difference}). Its worker had ended, so it cannot go on; "
                               "draw all chance from task and dynamics_seed, and keep the time out of answers")

    # ------------------------------------------------------------------------------------------ watching

    def _patience(self) -> float:
        low, high = PATIENCE_S
        return min(max(low, 3 * max(self._recent, default=high)), high)

    def _stuck(self) -> set[_Worker]:
        late = time.monotonic() - self._patience()
        return {worker for worker in self._workers.values() if worker.sent and worker.began < late}

    def _kill_overdue(self) -> None:
        now = time.monotonic()

        def overdue(worker: _Worker) -> bool:
            return bool(worker.sent) and worker.began + self.deadline_s <= now

        for worker in [w for w in self._workers.values() if overdue(w)]:
            self._hear(worker)  # the trainer may have been away: what was answered meanwhile counts
            if worker.number not in self._workers or not overdue(worker):
                continue
            sent, took = worker.sent[0], now - worker.began
            wanted = sent.wanted
            self._lose(worker, spared=sent.episode if wanted else None)
            if wanted:
                again = sent.index < len(sent.episode.answers)
                words = " when it was run again from its seed" if again else ""
                self._end(sent.episode, f"no answer within {self.deadline_s:g} s{words}; its worker was killed",
                          timed_out=True, seconds=took)

    def _move_away_from_stuck(self) -> None:
        """Wait for a stuck worker as long as making the episode again would take, then make it again elsewhere."""
        now, patience = time.monotonic(), self._patience()
        for worker in self._stuck():
            behind = {sent.episode: sent for sent in reversed(worker.sent) if sent.wanted}
            behind.pop(worker.sent[0].episode, None)
            for episode, first in reversed(behind.items()):
                if now - max(first.at, worker.began) >= max(patience, episode.seconds):
                    self._leave(episode)
                    self._homeless[episode] = None

    def _next_event(self, until: float) -> float:
        times = [until]
        for worker in self._workers.values():
            if worker.sent:
                times.append(worker.began + self.deadline_s)
                if len(worker.sent) > 1 or self._homeless:
                    times.append(time.monotonic() + PATIENCE_S[0] / 2)
        return max(min(times), time.monotonic())

    # ------------------------------------------------------------------------------------------ workers

    def _new_worker(self) -> _Worker:
        self._start()
        self._numbers += 1
        ours, theirs = socket.socketpair()
        with theirs, suppress(OSError):  # a supervisor that has just died is noticed by its silence
            socket.send_fds(self._control, [ORDER.pack(b"+", self._numbers)], [theirs.fileno()])
        ours.setblocking(False)
        worker = self._workers[self._numbers] = _Worker(self._numbers, ours)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        return worker

    def _lose(self, worker: _Worker, spared: _Episode | None = None, cause: str | None = None) -> None:
        """Kill a worker. What lived there waits to be made again, apart from `spared`, whose end is told by the caller.

        `cause`: it died by itself of that. Then the episode it was busy with, or all of them if it was idle, are
        charged with a death, so that no episode kills workers for ever.
        """
        self._workers.pop(worker.number, None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(worker.connection)
        worker.connection.close()
        with suppress(OSError):
            self._control.send(ORDER.pack(b"-", worker.number))
        guilty = {worker.sent[0].episode} if worker.sent else set(worker.residents)
        for episode in sorted(worker.residents, key=lambda episode: int(episode.slot)):
            episode.worker, episode.slot = None, ""
            if cause is not None and episode in guilty:
                episode.deaths += 1
                if episode.deaths > self.retries and episode.waits:
                    self._end(episode, f"its worker process died {episode.deaths} times, the last time by {cause}; it "
                                       f"was run again from its seed {self.retries} times (collect.env_retries)")
                    continue
            if episode.waits and episode is not spared:
                self._homeless[episode] = None

    def _write(self, worker: _Worker, call: list) -> None:
        worker.outgoing += frame(wire.json_bytes(call, "a call"))
        self._flush(worker)

    def _flush(self, worker: _Worker) -> None:
        try:
            while worker.outgoing and not worker.cut_off:
                del worker.outgoing[: worker.connection.send(worker.outgoing)]
        except BlockingIOError:
            pass
        except OSError:  # nobody reads there any more: what it still said, and its end, are yet to be heard
            worker.outgoing.clear()

    # ------------------------------------------------------------------------------------------ listening

    def _listen(self, wait_s: float) -> None:
        """Take in what there is to read; waits up to `wait_s` for the first of it."""
        if self._control is None:
            return
        for ready, _ in self._selector.select(wait_s):
            if ready.data is None:
                self._hear_supervisor()
            elif ready.data.number in self._workers:
                self._hear(ready.data)

    def _hear(self, worker: _Worker) -> None:
        """Take in all that a worker has sent so far."""
        worker.read = 0
        while worker.number in self._workers and not worker.cut_off:
            try:
                data = worker.connection.recv(READ)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self._take_in(worker, data)
            if len(data) < READ:
                return

    def _take_in(self, worker: _Worker, data: bytes) -> None:
        worker.incoming += data
        worker.read += len(data)
        try:
            frames = take_frames(worker.incoming, self.answer_bytes + wire.SPARE)
            for content in frames:
                self._take(worker, content)
        except ValueError as error:
            return self._lose(worker, cause=f"writing into its connection to the run: {error}")
        if frames or worker.answering is None:
            worker.answering = time.monotonic() if worker.incoming else None
        if not data:  # it is dying, or has closed what it should not: the supervisor makes sure and says what of
            worker.cut_off = True
            with suppress(KeyError, ValueError):
                self._selector.unregister(worker.connection)
            with suppress(OSError):
                self._control.send(ORDER.pack(b"-", worker.number))

    def _hear_supervisor(self) -> None:
        try:
            data = self._control.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            return self._supervisor_is_gone()
        self._heard = True
        self._reports += data
        while len(self._reports) >= REPORT.size:
            kind, number, status = REPORT.unpack_from(self._reports)
            del self._reports[: REPORT.size]
            if kind == b"x" and (worker := self._workers.get(number)) is not None:
                self._hear(worker)  # answers that it gave before it died count
                if number in self._workers:
                    self._lose(worker, cause=cause_of(status))

    def _start(self) -> None:
        if self._control is not None:
            return
        self._supervisors += 1
        self._process, self._control = start_supervisor(SERVE, self.answer_bytes)
        self._selector, self._heard, self._reports = selectors.DefaultSelector(), False, bytearray()
        self._selector.register(self._control, selectors.EVENT_READ, None)
        self._let_go = weakref.finalize(self, let_go, os.getpid(), self._process, self._control, self._selector)

    def _supervisor_is_gone(self) -> None:
        """All workers have died with it. They are run again under a new one, unless it never got as far as working."""
        lost = list(self._workers.values())
        self._let_go()
        self._control = None
        if not self._heard or self._supervisors >= MOST_SUPERVISORS:
            self._forget_workers()
            raise EnvError("the process that starts environment workers ended by itself "
                           + ("several times" if self._heard else "before it could start one")
                           + "; what it printed says why. Set collect.env_runner='threads' to go on without it")
        for worker in lost:
            self._workers.pop(worker.number, None)
            worker.connection.close()
            for episode in worker.residents:
                episode.worker, episode.slot = None, ""
                if episode.waits:
                    self._homeless[episode] = None

    def _forget_workers(self) -> None:
        for worker in self._workers.values():
            worker.connection.close()
        self._workers = {}
