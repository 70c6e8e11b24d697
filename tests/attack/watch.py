"""What a case does that nothing foreign may do: code of its folder that runs, bytes outside it, a way to another machine.

    watch = Watch(log, inside, forbidden); watch.begin()        in the child; lines of `log` say what it did

Python tells an audit hook of each import, file, process and connection before it is done, and forks of the child have the
hook, too. What is forbidden is noted and not done: an attack that root runs once took /dev/null from the machine. A hook
cannot be taken away, so it is for a process that ends.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Programs that the package or its libraries start to learn about the machine.
PROGRAMS = (
    "git",
    "nvidia-smi",
    "uname",
    "ldconfig",
    "lscpu",
    "gcc",
    "cc",
    "ld",
    "objdump",
    "file",
    "fc-list",
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Event -> of each path that it changes, the place among its arguments, and that of the folder it is relative to.
_CHANGES = {
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
    "shutil.rmtree": ((0, 1),),
}
_SINKS = ("/dev/null", b"/dev/null", "/dev/tty")  # to write to, not to change
_OWN = "/proc/self/"  # what a process sets of itself
_SHARED = "/dev/shm/"  # semaphores of multiprocessing
_NEAR = ("127.", "localhost", "::1", "0.0.0.0")


class Watch:
    """`inside`: folders that may be written into, but for what is below one of `forbidden`. `foreign`: where no code may
    come from."""

    def __init__(
        self, log: Path, inside: Sequence[Path], forbidden: Sequence[Path], foreign: Path
    ) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)
        self._inside = tuple(_real(path) for path in inside)
        self._forbidden = tuple(_real(path) for path in forbidden)
        self._foreign = _real(foreign)
        self._looks: dict[str, Callable[[tuple], None]] = {
            "open": self._opened,
            "exec": self._executed,
            "subprocess.Popen": lambda args: self._started(args[0] or args[1]),
            "os.posix_spawn": lambda args: self._started(args[0]),
            "os.exec": lambda args: self._started(args[0]),
            "os.system": lambda args: self._refuse("started", os.fsdecode(args[0])),
            "socket.connect": self._connected,
        }

    def begin(self) -> None:
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple) -> None:
        look = self._looks.get(event)
        if look is not None:
            look(args)
        if event == "os.mkdir" and os.path.lexists(args[0]):
            return  # what is there stays as it is: Python asks the system, which refuses
        for place, folder in _CHANGES.get(event, ()):
            within = args[folder] if folder is not None and len(args) > folder else None
            self._changed(args[place], within)
        if event == "os.rename" and _is_special(args[1]):
            self._refuse("replaced", args[1])

    def _refuse(self, what: str, value: Any) -> None:
        """Note it. Raises PermissionError, so that it is not done."""
        words = f"{what} {str(value).replace(self._foreign, 'CASE')!r}"
        os.write(self._log, words[:300].encode(errors="replace") + b"\n")
        raise PermissionError(errno.EPERM, f"not in an attack: {words[:100]}")

    def _opened(self, args: tuple) -> None:
        path, mode, flags = args
        writes = bool(flags & _WRITING) if isinstance(flags, int) else False
        if writes or (isinstance(mode, str) and set(mode) & set("wax+")):
            if path not in _SINKS:
                self._changed(path)

    def _changed(self, path: Any, folder: int | None = None) -> None:
        if isinstance(path, int) or path is None:
            return
        relative = isinstance(folder, int) and folder >= 0
        real = _real(f"/proc/self/fd/{folder}/{os.fsdecode(path)}" if relative else path)
        if real.startswith((f"/proc/{os.getpid()}/", _OWN, _SHARED)):
            return
        if _below(real, self._forbidden) or not _below(real, self._inside):
            self._refuse("wrote", real)

    def _executed(self, args: tuple) -> None:
        name = getattr(args[0], "co_filename", "")
        if name.startswith("/") and _below(_real(name), (self._foreign,)):
            self._refuse("ran", name)

    def _started(self, program: Any) -> None:
        first = program if isinstance(program, (str, bytes, os.PathLike)) else program[0]
        path = os.fsdecode(first)
        known = os.path.basename(path) in PROGRAMS or _real(path) == _real(sys.executable)
        lies_here = "/" in path and _below(_real(path), (self._foreign,))  # else it is on PATH
        if lies_here or not known:
            self._refuse("started", path)

    def _connected(self, args: tuple) -> None:
        address = args[1]
        host = address[0] if isinstance(address, tuple) else ""
        if isinstance(host, str) and host and not host.startswith(_NEAR):
            self._refuse("connected to", host)


def _real(path: Any) -> str:
    try:
        return os.path.realpath(os.fsdecode(path))
    except (ValueError, OSError):
        return "/dev/null"  # nothing can be opened by it


def _is_special(path: Any) -> bool:
    """A device, a pipe or a socket."""
    try:
        mode = os.lstat(path).st_mode
    except (OSError, TypeError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)
