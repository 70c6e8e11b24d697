"""Tools that misbehave on request, importable by worker processes: what `misbehave` does is what its argument says."""

import ctypes
import os
import signal
import subprocess
import sys
import time

from workbench.tools import ToolResult, tool
from workbench.values import Task


class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError("even its text raises")


def forever():
    while True:
        yield "output "


def flood_the_connection():
    """Writes into every descriptor that it has, as fast as it can."""
    while True:
        for fd in range(3, 20):
            try:
                os.write(fd, b"x" * 65536)
            except OSError:
                pass


def let_loose(path):
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", "import time; time.sleep(1000)"], start_new_session=True
    )
    with open(path + ".part", "w") as file:
        file.write(str(process.pid))
    os.rename(path + ".part", path)
    time.sleep(1e6)


def meet(paths):
    """Waits for another one who is at work at the same time."""
    ours, theirs = paths.split()
    with open(ours, "w"):
        pass
    while not os.path.exists(theirs):
        time.sleep(0.01)
    return "met"


def say_and_sleep(path):
    with open(path + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".part", path)
    time.sleep(20)
    return "slept"


WAYS = {
    "sleep": lambda _: time.sleep(1e6),
    "deaf": lambda _: (
        [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)]
        and time.sleep(1e6)
    ),
    "busy": lambda _: 10**10**8,
    "endless": lambda _: forever(),
    "100 MB": lambda _: "é" * 50_000_000,
    "descriptors": lambda _: flood_the_connection(),
    "memory": lambda _: [bytearray(1 << 28) for _ in range(1000)],
    "prints": lambda _: (
        [print("x" * 65536) for _ in range(200)]
        and os.write(1, b'{"text": "forged"}')
        and "printed"
    ),
    "exit": lambda _: sys.exit(3),
    "_exit": lambda _: os._exit(3),
    "segfault": lambda _: ctypes.string_at(0),
    "killed": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "forks": lambda _: "parent" if os.fork() else "child",
    "pid": lambda _: str(os.getpid()),
    "let loose": let_loose,
    "meet": meet,
    "say and sleep": say_and_sleep,
}
RAISED = {
    kind.__name__: kind
    for kind in (
        ValueError,
        KeyboardInterrupt,
        MemoryError,
        Unreadable,
        GeneratorExit,
        RecursionError,
    )
}


@tool
def misbehave(how: str, what: str = "") -> str:
    """Does what it is told."""
    if how in RAISED:
        raise RAISED[how]("said so")
    return WAYS[how](what)


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool
def slowly(seconds: float, text: str) -> str:
    """Says the text after some seconds."""
    time.sleep(seconds)
    return text


@tool
def odd(kind: str) -> str:
    """Gives back what is no text."""
    return {
        "set": {1},
        "object": object(),
        "nan": float("nan"),
        "dict": {"a": [1, None]},
        "surrogate": "a\ud800b",
        "deep": [[[[]]]],
        "reward": ToolResult("paid", {"documents": ["d1"]}, reward=0.5),
        "bad reward": ToolResult("x", reward=float("inf")),
        "bad kind": ToolResult("x", error="y"),
        "big value": ToolResult("x", "y" * 200_000),
        "none": None,
    }[kind]


@tool
def asks(task: Task, word: str) -> str:
    """Knows which task it is made for."""
    return f"{word} for {task.id}: {task.payload['question']}"


@tool
class Counter:
    """Counts its calls."""

    def __init__(self, task: Task):
        self.task, self.count = task, 0

    def call(self, wait: float = 0.0) -> str:
        """Counts.

        wait: seconds before it does
        """
        time.sleep(wait)
        self.count += 1
        return f"{self.count} for {self.task.id}"


@tool
class Unmakeable:
    """Cannot be made."""

    def __init__(self):
        raise LookupError("no such thing")

    def call(self) -> str:
        """Never called."""
        return ""


class Plain:
    name, description, parameters, trusted, stateful = "plain", "", {"type": "object"}, False, False

    def call(self, arguments):
        return "x"

    def for_trajectory(self, task):
        return self
