"""What a case does that nothing foreign may do: code of its folder that runs, bytes outside it, a way to another machine.

    watch = Watch(log, inside, forbidden); watch.begin()        in the child; lines of `log` say what it did

Python tells an audit hook of each import, file, process and connection, and forks of the child have the hook, too. A hook
cannot be taken away, so it is for a process that ends.
"""

from __future__ import annotations

import os
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
_CHANGES = {  # event -> which of its arguments are paths that it changes
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.utime": (0,),
    "shutil.rmtree": (0,),
}
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
            "os.system": lambda args: self._say("started", os.fsdecode(args[0])),
            "socket.connect": self._connected,
        }

    def begin(self) -> None:
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple) -> None:
        look = self._looks.get(event)
        if look is not None:
            look(args)
        for place in _CHANGES.get(event, ()):
            self._changed(args[place])

    def _say(self, what: str, value: Any) -> None:
        words = f"{what} {str(value).replace(self._foreign, 'CASE')!r}"
        os.write(self._log, words[:300].encode(errors="replace") + b"\n")

    def _opened(self, args: tuple) -> None:
        path, mode, flags = args
        writes = bool(flags & _WRITING) if isinstance(flags, int) else False
        if writes or (isinstance(mode, str) and set(mode) & set("wax+")):
            self._changed(path)

    def _changed(self, path: Any) -> None:
        if isinstance(path, int) or path is None:
            return
        real = _real(path)
        if real.startswith(("/dev/", "/proc/", "/sys/")):
            return
        if _below(real, self._forbidden) or not _below(real, self._inside):
            self._say("wrote", real)

    def _executed(self, args: tuple) -> None:
        name = getattr(args[0], "co_filename", "")
        if name.startswith("/") and _below(_real(name), (self._foreign,)):
            self._say("ran", name)

    def _started(self, program: Any) -> None:
        first = program if isinstance(program, (str, bytes, os.PathLike)) else program[0]
        path = os.fsdecode(first)
        known = os.path.basename(path) in PROGRAMS or _real(path) == _real(sys.executable)
        lies_here = "/" in path and _below(_real(path), (self._foreign,))  # else it is on PATH
        if lies_here or not known:
            self._say("started", path)

    def _connected(self, args: tuple) -> None:
        address = args[1]
        host = address[0] if isinstance(address, tuple) else ""
        if isinstance(host, str) and host and not host.startswith(_NEAR):
            self._say("connected to", host)


def _real(path: Any) -> str:
    try:
        return os.path.realpath(os.fsdecode(path))
    except (ValueError, OSError):
        return "/dev/null"  # nothing can be opened by it


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)
