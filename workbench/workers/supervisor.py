"""The small process between the trainer and its workers: forks them, kills them, and never runs an environment.

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
from contextlib import suppress
from pathlib import Path

import numpy as np

import workbench.envs  # noqa: F401  (so that every fork has it already)
from workbench.workers.worker import serve

ORDER = struct.Struct(">cI")
REPORT = struct.Struct(">cIi")
LOOK_S = 0.25  # how often to see whether the trainer is still there, should its end of the socket be held by others
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

_START = ("import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
          "from workbench.workers.supervisor import supervise; supervise(*map(int, sys.argv[2:]))")


def start_supervisor(answer_bytes: int) -> tuple[subprocess.Popen, socket.socket]:
    """Start one; returns its process and the trainer's end of the control socket.

    A session of its own keeps Ctrl-C away. The hash seed is fixed so that workers agree on the order of sets. What an
    environment prints goes to stderr: the trainer's stdout may be read by a program.
    """
    ours, theirs = socket.socketpair()
    one_thread = {name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                                                               "MKL_NUM_THREADS")}
    path = [entry or os.getcwd() for entry in sys.path]
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _START, json.dumps(path), str(theirs.fileno()), str(os.getpid()),
             str(answer_bytes)],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=2, start_new_session=True,
            env={**os.environ, **one_thread, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")})
    return process, ours


def supervise(control_fd: int, trainer: int, answer_bytes: int) -> None:
    """Follow orders until the trainer is gone; then kill what is left and go too."""
    control = socket.socket(fileno=control_fd)
    os.set_inheritable(control_fd, False)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    gc.collect()
    gc.freeze()  # the collector would touch, and so copy, every page in every worker
    pids: dict[int, int] = {}
    orders, connections = bytearray(), []
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
                    pids[number] = _fork_worker(fd, answer_bytes, unneeded)
                    os.close(fd)
                elif number in pids:
                    _kill(pids[number])
    except OSError:  # the trainer's end is gone
        pass
    finally:
        _take_along(pids)


def _fork_worker(fd: int, answer_bytes: int, unneeded: list[int]) -> int:
    supervisor = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()  # a group of its own: what it starts is killed with it
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
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
        with suppress(OSError, ValueError):  # the trainer is gone, or something else has used the connection
            serve(socket.socket(fileno=fd), answer_bytes)
        status = 0
    finally:
        os._exit(status)


def _kill(pid: int) -> None:
    for kill in (os.kill, os.killpg):  # the group is there only once the worker has made it
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _reap(pids: dict[int, int], control: socket.socket) -> None:
    numbers = {pid: number for number, pid in pids.items()}
    with suppress(ChildProcessError):
        # Looked at first and reaped last: until then nobody else can be given its number.
        while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if found.si_pid in numbers:
                _kill(found.si_pid)  # what it had started
            _, status = os.waitpid(found.si_pid, 0)
            if found.si_pid in numbers:
                del pids[numbers[found.si_pid]]
                control.sendall(REPORT.pack(b"x", numbers[found.si_pid], os.waitstatus_to_exitcode(status)))


def _take_along(pids: dict[int, int]) -> None:
    """Kill all workers, then whatever they had started and let loose, which is this process's child by now."""
    for pid in pids.values():
        _kill(pid)
    with suppress(ChildProcessError):
        while True:
            children = Path(f"/proc/self/task/{os.getpid()}/children")
            for pid in children.read_text().split() if children.exists() else ():
                _kill(int(pid))
            os.waitpid(-1, 0)


def _prctl(option: int, value: int) -> None:
    """Linux only: elsewhere workers still go with the supervisor, unless that is killed first."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
