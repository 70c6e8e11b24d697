"""Sandboxes for code that agents write: taken, run, forked and given back.

    with open_sandbox() as sandbox:
        sandbox.run("x = 6")
        sandbox.run("print(7 * x)").text            # "42\\n": names are kept from call to call
        other = sandbox.fork()                      # the same state, twice; each goes on alone

Nothing that code does is raised: what went wrong is said in `CallOutcome.error`. A call that is late, or that answers with
what is no answer, takes the sandbox with it, its forks included; one that killed its own process takes that alone. Raises
ToolError where no sandbox can be had on this machine.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from workbench.extensions.sandbox.confine import MOST_WORK_FILES
from workbench.extensions.sandbox.limits import SandboxSettings
from workbench.extensions.sandbox.pool import DiskFullError, SandboxHost, SandboxPool, shared_pool
from workbench.extensions.sandbox.values import decoded, encoded
from workbench.extensions.sandbox.worker import LENGTH, framed
from workbench.values.errors import ConfigError, ToolError

MOST_FRAME = 4 << 20  # bytes of one message out of a sandbox
MOST_CUT = 1 << 62  # bytes that a sandbox may say it left out
FORK_S = 10.0
GRACE_S = 2.0  # in which a sandbox says that its program was late
WORK = "/work"
_START = """
from workbench.extensions.sandbox.programs import PART, run_program
_ran = run_program(*%r)
for _name in ("out", "err"):
    for _at in range(0, len(_ran[_name]), PART):
        ask(_name, _ran[_name][_at:_at + PART])
ask("status", _ran["status"])
ask("cut", _ran["cut"])
"""
_NAMES = itertools.count(1)
Answer = Callable[..., Any]


@dataclass(frozen=True)
class CallOutcome:
    """What came of a call.

    text: what it printed, and the value of a last expression.
    cut: bytes that were left out.
    error: "" | "raised" | "exit" (it asked to leave; its names are kept) | "timeout" | "died" (its names are lost).
    said: which exception, or by what.
    """

    text: str
    cut: int = 0
    error: str = ""
    said: str = ""
    seconds: float = 0.0

    @property
    def lost(self) -> bool:
        """Whether the state is gone."""
        return self.error in ("timeout", "died")


@dataclass(frozen=True)
class ProgramOutcome:
    """What came of a program of the machine.

    status: its exit status, negative: killed by that signal, None: it did not end by itself.
    out, err: what it wrote.
    cut: bytes that were left out.
    error: "" | "late" (it was killed, and the sandbox goes on) | "raised" (it could not be started) | "timeout" or "died"
        (the sandbox is gone).
    said: why it could not be started, or by what it ended.
    """

    status: int | None
    out: bytes = b""
    err: bytes = b""
    cut: int = 0
    error: str = ""
    said: str = ""

    @property
    def lost(self) -> bool:
        return self.error in ("timeout", "died")


class Sandbox:
    """One state: names, and files in /work. Used by one thread at a time."""

    def __init__(
        self,
        host: SandboxHost,
        connection: socket.socket,
        name: str,
        settings: SandboxSettings,
        origin: Sandbox | None = None,
        users: bool = False,
    ) -> None:
        self.host = host
        self.connection = connection
        self.name = name
        self.settings = settings
        self.users = users
        # Kept, because the sandbox ends when nobody holds the state that it began with.
        self.origin = origin
        self.ended = False
        host.living.add(name)

    @property
    def tier(self) -> str:
        return self.host.tier

    @property
    def alive(self) -> bool:
        return not (self.host.closed or self.ended)

    def run(
        self, code: str, *, seconds: float | None = None, answer: Answer | None = None
    ) -> CallOutcome:
        """`answer(*question)`: called with plain values that the code hands to its function `ask`, gives a plain
        value."""
        began = time.monotonic()
        deadline = began + (self.settings.seconds if seconds is None else seconds)
        try:
            self.host.go(self.name, deadline)
            self._send(["run", code.encode("utf-8", "replace").decode()], deadline)
            ran = self._answers(deadline, answer)
            ran["text"] = ran["text"][: self.settings.output_bytes]
            self.host.halt(deadline)
        except TimeoutError:
            why = f"it gave no answer within {deadline - began:g} s and was stopped"
            ran = {"error": "timeout", "said": why}
        except (EOFError, ConnectionError):
            ran = {"error": "died", "said": "its process ended"}
            self._leave_others(deadline)
        except (OSError, ValueError) as error:
            ran = {"error": "died", "said": str(error)}
        if "text" not in ran and self.alive:
            self.host.close()
        return CallOutcome(**{"text": "", **ran, "seconds": time.monotonic() - began})

    def _leave_others(self, deadline: float) -> None:
        """Its process ended: those that it was forked from, or into, go on."""
        self.host.living.discard(self.name)
        if self.host.living and not self.users:
            self.ended = True
            self.connection.close()
            with suppress(OSError):
                self.host.halt(deadline)

    def fork(self) -> Sandbox:
        """The same names and files in a process of its own. Raises ToolError where the tier, or the sandbox's bounds, have
        no room for it."""
        if self.tier != "namespaces":
            raise ToolError(
                f"a sandbox of tier {self.tier!r} cannot be forked; sandbox.tier = 'namespaces' can, where it "
                "works (workbench doctor)"
            )
        if self.users:
            raise ToolError(
                "a sandbox with users of its own cannot be forked; open_sandbox(users=False) can"
            )
        name = str(next(_NAMES))
        deadline = time.monotonic() + FORK_S
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self.host.copy(self.name, name, deadline)
                self.host.go(self.name, deadline)
                message = framed(["fork"])
                socket.send_fds(self.connection, [message], [theirs.fileno()])
            _, _, why = self._receive(self.connection, deadline, 3)
            if not why:
                _, _, why = self._receive(ours, deadline, 3)
            self.host.halt(deadline)
        except DiskFullError as error:
            ours.close()
            raise ToolError(
                f"the sandbox could not be forked: its files do not fit twice into sandbox.disk_mb = "
                f"{self.settings.disk_mb} and {MOST_WORK_FILES:,} files"
            ) from error
        except (OSError, ValueError, EOFError) as error:
            self.host.close()
            raise ToolError(
                f"the sandbox ended while it was forked: {error or 'its process ended'}"
            ) from error
        if why:
            raise ToolError(
                f"the sandbox could not be forked: {str(why)[:100]}; sandbox.processes = {self.settings.processes} "
                f"and sandbox.memory_mb = {self.settings.memory_mb} are all that it has"
            )
        return Sandbox(self.host, ours, name, self.settings, self)

    def start(
        self,
        words: Sequence[str],
        *,
        folder: str = WORK,
        environment: Mapping[str, str] = {},
        seconds: float | None = None,
        most: int | None = None,
        given: str | None = None,
        user: str | None = None,
    ) -> ProgramOutcome:
        """Run a program of the machine (`SandboxSettings.programs`) until it ends.

        words: the program and its arguments.
        folder: in which it begins.
        environment: variables, besides those of the sandbox.
        seconds: of the wall clock that it may take.
        most: bytes of each of its outputs that are kept.
        given: a file that it reads from.
        user: one of the sandbox's own (`open_sandbox(users=True)`), by name: root, or whom root has made; None: the one that
            its code is run as.
        """
        limit = self.settings.seconds if seconds is None else seconds
        most = self.settings.output_bytes if most is None else most
        asked = (list(words), folder, dict(environment), limit, most, given)
        sent = _Parts(most)
        try:
            runner = self if user is None else self.as_user(user)
        except (OSError, ValueError, EOFError) as error:
            return ProgramOutcome(None, error="raised", said=f"{error or 'its process ended'}")
        ran = runner.run(_START % (asked,), seconds=limit + GRACE_S, answer=sent.add)
        if runner is not self:
            runner.connection.close()
        return _read_program(ran, sent)

    def as_user(self, user: str) -> Sandbox:
        """The same files, in a process of this user's, until its connection is closed. Raises OSError and ValueError."""
        if not self.users:
            raise ValueError(
                f"user = {user!r} needs a sandbox with users of its own: open_sandbox(users=True)"
            )
        deadline = time.monotonic() + FORK_S
        connection = self.host.as_user(user, deadline)
        runner = Sandbox(self.host, connection, self.name, self.settings, self, users=True)
        _, why = self._receive(runner.connection, deadline, 2)
        if why:
            runner.connection.close()
            raise ValueError(str(why)[:300])
        return runner

    def write_file(self, name: str, content: bytes) -> CallOutcome:
        """A file in /work."""
        return self.run(f"open({name!r}, 'wb').write(bytes.fromhex({content.hex()!r})) and None")

    def read_file(self, name: str) -> bytes | None:
        """None where there is none, or one that does not fit a message."""
        came: dict[str, Any] = {}
        ran = self.run(
            f"ask(open({name!r}, 'rb').read())",
            answer=lambda content: came.setdefault("content", content) and None,
        )
        content = came.get("content")
        return content if not ran.error and isinstance(content, bytes) else None

    def close(self) -> None:
        """Give the sandbox back, forks included."""
        self.connection.close()
        self.host.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -------------------------------------------------------------------------------------------- messages

    def _answers(self, deadline: float, answer: Answer | None) -> dict[str, Any]:
        """The answer to a call, after all that it asked for."""
        while True:
            verb, content = self._receive(self.connection, deadline, 2)
            if verb == "done":
                return _read_done(content)
            if verb != "ask":
                raise ValueError("it sent what is no answer")
            try:
                if answer is None:
                    raise ValueError("nobody answers here")
                reply = [True, encoded(answer(*decoded(content)))]
            except Exception as error:
                # Of the code's question, or of what answers: the code gets it.
                reply = [False, f"{error}"[:300]]
            self._send(["told", *reply], deadline)

    def _send(self, message: Any, deadline: float) -> None:
        self.connection.settimeout(max(0.001, deadline - time.monotonic()))
        self.connection.sendall(framed(message))

    def _receive(self, connection: socket.socket, deadline: float, parts: int) -> list[Any]:
        """A message: a list of so many parts, each of which may be anything. Raises ValueError for what is none."""
        (length,) = LENGTH.unpack(_exactly(connection, LENGTH.size, deadline))
        if length > MOST_FRAME:
            raise ValueError(f"it sent {length:,} bytes, and at most {MOST_FRAME:,} are taken")
        try:
            message = json.loads(_exactly(connection, length, deadline))
        except RecursionError:
            message = None
        if not isinstance(message, list) or len(message) != parts:
            raise ValueError("it sent what is no answer")
        return message


def _exactly(connection: socket.socket, count: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        piece = connection.recv(min(count - len(data), 1 << 20))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _read_done(content: Any) -> dict[str, Any]:
    """What a sandbox sent of a call: it may be a lie, but it has the form of an answer. Raises ValueError."""
    kinds = {"text": str, "cut": int, "error": str, "said": str}
    if not (
        isinstance(content, dict)
        and {name: type(value) for name, value in content.items()} == kinds
        and 0 <= content["cut"] <= MOST_CUT
        and content["error"] in ("", "raised", "exit")
    ):
        raise ValueError("it sent what is no answer")
    texts = {name: content[name].encode("utf-8", "replace").decode() for name in ("text", "said")}
    return {**content, **texts, "said": texts["said"][:300]}


class _Parts:
    """What a sandbox sends of a program: parts of its outputs, then how it ended. At most `most` bytes of each output are kept,
    whatever it sends."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept = {"out": bytearray(), "err": bytearray()}
        self.ending: dict[str, int | None] = {}

    def add(self, *part: Any) -> None:
        """Raises ValueError for what is no part."""
        name, value = part if len(part) == 2 and isinstance(part[0], str) else ("", None)
        if name in self.kept and isinstance(value, bytes):
            output = self.kept[name]
            output += value[: self.most - len(output)]
        elif name == "status" and (value is None or type(value) is int):
            self.ending[name] = value
        elif name == "cut" and type(value) is int and 0 <= value <= MOST_CUT:
            self.ending[name] = value
        else:
            raise ValueError("no part of what a program gives")


def _read_program(ran: CallOutcome, sent: _Parts) -> ProgramOutcome:
    ending = sent.ending if not ran.error else {}
    if {"status", "cut"} - ending.keys():
        why = ran.said or "it sent what is no answer"
        return ProgramOutcome(None, error=ran.error or "died", said=why)
    error = "late" if ending["status"] is None else ""
    out = bytes(sent.kept["out"])
    return ProgramOutcome(ending["status"], out, bytes(sent.kept["err"]), ending["cut"], error)


def open_sandbox(
    settings: SandboxSettings = SandboxSettings(),
    pool: SandboxPool | None = None,
    users: bool = False,
) -> Sandbox:
    """A new state, in a sandbox of its own. `users`: with a root and users of its own, for programs (`Sandbox.start`); its
    code is run as one of them that may do no more than in any sandbox. Raises ToolError where none can be had."""
    if users and not settings.programs:
        raise ConfigError(
            "open_sandbox(users=True) needs SandboxSettings(programs=True): users start programs"
        )
    host = (pool or shared_pool()).take(settings.tier, asdict(settings), users)
    sandbox = Sandbox(host, host.states["0"], "0", settings, users=users)
    weakref.finalize(sandbox, host.close_in, os.getpid())
    return sandbox
