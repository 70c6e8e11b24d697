"""Environments in worker processes: deadlines, and running a trajectory again where its worker died.

Which trajectory lives in which worker is `env_slots`'s business. What a worker's end means is decided here.

    deadline   a call that is not answered in time is the end of its trajectory and of its worker (SIGKILL)
    siblings   what else lived there is run again in another worker, when its turn comes; it is charged with nothing
    crash      the trajectory whose call a worker died in is run again too, at most `retries` times
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NoReturn

from workbench.tools.workers.pool import WorkerPool
from workbench.tools.workers.worker import Worker, WorkerAnswer, WorkerFailure
from workbench.values import Task
from workbench.values.errors import EnvError
from workbench.worlds.base import EnvFamily
from workbench.worlds.runners import CLOSE_S, EnvAnswer
from workbench.worlds.workers import env_wire
from workbench.worlds.workers.env_slots import RunnerTrajectory, TrajectoryCall, WorkerSlots

SERVE = "workbench.worlds.workers.env_wire:serve"  # what every worker does
MOST_SUPERVISORS = 5  # supervisors that may be killed before the run gives up


class ProcessRunner:
    """`EnvRunner` over worker processes. `deadline_s` bounds each call by the wall clock, from when its worker begins
    it; it is enforced in `poll`, so at the latest one tick of the engine after it.

    Families are handed over by class and fields: they are importable, and their fields are settings that JSON holds.
    Raises EnvError for others, and where no worker can be started at all.
    """

    def __init__(
        self,
        deadline_s: float = 30.0,
        workers: int = 4,
        retries: int = 2,
        answer_bytes: int = 1_000_000,
    ) -> None:
        if not deadline_s > 0 or workers < 1 or retries < 0 or answer_bytes < 1:
            raise ValueError(
                "deadline_s and answer_bytes are positive, workers at least 1, retries at least 0; got "
                f"{deadline_s}, {answer_bytes}, {workers}, {retries}"
            )
        self.deadline_s = deadline_s
        self.workers = workers
        self.retries = retries
        self.answer_bytes = answer_bytes
        self._pool = WorkerPool(SERVE, answer_bytes)
        self._slots = WorkerSlots(self._pool, workers, deadline_s)
        self._trajectories: dict[str, RunnerTrajectory] = {}
        self._ready: list[EnvAnswer] = []

    @property
    def supervisor_pid(self) -> int | None:
        """The process that all workers are children of; None while there is none."""
        return self._pool.supervisor_pid

    # ------------------------------------------------------------------------------------------ the protocol

    def reset(self, key: str, family: EnvFamily, task: Task, dynamics_seed: int) -> None:
        self.close(key)
        call = env_wire.reset_call(family, task, dynamics_seed)
        holds_session = bool(getattr(family, "holds_session", False))
        trajectory = RunnerTrajectory(key, [call], stays=holds_session)
        self._trajectories[key] = trajectory
        self._slots.place(trajectory)

    def step(self, key: str, action_text: str) -> None:
        trajectory = self._trajectories[key]
        trajectory.calls.append(["step", action_text])
        self._slots.send(trajectory, len(trajectory.calls) - 1)

    def poll(self, wait_s: float = 0.0) -> list[EnvAnswer]:
        until = time.monotonic() + wait_s
        wait_s = 0.0
        most_bytes = self.answer_bytes + env_wire.SPARE
        while True:
            for event in self._pool.listen(self._slots.workers, most_bytes, wait_s):
                self._on_event(event)
            self._slots.move_away_from_stuck()
            for trajectory in list(self._slots.unplaced):
                self._slots.place(trajectory)
            wait_s = self._slots.seconds_to_look(until - time.monotonic())
            if self._ready or wait_s <= 0 or self.supervisor_pid is None:
                ready = self._ready
                self._ready = []
                return ready

    def close(self, key: str) -> None:
        trajectory = self._trajectories.pop(key, None)
        if trajectory is None:
            return
        self._ready = [answer for answer in self._ready if answer.key != key]
        worker = trajectory.worker
        is_busy = False
        if worker is not None and worker.calls:
            first: TrajectoryCall = worker.calls[0].owner
            is_busy = first.wanted and first.trajectory is trajectory
        self._slots.leave(trajectory)
        if is_busy:  # closed in the middle of a call (an interrupt), which may never end
            self._slots.lose(worker)
        if not self._trajectories:
            self._end_workers(self._slots.workers[self.workers :])

    def shutdown(self) -> None:
        """Let workers that are in no call close their environments, then kill all of them and the supervisor; returns
        once they are gone."""
        self._trajectories = {}
        self._ready = []
        self._end_workers(self._slots.workers)
        self._slots.unplaced.clear()
        self._pool.shutdown()

    def _end_workers(self, workers: Sequence[Worker]) -> None:
        """End workers; those that are in no call close their environments first."""
        self._pool.let_end([worker for worker in workers if not worker.calls], CLOSE_S)
        for worker in workers:
            self._slots.lose(worker)

    # ------------------------------------------------------------------------------------------ answers and ends

    def _on_event(self, event: WorkerAnswer | WorkerFailure) -> None:
        if isinstance(event, WorkerAnswer):
            self._on_answer(event)
        elif event.how == "supervisor":
            if event.words or self._pool.supervisors >= MOST_SUPERVISORS:
                self._give_up(event.words or "several times")
            self._slots.lose(event.worker)
        elif event.how == "late":
            self._on_deadline(event.worker)
        else:
            wrote = "writing into its connection to the run: " if event.how == "garbled" else ""
            self._on_death(event.worker, wrote + event.words)

    def _on_answer(self, event: WorkerAnswer) -> None:
        sent: TrajectoryCall = event.call.owner
        if not sent.wanted:
            return
        trajectory = sent.trajectory
        self._slots.measured(sent, event.seconds)
        if sent.index == len(trajectory.answers):
            trajectory.answers.append(event.content)
            trajectory.seconds += event.seconds
            self._ready.append(event.value)
        elif difference := env_wire.first_difference(trajectory.answers[sent.index], event.content):
            what = f"after action {sent.index}" if sent.index else "at its reset"
            self._end(
                trajectory,
                "the environment is not deterministic: run again from its seed by the same actions, it "
                f"answered otherwise {what} ({difference}). Its worker had ended, so it cannot go on; "
                "draw all chance from task and dynamics_seed, and keep the time out of answers",
            )

    def _on_deadline(self, worker: Worker) -> None:
        sent: TrajectoryCall = worker.calls[0].owner
        wanted = sent.wanted
        self._slots.lose(worker)
        if wanted:
            again = sent.index < len(sent.trajectory.answers)
            words = " when it was run again from its seed" if again else ""
            self._end(
                sent.trajectory,
                f"no answer within {self.deadline_s:g} s{words}; its worker was killed",
                timed_out=True,
                seconds=time.monotonic() - worker.began,
            )

    def _on_death(self, worker: Worker, cause: str) -> None:
        """A worker has died by itself. The guilty are the trajectory that it was busy with, or all of them if it was idle:
        they are run again, but not without end, since such a one may kill every worker."""
        guilty = {worker.calls[0].owner.trajectory} if worker.calls else set(worker.residents)
        for trajectory in self._slots.lose(worker):
            trajectory.deaths += trajectory in guilty
            if trajectory in guilty and trajectory.deaths > self.retries and trajectory.waits:
                self._end(
                    trajectory,
                    f"its worker process died {trajectory.deaths} times, the last time by {cause}; it "
                    f"was run again from its seed {self.retries} times (collect.env_retries)",
                )

    def _end(
        self,
        trajectory: RunnerTrajectory,
        error: str,
        *,
        timed_out: bool = False,
        seconds: float = 0.0,
    ) -> None:
        self._slots.leave(trajectory)
        self._ready.append(
            EnvAnswer(trajectory.key, error=error, timed_out=timed_out, seconds=seconds)
        )

    def _give_up(self, how: str) -> NoReturn:
        self.shutdown()
        raise EnvError(
            f"the process that starts environment workers ended by itself {how}; what it printed says why. "
            "Set collect.env_runner='threads' to go on without it"
        )
