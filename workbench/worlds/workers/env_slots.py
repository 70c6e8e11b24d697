"""Which trajectory lives in which worker, and how what a dead worker held is made again.

A worker holds several environments and answers one call after the other. The trainer keeps of every trajectory how it
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

from workbench.tools.workers.pool import WorkerPool, room_for_another
from workbench.tools.workers.worker import Worker, WorkerCall
from workbench.worlds.workers.env_wire import decode_answer

LEAST_PATIENCE_S = 0.05
FIRST_PATIENCE_S = 5.0  # while nothing is known; a worker's first call imports much
RECENT = 100  # calls of a kind (a reset, a step) that are remembered
USUAL = 0.9  # the share of them that took no longer than what is usual


@dataclass(eq=False)
class RunnerTrajectory:
    """One trajectory: how to make it again, and where it lives now."""

    key: str
    calls: list[list]  # how it is reset, then every action
    stays: bool = False  # not made a second time while the first one may live: `holds_session`
    answers: list[bytes] = field(default_factory=list)  # one for each call that was answered
    worker: Worker | None = None
    slot: str = ""  # its name in that worker, another one each time; "" while it is nowhere
    seconds: float = 0.0  # what its calls took, and so what making it again will take
    deaths: int = 0

    @property
    def waits(self) -> bool:
        return len(self.answers) < len(self.calls)


@dataclass(frozen=True)
class TrajectoryCall:
    """A call of a trajectory on its way through a worker, by its `index` in `trajectory.calls`."""

    trajectory: RunnerTrajectory
    slot: str
    index: int

    @property
    def is_reset(self) -> bool:
        return self.index == 0

    @property
    def wanted(self) -> bool:
        """False once the trajectory lives elsewhere: then its answer is dropped."""
        return self.trajectory.slot == self.slot


class WorkerSlots:
    """Where every trajectory lives. `workers`: processes that answer; one that is stuck is replaced until its deadline."""

    def __init__(self, pool: WorkerPool, workers: int, deadline_s: float) -> None:
        self.pool = pool
        self.most = workers
        self.deadline_s = deadline_s
        # Trajectories that wait and are nowhere, in order.
        self.unplaced: dict[RunnerTrajectory, None] = {}
        # Seconds of answered calls, of resets (True) and of steps (False).
        self.recent: dict[bool, deque[float]] = {
            kind: deque(maxlen=RECENT) for kind in (True, False)
        }
        self._numbers = 0

    @property
    def workers(self) -> list[Worker]:
        return list(self.pool.workers.values())

    def place(self, trajectory: RunnerTrajectory) -> None:
        """Send all of a trajectory's calls to the worker with least to do, or to a new one."""
        self.unplaced.pop(trajectory, None)
        workers = self.workers
        stuck = self.stuck()
        fit = [worker for worker in workers if not worker.cut_off and worker not in stuck]
        best = min(fit, key=_load, default=None)
        is_idle = best is not None and not best.calls and not best.residents
        if not is_idle and room_for_another(len(workers), len(workers) - len(fit), self.most):
            best = self.pool.start()
        if best is None:  # as many as may be are stuck: later, when a deadline has passed
            self.unplaced[trajectory] = None
            return
        self._numbers += 1
        trajectory.worker = best
        trajectory.slot = str(self._numbers)
        best.residents.add(trajectory)
        for index in range(len(trajectory.calls)):
            self.send(trajectory, index)

    def measured(self, call: TrajectoryCall, seconds: float) -> None:
        """A call was answered."""
        self.recent[call.is_reset].append(seconds)

    def send(self, trajectory: RunnerTrajectory, index: int) -> None:
        """Send one of its calls to where it lives; where it is nowhere, it waits for a place."""
        if trajectory.worker is None:
            self.unplaced[trajectory] = None
            return
        verb, *rest = trajectory.calls[index]
        sent = TrajectoryCall(trajectory, trajectory.slot, index)
        call = WorkerCall(sent, self.deadline_s, partial(decode_answer, trajectory.key))
        trajectory.worker.send([verb, trajectory.slot, *rest], call)

    def leave(self, trajectory: RunnerTrajectory) -> None:
        """Remove a trajectory from its worker; answers still on their way are dropped."""
        self.unplaced.pop(trajectory, None)
        if trajectory.worker is not None:
            trajectory.worker.residents.discard(trajectory)
            trajectory.worker.send(["drop", trajectory.slot])
        trajectory.worker = None
        trajectory.slot = ""

    def lose(self, worker: Worker) -> list[RunnerTrajectory]:
        """Kill a worker and return the trajectories that lived there. Those that wait for an answer wait for another worker."""
        self.pool.kill(worker)
        lived = sorted(worker.residents, key=lambda trajectory: int(trajectory.slot))
        worker.residents.clear()
        for trajectory in lived:
            trajectory.worker = None
            trajectory.slot = ""
            if trajectory.waits:
                self.unplaced[trajectory] = None
        return lived

    # ------------------------------------------------------------------------------------------ stuck workers

    def patience(self, worker: Worker) -> float:
        """Seconds after which the call that it is busy with makes this worker stuck: three times what is usual."""
        recent = sorted(self.recent[worker.calls[0].owner.is_reset])
        if not (recent and worker.has_answered):
            return min(FIRST_PATIENCE_S, self.deadline_s / 2)
        return max(LEAST_PATIENCE_S, 3 * recent[math.ceil(USUAL * len(recent)) - 1])

    def stuck(self) -> dict[Worker, float]:
        """The workers that are stuck, with the patience that each was granted."""
        now = time.monotonic()
        busy = {worker: self.patience(worker) for worker in self.workers if worker.calls}
        return {
            worker: patience for worker, patience in busy.items() if worker.began < now - patience
        }

    def move_away_from_stuck(self) -> None:
        """Wait for a stuck worker as long as making the trajectory again would take, then make it again elsewhere."""
        now = time.monotonic()
        for worker, patience in self.stuck().items():
            behind = {
                call.owner.trajectory: call for call in reversed(worker.calls) if call.owner.wanted
            }
            behind.pop(worker.calls[0].owner.trajectory, None)
            for trajectory, first in reversed(behind.items()):
                waited = now - max(first.at, worker.began)
                if not trajectory.stays and waited >= max(patience, trajectory.seconds):
                    self.leave(trajectory)
                    self.unplaced[trajectory] = None

    def seconds_to_look(self, most: float) -> float:
        """Within which to look again whether something may move away, where something may."""
        enough = 1 if self.unplaced else 2  # calls of a worker, one of which might move away
        may_move = any(len(worker.calls) >= enough for worker in self.workers)
        return min(most, LEAST_PATIENCE_S / 2) if may_move else most


def _load(worker: Worker) -> tuple[int, int, int]:
    """Sorts workers by how much they have to do."""
    return (len(worker.calls), len(worker.residents), worker.number)
