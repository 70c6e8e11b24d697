"""Which attempt lives in which worker, and how what a dead worker held is made again.

A worker holds several environments and answers one call after the other. The trainer keeps of every attempt how it
began and what was done in it, so an environment can be made again anywhere: from its seed, by the same actions, and its
answers must be the same ones.

A call that takes unusually long (`WorkerSlots.patience`) makes its worker *stuck*: it is not waited for, another one
takes its place. What waits behind it moves away as soon as it has waited as long as running it again takes. What is
unusual is measured: an environment whose steps all take seconds is slow and not stuck, and more workers would only make
it slower.
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial

from workbench.envs.workers.env_wire import decode_answer
from workbench.envs.workers.pool import WorkerPool, room_for_another
from workbench.envs.workers.worker import Worker, WorkerCall

LEAST_PATIENCE_S = 0.05
FIRST_PATIENCE_S = (
    5.0  # while nothing is known; a worker's first call imports what the environment needs
)
RECENT = 100  # calls of a kind (a reset, a step) that are remembered
USUAL = 0.9  # the share of them that took no longer than what is usual


@dataclass(eq=False)
class RunnerAttempt:
    """One attempt: how to make it again, and where it lives now."""

    key: str
    calls: list[list]  # how it is reset, then every action
    stays: bool = (
        False  # it is not made a second time while the first one may live: `holds_session`
    )
    answers: list[bytes] = field(default_factory=list)  # one for each call that was answered
    worker: Worker | None = None
    slot: str = ""  # its name in that worker; another one each time it is made again, "" while it is nowhere
    seconds: float = 0.0  # what its calls took, and so what making it again will take
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
    def is_reset(self) -> bool:
        return self.index == 0

    @property
    def wanted(self) -> bool:
        """False once the attempt lives elsewhere: then its answer is dropped."""
        return self.attempt.slot == self.slot


class WorkerSlots:
    """Where every attempt lives. `workers`: processes that answer; one that is stuck is replaced until its deadline."""

    def __init__(self, pool: WorkerPool, workers: int, deadline_s: float) -> None:
        self.pool, self.most, self.deadline_s = pool, workers, deadline_s
        self.unplaced: dict[
            RunnerAttempt, None
        ] = {}  # attempts that wait and are nowhere, in order
        # Seconds of answered calls, of resets (True) and of steps (False).
        self.recent: dict[bool, deque[float]] = {
            kind: deque(maxlen=RECENT) for kind in (True, False)
        }
        self._numbers = 0

    @property
    def workers(self) -> list[Worker]:
        return list(self.pool.workers.values())

    def place(self, attempt: RunnerAttempt) -> None:
        """Send all of an attempt's calls to the worker with least to do, or to a new one."""
        self.unplaced.pop(attempt, None)
        workers, stuck = self.workers, self.stuck()
        fit = [worker for worker in workers if not worker.cut_off and worker not in stuck]
        best = min(
            fit,
            key=lambda worker: (len(worker.calls), len(worker.residents), worker.number),
            default=None,
        )
        if (best is None or best.calls or best.residents) and room_for_another(
            len(workers), len(workers) - len(fit), self.most
        ):
            best = self.pool.start()
        if best is None:  # as many as may be are stuck: later, when a deadline has passed
            self.unplaced[attempt] = None
            return
        self._numbers += 1
        attempt.worker, attempt.slot = best, str(self._numbers)
        best.residents.add(attempt)
        for index in range(len(attempt.calls)):
            self.send(attempt, index)

    def measured(self, call: AttemptCall, seconds: float) -> None:
        """A call was answered."""
        self.recent[call.is_reset].append(seconds)

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

    def patience(self, worker: Worker) -> float:
        """Seconds after which the call that it is busy with makes this worker stuck: three times what is usual."""
        recent = sorted(self.recent[worker.calls[0].owner.is_reset])
        if not (recent and worker.has_answered):
            return min(FIRST_PATIENCE_S, self.deadline_s / 2)
        return max(LEAST_PATIENCE_S, 3 * recent[math.ceil(USUAL * len(recent)) - 1])

    def stuck(self) -> dict[Worker, float]:
        """Those that are stuck, with the patience that each was granted."""
        now = time.monotonic()
        busy = {worker: self.patience(worker) for worker in self.workers if worker.calls}
        return {
            worker: patience for worker, patience in busy.items() if worker.began < now - patience
        }

    def move_away_from_stuck(self) -> None:
        """Wait for a stuck worker as long as making the attempt again would take, then make it again elsewhere."""
        now = time.monotonic()
        for worker, patience in self.stuck().items():
            behind = {
                call.owner.attempt: call for call in reversed(worker.calls) if call.owner.wanted
            }
            behind.pop(worker.calls[0].owner.attempt, None)
            for attempt, first in reversed(behind.items()):
                if not attempt.stays and now - max(first.at, worker.began) >= max(
                    patience, attempt.seconds
                ):
                    self.leave(attempt)
                    self.unplaced[attempt] = None

    def seconds_to_look(self, most: float) -> float:
        """Within which to look again whether something may move away, where something may."""
        may_move = any(
            len(worker.calls) > 1 or worker.calls and self.unplaced for worker in self.workers
        )
        return min(most, LEAST_PATIENCE_S / 2) if may_move else most
