"""Environments that are coroutines, that serve many trajectories, or that have to be closed. Importable by workers.

Each pays for its own dynamics seed and number of steps, so that a trajectory's rewards say whose state answered. `folder`
is where what happens is noted, for it outlives processes.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from workbench.values import Message, Observation, StepResult, Task


def observed(text):
    return Observation((Message("user", text),))


@dataclass(frozen=True)
class Noting:
    """`wrong`: a planted mistake."""

    folder: str = ""
    wrong: str = ""
    max_turns: int = 4
    name: ClassVar[str] = "noting"

    def task(self, task_seed):
        return Task(f"noting/{task_seed}", self.name, task_seed, {"seed": task_seed})

    def make(self):
        return NotingEnv(self)

    def random_action(self, env, rng):
        return "go"

    def note(self, what):
        path = Path(self.folder) / f"{time.monotonic_ns()}-{os.getpid()}-{threading.get_ident()}"
        path.write_text(what)

    def notes(self):
        return sorted(path.read_text() for path in Path(self.folder).iterdir())


class NotingEnv:
    def __init__(self, family):
        self.family, self.steps, self.key = family, 0, "?"

    def reset(self, task, dynamics_seed):
        self.task, self.seed, self.key = task, dynamics_seed, task.id
        if task.task_seed == 13:
            raise RuntimeError("no such task")
        return observed(f"task {task.id}")

    def step(self, action_text):
        if action_text == "hang":
            while True:
                time.sleep(0.05)
        if action_text == "raise":
            raise RuntimeError("broken")
        self.steps += 1
        return StepResult(
            observed(f"{action_text} {self.steps}"),
            self.seed % 1000 + self.steps,
            info={"success": False},
        )

    def close(self):
        self.family.note(f"closed {self.key} after {self.steps}")


@dataclass(frozen=True)
class Awaited(Noting):
    name: ClassVar[str] = "awaited"

    def make(self):
        return AwaitedEnv(self)


class AwaitedEnv(NotingEnv):
    """All of it coroutines; they have to be awaited in one loop, or the lock of the class complains."""

    async def reset(self, task, dynamics_seed):
        self.loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        return super().reset(task, dynamics_seed)

    async def step(self, action_text):
        assert self.loop is asyncio.get_running_loop()
        if action_text == "hang":
            await asyncio.sleep(1e6)
        if action_text == "slow":
            await asyncio.sleep(0.3)
        return super().step(action_text)

    async def close(self):
        assert self.loop is asyncio.get_running_loop()
        await asyncio.sleep(0)
        super().close()


@dataclass(frozen=True)
class Served(Noting):
    """One object for many trajectories. `wrong` "mixed": it answers with the newest trajectory, whoever asks."""

    batched: bool = False
    waits: bool = False
    name: ClassVar[str] = "served"
    serves_many: ClassVar[bool] = True

    def make_shared(self):
        self.note("made")
        return {
            (False, False): Server,
            (True, False): BatchServer,
            (False, True): AsyncServer,
            (True, True): AsyncBatchServer,
        }[self.batched, self.waits](self)


class ServerState:
    def __init__(self, family):
        self.family, self.envs = family, {}

    def begin(self, key, task, dynamics_seed):
        assert key not in self.envs
        self.envs[key] = NotingEnv(self.family)
        return self.envs[key].reset(task, dynamics_seed)

    def go(self, key, action_text):
        whose = list(self.envs)[-1] if self.family.wrong == "mixed" else key
        return self.envs[whose].step(action_text)

    def close(self, key):
        self.envs.pop(key).close()

    def shutdown(self):
        self.family.note(f"shut down with {len(self.envs)}")


class Server(ServerState):
    def reset(self, key, task, dynamics_seed):
        return self.begin(key, task, dynamics_seed)

    def step(self, key, action_text):
        return self.go(key, action_text)


class BatchServer(ServerState):
    def reset(self, key, task, dynamics_seed):
        return self.begin(key, task, dynamics_seed)

    def step_many(self, texts):
        self.family.note(f"batch of {len(texts)}")
        time.sleep(0.05)
        return {key: self._one(key, text) for key, text in texts.items() if text != "forget"}

    def _one(self, key, text):
        try:
            return self.go(key, text)
        except RuntimeError as error:
            return error


class AsyncServer(ServerState):
    async def reset(self, key, task, dynamics_seed):
        await asyncio.sleep(0.01)
        return self.begin(key, task, dynamics_seed)

    async def step(self, key, action_text):
        if action_text == "hang":
            await asyncio.sleep(1e6)
        if action_text == "slow":
            await asyncio.sleep(0.3)
        return self.go(key, action_text)

    async def close(self, key):
        super().close(key)

    async def shutdown(self):
        super().shutdown()


class AsyncBatchServer(BatchServer):
    async def step_many(self, texts):
        await asyncio.sleep(0.01)
        return super().step_many(texts)


@dataclass(frozen=True)
class LeavesThreads(Noting):
    """Every environment leaves a thread behind that waits for ever and is no daemon."""

    name: ClassVar[str] = "leaves-threads"

    def make(self):
        threading.Thread(target=threading.Event().wait, name="waits for ever").start()
        return NotingEnv(self)
