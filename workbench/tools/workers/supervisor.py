"""The small process between the trainer and its workers: forks them, kills them, and runs no code of others.

Why it is there. It has no threads and little memory, so a worker is forked in milliseconds and inherits neither a
tensor library nor a lock that some thread holds. It is the workers' parent, so it reaps them (no zombies) and knows what
each one died of. And it outlives a trainer that is killed just long enough to take every worker along.

    trainer -> supervisor   "+" number, with the worker's end of a socket · "-" number: kill it
    supervisor -> trainer   "!" 0 0: ready · "x" number status: that worker has ended
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from workbench.basics.beside import SAFE, look_here
from workbench.tools.workers.values import import_named, import_path
from workbench.tools.workers.variables import passed_on

ORDER = struct.Struct(">cI")
REPORT = struct.Struct(">cIi")
LOOK_S = 0.25  # how often to see whether the trainer is still there, should its end of the socket be held by others
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from workbench.tools.workers.supervisor import supervise; "
    "supervise(sys.argv[2], *map(int, sys.argv[3:]))"
)


def start_supervisor(serve: str, *settings: int) -> tuple[subprocess.Popen, socket.socket]:
    """Start one; returns its process and the trainer's end of the control socket.

    `serve`: "module:function", what every worker does with its connection and these settings, until that ends. The
    supervisor imports it before it forks, so that every worker has it already.

    A session of its own keeps Ctrl-C away. The hash seed is fixed so that workers agree on the order of sets. What a
    worker prints goes to stderr: the trainer's stdout may be read by a program. Of the environment's variables it gets
    those that are on a list (`variables`): no keys.
    """
    ours, theirs = socket.socketpair()
    one_thread = {
        name: os.environ.get(name, "1")
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    }
    hash_seed = os.environ.get("PYTHONHASHSEED", "0")
    numbers = (theirs.fileno(), os.getpid(), *settings)
    command = [sys.executable, SAFE, "-c", _START, json.dumps(import_path()), serve]
    with theirs:
        process = subprocess.Popen(
            [*command, *map(str, numbers)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,
            start_new_session=True,
            env={**passed_on(os.environ), **one_thread, "PYTHONHASHSEED": hash_seed},
        )
    return process, ours


def supervise(serve: str, control_fd: int, trainer: int, *settings: int) -> None:
    """Follow orders until the trainer is gone; then kill what is left and go too."""
    look_here()
    work = import_named(serve)
    control = socket.socket(fileno=control_fd)
    os.set_inheritable(control_fd, False)
    woken, wake = _become_supervisor()
    pids: dict[int, int] = {}
    orders = bytearray()
    connections = []
    try:
        control.sendall(REPORT.pack(b"!", 0, 0))
        while os.getppid() == trainer:
            readable, _, _ = select.select([control, woken], [], [], LOOK_S)
            if woken in readable:
                os.read(woken, 4096)
                _reap(pids, control)
            if control not in readable:
                continue
            data, received, _, _ = socket.recv_fds(control, 4096, 64)
            if not data:
                break
            orders += data
            connections += received
            while len(orders) >= ORDER.size:
                order, number = ORDER.unpack_from(orders)
                del orders[: ORDER.size]
                if order == b"+":
                    fd = connections.pop(0)
                    unneeded = [control.fileno(), woken, wake, *connections]
                    pids[number] = _fork_worker(
                        fd, lambda connection: work(connection, *settings), unneeded
                    )
                    os.close(fd)
                elif number in pids:
                    _kill(pids[number])
    except OSError:  # the trainer's end is gone
        pass
    finally:
        _take_along(pids)


def _become_supervisor() -> tuple[int, int]:
    """Both ends of a pipe that can be read from whenever a child has ended."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    gc.collect()
    gc.freeze()  # the collector would touch, and so copy, every page in every worker
    return woken, wake


def _fork_worker(fd: int, work: Callable[[socket.socket], None], unneeded: list[int]) -> int:
    supervisor = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()  # a group of its own: what it starts is killed with it
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # What it lets loose stays its own, and falls to the supervisor at its end.
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        if os.getppid() != supervisor:
            os._exit(status)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for other in unneeded:
            os.close(other)
        os.set_inheritable(fd, False)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        random.seed()  # else all workers would draw alike, and an environment that uses them would look deterministic
        np.random.seed()
        # The trainer is gone, or something else has used the connection.
        with suppress(OSError, ValueError):
            work(socket.socket(fileno=fd))
        status = 0
    finally:
        os._exit(status)


def _kill(pid: int) -> None:
    """A worker, and all that it has started, in whatever session that is by now."""
    started = _descendants(pid)
    for kill in (os.kill, os.killpg):  # the group is there only once the worker has made it
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    for descendant in started:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(descendant, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    """Linux only; none elsewhere."""
    children: list[int] = []
    try:
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            children += map(int, path.read_text().split())
    except OSError:  # it has ended meanwhile
        return []
    return children


def _descendants(pid: int) -> list[int]:
    descendants = _children(pid)
    for child in descendants:
        descendants += _children(child)
    return descendants


def _reap(pids: dict[int, int], control: socket.socket) -> None:
    numbers = {pid: number for number, pid in pids.items()}
    with suppress(ChildProcessError):
        # Looked at first and reaped last: until then the system does not give its number to another process.
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            number = numbers.get(ended.si_pid)
            if number is not None:
                _kill(ended.si_pid)  # what it had started
            _, status = os.waitpid(ended.si_pid, 0)
            if number is not None:
                del pids[number]
                control.sendall(REPORT.pack(b"x", number, os.waitstatus_to_exitcode(status)))
                _kill_orphans(pids)


def _kill_orphans(pids: dict[int, int]) -> None:
    """Kill what a worker had started: it became this process's child when the worker ended."""
    for child in set(_children(os.getpid())) - set(pids.values()):
        _kill(child)


def _take_along(pids: dict[int, int]) -> None:
    """Kill all workers, then whatever they had started and let loose, which is this process's child by now."""
    for pid in pids.values():
        _kill(pid)
    with suppress(ChildProcessError):
        while True:
            for pid in _children(os.getpid()):
                _kill(pid)
            os.waitpid(-1, 0)


def cause_of(status: int) -> str:
    """How a worker ended, in words, from the status in its report."""
    if status >= 0:
        return f"ending itself with exit code {status}"
    with suppress(ValueError):
        return f"signal {-status} ({signal.Signals(-status).name})"
    return f"signal {-status}"


def release(owner: int, process: subprocess.Popen, control: socket.socket) -> None:
    """End a supervisor: it takes its workers along when its connection ends. A forked child of the trainer (whose
    process is not `owner`) owns nothing."""
    if os.getpid() != owner:
        return
    with suppress(OSError):
        control.shutdown(socket.SHUT_RDWR)
    control.close()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def prctl(option: int, value: int) -> None:
    """Linux only: elsewhere workers still go with the supervisor, unless that is killed first."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
