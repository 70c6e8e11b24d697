"""The one writer: every byte that this package puts on a disk goes through here (law 14).

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
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from workbench.errors import StoreError

TEMPORARY = ".tmp-"   # what was being written when a process died
TRASH = ".trash-"     # what was being deleted
MANIFEST = "MANIFEST.json"
Chunks = bytes | memoryview | Iterable[bytes | memoryview]  # a file's content, whole or in pieces

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LINE_END = re.compile(rb'"crc32":"([0-9a-f]{8})"\}')
_LINE_END_LENGTH = len('"crc32":"01234567"}')


@dataclass(frozen=True)
class Seal:
    """What a file must hold to be the one that was written: its length in bytes and the sha256 of them."""

    bytes: int
    sha256: str

    def check(self, path: Path, data: bytes) -> None:
        """Raise StoreError unless `data`, read from `path`, is what was written."""
        if len(data) != self.bytes:
            raise StoreError(f"{path} is damaged: {self.bytes} bytes were written, {len(data)} are there; "
                             "restore the file from a copy of the run")
        if sha256(data).hexdigest() != self.sha256:
            raise StoreError(f"{path} is damaged: its sha256 is not that of what was written; "
                             "restore the file from a copy of the run")


# ------------------------------------------------------------------------------------------------ names and JSON


def check_name(name: str) -> str:
    """A name that is safe as a file name everywhere; raises StoreError otherwise."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name:
        raise StoreError(f"{name!r} cannot be a name here: expected 1 to 100 of A-Z a-z 0-9 . _ -, beginning with a "
                         "letter or digit, without '..'")
    return name


def plain(value: Any, what: str) -> Any:
    """`value` as JSON holds it: numpy numbers become numbers, tuples lists; anything that JSON would lose is refused."""
    kind = type(value)
    if kind is str or kind is int or kind is float or kind is bool or value is None:
        return value
    if isinstance(value, Mapping):
        for key in value:
            if type(key) is not str:
                raise StoreError(f"{what} has the key {key!r}; expected JSON values, whose keys are strings")
        return {key: plain(item, what) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, what) for item in value]
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufU":
        return value.tolist()
    if isinstance(value, str):  # a subclass (an enum): the plain value below it, which JSON would write
        return str.__str__(value)
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    raise StoreError(f"{what} holds {value!r} of type {kind.__name__}; expected JSON values (text, numbers, true and "
                     "false, null, lists, objects), so that the run can be read back exactly")


def json_bytes(value: Any, what: str) -> bytes:
    """Compact ASCII JSON, keys in the order given. Numbers come back bit for bit (NaN and infinities as Python has them)."""
    return json.dumps(plain(value, what), separators=(",", ":")).encode("ascii")


def sealed_json(content: Any, *, kind: str, version: int) -> bytes:
    """A JSON document for people that notices any change to its content: kind, format version, sha256, content."""
    content = plain(content, kind)
    digest = sha256(json_bytes(content, kind)).hexdigest()
    document = {"kind": kind, "format": version, "sha256": digest, "content": content}
    return (json.dumps(document, indent=1) + "\n").encode("ascii")


def read_sealed_json(path: Path, *, kind: str, version: int) -> Any:
    """The content of a `sealed_json` document; raises StoreError if missing, damaged, or of another kind or format."""
    data = read_file(path)
    try:
        document = json.loads(data)
        found, number, digest = document["kind"], document["format"], document["sha256"]
        content = document["content"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"{path} is damaged or was not written by this program: {error!r}") from error
    check_format(path, found=(found, number), expected=(kind, version))
    if sha256(json_bytes(content, kind)).hexdigest() != digest:
        raise StoreError(f"{path} was changed after it was written (its sha256 differs); restore it from a copy")
    return content


def check_format(path: Path, *, found: tuple[Any, Any], expected: tuple[str, int]) -> None:
    """Raise StoreError unless a file's (kind, format version) is one that this version of the program reads."""
    if found[0] != expected[0]:
        raise StoreError(f"{path} holds a {found[0]!r}, expected a {expected[0]!r}")
    if type(found[1]) is not int or not 1 <= found[1] <= expected[1]:
        raise StoreError(f"{path} has format {found[1]!r} of {expected[0]!r}; this version reads formats 1 to "
                         f"{expected[1]}. Open it with a version of the workbench that reads format {found[1]!r}")


def read_file(path: Path) -> bytes:
    """All bytes of a regular file; StoreError if it is missing, a link, or cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            return file.read()
    except FileNotFoundError as error:
        raise StoreError(f"{path} is missing; restore it from a copy of the run") from error
    except OSError as error:
        reason = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise StoreError(f"{path} cannot be read: {reason}") from error


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


def _free_bytes(path: Path) -> str:
    for folder in (path, *path.parents):
        try:
            return f"{shutil.disk_usage(folder).free:,}"
        except OSError:
            continue
    return "an unknown number of"


@contextmanager
def _disk_errors(path: Path, doing: str) -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        remedy = _REMEDIES.get(error.errno, "mend the cause, then try again")
        raise StoreError(f"could not {doing} {path}: {error.strerror or error}; {_free_bytes(path)} bytes are free "
                         f"there. {remedy[0].upper()}{remedy[1:]}. What was there before is untouched") from error


# ------------------------------------------------------------------------------------------------ files and folders


def _write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view.nbytes:
        view = view[os.write(fd, view):]


def _write_new(path: Path, content: Chunks) -> Seal:
    """Write and sync a file that must not exist yet. The name is not durable until its folder is synced."""
    digest, size = sha256(), 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        for chunk in [content] if isinstance(content, (bytes, bytearray, memoryview)) else content:
            view = memoryview(chunk).cast("B")
            digest.update(view)
            size += view.nbytes
            _write_all(fd, view)
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


def make_folder(path: Path) -> None:
    """Make a folder and its parents, durably. One that is there already is left as it is."""
    path = Path(path)
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with _disk_errors(folder, "make the folder"):
            os.mkdir(folder)
            _sync_folder(folder.parent)


def write_file(path: Path, content: Chunks, *, replace: bool = False) -> Seal:
    """Put a whole file there, or nothing. `replace=False` refuses a file that exists: records are immutable.

    The folder must exist (`make_folder`). Returns the seal of what was written; raises StoreError.
    """
    path = Path(path)
    if path.is_symlink():
        raise StoreError(f"{path} is a symbolic link; the store writes through none. Remove it")
    if not replace and path.exists():
        raise StoreError(f"{path} is there already, and what is written is never changed; choose another name")
    temporary = _temporary(path)
    with _disk_errors(path, "write"):
        try:
            seal = _write_new(temporary, content)
            os.rename(temporary, path)
        except BaseException:
            _discard(temporary)
            raise
        _sync_folder(path.parent)
    return seal


def write_folder(path: Path, files: Mapping[str, Chunks], *, kind: str, version: int) -> dict[str, Seal]:
    """Put a whole folder of files there, or nothing; MANIFEST.json in it says what each file must hold.

    Its folder must exist, `path` itself must not. Returns the seals by file name; raises StoreError.
    """
    path = Path(path)
    with _new_folder(path) as temporary:
        seals = {check_name(name): _write_new(temporary / name, content) for name, content in files.items()}
        manifest = {"folder": path.name, "files": {name: vars(seal) for name, seal in seals.items()}}
        _write_new(temporary / MANIFEST, sealed_json(manifest, kind=kind, version=version))
    return seals


def create_folder(path: Path, files: Mapping[str, bytes], folders: Iterable[str] = ()) -> None:
    """Put a folder that will go on growing there, whole from its first moment, with first files and empty folders."""
    with _new_folder(Path(path)) as temporary:
        for name in folders:
            os.mkdir(temporary / check_name(name))
        for name, content in files.items():
            _write_new(temporary / check_name(name), content)


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill; at the end of the block one rename makes it `path`."""
    check_name(path.name)
    if path.is_symlink() or path.exists():
        raise StoreError(f"{path} is there already, and what is written is never changed; choose another name")
    temporary = _temporary(path)
    with _disk_errors(path, "write the folder"):
        try:
            os.mkdir(temporary)
            yield temporary
            _sync_folder(temporary)
            os.rename(temporary, path)
        except BaseException:
            _discard(temporary)
            raise
        _sync_folder(path.parent)


def verify_folder(path: Path, *, kind: str, version: int) -> tuple[str, ...]:
    """Names of the files of a `write_folder` folder, after checking every byte; StoreError names file and reason."""
    path = Path(path)
    if path.is_symlink() or not path.is_dir():
        raise StoreError(f"{path} is not a folder that was written here")
    manifest = read_sealed_json(path / MANIFEST, kind=kind, version=version)
    try:
        folder, files = manifest["folder"], {name: Seal(**seal) for name, seal in manifest["files"].items()}
    except (TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{path / MANIFEST} is not a manifest: {error!r}") from error
    if folder != path.name:
        raise StoreError(f"{path} is the folder {folder!r} under another name; give it its name back")
    for name, seal in files.items():
        check_name(name)
        _verify_file(path / name, seal)
    return tuple(files)


def _verify_file(path: Path, seal: Seal) -> None:
    """Check size, then sha256, in pieces: a checkpoint may be larger than the memory that is left."""
    if path.is_symlink() or not path.is_file():
        raise StoreError(f"{path} is missing or not a regular file")
    size = path.stat().st_size
    if size != seal.bytes:
        raise StoreError(f"{path} is damaged: {seal.bytes} bytes were written, {size} are there")
    digest = sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != seal.sha256:
        raise StoreError(f"{path} is damaged: its sha256 is not that of what was written")


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
    with _disk_errors(path, "remove"):
        os.rename(path, trash)
        _sync_folder(path.parent)
        shutil.rmtree(trash)


def set_aside(path: Path, folder: Path) -> Path:
    """Move a file or folder into `folder` under a name not used there yet. Nothing is deleted; returns the new path."""
    make_folder(folder)
    number = 1
    while (target := folder / f"{path.name}-{number}").exists():
        number += 1
    with _disk_errors(path, "set aside"):
        os.rename(path, target)
        _sync_folder(folder)
        _sync_folder(path.parent)
    return target


def sweep(folder: Path) -> list[Path]:
    """Remove what killed processes left half-written or half-deleted below `folder`. Only for the holder of its lock."""
    leftovers = []
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            if name.startswith((TEMPORARY, TRASH)):
                leftovers.append(Path(parent, name))
        folders[:] = [name for name in folders if not name.startswith((TEMPORARY, TRASH))]
    for path in leftovers:
        _discard(path)
    return leftovers


# ------------------------------------------------------------------------------------------------ lines


@dataclass(frozen=True)
class Lines:
    """The whole records of a file of lines; `torn` is what stands behind the last of them (a write cut short)."""

    records: tuple[dict[str, Any], ...]
    ends: tuple[int, ...]  # offset in the file behind each record
    torn: bytes


def line_bytes(record: Mapping[str, Any]) -> bytes:
    """One JSON object on one line; its last entry is the crc32 of everything before it."""
    body = json_bytes(record, "a line").removesuffix(b"}")
    body += b"," if record else b""
    return body + b'"crc32":"%08x"}\n' % crc32(body)


def _parse_line(line: bytes) -> dict[str, Any] | None:
    """The record of a line without its newline; None if it is not exactly one that was written here."""
    body, end = line[:-_LINE_END_LENGTH], line[-_LINE_END_LENGTH:]
    match = _LINE_END.fullmatch(end)
    if match is None or int(match[1], 16) != crc32(body):
        return None
    record = json.loads(line)
    del record["crc32"]
    return record


def read_lines(path: Path) -> Lines:
    """Read a file of lines. A last line that is cut short or fails its checksum is reported in `torn`, not returned;
    a bad line anywhere else is damage: StoreError names it."""
    data = read_file(path)
    records, ends, start = [], [], 0
    while (newline := data.find(b"\n", start)) >= 0:
        record = _parse_line(data[start:newline])
        if record is None:
            if newline + 1 < len(data):
                raise StoreError(f"{path}: line {len(records) + 1} is damaged (its checksum differs), and it is not "
                                 "the last; restore the file from a copy of the run")
            break
        records.append(record)
        start = newline + 1
        ends.append(start)
    return Lines(tuple(records), tuple(ends), data[start:])


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add one record: one write, one fsync. A tail without its newline is cut off first and kept as `.orphan-…`."""
    path, line = Path(path), line_bytes(record)
    with _disk_errors(path, "append to"):
        is_new = not path.exists()
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            end = os.fstat(fd).st_size
            if end and os.pread(fd, 1, end - 1) != b"\n":
                end = cut_lines(path)
            try:
                _write_all(fd, line)
                os.fsync(fd)
            except BaseException:
                os.ftruncate(fd, end)
                raise
        finally:
            os.close(fd)
        if is_new:
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
    number = 1
    while (orphan := path.with_name(f"{path.name}.orphan-{number}")).exists():
        number += 1
    write_file(orphan, tail)
    with _disk_errors(path, "cut the torn end off"):
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, end)
            os.fsync(fd)
        finally:
            os.close(fd)
    return end


# ------------------------------------------------------------------------------------------------ lock


class FolderLock:
    """One writer per folder, by flock: the kernel drops it when the process dies, so a stale lock cannot exist.

    Raises StoreError naming the holder's process, machine and starting time. A forked child shares the lock.
    """

    def __init__(self, folder: Path):
        self._fd: int | None = None
        path = Path(folder) / ".lock"
        with _disk_errors(path, "lock"):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(self._fd, 500, 0).decode("utf-8", "replace").strip() or "unknown"
                self.release()
                raise StoreError(f"{folder} is being written by {holder}; wait for it or stop it, or choose another "
                                 "name for this run. Reading the run is always possible") from None
            except BaseException:
                self.release()
                raise
            since = datetime.now(timezone.utc).isoformat(timespec="seconds")
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode(), 0)

    @property
    def released(self) -> bool:
        return self._fd is None

    def release(self) -> None:
        """Let the next process have it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    __del__ = release
