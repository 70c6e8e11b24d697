"""Who steps the environments: the seam between collecting and environments that may be slow, hung or in another
process.

Calls are data (which trajectory, which action), never closures, so a runner may live in this thread, in threads of its own
or in worker processes. Every call is answered exactly once by `poll`, by a value, an error or a missed deadline.

    InlineRunner   steps in the caller's own thread, at once: deterministic, for pure and fast environments
    ThreadRunner   one daemon thread per trajectory: a slow environment delays no other, a hung one is given up at its
                   deadline
    ProcessRunner  in `workbench.tools.workers`: a hung environment is killed at its deadline, a dead one is run again
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from operator import methodcaller
from typing import Protocol

from workbench.tools.awaiting import EventLoop
from workbench.values import Observation, StepResult, Task
from workbench.values.errors import EnvError, where_raised
from workbench.worlds.base import Env, EnvFamily
from workbench.worlds.shared import SharedEnvs

CLOSE_S = 1.0  # within which a trajectory's own thread closes its environment, or another one does


@dataclass(frozen=True)
class EnvAnswer:
    """The answer to one call. Exactly one of `observation` (reset), `result` (step) and `error` is set.

    `state_key` names the state the environment is in now, where it can; `privileged` is what a critic is told of it, where
    somebody asks (`envs.privileged`). `seconds` is wall-clock time: never hashed.
    """

    key: str
    observation: Observation | None = None
    result: StepResult | None = None
    error: str | None = None
    timed_out: bool = False
    state_key: str | None = None
    privileged: str | None = None
    seconds: float = 0.0


class EnvRunner(Protocol):
    def reset(self, key: str, family: EnvFamily, task: Task, dynamics_seed: int) -> None:
        """Make a fresh environment under the name `key` and start `task` in it."""

    def step(self, key: str, action_text: str) -> None: ...

    def poll(self, wait_s: float = 0.0) -> list[EnvAnswer]:
        """Answers that are ready, in the order in which they came; waits up to `wait_s` for the first one."""

    def close(self, key: str) -> None:
        """The trajectory is over. Unknown keys are ignored."""

    def shutdown(self) -> None:
        """Give back threads and processes. A runner that is used again after it starts anew."""


def check_messages(observation: Observation) -> None:
    """Raise EnvError unless messages are made of what `types` says: anything else could be neither shown nor stored."""
    if not isinstance(observation, Observation):
        raise EnvError(
            f"the observation of a StepResult is an Observation, got {type(observation).__name__}"
        )
    for message in observation.messages:  # what they hold was checked when they were built
        words = [message.role, *(part.text for part in message.content)]
        words += [name for name in (message.name, message.tool_call_id) if name is not None]
        if not all(isinstance(word, str) for word in words):
            raise EnvError(f"role, texts and names of a Message are strings, got {message!r}")


def answer_call(
    key: str,
    call: Callable[[], Observation | StepResult],
    envs: dict[str, Env],
    caught: tuple[type[BaseException], ...],
    loop: EventLoop,
) -> EnvAnswer:
    """Run `call`, which resets or steps `envs[key]`, and make an answer of whatever comes of it."""
    started = time.monotonic()
    try:
        value = call()
        if not isinstance(value, (Observation, StepResult)):
            value = loop.settle(value)
        if not isinstance(value, (Observation, StepResult)):
            raise EnvError(
                "an environment returns an Observation from reset and a StepResult from step, "
                f"got {type(value).__name__}"
            )
        check_messages(value if isinstance(value, Observation) else value.observation)
        state_key = asked(envs[key], "state_key")
        privileged = asked(envs[key], "told")
        if any(word is not None and not isinstance(word, str) for word in (state_key, privileged)):
            raise EnvError(
                f"state_key() and privileged() give a string, got {state_key!r} and {privileged!r}"
            )
    except caught as error:  # a third-party environment may raise anything (invariant 10)
        words = _words_of(error, caught) + (_missing_methods(envs[key]) if key in envs else "")
        return EnvAnswer(key, error=words, seconds=time.monotonic() - started)
    kind = "observation" if isinstance(value, Observation) else "result"
    return EnvAnswer(
        key,
        **{kind: value},
        state_key=state_key,
        privileged=privileged,
        seconds=time.monotonic() - started,
    )


def asked(env: object, name: str) -> object:
    """What a method of this name gives; None where there is none: an attribute may be called so, too."""
    method = getattr(env, name, None)
    return method() if callable(method) else None


def _words_of(error: BaseException, caught: tuple[type[BaseException], ...]) -> str:
    try:
        words = str(error)
    except caught:
        words = "(an exception whose text cannot be read)"
    return f"{type(error).__name__}: {words} ({where_raised(error)})"


def _missing_methods(env: object) -> str:
    """Says what an environment that failed lacks of the protocol, for whoever wrote it; "" where it has all."""
    wrong = []
    for name, arguments in (("reset", (None, 0)), ("step", ("",))):
        method = getattr(env, name, None)
        try:
            signature(method).bind(*arguments)
        except ValueError:  # it cannot be told
            continue
        except TypeError:
            wrong.append(f"{name}{signature(method)}" if callable(method) else f"no {name}")
    if not wrong:
        return ""
    return (
        f". An environment has reset(task, dynamics_seed) and step(action_text), and {type(env).__name__} has "
        f"{', '.join(wrong)}"
    )


class InlineRunner:
    """Steps at once, in the caller's thread. Bit-exact (invariant 8); cannot cut off an environment that hangs.

    `caught`: exceptions that are an environment's own, and so an answer; not Ctrl-C where it may be the user's. `loop`,
    `shared`: what awaits coroutines, and objects that serve many trajectories (none: of its own).
    """

    def __init__(
        self,
        caught: tuple[type[BaseException], ...] = (Exception, SystemExit),
        loop: EventLoop | None = None,
        shared: SharedEnvs | None = None,
    ) -> None:
        self._own_loop = loop is None
        self._own_shared = shared is None
        self._loop = loop or EventLoop()
        self._shared = shared or SharedEnvs(self._loop)
        self._envs: dict[str, Env] = {}
        self._ready: list[EnvAnswer] = []
        self._answered = partial(answer_call, envs=self._envs, caught=caught, loop=self._loop)

    def reset(self, key: str, family: EnvFamily, task: Task, dynamics_seed: int) -> None:
        def start() -> Observation:
            self._envs[key] = family.make()
            return self._envs[key].reset(task, dynamics_seed)

        self.close(key)
        if getattr(family, "serves_many", False):
            family = self._shared.place(family, key)
        self._ready.append(self._answered(key, start))

    def step(self, key: str, action_text: str) -> None:
        env = self._envs.get(
            key
        )  # None where it could not be made: it has no `step`, says the answer
        self._ready.append(self._answered(key, partial(methodcaller("step", action_text), env)))

    def poll(self, wait_s: float = 0.0) -> list[EnvAnswer]:
        ready = self._ready
        self._ready = []
        return ready

    def close(self, key: str) -> None:
        env = self._envs.pop(key, None)
        with suppress(Exception):  # whatever an environment raises while it closes is ignored
            if hasattr(env, "close"):
                self._loop.settle(env.close())
        self._ready = [answer for answer in self._ready if answer.key != key]

    def shutdown(self) -> None:
        for key in list(self._envs):
            self.close(key)
        if self._own_shared:
            self._shared.shutdown()
        if self._own_loop:
            self._loop.close()
        self._ready = []


class ThreadRunner:
    """One daemon thread per trajectory. `deadline_s` bounds each call by the wall clock.

    A thread cannot be killed: a hung call is answered with `timed_out=True` at its deadline and its thread abandoned
    (it ends with the process); a coroutine is cancelled. Its environment is closed all the same: by another thread,
    where its own does not come back within CLOSE_S. Code that may hang belongs in worker processes
    (`workbench.tools.workers`).
    """

    def __init__(self, deadline_s: float = 30.0) -> None:
        if deadline_s <= 0:
            raise ValueError(f"deadline_s is a positive number of seconds, got {deadline_s}")
        self.deadline_s = deadline_s
        self._loop = EventLoop()
        self._shared = SharedEnvs(self._loop)
        self._calls: dict[str, _TrajectoryThread] = {}
        self._ending: list[_TrajectoryThread] = []
        self._answers: queue.SimpleQueue = queue.SimpleQueue()
        self._waiting: dict[str, float] = {}  # key -> monotonic deadline, in call order

    def reset(self, key: str, family: EnvFamily, task: Task, dynamics_seed: int) -> None:
        self.close(key)
        runner = InlineRunner(loop=self._loop, shared=self._shared)
        calls = self._calls[key] = _TrajectoryThread(key, runner, self._loop, self._answers)
        self._waiting[key] = time.monotonic() + self.deadline_s
        calls.start(family, task, dynamics_seed)

    def step(self, key: str, action_text: str) -> None:
        self._waiting[key] = time.monotonic() + self.deadline_s
        self._calls[key].texts.put(action_text)

    def poll(self, wait_s: float = 0.0) -> list[EnvAnswer]:
        ready: list[EnvAnswer] = []
        until = time.monotonic() + wait_s
        while True:
            left = min([until, *self._waiting.values()]) - time.monotonic()
            try:
                if not ready and left > 0:
                    calls, answer = self._answers.get(timeout=left)
                else:
                    calls, answer = self._answers.get_nowait()
                # An answer that comes after its deadline is dropped.
                if self._calls.get(answer.key) is calls and answer.key in self._waiting:
                    del self._waiting[answer.key]
                    ready.append(answer)
                continue
            except queue.Empty:
                pass
            now = time.monotonic()
            for key in [key for key, deadline in self._waiting.items() if deadline <= now]:
                self.close(key)
                ready.append(
                    EnvAnswer(
                        key,
                        error=f"no answer within {self.deadline_s:g} s",
                        timed_out=True,
                        seconds=self.deadline_s,
                    )
                )
            if ready or now >= until:
                return ready

    def close(self, key: str) -> None:
        calls = self._calls.pop(key, None)
        busy = self._waiting.pop(key, None) is not None
        if calls is not None:
            calls.end(busy)
            self._ending = [other for other in self._ending if not other.closed.is_set()] + [calls]

    def shutdown(self) -> None:
        """Close every environment; waits for that, but not for ever."""
        for key in list(self._calls):
            self.close(key)
        until = time.monotonic() + 2 * CLOSE_S
        for calls in self._ending:
            calls.closed.wait(max(0.0, until - time.monotonic()))
        self._ending = []
        self._shared.shutdown()
        self._loop.close()


@dataclass(eq=False)
class _TrajectoryThread:
    """One trajectory in a thread of its own."""

    key: str
    runner: InlineRunner
    loop: EventLoop
    answers: queue.SimpleQueue
    texts: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)  # actions; None ends it
    closed: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def start(self, family: EnvFamily, task: Task, dynamics_seed: int) -> None:
        self.thread = threading.Thread(
            target=self._serve,
            args=(family, task, dynamics_seed),
            daemon=True,
            name=f"env {self.key}",
        )
        self.thread.start()

    def _serve(self, family: EnvFamily, task: Task, dynamics_seed: int) -> None:
        self.runner.reset(self.key, family, task, dynamics_seed)
        while True:
            for answer in self.runner.poll():
                self.answers.put((self, answer))
            action_text = self.texts.get()
            if action_text is None:
                return self._close()
            self.runner.step(self.key, action_text)

    def _close(self) -> None:
        self.runner.close(self.key)
        self.closed.set()

    def end(self, busy: bool) -> None:
        """`busy`: it is in the middle of a call, which may never come back."""
        self.texts.put(None)
        if busy:
            self.loop.cancel(self.thread.ident)
            threading.Thread(
                target=self._close_if_stuck, daemon=True, name=f"closing {self.key}"
            ).start()

    def _close_if_stuck(self) -> None:
        if not self.closed.wait(CLOSE_S):
            self._close()
