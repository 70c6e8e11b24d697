"""Environments that misbehave on request: what `step` does is what the action says. Importable by worker processes."""

import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from workbench.values import Message, Observation, StepResult, Text


@dataclass(frozen=True)
class Fickle:
    """`folder` is where trajectories leave notes that outlive their process."""

    folder: str = ""
    name: str = "fickle"
    max_turns: int = 50

    def make(self):
        return FickleEnv(self)

    def random_action(self, env, rng):
        return "hang" if env.task.id == "hangs" else "go"

    solver_action = random_action


@dataclass(frozen=True)
class Holding(Fickle):
    holds_session: ClassVar[bool] = True


def said(text, reward=1.0, **info):
    return StepResult(
        Observation((Message("user", (Text(text, trusted=True), Text("<|im_end|>"))),)),
        reward,
        {"step": reward},
        info={"success": False, **info},
    )


class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError("even its text raises")


class FickleEnv:
    def __init__(self, family):
        self.family, self.count = family, 0

    def reset(self, task, dynamics_seed):
        self.task, self.dynamics_seed = task, dynamics_seed
        if task.id == "hangs at reset":
            time.sleep(1e6)
        return Observation((Message("user", f"task {task.id}"),))

    def state_key(self):
        return f"after {self.count}"

    def note(self, name):
        """How often this trajectory has been here before, over all its processes."""
        path = Path(self.family.folder) / f"{self.task.id} {name}"
        before = len(path.read_text()) if path.exists() else 0
        path.write_text("x" * (before + 1))
        return before

    def step(self, action):
        self.count += 1
        verb, _, rest = action.partition(" ")
        return getattr(self, "do_" + verb)(rest) or said(
            f"{action}, {self.count}. of seed {self.dynamics_seed}"
        )

    def do_go(self, rest): ...

    def do_hang(self, rest):
        if rest == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        while rest == "busy":
            10**10**8  # noqa: B018  (one C call that takes for ever and never looks up)
        time.sleep(1e6)

    def do_slow(self, rest):
        time.sleep(float(rest))

    def do_long(self, rest):
        """More than a connection holds."""
        return said("x" * int(rest))

    def do_print(self, rest):
        print(rest, flush=True)

    def do_pid(self, rest):
        return said(str(os.getpid()))

    def do_die(self, rest):
        if rest.startswith("once") and self.note("died"):
            return
        if rest.endswith("segfault"):
            ctypes.string_at(0)
        if rest.endswith("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(7)

    def do_raise(self, rest):
        raise {
            "SystemExit": SystemExit,
            "KeyboardInterrupt": KeyboardInterrupt,
            "MemoryError": MemoryError,
            "GeneratorExit": GeneratorExit,
            "Unreadable": Unreadable,
            "RecursionError": RecursionError,
        }[rest]("bye")

    def do_answer(self, rest):
        class Odd(dict):
            def items(self):
                raise KeyboardInterrupt

        return {
            "object": said("x", thing=object()),
            "lambda": said("x", thing=lambda: 1),
            "text": "no StepResult",
            "odd": StepResult(Observation((Message("user", "x"),)), 1.0, {}, info=Odd(a=1)),
            "huge": said("x" * 3_000_000),
            "nan": said("x", float("nan")),
        }[rest]

    def do_chance(self, rest):
        return said(f"chance {random.random()}")

    def do_modules(self, rest):
        return said(
            " ".join(sorted(set(sys.modules) & {"torch", "transformers", "accelerate", "scipy"}))
        )

    def do_scribble(self, rest):
        """Writes into every socket it finds, which it should not."""
        for fd in range(3, 64):
            try:
                if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                    os.write(
                        fd, b"\xff\xff\xff\xff" if rest == "long" else b"\0\0\0\x20" + b"?" * 32
                    )
            except OSError:
                pass

    def do_half(self, rest):
        """Begins an answer where it should not, and never ends it."""
        for fd in range(3, 64):
            try:
                if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                    os.write(fd, b"\0\0\0\x20?")
            except OSError:
                pass
        time.sleep(1e6)

    def do_deafen(self, rest):
        os.closerange(3, 64)
        time.sleep(1e6)

    def do_spawn(self, rest):
        child = subprocess.Popen(["sleep", "1000"], start_new_session=rest == "loose")
        return said(str(child.pid))
