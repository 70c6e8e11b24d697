"""Which attempt lives in which worker, and how what a dead worker held is made again.

A worker holds several environments and answers one call after the other. The trainer keeps of every attempt how it
began and what was done in it, so an environment can be made again anywhere: from its seed, by the same actions, and its
answers must be the same ones.

A call that takes unusually long (`WorkerSlots.patience`) makes its worker *stuck*: it is not waited for, another one
takes its place. What waits behind it moves away as soon as it has waited as long as running it again takes.
"""
from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial

from workbench.envs.workers.env_wire import decode_answer
from workbench.envs.workers.pool import WorkerPool, room_for_another
from workbench.envs.workers.worker import Worker, WorkerCall

PATIENCE_S = (0.05, 1.0)   # a call counts as stuck after three times the slowest recent one, within these
RECENT = 100


@dataclass(eq=False)
class RunnerAttempt:
    """One attempt: how to make it again, and where it lives now."""

    key: str
    calls: list[list]                                   # how it is reset, then every action
    answers: list[bytes] = field(default_factory=list)  # one for each call that was answered
    worker: Worker | None = None
    slot: str = ""         # its name in that worker; another one each time it is made again, "" while it is nowhere
    seconds: float = 0.0   # what its calls took, and so what making it again will take
    deaths: int = 0

    @property
    def waits(self) -> bool:
        return len(self.answers) < len(self.calls)


@dataclass(frozen=True)
class AttemptCall:
    """A call of an attempt on its way through a worker, by its `index` in `attempt.calls`."""

    attempt: RunnerAttempt
    slot: str
    index: int

    @property
    def wanted(self) -> bool:
        """False once the attempt lives elsewhere: then its answer is dropped."""
        return self.attempt.slot == self.slot


class WorkerSlots:
    """Where every attempt lives. `workers`: processes that answer; one that is stuck is replaced until its deadline."""

    def __init__(self, pool: WorkerPool, workers: int, deadline_s: float) -> None:
        self.pool, self.most, self.deadline_s = pool, workers, deadline_s
        self.unplaced: dict[RunnerAttempt, None] = {}     # attempts that wait and are nowhere, in order
        self.recent: deque[float] = deque(maxlen=RECENT)  # seconds of answered calls
        self._numbers = 0

    @property
    def workers(self) -> list[Worker]:
        return list(self.pool.workers.values())

    def place(self, attempt: RunnerAttempt) -> None:
        """Send all of an attempt's calls to the worker with least to do, or to a new one."""
        self.unplaced.pop(attempt, None)
        workers, stuck = self.workers, self.stuck()
        fit = [worker for worker in workers if not worker.cut_off and worker not in stuck]
        best = min(fit, key=lambda worker: (len(worker.calls), len(worker.residents), worker.number), default=None)
        if (best is None or best.calls or best.residents) \
                and room_for_another(len(workers), len(workers) - len(fit), self.most):
            best = self.pool.start()
        if best is None:  # as many as may be are stuck: later, when a deadline has passed
            self.unplaced[attempt] = None
            return
        self._numbers += 1
        attempt.worker, attempt.slot = best, str(self._numbers)
        best.residents.add(attempt)
        for index in range(len(attempt.calls)):
            self.send(attempt, index)

    def send(self, attempt: RunnerAttempt, index: int) -> None:
        """Send one of its calls to where it lives; where it is nowhere, it waits for a place."""
        if attempt.worker is None:
            self.unplaced[attempt] = None
            return
        verb, *rest = attempt.calls[index]
        sent = AttemptCall(attempt, attempt.slot, index)
        call = WorkerCall(sent, self.deadline_s, partial(decode_answer, attempt.key))
        attempt.worker.send([verb, attempt.slot, *rest], call)

    def leave(self, attempt: RunnerAttempt) -> None:
        """Remove an attempt from its worker; answers still on their way are dropped."""
        self.unplaced.pop(attempt, None)
        if attempt.worker is not None:
            attempt.worker.residents.discard(attempt)
            attempt.worker.send(["drop", attempt.slot])
        attempt.worker, attempt.slot = None, ""

    def lose(self, worker: Worker) -> list[RunnerAttempt]:
        """Kill a worker and return the attempts that lived there. Those that wait for an answer wait for another worker."""
        self.pool.kill(worker)
        lived = sorted(worker.residents, key=lambda attempt: int(attempt.slot))
        worker.residents.clear()
        for attempt in lived:
            attempt.worker, attempt.slot = None, ""
            if attempt.waits:
                self.unplaced[attempt] = None
        return lived

    # ------------------------------------------------------------------------------------------ stuck workers

    @property
    def patience(self) -> float:
        """Seconds after which a call makes its worker stuck."""
        low, high = PATIENCE_S
        return min(max(low, 3 * max(self.recent, default=high)), high)

    def stuck(self) -> set[Worker]:
        late = time.monotonic() - self.patience
        return {worker for worker in self.workers if worker.calls and worker.began < late}

    def move_away_from_stuck(self) -> None:
        """Wait for a stuck worker as long as making the attempt again would take, then make it again elsewhere."""
        now, patience = time.monotonic(), self.patience
        for worker in self.stuck():
            behind = {call.owner.attempt: call for call in reversed(worker.calls) if call.owner.wanted}
            behind.pop(worker.calls[0].owner.attempt, None)
            for attempt, first in reversed(behind.items()):
                if now - max(first.at, worker.began) >= max(patience, attempt.seconds):
                    self.leave(attempt)
                    self.unplaced[attempt] = None

    def seconds_to_look(self, most: float) -> float:
        """Within which to look again whether something may move away, where something may."""
        may_move = any(len(worker.calls) > 1 or worker.calls and self.unplaced for worker in self.workers)
        return min(most, PATIENCE_S[0] / 2) if may_move else most
