"""Attempts at work, as collecting sees them: an environment runner whose answers are what programs do.

    Began    the environment of the task is there, and its first observation
    HttpCall a call of the model
    Ended    the program returned, raised, or was given up

The program has the clock: it calls when it likes, several times at once if it likes, and whoever waits for one program waits
for no other.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.extensions.agents.gateway import HttpCall, OpenAttempt, gateway
from workbench.extensions.agents.program import (
    ModelAddress,
    ProgramError,
    ProgramRun,
    ProgramTask,
    kept_return,
    scored_return,
)
from workbench.extensions.agents.wires.fields import FieldRules
from workbench.values import Observation, StepResult, StopReason, Task
from workbench.values.errors import where_raised
from workbench.worlds.runners import check_messages
from workbench.worlds.shared import opened

# Errors that tell a program of a limit of ours -> what such a trajectory ended by.
STOPS = {
    "context_length_exceeded": StopReason.CONTEXT_FULL,
    "most_calls": StopReason.MAX_TURNS,
}


@dataclass(frozen=True, eq=False)
class BegunAttempt:
    """The environment answered: its first observation, how the policy's calls are written in it (None: not said), and the
    task as the program sees it."""

    key: str
    observation: Observation
    format: Any
    task: ProgramTask


@dataclass(frozen=True, eq=False)
class EndedAttempt:
    """A program is over: what it returned and earned, or the fault that ended it. `failed`: the fault is the program's own."""

    key: str
    result: StepResult | None = None
    returned: Any = None
    reason: StopReason = StopReason.TERMINATED
    error: str | None = None
    failed: bool = False


Happening = BegunAttempt | HttpCall | EndedAttempt


@dataclass(eq=False)
class _Work:
    """One program at work, in its thread."""

    attempt: OpenAttempt
    run: ProgramRun
    over: bool = False


@dataclass(eq=False)
class ProgramRunner:
    """Starts a program for each trajectory and hands over what they do, in the order in which they did it."""

    rules: FieldRules
    idle_s: float
    judged: bool = False  # a function scores attempts, and the environment of the task does not
    _inbox: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)
    _work: dict[str, _Work] = field(default_factory=dict)

    def reset(self, key: str, family: Any, task: Task, dynamics_seed: int) -> None:
        attempt = OpenAttempt(key, self._inbox, self.rules)
        work = _Work(attempt, ProgramRun(family.program))
        self._work[key] = work
        threading.Thread(
            target=self._serve,
            args=(work, family.inside, task, dynamics_seed),
            daemon=True,
            name=f"agent {key}",
        ).start()

    def step(self, key: str, action_text: str) -> None:
        raise NotImplementedError("a program is answered by its call, not stepped")

    def poll(self, wait_s: float = 0.0) -> list[Happening]:
        """What happened; waits up to `wait_s` for the first of it."""
        happened: list[Happening] = []
        try:
            happened.append(self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait())
            while True:
                happened.append(self._inbox.get_nowait())
        except queue.Empty:
            pass
        return happened + self._given_up()

    def attempt(self, key: str) -> OpenAttempt:
        return self._work[key].attempt

    def close(self, key: str) -> None:
        work = self._work.pop(key, None)
        if work is not None:
            gateway().close(work.attempt)
            work.run.stop()

    def shutdown(self) -> None:
        for key in list(self._work):
            self.close(key)

    def _given_up(self) -> list[EndedAttempt]:
        """Programs that neither called nor ended for too long. Time that a call of theirs waits is not theirs."""
        late = []
        now = time.monotonic()
        for key, work in self._work.items():
            if work.attempt.waiting:
                work.attempt.active = now
            if not work.over and now - work.attempt.active > self.idle_s:
                work.over = True
                words = (
                    f"agent_idle: neither a call nor an end within {self.idle_s:g} s (env.idle_s)"
                )
                late.append(
                    EndedAttempt(key, reason=StopReason.ENV_TIMEOUT, error=words, failed=True)
                )
        return late

    # -------------------------------------------------------------------------------------------- in the program's thread

    def _serve(self, work: _Work, family: Any, task: Task, dynamics_seed: int) -> None:
        key = work.attempt.key
        try:
            with opened(family) as env:
                first = env.reset(task, dynamics_seed)
                check_messages(first)
                shown = ProgramTask.of(task, env, first)
                work.attempt.task = shown.facts()
                work.attempt.tools = shown.call
                model = ModelAddress(gateway().open(work.attempt), work.attempt.secret)
                self._inbox.put(BegunAttempt(key, first, getattr(env, "format", None), shown))
                ended = self._ended(key, work, shown, model, env)
        except (Exception, SystemExit) as error:  # the environment's own fault
            words = f"{type(error).__name__}: {error} ({where_raised(error)})"
            ended = EndedAttempt(key, reason=StopReason.ENV_ERROR, error=words)
        self._end(work, ended)

    def _ended(
        self, key: str, work: _Work, task: ProgramTask, model: ModelAddress, env: Any
    ) -> EndedAttempt:
        reason = StopReason.TERMINATED
        try:
            value = work.run.returned(task, model)
        except (Exception, SystemExit) as error:  # somebody else's program
            reason = _limit(work.attempt.refused)
            if reason is None:
                words = f"agent_raised: {type(error).__name__}: {error} ({where_raised(error)})"
                if isinstance(error, ProgramError):
                    words = str(error)
                return EndedAttempt(key, reason=StopReason.ENV_ERROR, error=words, failed=True)
            value = None  # what it would have answered is not known: as if it had answered nothing
        if work.over:
            return EndedAttempt(key)
        result = kept_return(value) if self.judged else scored_return(value, env)
        if reason is StopReason.TERMINATED and not result.terminated:
            reason = StopReason.ENV_TRUNCATED
        return EndedAttempt(key, result, value, reason)

    def _end(self, work: _Work, ended: EndedAttempt) -> None:
        work.attempt.closed = True  # what still calls is late; what waits is answered
        if not work.over:
            work.over = True
            self._inbox.put(ended)


def _limit(refused: Sequence[Any]) -> StopReason | None:
    """The limit of ours that a program was last told of, where it was."""
    codes = [call.code for call in refused]
    return STOPS.get(codes[-1]) if codes else None
