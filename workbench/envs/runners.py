"""Who steps the environments: the seam between collecting and environments that may be slow, hung or in another
process.

Calls are data (which attempt, which action), never closures, so a runner may live in this thread, in threads of its own
or in worker processes. Every call is answered exactly once by `poll`, by a value, an error or a missed deadline.

    InlineRunner   steps in the caller's own thread, at once: deterministic, for pure and fast environments
    ThreadRunner   one daemon thread per attempt: a slow environment delays no other, a hung one is given up at its
                   deadline
    ProcessRunner  in `workbench.envs.workers`: a hung environment is killed at its deadline, a dead one is run again
"""
from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Protocol

from workbench.envs.base import Env, EnvFamily
from workbench.types import Message, Observation, StepResult, Task, Text
from workbench.types.errors import EnvError


@dataclass(frozen=True)
class EnvAnswer:
    """What came of one call. Exactly one of `observation` (reset), `result` (step) and `error` is set.

    `state_key` names the state the environment is in now, where it can. `seconds` is wall-clock time: never hashed.
    """

    key: str
    observation: Observation | None = None
    result: StepResult | None = None
    error: str | None = None
    timed_out: bool = False
    state_key: str | None = None
    seconds: float = 0.0


class EnvRunner(Protocol):
    def reset(self, key: str, family: EnvFamily, task: Task, dynamics_seed: int) -> None:
        """Make a fresh environment under the name `key` and start `task` in it."""

    def step(self, key: str, action_text: str) -> None: ...

    def poll(self, wait_s: float = 0.0) -> list[EnvAnswer]:
        """Answers that are ready, in the order in which they came; waits up to `wait_s` for the first one."""

    def close(self, key: str) -> None:
        """The attempt is over. Unknown keys are ignored."""

    def shutdown(self) -> None:
        """Give back threads and processes. A runner that is used again after it starts anew."""


def check_messages(observation: Observation) -> None:
    """Raise EnvError unless messages are made of what `types` says: anything else could be neither shown nor stored."""
    if not isinstance(observation, Observation):
        raise EnvError(f"the observation of a StepResult is an Observation, got {type(observation).__name__}")
    for message in observation.messages:
        if not isinstance(message, Message) or not all(isinstance(part, Text) for part in message.content):
            raise EnvError(f"an Observation holds Messages whose content is Texts, got {message!r}")
        words = (message.role, *(part.text for part in message.content))
        names = (message.name, message.tool_call_id)
        if not all(isinstance(word, str) for word in (*words, *(name for name in names if name is not None))):
            raise EnvError(f"role, texts and names of a Message are strings, got {message!r}")


def answer_call(key: str, call: Callable[[], Observation | StepResult], envs: dict[str, Env],
                caught: tuple[type[BaseException], ...]) -> EnvAnswer:
    """Run `call`, which resets or steps `envs[key]`, and make an answer of whatever comes of it."""
    started = time.monotonic()
    try:
        value = call()
        if not isinstance(value, (Observation, StepResult)):
            raise EnvError(
                "an environment returns an Observation from reset and a StepResult from step, "
                f"got {type(value).__name__}"
            )
        check_messages(value if isinstance(value, Observation) else value.observation)
        state_key = envs[key].state_key() if hasattr(envs[key], "state_key") else None
        if state_key is not None and not isinstance(state_key, str):
            raise EnvError(f"state_key() names a state by a string, got {state_key!r}")
    except caught as error:  # a third-party environment may raise anything (law 10)
        where = traceback.extract_tb(error.__traceback__)[-1]
        try:
            words = str(error)
        except caught:
            words = "(an exception whose text cannot be read)"
        text = f"{type(error).__name__}: {words} ({where.filename.rsplit('/', 1)[-1]}:{where.lineno})"
        return EnvAnswer(key, error=text, seconds=time.monotonic() - started)
    seconds = time.monotonic() - started
    if isinstance(value, Observation):
        return EnvAnswer(key, observation=value, state_key=state_key, seconds=seconds)
    return EnvAnswer(key, result=value, state_key=state_key, seconds=seconds)


class InlineRunner:
    """Steps at once, in the caller's thread. Bit-exact (law 8); cannot cut off an environment that hangs.

    `caught`: exceptions that are an environment's own, and so an answer; not Ctrl-C where it may be the user's.
    """

    def __init__(self, caught: tuple[type[BaseException], ...] = (Exception, SystemExit)) -> None:
        self._caught = caught
        self._envs: dict[str, Env] = {}
        self._ready: list[EnvAnswer] = []

    def reset(self, key: str, family: EnvFamily, task: Task, dynamics_seed: int) -> None:
        def start() -> Observation:
            self._envs[key] = family.make()
            return self._envs[key].reset(task, dynamics_seed)

        self._ready.append(answer_call(key, start, self._envs, self._caught))

    def step(self, key: str, action_text: str) -> None:
        env = self._envs.get(key)  # None where it could not be made: having no `step` is the answer then
        self._ready.append(answer_call(key, partial(methodcaller("step", action_text), env), self._envs, self._caught))

    def poll(self, wait_s: float = 0.0) -> list[EnvAnswer]:
        ready, self._ready = self._ready, []
        return ready

    def close(self, key: str) -> None:
        env = self._envs.pop(key, None)
        with suppress(Exception):  # what an environment raises when it gives back what it holds is ignored
            if hasattr(env, "close"):
                env.close()
        self._ready = [answer for answer in self._ready if answer.key != key]

    def shutdown(self) -> None:
        for key in list(self._envs):
            self.close(key)
        self._ready = []


class ThreadRunner:
    """One daemon thread per attempt. `deadline_s` bounds each call by the wall clock.

    A thread cannot be killed: a hung call is answered with `timed_out=True` at its deadline and its thread abandoned
    (it ends with the process). Code that may hang belongs in worker processes (`workbench.envs.workers`).
    """

    def __init__(self, deadline_s: float = 30.0) -> None:
        if deadline_s <= 0:
            raise ValueError(f"deadline_s is a positive number of seconds, got {deadline_s}")
        self.deadline_s = deadline_s
        self._calls: dict[str, queue.SimpleQueue] = {}
        self._answers: queue.SimpleQueue = queue.SimpleQueue()
        self._waiting: dict[str, float] = {}  # key -> monotonic deadline, in call order

    def reset(self, key: str, family: EnvFamily, task: Task, dynamics_seed: int) -> None:
        calls: queue.SimpleQueue = queue.SimpleQueue()
        answers = self._answers

        def serve() -> None:
            runner = InlineRunner()
            runner.reset(key, family, task, dynamics_seed)
            while True:
                for answer in runner.poll():
                    answers.put((calls, answer))
                action_text = calls.get()
                if action_text is None:
                    return runner.close(key)
                runner.step(key, action_text)

        self._calls[key] = calls
        self._waiting[key] = time.monotonic() + self.deadline_s
        threading.Thread(target=serve, daemon=True, name=f"env {key}").start()

    def step(self, key: str, action_text: str) -> None:
        self._waiting[key] = time.monotonic() + self.deadline_s
        self._calls[key].put(action_text)

    def poll(self, wait_s: float = 0.0) -> list[EnvAnswer]:
        ready: list[EnvAnswer] = []
        until = time.monotonic() + wait_s
        while True:
            now = time.monotonic()
            nearest = min([until, *self._waiting.values()])
            try:
                calls, answer = self._answers.get(timeout=max(0.0, nearest - now)) if not ready and nearest > now \
                    else self._answers.get_nowait()
                # An answer that comes after its deadline is dropped.
                if self._calls.get(answer.key) is calls and answer.key in self._waiting:
                    del self._waiting[answer.key]
                    ready.append(answer)
                continue
            except queue.Empty:
                pass
            now = time.monotonic()
            for key in [key for key, deadline in self._waiting.items() if deadline <= now]:
                del self._waiting[key]
                self.close(key)
                ready.append(EnvAnswer(key, error=f"no answer within {self.deadline_s:g} s", timed_out=True,
                                       seconds=self.deadline_s))
            if ready or now >= until:
                return ready

    def close(self, key: str) -> None:
        calls = self._calls.pop(key, None)
        if calls is not None:
            calls.put(None)
        self._waiting.pop(key, None)

    def shutdown(self) -> None:
        for key in list(self._calls):
            self.close(key)
