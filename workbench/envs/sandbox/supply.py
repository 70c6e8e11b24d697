"""Where boxes come from: one process a trainer that forks them (`zygote`), and those that were begun in advance.

Thread-safe. A process that was forked from this one has a supply of its own.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.envs.sandbox.commands import START, command_of, why_not_installed
from workbench.envs.sandbox.filters import is_known
from workbench.envs.sandbox.guest import framed
from workbench.envs.sandbox.limits import BY_COMMAND, TIERS
from workbench.envs.sandbox.zygote import BEGUN
from workbench.types.errors import ToolError

BEGIN_S = 20.0
MOST_UNANSWERED = 4
MOST_WORDS = 1_000  # bytes of why a program could not begin a box
OF_A_BOX = ("cpu_s", "memory_mb", "disk_mb", "processes", "files", "output_bytes", "programs")
ADVICE = (
    "Code of an agent's is run in a sandbox or not at all. namespaces needs user namespaces (kernel 5.12; not as "
    "kernel.apparmor_restrict_unprivileged_userns=1 and most containers have it), landlock a kernel from 5.13 on"
)


class Box:
    """One box: its keeper's connection where it has one, and those of its states by name."""

    def __init__(self, supply: BoxPool, number: int, tier: str, channel: socket.socket) -> None:
        self.supply, self.number, self.tier, self.channel = supply, number, tier, channel
        self.states: dict[str, socket.socket] = {}
        self.closed, self.unanswered, self.current = False, 0, "0"

    def begin(self) -> None:
        """Wait until it has begun. Raises ToolError where it could not."""
        if why := self.supply.report_of(self.number):
            self.close()
            raise ToolError(why)
        if self.tier in BY_COMMAND:
            self._begin_by_command()
        if self.tier != "namespaces":
            self.states["0"] = self.channel
            return
        self.channel.settimeout(BEGIN_S)
        try:
            self.states["0"] = self._sent()
        except OSError as error:
            self.close()
            raise ToolError(f"a box ended before its first call: {error}") from error

    def _sent(self) -> socket.socket:
        _, fds, _, _ = socket.recv_fds(self.channel, 1, 1)
        if not fds:
            raise OSError("no process was begun in it")
        return socket.socket(fileno=fds[0])

    def _begin_by_command(self) -> None:
        """What the program says before its box does is why there is none."""
        self.channel.settimeout(BEGIN_S)
        said = b""
        try:
            while len(said) < MOST_WORDS and said != BEGUN:
                piece = self.channel.recv(
                    len(BEGUN) - len(said) if BEGUN.startswith(said) else MOST_WORDS
                )
                if not piece:
                    break
                said += piece
        except OSError as error:
            said += f" ({error})".encode()
        if said != BEGUN:
            self.close()
            raise ToolError(
                " ".join(said.decode("utf-8", "replace").split()) or "it ended without a word"
            )

    def go(self, name: str, deadline: float) -> None:
        """The box's processes run, with the files of this state."""
        self._order(
            ["go", name], deadline, wait=name != self.current
        )  # never with the files of another
        self.current = name

    def halt(self, deadline: float) -> None:
        """Nothing of it runs until the next `go`."""
        self._order(["halt"], deadline, wait=False)

    def copy(self, source: str, target: str, deadline: float) -> None:
        self._order(["copy", source, target], deadline)

    def as_user(self, name: str, deadline: float) -> socket.socket:
        """A new process of this user's. Raises OSError where there is none."""
        self._order(["user", name], deadline)
        return self._sent()

    def _order(self, order: list[str], deadline: float, wait: bool = True) -> None:
        """Orders are followed one after the other, so most answers are read with a later one: a call waits for none."""
        if self.closed:
            raise OSError("the box has ended")
        if self.tier != "namespaces":
            return
        self.channel.settimeout(max(0.001, deadline - time.monotonic()))
        self.channel.sendall(framed(order))
        self.unanswered += 1
        while self.unanswered and (wait or self.unanswered > MOST_UNANSWERED):
            said = self.channel.recv(self.unanswered)
            if said.strip(b"k") or not said:
                raise OSError("the box's disk is full" if said else "the box has ended")
            self.unanswered -= len(said)

    def close(self) -> None:
        """Kill all that runs in it. May be called again."""
        if not self.closed:
            self.closed = True
            self.channel.close()
            for state in self.states.values():
                state.close()
            self.supply.kill(self.number)

    def close_in(self, process: int) -> None:
        if os.getpid() == process:
            self.close()


class BoxPool:
    """Boxes by tier and bounds. `python`: the interpreter in them, of this one's version; `user`: the number of the
    user that begins them, None for this process's own."""

    def __init__(self, python: str = sys.executable, user: int | None = None) -> None:
        self.python, self.user = python, user
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._process: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._reports: dict[int, str] = {}
        self._ready: dict[str, list[Box]] = {}
        self._works: dict[str, str] = {}  # by tier: "" or why it does not

    def take(self, tier: str, settings: dict[str, Any], users: bool = False) -> Box:
        """A box that has begun; `users`: with a root and users of its own. Raises ToolError where none can be had."""
        with self._lock:
            tier = self.tier_for("namespaces" if settings["programs"] else tier)
            order = {
                "tier": tier,
                "limits": {name: settings[name] for name in OF_A_BOX} | {"users": users},
                "seed": settings["seed"] if settings["deterministic"] else None,
            }
            ready = self._ready.setdefault(json.dumps(order), [])
            box = ready.pop(0) if ready else self._order(order)
            while len(ready) < settings["warm"]:
                ready.append(self._order(order))
            box.begin()
            return box

    def tier_for(self, wanted: str) -> str:
        """The tier that is used where this one is wanted. Raises ToolError, with the reasons."""
        found = {tier: self.why_not(tier) for tier in (TIERS if wanted == "auto" else (wanted,))}
        for tier, why in found.items():
            if not why:
                return tier
        raise ToolError(
            "; ".join(
                f"sandbox.tier = {tier!r} does not work here: {why}" for tier, why in found.items()
            )
            + f". {ADVICE}"
        )

    def why_not(self, tier: str) -> str:
        """ "" where boxes of this tier can be begun here; found out by beginning one, once."""
        with self._lock:
            if tier not in self._works:
                self._works[tier] = self._try(tier)
            return self._works[tier]

    def _try(self, tier: str) -> str:
        if tier in BY_COMMAND and (why := why_not_installed(tier)):
            return why
        if sys.platform != "linux" or not is_known(os.uname().machine):
            return f"it is made for Linux on x86_64 and aarch64, and this is {sys.platform}"
        limits = {
            "cpu_s": 5,
            "memory_mb": 256,
            "disk_mb": 1,
            "processes": 2,
            "files": 64,
            "output_bytes": 100,
            "programs": False,
        }
        try:
            box = self._order({"tier": tier, "limits": limits, "seed": None})
            box.begin()
        except (ToolError, OSError) as error:
            return str(error)
        box.close()
        return ""

    def _order(self, order: dict[str, Any]) -> Box:
        if self._process is None or self._process.poll() is not None:
            self._start()
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        with theirs:
            if order["tier"] in BY_COMMAND:
                order = order | command_of(
                    order, self.python, (os.geteuid() if self.user is None else self.user) == 0
                )
            line = json.dumps({"number": number, **order}).encode() + b"\n"
            socket.send_fds(self._control, [line], [theirs.fileno()])
        return Box(self, number, order["tier"], ours)

    def _start(self) -> None:
        self._ready.clear()
        self._control, theirs = socket.socketpair()
        folder = str(Path(__file__).parents[2])
        with theirs:
            self._process = subprocess.Popen(
                [
                    self.python,
                    "-S",
                    "-s",
                    "-B",
                    "-P",
                    "-c",
                    START,
                    folder,
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,
                start_new_session=True,
                cwd="/",
                user=self.user,
                group=self.user,
                extra_groups=None if self.user is None else [],
                env={"PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"},
            )
        self._control.settimeout(BEGIN_S)
        self._lines = self._control.makefile("rb")

    def report_of(self, number: int) -> str:
        """Why a box could not begin; "" where it has."""
        with self._lock:
            while number not in self._reports:
                try:
                    line = self._lines.readline()
                except OSError as error:
                    return f"no box was begun within {BEGIN_S:g} s ({error})"
                if not line:
                    return "the process that begins boxes has ended"
                told = json.loads(line)
                self._reports[told["number"]] = told["error"]
            return self._reports.pop(number)

    def kill(self, number: int) -> None:
        with self._lock, suppress(OSError):
            if self._control is not None:
                self._control.sendall(json.dumps({"kill": number}).encode() + b"\n")

    @property
    def process_id(self) -> int | None:
        """Of the process that boxes are forked from."""
        return None if self._process is None else self._process.pid

    def drop_ready(self) -> None:
        """End the boxes that were begun in advance."""
        with self._lock:
            for box in [box for boxes in self._ready.values() for box in boxes]:
                box.close()
            self._ready.clear()

    def shutdown(self) -> None:
        """No box is left."""
        with self._lock:
            self.drop_ready()
            if self._process is not None:
                self._lines.close()
                self._control.close()
                try:
                    self._process.wait(10)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
                self._process = None


_SHARED: dict[int, BoxPool] = {}
_SHARED_LOCK = threading.Lock()


def shared_supply() -> BoxPool:
    """That of this process."""
    with _SHARED_LOCK:
        if os.getpid() not in _SHARED:
            _SHARED.clear()
            _SHARED[os.getpid()] = BoxPool()
            atexit.register(_end, os.getpid())
        return _SHARED[os.getpid()]


def _end(process: int) -> None:
    if os.getpid() == process and process in _SHARED:
        _SHARED[process].shutdown()
