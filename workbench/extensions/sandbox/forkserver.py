"""The process that sandboxes are forked from: an interpreter with the library's usual modules, and nothing of the user's.

    trainer -> forkserver   one JSON line: {"number", "tier", "limits", "seed"} with the sandbox's end of a socket; {"kill":
    number}
    forkserver -> trainer   one JSON line: {"number", "error"}: a sandbox began ("") or could not, and why; of number null: none
    can be begun here, and this process ends

A sandbox is one process ("landlock") or an init process, process 1 of its own space, and a process for each state ("namespaces").
The init process runs no code of anybody's. It may mount, which states may not:

    trainer -> init process   ["go", n]: the folder of state n is /work, and processes run · ["halt"]: none of them does
                        ["copy", n, m]: the files of state n are those of m, too · ["user", name]: a process of this user's
                        serves a socket that is sent · each is answered with "k", or "e"

It begins as `python -c commands.START`, which re-executes itself without random addresses. Standard library only.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from workbench.extensions.sandbox import calls, confine, users, virtual
from workbench.extensions.sandbox.worker import LENGTH, Pipes, SandboxProcess, framed

# What programs import: done once, here, and not in every sandbox. None of these reads the clock or chance when imported.
USUAL = (
    "abc",
    "bisect",
    "collections",
    "copy",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "random",
    "re",
    "statistics",
    "string",
    "typing",
    "fractions",
    "decimal",
    "linecache",
    "traceback",
)
# Number of a sandbox -> the process to kill it by, and what else ends it.
Boxes = dict[int, tuple[int, list[str]]]
LOOK_S = 0.25
BEGUN = b"\0\0begun"  # what a sandbox says first that a program of the machine began


def main(control_fd: int, trainer: int) -> None:
    """Follow orders until the trainer is gone; then no sandbox is left."""
    control = socket.socket(fileno=control_fd)
    for name in USUAL:
        with suppress(ImportError):
            __import__(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        calls.prctl(calls.PR_SET_CHILD_SUBREAPER, 1)  # it adopts the init processes
    except OSError as error:
        words = f"this system cannot have processes adopted ({error})"
        control.sendall(json.dumps({"number": None, "error": words}).encode() + b"\n")
        os._exit(1)
    gc.collect()
    gc.freeze()
    sandboxes: Boxes = {}
    held = bytearray()
    fds = []
    try:
        while os.getppid() == trainer:
            _reap(sandboxes)
            if not select.select([control], [], [], LOOK_S)[0]:
                continue
            data, received, _, _ = socket.recv_fds(control, 1 << 16, 64)
            if not data:
                break
            held += data
            fds += received
            while b"\n" in held:
                line, _, rest = bytes(held).partition(b"\n")
                held = bytearray(rest)
                _follow(json.loads(line), fds, sandboxes, control)
    except OSError:
        pass
    finally:
        for pid, end in sandboxes.values():
            _kill(pid, end)
        os._exit(0)


def _follow(
    order: dict[str, Any],
    fds: list[int],
    sandboxes: Boxes,
    control: socket.socket,
) -> None:
    if "kill" in order:
        sandbox = sandboxes.pop(order["kill"], None)
        if sandbox is not None:
            pid, end = sandbox
            _kill(pid, end)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        return
    connection = fds.pop(0)
    pid, error = _begin(order, connection)
    os.close(connection)
    if pid:
        sandboxes[order["number"]] = pid, order.get("end", [])
    control.sendall(json.dumps({"number": order["number"], "error": error}).encode() + b"\n")


def _kill(pid: int, end: Sequence[str] = ()) -> None:
    if end and not os.fork():
        _run(list(end), os.open(os.devnull, os.O_RDWR))
    for kill in (os.kill, os.killpg):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _run(words: list[str], connection: int) -> None:
    """Become a program whose input, output and words are the connection. Never returns."""
    try:
        os.setsid()
        for fd in range(3):
            os.dup2(connection, fd)
        os.execv(words[0], words)
    finally:
        os._exit(1)


def _reap(sandboxes: Boxes) -> None:
    with suppress(ChildProcessError):
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            for number in [number for number, (other, _) in sandboxes.items() if other == pid]:
                del sandboxes[number]


# ------------------------------------------------------------------------------------------------ one sandbox


def _begin(order: dict[str, Any], connection: int) -> tuple[int, str]:
    """(the process to kill the sandbox by, 0 where there is none; why it could not begin)."""
    if "command" in order:
        first = os.fork()
        if not first:
            _run(order["command"], connection)
        return first, ""
    report, tell = os.pipe()
    first = os.fork()
    if not first:
        _in_child(lambda: _shut_in(order, connection, tell), tell)
    os.close(tell)
    with os.fdopen(report, "rb") as pipe:
        words = pipe.read(2000).decode("utf-8", "replace")
    if order["tier"] == "namespaces":
        os.waitpid(first, 0)
        if words.isdigit():
            return int(words), ""
        return 0, words or "it died while it was being set up"
    if words == "ready":
        return first, ""
    _kill(first)
    os.waitpid(first, 0)
    return 0, words or "it died while it was being set up"


def _in_child(work: Callable[[], None], tell: int) -> None:
    try:
        work()
    except BaseException as error:
        with suppress(OSError):
            os.write(tell, f"{error}"[:1000].encode())
    finally:
        os._exit(1)


def _shut_in(order: dict[str, Any], connection: int, tell: int) -> None:
    limits = order["limits"]
    os.setsid()
    confine.close_all_but(connection, tell)
    _prepare(order)
    if order["tier"] == "landlock":
        library = confine.open_library()
        confine.become_nobody()
        calls.prctl(calls.PR_SET_PDEATHSIG, signal.SIGKILL)
        os.chdir("/")
        confine.import_by_descriptor(library)
        calls.keep_privileges_down()
        calls.landlock(list(library.values()))
        confine.give_up_everything(limits, processes=False, files=False)
        _serve(
            order,
            socket.socket(fileno=connection),
            lambda: (os.write(tell, b"ready"), os.close(tell)),
        )
    confine.enter_namespaces(limits)
    os.umask(0o077)
    init = os.fork()
    if init:  # whoever forked this process adopts the init process, and knows it by its number
        os.write(tell, str(init).encode())
        os._exit(0)
    os.close(tell)
    _keep(order, socket.socket(fileno=connection))


def _prepare(order: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update({"HOME": confine.WORK, "PATH": "", "LANG": "C.UTF-8", "TMPDIR": confine.WORK})
    if order["limits"]["programs"]:
        from workbench.extensions.sandbox import programs  # noqa: F401  (before the clock is made to stand still)

        os.environ.update({"PATH": "/usr/bin:/bin", "TMPDIR": "/tmp"})
    sys.argv = [""]
    sys.path[:] = [path for path in sys.path if path]
    if order["seed"] is not None:
        virtual.install(order["seed"], alone=order["tier"] != "namespaces")


def _serve(
    order: dict[str, Any],
    connection: socket.socket | Pipes,
    ready: Callable[[], None] = lambda: None,
) -> None:
    if order["seed"] is None:
        virtual.random.seed()
    worker = SandboxProcess(connection, order["limits"]["output_bytes"])
    ready()
    worker.serve()
    os._exit(0)


# ------------------------------------------------------------------------------------------------ by a command


def alone(text: str) -> None:
    """The process of a sandbox that a program of the machine began (`commands`)."""
    order = json.loads(text)
    pipes = Pipes()
    for name in USUAL:
        with suppress(ImportError):
            __import__(name)
    confine.close_all_but(*pipes.fds())
    try:
        if order["disk"]:
            confine.mount_work(order["limits"]["disk_mb"] << 20)
        confine.become_nobody()
        os.chdir(confine.WORK)
        os.umask(0o077)
        _prepare(order)
        confine.give_up_everything(order["limits"], processes=False)
    except BaseException as error:
        pipes.sendall(f"{error}"[:1000].encode())
        os._exit(1)
    _serve(order, pipes, lambda: pipes.sendall(BEGUN))


# ------------------------------------------------------------------------------------------------ the init process


def _keep(order: dict[str, Any], connection: socket.socket) -> None:
    """Process 1: when it ends, all others of the sandbox are killed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    os.chdir(confine.WORK)
    _new_state(order, connection)
    current = "0"
    while True:
        header = connection.recv(LENGTH.size, socket.MSG_WAITALL)
        if len(header) < LENGTH.size:
            os._exit(0)
        verb, *rest = json.loads(connection.recv(LENGTH.unpack(header)[0], socket.MSG_WAITALL))
        try:
            if verb != "user":
                current = _keep_order(verb, rest, current)
            connection.sendall(b"k")
            if verb == "user":
                _new_state(order, connection, *rest)
        except OSError:  # the disk is full, or there is no process left
            connection.sendall(b"e")


def copy_folder(source: str, target: str) -> None:
    """All that is in a folder, whatever the depth, in a new one; nothing of it where it does not fit. Raises OSError."""
    made = []
    try:
        left = [""]
        while left:
            inner = left.pop()
            os.mkdir(target + inner, 0o700)
            made.append(target + inner)
            for entry in os.scandir(source + inner):
                below = f"{inner}/{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    left.append(below)
                else:
                    made.append(target + below)
                    shutil.copy2(entry.path, target + below, follow_symlinks=False)
        # Behind what was put into them.
        for path in reversed(made):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.copystat(source + path[len(target) :], path)
    except BaseException:
        for path in reversed(made):
            with suppress(OSError):
                (os.rmdir if os.path.isdir(path) and not os.path.islink(path) else os.unlink)(path)
        raise


def _new_state(order: dict[str, Any], connection: socket.socket, user: str = "") -> None:
    """A process that serves the trainer, which is sent its connection."""
    ours, theirs = socket.socketpair()
    if not os.fork():
        _in_child(lambda: _state(order, user, connection, ours, theirs), 2)
    theirs.close()
    socket.send_fds(connection, [b"s"], [ours.fileno()])
    ours.close()


def _state(order: dict[str, Any], user: str, *others: socket.socket) -> None:
    connection, ours, theirs = others
    connection.close()
    ours.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if user:
        try:
            users.become(user)
        except (OSError, ValueError) as error:
            theirs.sendall(framed(["user", str(error)]))
            os._exit(0)
        theirs.sendall(framed(["user", ""]))
    confine.give_up_everything(
        order["limits"], processes=True, root=bool(user) and os.geteuid() == 0
    )
    _serve(order, theirs)


def _keep_order(verb: str, rest: list[str], current: str) -> str:
    """Whose folder /work is afterwards."""
    if verb == "halt":
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGSTOP)
        return current
    if verb == "copy":
        source, target = rest
        copy_folder(f"{confine.DISK}/{source}", f"{confine.DISK}/{target}")
        return current
    if rest[0] != current:
        confine.give_work(rest[0])
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGCONT)
    return rest[0]
