"""The one writer: every byte that this package puts on a disk goes through here (invariant 14).

A record is either wholly there or not there at all, whenever the process dies and whenever the power fails:

    write_file     temporary name (O_EXCL) · write · fsync · rename · fsync of the folder
    write_folder   temporary folder · its files, each synced · MANIFEST.json last (size and sha256 of each) · fsync of
                   the folder · ONE rename · fsync of the parent
    append_line    one write of one line that carries its own checksum · fsync; a torn tail is recognised by the next
                   reader, and cut off (kept beside the file as `.orphan-1`) by the next append

fsync comes before rename: otherwise a power cut may leave the new name with no bytes in it. The folder is synced after
the rename: otherwise the name itself may be gone. What the disk refuses becomes a `StoreError` that names the path, the
free space and what to do, and no temporary file stays behind. A process that is killed leaves temporaries; they are
swept by the next one that holds the folder's lock, never by a reader.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import socket
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from workbench.basics.canonical_json import (
    MANIFEST,
    Seal,
    check_name,
    line_bytes,
    read_file,
    read_lines,
    sealed_json,
)
from workbench.basics.regular_files import open_regular
from workbench.run.processes import identity
from workbench.values.errors import StoreError

TEMPORARY = ".tmp-"  # what was being written when a process died
TRASH = ".trash-"  # what was being deleted
PIECE = 1 << 20  # bytes that are worth a system call
Chunks = bytes | memoryview | Iterable[bytes | memoryview]  # a file's content, whole or in pieces


# ------------------------------------------------------------------------------------------------ disk errors


_REMEDIES = {
    errno.ENOSPC: "free some space, or put the run on another disk",
    errno.EDQUOT: "your quota is used up: free some space, or put the run on another disk",
    errno.EROFS: "the disk is read-only: put the run somewhere writable",
    errno.EACCES: "make the folder writable for you, or put the run elsewhere",
    errno.EPERM: "make the folder writable for you, or put the run elsewhere",
    errno.EIO: "the disk reports a fault: copy the run to another disk before going on",
    errno.ELOOP: "a symbolic link stands there: the store writes through none; remove it",
}
_NOT_DURABLE = "It is done, but a power cut may still undo it"


def _free_bytes(path: Path) -> str:
    for folder in (path, *path.parents):
        try:
            return f"{shutil.disk_usage(folder).free:,}"
        except OSError:
            continue
    return "an unknown number of"


@contextmanager
def _disk_errors(path: Path, doing: str, temporary: Path | None = None) -> Iterator[list[str]]:
    """Turn an error of the disk into a StoreError that says what to do.

    However the block ends early, `temporary` is removed; its size is reported, since at least that much space is needed
    beside what is free. The block appends to the list that it gets how things stand once something was changed.
    """
    standing = ["What was there before is untouched"]
    try:
        yield standing
    except BaseException as error:
        written = ""
        if temporary is not None:
            written_bytes = _bytes_in(temporary)
            if written_bytes:
                written = f" after {written_bytes:,} bytes, which were removed again"
            _discard(temporary)
        if isinstance(error, StoreError) or not isinstance(error, OSError):
            raise
        remedy = _REMEDIES.get(error.errno, "fix the cause, then try again")
        raise StoreError(
            f"could not {doing} {path}: {error.strerror or error}{written}; {_free_bytes(path)} bytes are "
            f"free there. {remedy[0].upper()}{remedy[1:]}. {standing[-1]}"
        ) from error


def _bytes_in(path: Path) -> int:
    """Bytes of a file, or of the files in a folder; as far as they can be counted."""
    total = 0
    for file in path.iterdir() if path.is_dir() else (path,):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue
    return total


# ------------------------------------------------------------------------------------------------ files and folders


def _write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view.nbytes:
        view = view[os.write(fd, view) :]


def _large_pieces(chunks: Iterable[bytes | memoryview]) -> Iterator[bytearray | memoryview]:
    """The same bytes with small pieces put together: a model of many small tensors is not one system call for each."""
    small = bytearray()
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        if view.nbytes < PIECE:
            small += view
        if small and (view.nbytes >= PIECE or len(small) >= PIECE):
            yield small
            small = bytearray()
        if view.nbytes >= PIECE:
            yield view
    if small:
        yield small


def _write_new(path: Path, content: Chunks) -> Seal:
    """Write and sync a file that must not exist yet. The name is not durable until its folder is synced."""
    is_whole = isinstance(content, (bytes, bytearray, memoryview))
    chunks = [content] if is_whole else content
    digest = sha256()
    size = 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        for chunk in _large_pieces(chunks):
            digest.update(chunk)
            size += len(chunk)
            _write_all(fd, chunk)
        os.fsync(fd)
    finally:
        os.close(fd)
    return Seal(size, digest.hexdigest())


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _temporary(path: Path) -> Path:
    return path.parent / f"{TEMPORARY}{path.name}-{secrets.token_hex(4)}"


def make_folder(path: Path, *, within: Path | None = None) -> None:
    """Make a folder and its parents, durably. One that is there already is left as it is. `within`: a parent that is
    never made, for it is there; StoreError where it is not."""
    path = Path(path)
    missing = []
    while not path.is_dir():
        if path == within:
            raise StoreError(f"{path} is gone: it was renamed or removed while it was written")
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with _disk_errors(folder, "make the folder") as standing:
            try:
                os.mkdir(folder)
            except FileExistsError:  # another process made it meanwhile
                if not folder.is_dir():
                    raise
            standing.append(_NOT_DURABLE)
            _sync_folder(folder.parent)


def write_file(path: Path, content: Chunks, *, replace: bool = False) -> Seal:
    """Put a whole file there, or nothing. `replace=False` refuses a file that exists: records are immutable. A device, a
    pipe or a socket is never replaced: root, who writes to /dev/null, would take it from the whole machine.

    The folder must exist (`make_folder`). Returns the seal of what was written; raises StoreError.
    """
    path = Path(path)
    if path.is_symlink():
        raise StoreError(f"{path} is a symbolic link; the store writes through none. Remove it")
    if path.exists() and not (replace and path.is_file()):
        raise StoreError(
            f"{path} is there already, and what is written is never changed; choose another name"
        )
    temporary = _temporary(path)
    with _disk_errors(path, "write", temporary) as standing:
        seal = _write_new(temporary, content)
        os.rename(temporary, path)
        standing.append(_NOT_DURABLE)
        _sync_folder(path.parent)
    return seal


def claim_file(path: Path, content: bytes) -> bool:
    """Put a whole file there unless one of this name is there already: of several that try at once, one gets True. By a
    hard link, so that it holds on a network's disk, too."""
    path = Path(path)
    temporary = _temporary(path)
    with _disk_errors(path, "claim", temporary):
        _write_new(temporary, content)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary)
        _sync_folder(path.parent)
    return True


def remove_file(path: Path) -> None:
    """Take a file away; one that is gone already is no error."""
    with _disk_errors(path, "remove"):
        Path(path).unlink(missing_ok=True)


def write_folder(
    path: Path, files: Mapping[str, Chunks], *, kind: str, version: int
) -> dict[str, Seal]:
    """Put a whole folder of files there, or nothing; MANIFEST.json in it says what each file must hold.

    Its folder must exist, `path` itself must not. Returns the seals by file name; raises StoreError.
    """
    path = Path(path)
    with _new_folder(path) as temporary:
        seals = {
            check_name(name): _write_new(temporary / name, content)
            for name, content in files.items()
        }
        written = {name: vars(seal) for name, seal in seals.items()}
        manifest = {"folder": path.name, "files": written}
        _write_new(temporary / MANIFEST, sealed_json(manifest, kind=kind, version=version))
    return seals


def create_folder(path: Path, files: Mapping[str, Chunks], folders: Iterable[str] = ()) -> None:
    """Make a folder that will grow, whole from its first moment, with first files and empty folders."""
    with _new_folder(Path(path)) as temporary:
        for name in folders:
            os.mkdir(temporary / check_name(name))
        for name, content in files.items():
            _write_new(temporary / check_name(name), content)
    # Of earlier tries: the name is taken now, so none of them is still being made.
    for leftover in half_made(Path(path)):
        _discard(leftover)


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill; at the end of the block one rename makes it `path`."""
    check_name(path.name)
    if path.is_symlink() or path.exists():
        raise StoreError(
            f"{path} is there already, and what is written is never changed; choose another name"
        )
    temporary = _temporary(path)
    with _disk_errors(path, "write the folder", temporary) as standing:
        os.mkdir(temporary)
        yield temporary
        _sync_folder(temporary)
        os.rename(temporary, path)
        standing.append(_NOT_DURABLE)
        _sync_folder(path.parent)


def _discard(path: Path) -> None:
    """Remove a temporary, if it can be: the error that brought us here is the one to show."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except OSError:
        pass


def remove_folder(path: Path) -> None:
    """Take a folder away: first out of sight by one rename, then file by file; a kill between leaves trash to sweep."""
    path = Path(path)
    trash = path.parent / f"{TRASH}{path.name}-{secrets.token_hex(4)}"
    with _disk_errors(path, "remove") as standing:
        os.rename(path, trash)
        standing.append(
            "It is out of sight already; the next one who writes here removes what is left of it"
        )
        _sync_folder(path.parent)
        shutil.rmtree(trash)


def set_aside(path: Path, folder: Path) -> Path:
    """Move a file or folder into `folder` under a name not used there yet. Nothing is deleted; returns the new path."""
    make_folder(folder)
    number = 1
    while (target := folder / f"{path.name}-{number}").exists():
        number += 1
    with _disk_errors(path, "set aside") as standing:
        os.rename(path, target)
        standing.append(_NOT_DURABLE)
        _sync_folder(folder)
        _sync_folder(path.parent)
    return target


NO_LINKS = "a run is written below its own folder only: put the run there as a whole, or mount the other disk in its place"


def refuse_links(folder: Path) -> None:
    """Raise StoreError for a symbolic link anywhere below `folder`: what is written, cut or removed through it would be
    somebody else's (invariant 16)."""
    with _disk_errors(folder, "look through"):
        for parent, folders, files in os.walk(folder):
            for name in (*folders, *files):
                if os.path.islink(os.path.join(parent, name)):
                    raise StoreError(f"{Path(parent, name)} is a symbolic link, and {NO_LINKS}")


def open_own(path: Path, flags: int = 0) -> int:
    """A descriptor of a file that is changed in place. Raises OSError, and StoreError where the file has a second name:
    what is written under one is written under the other, too, and that is somebody else's (invariant 16)."""
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o666)
    if os.fstat(fd).st_nlink > 1:
        os.close(fd)
        raise StoreError(
            f"{path} is a hard link (`cp -l` makes such copies): what is written into it would change another file, too. "
            f"Nothing was written. Give the run a file of its own: cp {path} {path}.own && mv {path}.own {path}"
        )
    return fd


def half_made(path: Path) -> list[Path]:
    """Temporaries of `path` that lie beside it: it was being made when a process died, or is being made just now."""
    if not path.parent.is_dir():
        return []
    # As `_temporary` names them.
    ours = re.compile(f"{re.escape(TEMPORARY + path.name)}-[0-9a-f]{{8}}")
    return sorted(beside for beside in path.parent.iterdir() if ours.fullmatch(beside.name))


def sweep(folder: Path) -> list[Path]:
    """Remove what killed processes left half-written or half-deleted below `folder`. Only for who holds its lock."""
    leftovers = []
    for parent, folders, files in os.walk(folder):
        left = [name for name in (*folders, *files) if name.startswith((TEMPORARY, TRASH))]
        leftovers += [Path(parent, name) for name in left]
        folders[:] = [name for name in folders if name not in left]
    for path in leftovers:
        _discard(path)
    return leftovers


# ------------------------------------------------------------------------------------------------ lines


def append_line(path: Path, record: Mapping[str, Any], *, sync: bool = True) -> None:
    """Add one record: one write, one fsync. A tail without its newline is cut off first and kept as `.orphan-…`.

    `sync=False` is for lines that may be lost (the clock): a power cut may take the last of them.
    """
    path = Path(path)
    line = line_bytes(record)
    with _disk_errors(path, "append to") as standing:
        is_new = not path.exists()
        fd = open_own(path, os.O_CREAT | os.O_APPEND)
        try:
            end = os.fstat(fd).st_size
            if end and os.pread(fd, 1, end - 1) != b"\n":
                end = cut_lines(path)
            try:
                _write_all(fd, line)
                if sync:
                    os.fsync(fd)
            except BaseException:
                os.ftruncate(fd, end)
                raise
        finally:
            os.close(fd)
        if is_new:
            standing.append(_NOT_DURABLE)
            _sync_folder(path.parent)


def cut_lines(path: Path, *, keep: int | None = None) -> int:
    """Cut a file of lines behind its first `keep` records (None: all whole ones); what is cut is kept beside it as
    `NAME.orphan-1`, `-2` …. Returns the new length in bytes."""
    path = Path(path)
    lines = read_lines(path)
    keep = len(lines.records) if keep is None else min(keep, len(lines.records))
    end = lines.ends[keep - 1] if keep else 0
    tail = read_file(path)[end:]
    if not tail:
        return end
    with _disk_errors(path, "cut the torn end off"):
        fd = open_own(path)
        try:
            write_file(_orphan(path), tail)
            os.ftruncate(fd, end)
            os.fsync(fd)
        finally:
            os.close(fd)
    return end


def leave_out_damaged_lines(path: Path) -> int:
    """Put the sound records of a file of lines in its place; what was there is kept beside it as `NAME.orphan-1` ….
    For lines that may be lost (the clock). Returns how many bytes are left out: 0, and nothing done, if none."""
    path = Path(path)
    data = read_file(path)
    sound = b"".join(map(line_bytes, read_lines(path, skip_damaged=True).records))
    if sound != data:
        write_file(_orphan(path), data)
        write_file(path, sound, replace=True)
    return len(data) - len(sound)


def _orphan(path: Path) -> Path:
    number = 1
    while (orphan := path.with_name(f"{path.name}.orphan-{number}")).exists():
        number += 1
    return orphan


# ------------------------------------------------------------------------------------------------ lock


class FolderLock:
    """One writer per folder, by flock: the kernel drops it when the process dies, so a stale lock cannot exist.

    Raises StoreError naming the holder's process, machine and starting time; with `wait`, waits for its end instead. A
    forked child does not hold it: it may live on when its parent is killed.

    It holds the folder and its lock by descriptor, so that `gone` knows when a name leads elsewhere.
    """

    def __init__(self, folder: Path, wait: bool = False):
        self._fd: int | None = None
        self._kept: dict[Path, int] = {}
        path = Path(folder) / ".lock"
        with _disk_errors(path, "lock"):
            self._fd = open_own(path, os.O_CREAT)
            _part_at_fork()
            _held.add(self)
            try:
                self._take(wait)
            except BlockingIOError:
                holder = self._holder()
                self.release()
                raise StoreError(
                    f"{folder} is being written by {holder}; wait for it or stop it, or choose another "
                    "name for this run. Reading the run is always possible"
                ) from None
            except BaseException:
                self.release()
                raise
            self._sign()
            # After the lock was made in it: a layered file system gives a folder its number then.
            self._kept[path.parent] = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
            self._kept[path] = os.dup(self._fd)

    def keep(self, path: Path) -> int:
        """Hold this file, too; its descriptor."""
        with _disk_errors(path, "open"):
            self._kept[path] = open_own(path)
        return self._kept[path]

    def gone(self) -> Path | None:
        """The first held name that no longer leads to what is held: it was renamed, removed or replaced."""
        for path, fd in self._kept.items():
            try:
                is_there = os.path.samestat(os.lstat(path), os.fstat(fd))
            except FileNotFoundError:
                is_there = False
            if not is_there:
                return path
        return None

    def _holder(self) -> str:
        """In words, who holds the lock."""
        content = os.pread(self._fd, 500, 0).decode("utf-8", "replace")
        holder = content.partition("\n")[0].strip() or "unknown"
        if _has_ended(holder):
            return f"{holder}, which has ended, but what it started still holds its lock"
        return holder

    def _sign(self) -> None:
        """Write into the lock who holds it."""
        since = datetime.now(UTC).isoformat(timespec="seconds")
        own = identity(os.getpid())
        content = f"process {own.pid} on {own.machine} since {since}\nstarted {own.started}\n"
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, content.encode(), 0)

    def _take(self, wait: bool) -> None:
        """Try for a moment: a process that only checks whether the run is being written holds the lock for microseconds."""
        if wait:
            return fcntl.flock(self._fd, fcntl.LOCK_EX)
        for _ in range(5):
            try:
                return fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.02)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @property
    def released(self) -> bool:
        return self._fd is None

    def release(self) -> None:
        """Let the next process have it."""
        self._close()

    def _close(self, close=os.close) -> None:  # `os` may be gone when the interpreter ends
        if self._fd is not None:
            close(self._fd)
            self._fd = None
        while self._kept:
            close(self._kept.popitem()[1])

    __del__ = _close


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


@cache
def _part_at_fork() -> None:
    os.register_at_fork(after_in_child=lambda: [lock.release() for lock in list(_held)])


def lock_holder(folder: Path) -> str | None:
    """The text that the process which holds a folder's lock wrote into it; None where it is free.

    The lock's file stays when its holder ends, and the lock does not: so the lock itself is tried."""
    try:
        fd = open_regular(Path(folder) / ".lock")
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return os.read(fd, 500).decode("utf-8", "replace")
    finally:
        os.close(fd)


def _has_ended(holder: str) -> bool:
    """Whether the process that wrote `holder` into a lock is known to be gone."""
    match = re.match(r"process (\d{1,9}) on (\S+)", holder)
    if match is None or match[2] != socket.gethostname():
        return False
    try:
        os.kill(int(match[1]), 0)
    except ProcessLookupError:
        return True
    except OSError:  # alive, and another user's
        pass
    return False
