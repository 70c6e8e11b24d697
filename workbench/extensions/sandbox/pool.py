"""Where sandboxes come from: one process a trainer that forks them (`forkserver`), and those that were begun in advance.

Thread-safe. A process that was forked from this one has a pool of its own.
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
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.extensions.sandbox.commands import START, command_of, why_not_installed
from workbench.extensions.sandbox.filters import why_unknown
from workbench.extensions.sandbox.forkserver import BEGUN
from workbench.extensions.sandbox.limits import BY_COMMAND, TIERS
from workbench.extensions.sandbox.worker import framed
from workbench.values.errors import ToolError

BEGIN_S = 20.0
MOST_UNANSWERED = 4
MOST_WORDS = 1_000  # bytes of why a program could not begin a sandbox
OF_A_SANDBOX = ("cpu_s", "memory_mb", "disk_mb", "processes", "files", "output_bytes", "programs")
ADVICE = (
    "Code of an agent's is run in a sandbox or not at all. namespaces needs user namespaces (kernel 5.12; not as "
    "kernel.apparmor_restrict_unprivileged_userns=1 and most containers have it), landlock a kernel from 5.13 on"
)


# What the second tier does not keep, in the sentence that is said wherever it takes the place of the first.
NOT_KEPT = (
    "A sandbox of tier 'landlock' lets its programs see the names, sizes and times of this machine's files that its "
    "user may see, though no byte of what is in them"
)
INSTEAD = (
    f"'landlock' takes its place. {NOT_KEPT}; it has no files and no forks of its own. Name sandbox.tier = 'landlock' "
    "where that is meant"
)


class SandboxWarning(UserWarning):
    """A sandbox of another tier than the best one was taken."""


class DiskFullError(OSError):
    """The init process could not follow an order: the disk is full, or there are as many processes as there may be."""


class SandboxHost:
    """One sandbox: its init process's connection where it has one, and those of its states by name."""

    def __init__(self, pool: SandboxPool, number: int, tier: str, channel: socket.socket) -> None:
        self.pool = pool
        self.number = number
        self.tier = tier
        self.channel = channel
        self.states: dict[str, socket.socket] = {}
        self.living: set[str] = set()
        self.closed = False
        self.unanswered = 0
        self.current = "0"

    def begin(self) -> None:
        """Wait until it has begun. Raises ToolError where it could not."""
        why = self.pool.report_of(self.number)
        if why:
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
            raise ToolError(f"a sandbox ended before its first call: {error}") from error

    def _sent(self) -> socket.socket:
        _, fds, _, _ = socket.recv_fds(self.channel, 1, 1)
        if not fds:
            raise OSError("no process was begun in it")
        return socket.socket(fileno=fds[0])

    def _begin_by_command(self) -> None:
        """What the program says before its sandbox does is why there is none."""
        self.channel.settimeout(BEGIN_S)
        words = b""
        try:
            while len(words) < MOST_WORDS and words != BEGUN:
                most = len(BEGUN) - len(words) if BEGUN.startswith(words) else MOST_WORDS
                piece = self.channel.recv(most)
                if not piece:
                    break
                words += piece
        except OSError as error:
            words += f" ({error})".encode()
        if words != BEGUN:
            self.close()
            why = " ".join(words.decode("utf-8", "replace").split())
            raise ToolError(why or "it ended without a word")

    def go(self, name: str, deadline: float) -> None:
        """The sandbox's processes run, with the files of this state: never with those of another, so it is waited for."""
        self._order(["go", name], deadline, wait=name != self.current)
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
            raise OSError("the sandbox has ended")
        if self.tier != "namespaces":
            return
        self.channel.settimeout(max(0.001, deadline - time.monotonic()))
        self.channel.sendall(framed(order))
        self.unanswered += 1
        while self.unanswered and (wait or self.unanswered > MOST_UNANSWERED):
            answers = self.channel.recv(self.unanswered)
            if not answers:
                raise OSError("the sandbox has ended")
            self.unanswered -= len(answers)
            if answers.strip(b"k"):
                raise DiskFullError("the sandbox's disk is full")

    def close(self) -> None:
        """Kill all that runs in it. May be called again."""
        if not self.closed:
            self.closed = True
            self.channel.close()
            for state in self.states.values():
                state.close()
            self.pool.kill(self.number)

    def close_in(self, process: int) -> None:
        if os.getpid() == process:
            self.close()


class SandboxPool:
    """Sandboxes by tier and bounds.

    python: the interpreter in them, of this one's version.
    user: the number of the user that begins them, None for this process's own.
    """

    def __init__(self, python: str = sys.executable, user: int | None = None) -> None:
        self.python = python
        self.user = user
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._process: subprocess.Popen | None = None
        self._control: socket.socket | None = None
        self._reports: dict[int, str] = {}
        self._ready: dict[str, list[SandboxHost]] = {}
        self._works: dict[str, str] = {}  # by tier: "" or why it does not

    def take(self, tier: str, settings: dict[str, Any], users: bool = False) -> SandboxHost:
        """A sandbox that has begun; `users`: with a root and users of its own. Raises ToolError where none can be had."""
        with self._lock:
            tier = self.tier_for("namespaces" if settings["programs"] else tier)
            order = {
                "tier": tier,
                "limits": {name: settings[name] for name in OF_A_SANDBOX} | {"users": users},
                "seed": settings["seed"] if settings["deterministic"] else None,
            }
            ready = self._ready.setdefault(json.dumps(order), [])
            host = ready.pop(0) if ready else self._order(order)
            while len(ready) < settings["warm"]:
                ready.append(self._order(order))
            host.begin()
            return host

    def tier_for(self, wanted: str) -> str:
        """The tier that is used where this one is wanted. Raises ToolError, with the reasons."""
        reasons = []
        for tier in TIERS if wanted == "auto" else (wanted,):
            why = self.why_not(tier)
            if not why:
                if reasons:
                    warnings.warn(f"{reasons[0]}. {INSTEAD}", SandboxWarning, stacklevel=2)
                return tier
            reasons.append(f"sandbox.tier = {tier!r} does not work here: {why}")
        raise ToolError(f"{'; '.join(reasons)}. {ADVICE}")

    def why_not(self, tier: str) -> str:
        """ "" where sandboxes of this tier can be begun here; found out by beginning one, once."""
        with self._lock:
            if tier not in self._works:
                self._works[tier] = self._try(tier)
            return self._works[tier]

    def _try(self, tier: str) -> str:
        why = why_not_installed(tier) if tier in BY_COMMAND else ""
        why = why or why_unknown()
        if why:
            return why
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
            host = self._order({"tier": tier, "limits": limits, "seed": None})
            host.begin()
        except (ToolError, OSError) as error:
            return str(error)
        host.close()
        return ""

    def _order(self, order: dict[str, Any]) -> SandboxHost:
        if self._process is None or self._process.poll() is not None:
            self._start()
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        with theirs:
            if order["tier"] in BY_COMMAND:
                user = os.geteuid() if self.user is None else self.user
                order = order | command_of(order, self.python, as_root=user == 0)
            line = json.dumps({"number": number, **order}).encode() + b"\n"
            socket.send_fds(self._control, [line], [theirs.fileno()])
        return SandboxHost(self, number, order["tier"], ours)

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
        """Why a sandbox could not begin; "" where it has."""
        with self._lock:
            while number not in self._reports:
                try:
                    line = self._lines.readline()
                except ConnectionError:
                    line = b""
                except OSError as error:
                    return f"no sandbox was begun within {BEGIN_S:g} s ({error})"
                if not line:
                    return "the process that begins sandboxes has ended"
                report = json.loads(line)
                if report["number"] is None:
                    return report["error"]
                self._reports[report["number"]] = report["error"]
            return self._reports.pop(number)

    def kill(self, number: int) -> None:
        with self._lock, suppress(OSError):
            if self._control is not None:
                self._control.sendall(json.dumps({"kill": number}).encode() + b"\n")

    @property
    def process_id(self) -> int | None:
        """Of the process that sandboxes are forked from."""
        return None if self._process is None else self._process.pid

    def drop_ready(self) -> None:
        """End the sandboxes that were begun in advance."""
        with self._lock:
            for hosts in self._ready.values():
                for host in hosts:
                    host.close()
            self._ready.clear()

    def shutdown(self) -> None:
        """No sandbox is left."""
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


_SHARED: dict[int, SandboxPool] = {}
_SHARED_LOCK = threading.Lock()


def shared_pool() -> SandboxPool:
    """That of this process."""
    with _SHARED_LOCK:
        if os.getpid() not in _SHARED:
            _SHARED.clear()
            _SHARED[os.getpid()] = SandboxPool()
            atexit.register(_end, os.getpid())
        return _SHARED[os.getpid()]


def _end(process: int) -> None:
    if os.getpid() == process and process in _SHARED:
        _SHARED[process].shutdown()


def tiers_here() -> tuple[dict[str, str], dict[str, str], str]:
    """Begin a sandbox of every tier on this machine.

    Returns tier -> why it does not work here ("" where it does) of those that need nothing, the same of those that need
    a program, and what to do where none works.
    """
    pool = SandboxPool()
    reasons = {tier: pool.why_not(tier) for tier in TIERS}
    by_command = {tier: pool.why_not(tier) for tier in BY_COMMAND}
    pool.shutdown()
    return reasons, by_command, ADVICE
