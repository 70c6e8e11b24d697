"""Environments in worker processes: deadlines, and running an attempt again where its worker died.

Which attempt lives in which worker is `env_slots`'s business. What a worker's end means is decided here.

    deadline   a call that is not answered in time is the end of its attempt and of its worker (SIGKILL)
    siblings   what else lived there is run again in another worker, when its turn comes; it is charged with nothing
    crash      the attempt whose call a worker died in is run again too, at most `retries` times
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NoReturn

from workbench.envs.base import EnvFamily
from workbench.envs.runners import CLOSE_S, EnvAnswer
from workbench.envs.workers import env_wire
from workbench.envs.workers.env_slots import RunnerAttempt, AttemptCall, WorkerSlots
from workbench.envs.workers.pool import WorkerPool
from workbench.envs.workers.worker import Worker, WorkerAnswer, WorkerFailure
from workbench.types import Task
from workbench.types.errors import EnvError

SERVE = "workbench.envs.workers.env_wire:serve"  # what every worker does
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
        self.deadline_s, self.workers, self.retries, self.answer_bytes = (
            deadline_s,
            workers,
            retries,
            answer_bytes,
        )
        self._pool = WorkerPool(SERVE, answer_bytes)
        self._slots = WorkerSlots(self._pool, workers, deadline_s)
        self._attempts: dict[str, RunnerAttempt] = {}
        self._ready: list[EnvAnswer] = []

    @property
    def supervisor_pid(self) -> int | None:
        """The process that all workers are children of; None while there is none."""
        return self._pool.supervisor_pid

    # ------------------------------------------------------------------------------------------ the protocol

    def reset(self, key: str, family: EnvFamily, task: Task, dynamics_seed: int) -> None:
        self.close(key)
        call = env_wire.reset_call(family, task, dynamics_seed)
        attempt = self._attempts[key] = RunnerAttempt(
            key, [call], stays=bool(getattr(family, "holds_session", False))
        )
        self._slots.place(attempt)

    def step(self, key: str, action_text: str) -> None:
        attempt = self._attempts[key]
        attempt.calls.append(["step", action_text])
        self._slots.send(attempt, len(attempt.calls) - 1)

    def poll(self, wait_s: float = 0.0) -> list[EnvAnswer]:
        until, wait_s = time.monotonic() + wait_s, 0.0
        while True:
            for event in self._pool.listen(
                self._slots.workers, self.answer_bytes + env_wire.SPARE, wait_s
            ):
                self._on_event(event)
            self._slots.move_away_from_stuck()
            for attempt in list(self._slots.unplaced):
                self._slots.place(attempt)
            wait_s = self._slots.seconds_to_look(until - time.monotonic())
            if self._ready or wait_s <= 0 or self.supervisor_pid is None:
                ready, self._ready = self._ready, []
                return ready

    def close(self, key: str) -> None:
        attempt = self._attempts.pop(key, None)
        if attempt is None:
            return
        self._ready = [answer for answer in self._ready if answer.key != key]
        worker = attempt.worker
        first: AttemptCall | None = (
            worker.calls[0].owner if worker is not None and worker.calls else None
        )
        busy = first is not None and first.wanted and first.attempt is attempt
        self._slots.leave(attempt)
        if (
            busy
        ):  # closed in the middle of a call (an interrupt): otherwise it might go on without end
            self._slots.lose(worker)
        if not self._attempts:
            self._end_workers(self._slots.workers[self.workers :])

    def shutdown(self) -> None:
        """Let workers that are in no call close their environments, then kill all of them and the supervisor; returns
        once they are gone."""
        self._attempts, self._ready = {}, []
        self._end_workers(self._slots.workers)
        self._slots.unplaced.clear()
        self._pool.shutdown()

    def _end_workers(self, workers: Sequence[Worker]) -> None:
        """Those that are in no call close their environments first."""
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
        sent: AttemptCall = event.call.owner
        if not sent.wanted:
            return
        attempt = sent.attempt
        self._slots.measured(sent, event.seconds)
        if sent.index == len(attempt.answers):
            attempt.answers.append(event.content)
            attempt.seconds += event.seconds
            self._ready.append(event.value)
        elif difference := env_wire.first_difference(attempt.answers[sent.index], event.content):
            what = f"after action {sent.index}" if sent.index else "at its reset"
            self._end(
                attempt,
                "the environment is not deterministic: run again from its seed by the same actions, it "
                f"answered otherwise {what} ({difference}). Its worker had ended, so it cannot go on; "
                "draw all chance from task and dynamics_seed, and keep the time out of answers",
            )

    def _on_deadline(self, worker: Worker) -> None:
        sent: AttemptCall = worker.calls[0].owner
        wanted = sent.wanted
        self._slots.lose(worker)
        if wanted:
            again = sent.index < len(sent.attempt.answers)
            words = " when it was run again from its seed" if again else ""
            self._end(
                sent.attempt,
                f"no answer within {self.deadline_s:g} s{words}; its worker was killed",
                timed_out=True,
                seconds=time.monotonic() - worker.began,
            )

    def _on_death(self, worker: Worker, cause: str) -> None:
        """A worker has died by itself. The guilty are the attempt that it was busy with, or all of them if it was idle:
        they are run again, but not without end, since such a one may kill every worker."""
        guilty = {worker.calls[0].owner.attempt} if worker.calls else set(worker.residents)
        for attempt in self._slots.lose(worker):
            attempt.deaths += attempt in guilty
            if attempt in guilty and attempt.deaths > self.retries and attempt.waits:
                self._end(
                    attempt,
                    f"its worker process died {attempt.deaths} times, the last time by {cause}; it "
                    f"was run again from its seed {self.retries} times (collect.env_retries)",
                )

    def _end(
        self, attempt: RunnerAttempt, error: str, *, timed_out: bool = False, seconds: float = 0.0
    ) -> None:
        self._slots.leave(attempt)
        self._ready.append(
            EnvAnswer(attempt.key, error=error, timed_out=timed_out, seconds=seconds)
        )

    def _give_up(self, how: str) -> NoReturn:
        self.shutdown()
        raise EnvError(
            f"the process that starts environment workers ended by itself {how}; what it printed says why. "
            "Set collect.env_runner='threads' to go on without it"
        )
