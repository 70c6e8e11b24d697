"""A disk that dies on purpose: crash before the n-th system call, lose what was not synced, or answer with an error.

    with FaultyDisk(folder, crash_at=7) as disk: ...      # the 7th call below `folder` never happens, nor any later one
    disk.lose("bytes")                                    # then: what a power cut may do to what was not synced

What a real disk may do after a power cut is more than one thing, so there are several ways to lose:
    killed   the process died, the machine did not: everything done so far is there
    bytes    file contents that were not synced are gone, names are there
    zeros    the same, but the file keeps its length, filled with zeros
    names    folder changes (new names, renames, removals) that were not synced are undone, contents are there
    both     bytes and names
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

WAYS = ("killed", "bytes", "zeros", "names", "both")
CALLS = (
    "open",
    "write",
    "fsync",
    "rename",
    "replace",
    "mkdir",
    "unlink",
    "rmdir",
    "ftruncate",
    "link",
    "symlink",
)


@pytest.fixture
def no_waiting(monkeypatch):
    """fsync costs milliseconds and a crash loop makes thousands; here the simulated disk is the judge of them."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


class Crash(BaseException):
    """The process is dead: nothing after this happens."""


class FaultyDisk:
    """Wraps the os functions while it is entered. `crash_at`/`fail_at` count calls from 1; None: never."""

    def __init__(
        self,
        folder: Path,
        *,
        crash_at: int | None = None,
        fail_at: int | None = None,
        error: int = errno.ENOSPC,
        only: tuple[str, ...] = CALLS,
    ):
        self.folder, self.crash_at, self.fail_at, self.error, self.only = (
            Path(folder),
            crash_at,
            fail_at,
            error,
            only,
        )
        self.calls, self.dead, self.log = 0, False, []
        self._real = {name: getattr(os, name) for name in CALLS}
        self._stable = {
            path.stat().st_ino: path.read_bytes()
            for path in self.folder.rglob("*")
            if path.is_file()
        }
        self._undo: list[
            tuple[Path, object]
        ] = []  # (folder whose sync makes it durable, how to undo it)
        self._spare = self.folder.parent / f"{self.folder.name}.spare"
        self._spare.mkdir(exist_ok=True)

    def __enter__(self) -> FaultyDisk:
        for name in CALLS:
            setattr(os, name, self._wrap(name))
        return self

    def __exit__(self, kind, *_):
        for name, function in self._real.items():
            setattr(os, name, function)
        return kind is Crash

    def _wrap(self, name):
        real = self._real[name]

        def call(*args, **kwargs):
            if self.dead:
                raise Crash(name)
            writes = (
                name != "open"
                or args[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)
                or args[1] & os.O_DIRECTORY
            )
            if name in self.only and writes:
                self.calls += 1
                self.log.append(name)
                if self.calls == self.crash_at:
                    self.dead = True
                    if name == "write":  # half of the bytes make it
                        real(
                            args[0],
                            memoryview(args[1]).cast("B")[
                                : max(1, memoryview(args[1]).nbytes // 2)
                            ],
                        )
                    raise Crash(f"{name} {args}")
                if self.calls == self.fail_at:
                    raise OSError(self.error, os.strerror(self.error), str(args[0]))
            return self._note(name, real, args, kwargs)

        return call

    def _note(self, name, real, args, kwargs):
        """Do it, and remember what would undo it until the folder is synced."""
        if (
            "dir_fd" in kwargs and kwargs["dir_fd"] is not None
        ):  # inside shutil.rmtree, of trash only
            return real(*args, **kwargs)
        if name == "fsync":
            where = Path(os.readlink(f"/proc/self/fd/{args[0]}"))
            if where.is_dir():
                self._undo = [(folder, undo) for folder, undo in self._undo if folder != where]
            else:
                self._stable[os.fstat(args[0]).st_ino] = where.read_bytes()
            return (
                None  # what syncing means is decided in `lose`; the real disk need not wait for it
            )
        elif name in ("rename", "replace"):
            source, target = Path(args[0]).absolute(), Path(args[1]).absolute()
            kept = None
            if target.is_file():
                kept = self._spare / f"{len(self._undo)}-{self.calls}"
                self._real["link"](target, kept)

            def undo():
                self._real["rename"](target, source)
                if kept is not None:
                    self._real["rename"](kept, target)

            self._undo.append((target.parent, undo))
        elif name == "mkdir":
            path = Path(args[0]).absolute()
            self._undo.append((path.parent, lambda: shutil.rmtree(path)))
        elif name == "open" and args[1] & os.O_CREAT and not Path(args[0]).exists():
            path = Path(args[0]).absolute()
            self._undo.append((path.parent, lambda: path.unlink(missing_ok=True)))
        return real(*args, **kwargs)

    def lose(self, way: str) -> None:
        """Do to the folder what a power cut may do, in one of the ways above. Call it after leaving the block."""
        if way in ("names", "both"):
            for _, undo in reversed(self._undo):
                undo()
        if way in ("bytes", "zeros", "both"):
            for path in self.folder.rglob("*"):
                if path.is_file() and not path.is_symlink():
                    stable, now = self._stable.get(path.stat().st_ino, b""), path.read_bytes()
                    if now != stable:
                        fill = b"\0" * (len(now) - len(stable)) if way == "zeros" else b""
                        path.write_bytes(stable + fill)
        shutil.rmtree(self._spare)
