"""Reading files that may be untrusted (invariant 16): regular files only, no link that leads out, nothing without a bound.

    open_regular(path, below=folder)       a descriptor: no folder between `folder` and the file is a link, nor is the file
    read_regular(path, most=...)           its bytes, as far as there are not too many
    read_toml(path), read_json(path)       a file of settings that the user named
    parse_json(data)                       nested at most MOST_NESTING deep; whatever is wrong with it is a ValueError
    files_below(folder, ...)               a bounded walk that follows no link

A pipe or a device in a file's place is never waited for. What is refused is a `FileError`, which is an OSError, so that
each reader turns it into an error of its own.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

MOST_NESTING = 100
MOST_NUMBER_BITS = 1023  # of a whole number in a file of settings: all that a float holds, too
MOST_SETTINGS_BYTES = 4 << 20  # of a file of settings that a person wrote
MOST_JSON_MEMORY = 512 << 20  # bytes of the values of one JSON text
SMALL_JSON = 2 << 20  # bytes of text that cannot take so much
MOST_ENTRIES = 20_000  # files and folders that are looked at below one folder

SMALL_HOLE = 64 << 20  # bytes that may be read of a file that the disk does not hold
TIMES_PACKED = 64  # so much less may a disk hold that packs text
MOST_PARTS = 4096  # of a file with holes that are counted

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FileError(OSError):
    """What stands there is no regular file, leads out of its folder, or is over a bound; `strerror` says which."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EINVAL, reason)


def open_regular(path: Path, *, below: Path | None = None) -> int:
    """A descriptor of a regular file, read-only. `below`: the folder that no part of the rest of the path may lead out of.
    Raises OSError, `FileError` among them."""
    path = Path(path)
    folder = None if below is None else _folder_below(path.parent, below)
    try:
        fd = os.open(path if folder is None else path.name, _FLAGS, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise FileError("it is a symbolic link") from error
        if error.errno == errno.ENXIO:  # a socket
            raise FileError("it is not a regular file") from error
        raise
    finally:
        if folder is not None:
            os.close(folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileError("it is not a regular file")
    return fd


def _folder_below(path: Path, below: Path) -> int:
    """A descriptor of the folder `path`, walked to from `below` one name at a time."""
    fd = os.open(below, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in path.relative_to(below).parts:
            inner = os.open(
                name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd
            )
            os.close(fd)
            fd = inner
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise FileError(
                f"{name!r} in {below} is a symbolic link or no folder; a run is read below its own folder "
                "only"
            ) from error
        raise
    return fd


def open_stream(path: Path) -> BinaryIO:
    """A regular file that the user named, by whatever link, to be read piece by piece. Raises OSError."""
    return os.fdopen(open_regular(Path(path).resolve()), "rb")


def read_regular(path: Path, *, most: int, below: Path | None = None, start: int = 0) -> bytes:
    """The bytes of a regular file from byte `start` on. Raises OSError; `FileError` where there are more than `most`."""
    with os.fdopen(open_regular(path, below=below), "rb") as file:
        state = os.fstat(file.fileno())
        if state.st_size - start > most:
            raise FileError(f"it holds more than {most:,} bytes, which is the most that is read")
        if is_hole(file, state):
            raise FileError(
                f"it has {state.st_size:,} bytes, of which the disk holds {512 * state.st_blocks:,}: the rest is a hole"
            )
        file.seek(start)
        return file.read()


def is_hole(
    file: BinaryIO,
    state: os.stat_result,
    *,
    most: int = SMALL_HOLE,
    times: int = TIMES_PACKED,
) -> bool:
    """Whether a file of more than `most` bytes has so many `times` more of them than it was given: it takes nothing to make one,
    and as much memory to read it as it says. A disk that packs files, or has not written them yet, says that it holds less; so
    the parts of the file are asked for, too, which such a disk knows as data."""
    if state.st_size <= most or not 0 < 512 * state.st_blocks * times < state.st_size:
        return False
    return _bytes_given(file.fileno(), state.st_size) * times < state.st_size


def _bytes_given(descriptor: int, size: int) -> int:
    """How many bytes of a file are no hole; all where the system does not say."""
    given = 0
    place = 0
    for _ in range(MOST_PARTS):
        try:
            start = os.lseek(descriptor, place, os.SEEK_DATA)
            place = os.lseek(descriptor, start, os.SEEK_HOLE)
        except OSError as error:
            return given if error.errno == errno.ENXIO else size  # no data behind this place
        except AttributeError:
            return size
        given += place - start
    return given


def read_toml(path: Path) -> dict[str, Any]:
    """Read a file of settings. Raises OSError, and ValueError for what is no TOML."""
    import tomllib

    try:
        return check_numbers(check_nesting(tomllib.loads(_settings(path))))
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error


def read_json(path: Path, *, most: int = MOST_SETTINGS_BYTES) -> Any:
    """Read a JSON file that the user named. Raises OSError, and ValueError for what is no JSON."""
    return parse_json(_settings(path, most))


def _settings(path: Path, most: int = MOST_SETTINGS_BYTES) -> str:
    """The text of a file that the user named, by whatever link."""
    return read_regular(Path(path).resolve(), most=most).decode("utf-8")


def json_memory(data: bytes | str) -> int:
    """The most bytes that the values of JSON text take in memory, each counted as the smallest of its kind: `[],` is a list
    of 64 bytes in three characters."""
    marks = (("{", 240), ("[", 64), (",", 40))
    return len(data) + sum(
        size * data.count(mark if isinstance(data, str) else mark.encode()) for mark, size in marks
    )


def parse_json(data: bytes | str) -> Any:
    """A JSON value. Raises ValueError for what is none, and for one that is nested too deep or would fill the memory."""
    if len(data) > SMALL_JSON and json_memory(data) > MOST_JSON_MEMORY:
        raise ValueError(f"it holds more values than {MOST_JSON_MEMORY >> 20} MB have room for")
    try:
        value = json.loads(data)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    # A level begins with one of these.
    marks = "[{" if isinstance(data, str) else b"[{"
    begun = sum(data.count(marks[place : place + 1]) for place in (0, 1))
    return value if begun <= MOST_NESTING else check_nesting(value)


_TOO_DEEP = f"it is nested more than {MOST_NESTING} deep, which is the most that is read"


def check_nesting(value: Any) -> Any:
    """`value`, made of dicts and lists; ValueError where they are nested too deep."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MOST_NESTING + 1):
        level = list(chain.from_iterable(map(_containers_in, level)))
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


def check_numbers(value: Any) -> Any:
    """`value`, made of dicts and lists that are not nested too deep; ValueError for a whole number
    that is longer than any setting: TOML takes 0xfff... of any length, and neither a float holds
    one nor a message can name it."""
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, (dict, list)):
            pending += one.values() if isinstance(one, dict) else one
        elif type(one) is int and one.bit_length() > MOST_NUMBER_BITS:
            raise ValueError(
                f"it holds a whole number of {one.bit_length():,} bits, and {MOST_NUMBER_BITS:,} "
                "are the most that is read"
            )
    return value


def _containers_in(container: dict | list) -> list[dict | list]:
    """The dicts and lists right inside it."""
    values = container.values() if isinstance(container, dict) else container
    return [value for value in values if isinstance(value, (dict, list))]


def is_folder(path: Path | str) -> bool:
    """Whether there is a folder of this name; what cannot be the name of one (too long, a zero byte) is none."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def files_below(
    folder: Path, endings: tuple[str, ...], *, most_entries: int = MOST_ENTRIES
) -> Iterator[Path]:
    """The regular files below `folder` with one of these endings; no link is followed, and what vanishes meanwhile or may
    not be looked into is left out. Raises `FileError` once there are more than `most_entries` files and folders."""
    pending = [Path(folder)]
    seen = 0
    while pending:
        try:
            entries = os.scandir(pending.pop())
        except OSError:
            continue
        with entries:
            for entry in entries:
                seen += 1
                if seen > most_entries:
                    raise FileError(
                        f"there are more than {most_entries:,} files and folders below it, which is the most "
                        "that is looked at"
                    )
                if entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
                elif entry.name.endswith(endings) and entry.is_file(follow_symlinks=False):
                    yield Path(entry.path)
