"""What a file must hold: names, JSON that comes back exactly, checksums. The reading half of `writer`; changes nothing.

Every record says by itself whether it is whole: a JSON document and a folder carry sha256, a line carries crc32. So a
flipped bit, a page of zeros or a line cut short is recognised, and named.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from workbench.basics.regular_files import (
    MOST_JSON_MEMORY,
    MOST_NESTING,
    json_memory,
    open_regular,
    parse_json,
    read_regular,
)
from workbench.values.errors import StoreError

MANIFEST = "MANIFEST.json"
MOST_DOCUMENT = 32 << 20  # bytes of a JSON document
MOST_LINES = 512 << 20  # bytes of a file of lines: some 100,000 steps
MOST_RECORDS = 500_000  # lines of it
TIMES_LINES = 6  # so much more memory do lines take than they have bytes; those that are written here take 4 times more
MOST_FILE = 16 << 30  # bytes of any other file that is read whole

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LINE_END = re.compile(rb'"crc32":"([0-9a-f]{8})"\}')
_LINE_END_LENGTH = len('"crc32":"01234567"}')


@dataclass(frozen=True)
class Seal:
    """The length in bytes and the sha256 of a file as it was written."""

    bytes: int
    sha256: str

    def check(self, path: Path, data: bytes) -> None:
        """Raise StoreError unless `data`, read from `path`, is what was written."""
        if len(data) != self.bytes:
            raise StoreError(
                f"{path} is damaged: {self.bytes} bytes were written, {len(data)} are there; "
                "restore the file from a copy of the run"
            )
        if sha256(data).hexdigest() != self.sha256:
            raise StoreError(
                f"{path} is damaged: its sha256 is not that of what was written; "
                "restore the file from a copy of the run"
            )


def seal_of(value: Any, path: Path) -> Seal:
    """The seal of `path`, from its JSON value; StoreError for a value that is none."""
    is_seal = isinstance(value, dict) and value.keys() == {"bytes", "sha256"}
    if not is_seal or type(value["bytes"]) is not int:
        raise StoreError(
            f"{path} has no seal (bytes, sha256) but {value!r:.80}; restore the run from a copy"
        )
    return Seal(**value)


# ------------------------------------------------------------------------------------------------ names and JSON


def is_name(name: str) -> bool:
    """Whether anything of a run is written under this name."""
    return bool(_NAME.fullmatch(name)) and ".." not in name


def check_name(name: str) -> str:
    """A name that is safe as a file name everywhere; raises StoreError otherwise."""
    if not isinstance(name, str) or not is_name(name):
        raise StoreError(
            f"{name!r} cannot be a name here: expected 1 to 100 of A-Z a-z 0-9 . _ -, beginning with a "
            "letter or digit, without '..'"
        )
    return name


_SCALARS = frozenset({str, int, float, bool, type(None)})


def plain(value: Any, what: str, depth: int = 0) -> Any:
    """`value` as JSON holds it: numpy numbers become numbers, mappings dicts, tuples lists. Anything that JSON would lose
    (other keys than strings, sets, objects) is refused: StoreError names it and `what` it is part of."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Mapping):
        for key in value:
            if type(key) is not str:
                raise StoreError(
                    f"{what} has the key {key!r}; expected JSON values, whose keys are strings"
                )
        _check_depth(depth, what)
        return {key: plain(item, what, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        _check_depth(depth, what)
        return [plain(item, what, depth + 1) for item in value]
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufU":
        return value.tolist()
    if isinstance(
        value, str
    ):  # a subclass (an enum): the plain value below it, which JSON would write
        return str.__str__(value)
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    raise StoreError(
        f"{what} holds {value!r} of type {type(value).__name__}; expected JSON values (text, numbers, "
        "true and false, null, lists, objects), so that the run can be read back exactly"
    )


def _check_depth(depth: int, what: str) -> None:
    if depth > MOST_NESTING - 5:  # what it is put into has some levels, too
        raise StoreError(
            f"{what} is nested more than {MOST_NESTING - 5} deep, and could not be read again; keep it flatter"
        )


def json_bytes(value: Any, what: str) -> bytes:
    """Compact ASCII JSON, keys in the order given. Numbers come back bit for bit, NaN and infinities too."""
    return json.dumps(plain(value, what), separators=(",", ":")).encode("ascii")


def sealed_json(content: Any, *, kind: str, version: int) -> bytes:
    """A JSON document for people that notices any change to its content: kind, format version, sha256, content."""
    content = plain(content, kind)
    digest = sha256(json_bytes(content, kind)).hexdigest()
    document = {"kind": kind, "format": version, "sha256": digest, "content": content}
    return (json.dumps(document, indent=1) + "\n").encode("ascii")


def read_sealed_json(
    path: Path, *, kind: str, version: int, exact: bool = False, below: Path | None = None
) -> Any:
    """The content of a `sealed_json` document.

    exact  the bytes must be those that were written; else only white space and spelling may differ
    below  as in `read_file`

    Raises StoreError where it is missing, damaged, or of another kind or format.
    """
    data = read_file(path, below=below, most=MOST_DOCUMENT)
    document = sealed_document(data, path, kind=kind, version=version)
    content = document["content"]
    is_unchanged = sha256(json_bytes(content, kind)).hexdigest() == document["sha256"]
    if exact and is_unchanged:
        is_unchanged = sealed_json(content, kind=kind, version=document["format"]) == data
    if not is_unchanged:
        raise StoreError(
            f"{path} was changed after it was written (its sha256 differs); restore it from a copy"
        )
    return content


def sealed_document(data: bytes, path: Path, *, kind: str, version: int) -> dict[str, Any]:
    """The parts of a `sealed_json` document: content, kind, format, sha256. Its own seal is not checked: that is for
    bytes that were checked against another seal already. Raises StoreError where it is damaged or of another kind."""
    try:
        document = parse_json(data)
        written = (document["kind"], document["format"])
        content = document["content"]
        document["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path} is damaged or was not written by this program: {error!r}"
        ) from error
    program = content.get("program") if isinstance(content, dict) else None
    check_format(path, found=written, expected=(kind, version), program=program)
    return document


def check_format(
    path: Path, *, found: tuple[Any, Any], expected: tuple[str, int], program: Any = None
) -> None:
    """Raise StoreError unless a file's (kind, format version) is one that this version of the program reads.
    `program`: the version that wrote it, where the file says so."""
    kind, newest = expected
    found_kind, version = found
    if found_kind != kind:
        raise StoreError(f"{path} holds a {found_kind!r}, expected a {kind!r}")
    if type(version) is not int or not 1 <= version <= newest:
        reads = f"one that reads format {version!r}"
        if program:
            reads = f"workbench {program}, which wrote it"
        raise StoreError(
            f"{path} has format {version!r} of {kind!r}; this version reads formats 1 to {newest}. Open it with a "
            f"version of the workbench that is new enough: {reads}"
        )


def read_file(
    path: Path, *, start: int = 0, below: Path | None = None, most: int = MOST_FILE
) -> bytes:
    """The bytes of a regular file.

    start  the first byte that is read
    below  the run folder, out of which no link may lead
    most   bytes that are read at most

    Raises StoreError where it is missing, a link, no regular file, larger, or cannot be read.
    """
    with readable(path):
        return read_regular(path, most=most, below=below, start=start)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """What the disk refuses to read in this block (a fault, no permission) is a StoreError that names `path`."""
    try:
        yield
    except FileNotFoundError as error:
        raise StoreError(f"{path} is missing; restore it from a copy of the run") from error
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error


# ------------------------------------------------------------------------------------------------ folders


def verify_folder(
    path: Path, *, kind: str, version: int, below: Path | None = None
) -> tuple[str, ...]:
    """Names of the files of a `write_folder` folder, after checking every byte; StoreError names file and reason. `below`:
    as in `read_file`."""
    path = Path(path)
    with readable(path):
        if path.is_symlink() or not path.is_dir():
            raise StoreError(f"{path} is not a folder that was written here")
    manifest = read_sealed_json(
        path / MANIFEST, kind=kind, version=version, exact=True, below=below
    )
    try:
        folder = manifest["folder"]
        files = {name: seal_of(seal, path / name) for name, seal in manifest["files"].items()}
    except (TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{path / MANIFEST} is not a manifest: {error!r}") from error
    if folder != path.name:
        raise StoreError(
            f"{path} is the folder {folder!r} under another name; give it its name back"
        )
    for name, seal in files.items():
        check_name(name)
        with readable(path / name):
            _verify_file(path / name, seal, below)
    return tuple(files)


def _verify_file(path: Path, seal: Seal, below: Path | None) -> None:
    """Check size, then sha256, in pieces: a checkpoint may be larger than the memory that is left."""
    with os.fdopen(open_regular(path, below=below), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != seal.bytes:
            raise StoreError(
                f"{path} is damaged: {seal.bytes} bytes were written, {size} are there"
            )
        digest = sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != seal.sha256:
        raise StoreError(f"{path} is damaged: its sha256 is not that of what was written")


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
    body = line[:-_LINE_END_LENGTH]
    end = line[-_LINE_END_LENGTH:]
    match = _LINE_END.fullmatch(end)
    if match is None or int(match[1], 16) != crc32(body):
        return None
    try:
        record = parse_json(line)
        del record["crc32"]
    except (ValueError, TypeError, KeyError):
        return None
    return record


def read_lines(
    path: Path, *, start: int = 0, skip_damaged: bool = False, below: Path | None = None
) -> Lines:
    """Read a file of lines.

    start         byte to begin at: 0, or one of the `ends` of an earlier reading
    skip_damaged  leave damaged lines out instead of raising
    below         as in `read_file`

    An end without a line break, or with a page of zeros in it, is a write cut short: reported in `torn`, not returned.
    Any other line that fails its checksum is damage: StoreError names it.
    """
    data = read_file(path, start=start, below=below, most=MOST_LINES)
    if json_memory(data) > max(MOST_JSON_MEMORY, TIMES_LINES * len(data)):
        raise StoreError(
            f"{path} is not read: its lines would take more than {TIMES_LINES} times their size in memory; they were not "
            "written here"
        )
    records: list[dict[str, Any]] = []
    ends: list[int] = []
    at = 0
    while (newline := data.find(b"\n", at)) >= 0:
        record = _parse_line(data[at:newline])
        if record is None:
            if newline + 1 == len(data) and b"\0" in data[at:]:
                break
            if skip_damaged:
                at = newline + 1
                continue
            behind = f" behind byte {start}" if start else ""
            raise StoreError(
                f"{path}: line {len(records) + 1}{behind} is damaged (its checksum differs); restore the "
                "file from a copy of the run"
            )
        records.append(record)
        if len(records) > MOST_RECORDS:
            raise StoreError(
                f"{path} holds more than {MOST_RECORDS:,} lines, which is the most that is read"
            )
        at = newline + 1
        ends.append(start + at)
    return Lines(tuple(records), tuple(ends), data[at:])
