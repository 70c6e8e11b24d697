"""Trajectories that one object serves together: a vector environment, a server far away.

A family that says `serves_many = True` has `make_shared()` in place of `make()`. What that returns is told by a key whose
call it is; keys are of the runner's choosing, and none is used twice:

    reset(key, task, dynamics_seed) -> Observation     step(key, action_text) -> StepResult
    step_many({key: action_text}) -> {key: StepResult} in place of step: all that waits goes in one call. A value may be
                                                       an exception: then that trajectory ends, and the others go on
    close(key), shutdown()                             optional: one trajectory is over; all of it is

Coroutines run at once; other calls come one at a time, whichever thread they come from. A worker process has an object
of its own. Chance comes from each trajectory's own `dynamics_seed`, whoever else is served.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from workbench.tools.awaiting import EventLoop, is_async
from workbench.values import Observation, StepResult, Task
from workbench.values.errors import EnvError
from workbench.worlds.base import Env, EnvFamily


@dataclass(eq=False)
class SharedEnvs:
    """The objects that serve many trajectories, one for each family; belongs to a runner."""

    loop: EventLoop
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _served: list[_Served] = field(default_factory=list)
    _numbers: int = 0

    def place(self, family: EnvFamily, key: str) -> _Place:
        """A family whose `make` gives `key` a place in what serves this one."""
        return _Place(self, family, key)

    def make(self, family: EnvFamily, key: str) -> SharedEnv:
        with self._lock:
            fitting = (one for one in self._served if one.family == family and not one.broken)
            served = next(fitting, None)
            if served is None:
                served = _Served(family, self.loop.settle(family.make_shared()), self.loop)
                self._served.append(served)
            self._numbers += 1
            return SharedEnv(served, f"{key}~{self._numbers}")

    def shutdown(self) -> None:
        """Give back all of it."""
        served = self._served
        self._served = []
        for one in served:
            with suppress(Exception):  # what it raises when it gives back what it holds is ignored
                if hasattr(one.value, "shutdown"):
                    self.loop.settle(one.value.shutdown())


@dataclass(frozen=True, eq=False)
class _Place:
    shared: SharedEnvs
    family: EnvFamily
    key: str

    def make(self) -> SharedEnv:
        return self.shared.make(self.family, self.key)


@dataclass(eq=False)
class _Served:
    """One object, and the calls that wait for it."""

    family: EnvFamily
    value: Any
    loop: EventLoop
    broken: bool = False  # a call hangs in it: trajectories that begin from now on get another one
    busy: str | None = None  # whose call it is at
    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: dict[str, str] = field(default_factory=dict)
    stepped: dict[str, Callable[[], StepResult]] = field(default_factory=dict)

    def alone(self, name: str, key: str, *arguments: Any) -> Any:
        """Call a method for a trajectory. A coroutine function is called at once: whoever asks awaits it."""
        method = getattr(self.value, name)
        if inspect.iscoroutinefunction(method):
            return method(key, *arguments)
        with self.lock:
            self.busy = key
            try:
                return method(key, *arguments)
            finally:
                self.busy = None

    def together(self, key: str, action_text: str) -> StepResult:
        """Whoever comes first makes the call for all that wait by then."""
        self.waiting[key] = action_text
        with self.lock:
            if key in self.waiting:
                texts = self.waiting
                self.waiting = {}
                self.busy = key
                try:
                    results = self.loop.settle(self.value.step_many(texts))
                    self.stepped |= {one: _give(results, one) for one in texts}
                except Exception as error:
                    self.stepped |= {one: _give({one: error}, one) for one in texts}
                finally:
                    self.busy = None
            give = self.stepped.pop(key)
        return give()

    def close(self, key: str) -> Any:
        self.broken = self.broken or self.busy == key
        self.waiting.pop(key, None)
        return self.value.close(key) if hasattr(self.value, "close") else None


def _give(results: Any, key: str) -> Callable[[], StepResult]:
    def give() -> StepResult:
        if not isinstance(results, Mapping) or key not in results:
            raise EnvError(
                f"step_many returns a StepResult for each of its keys; there is none for {key!r} in what it "
                f"returned, a {type(results).__name__}"
            )
        if isinstance(results[key], BaseException):
            raise results[key]
        return results[key]

    return give


class SharedEnv:
    """One trajectory of many: `served` is the object, `key` what it knows this trajectory by."""

    def __init__(self, shared: _Served, key: str) -> None:
        self._shared = shared
        self.served = shared.value
        self.key = key

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        return self._shared.alone("reset", self.key, task, dynamics_seed)

    def step(self, action_text: str) -> StepResult:
        if hasattr(self.served, "step_many"):
            return self._shared.together(self.key, action_text)
        return self._shared.alone("step", self.key, action_text)

    def close(self) -> Any:
        return self._shared.close(self.key)


# ------------------------------------------------------------------------------------------------ without a runner


def stands_alone(family: EnvFamily) -> bool:
    """Whether its environments are plain objects: not served together, no coroutines that somebody has to await."""
    return not getattr(family, "serves_many", False) and not is_async(family.make())


def made(family: EnvFamily | None) -> Env | None:
    """An environment to look at without a task; None of no family, and of one whose trajectories one object serves."""
    return None if family is None or getattr(family, "serves_many", False) else family.make()


@contextmanager
def opened(family: EnvFamily) -> Iterator[Env]:
    """An environment to be called directly, in this thread; coroutines are awaited. It is closed at the end of the
    block, whatever happened."""
    loop = EventLoop()
    shared = SharedEnvs(loop)
    env = shared.make(family, "0") if getattr(family, "serves_many", False) else family.make()
    try:
        yield _Awaited(env, loop) if is_async(getattr(env, "served", env)) else env
    finally:
        with suppress(Exception):
            if hasattr(env, "close"):
                loop.settle(env.close())
        shared.shutdown()
        loop.close()


class _Awaited:
    """An environment whose coroutines are awaited where they are called; all else is its own."""

    def __init__(self, env: Any, loop: EventLoop) -> None:
        self._env = env
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._env, name)
        return (
            (lambda *arguments: self._loop.settle(value(*arguments)))
            if name in ("reset", "step")
            else value
        )
