"""Members of a zip that may be hostile, read one at a time and never more than a bound. Zstandard (method 93), which
Inspect writes, is read as well; Python's own module knows it from 3.14 on only.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from workbench.basics.regular_files import MOST_ENTRIES, open_stream
from workbench.extensions.interop.importers.values import LONGEST_LINE, Damaged, name
from workbench.values.errors import DataError

ZSTANDARD = 93
END = b"PK\x05\x06"
LOCATOR = b"PK\x06\x07"  # of the end record of large zips
LONGEST_END = 22 + 65535  # the record that ends a zip, with the longest remark
MOST_NAMES = 16 << 20  # bytes of a zip's table of contents
LOCAL_HEADER = 30
# All members together may unpack to so much: a log says the same again and again, but not without an end.
LEAST_UNPACKED = 512 << 20
TIMES_UNPACKED = 50


@dataclass
class Zip:
    """An open zip. `left`: how many bytes may still be unpacked of it."""

    stream: BinaryIO
    file: zipfile.ZipFile
    left: int

    @property
    def members(self) -> list[zipfile.ZipInfo]:
        return self.file.infolist()


@contextmanager
def opened(path: Path) -> Iterator[Zip]:
    """A zip to be read. DataError where it is cut off, damaged, or lists more than is read."""
    with open_stream(path) as stream:
        _check_contents(stream)
        try:
            with zipfile.ZipFile(stream) as file:
                if len(file.infolist()) > MOST_ENTRIES:
                    raise DataError(f"it lists more than {MOST_ENTRIES:,} members")
                size = os.fstat(stream.fileno()).st_size
                yield Zip(stream, file, max(LEAST_UNPACKED, TIMES_UNPACKED * size))
        except DataError:
            raise
        except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError) as error:
            raise DataError(
                f"it cannot be read as a zip ({name(error, 120)}): it is cut off or damaged"
            ) from error


def _check_contents(stream: BinaryIO) -> None:
    """Refuse a table of contents that would fill the memory before it is read."""
    stream.seek(0, 2)
    start = max(0, stream.tell() - LONGEST_END)
    stream.seek(start)
    tail = stream.read(LONGEST_END)
    place = tail.rfind(END)
    if place < 0:
        raise DataError("it has no table of contents: it is cut off, or still being written")
    size = int.from_bytes(tail[place + 12 : place + 16], "little")
    if size > MOST_NAMES or LOCATOR in tail[max(0, place - 20) : place]:
        raise DataError(f"its table of contents is longer than {MOST_NAMES >> 20} MiB")


def member(opened_zip: Zip, info: zipfile.ZipInfo, longest: int = LONGEST_LINE) -> bytes:
    """The bytes of a member; Damaged where there are more than `longest`, or they are not what was packed. DataError where
    all that was asked for is too much for a zip of its size."""
    if max(info.file_size, info.compress_size) > longest:
        raise Damaged(f"longer than {longest >> 20} MiB")
    opened_zip.left -= info.file_size
    if opened_zip.left < 0:
        raise DataError(
            f"it unpacks to more than {TIMES_UNPACKED} times its size; what comes after is not read"
        )
    try:
        if info.compress_type == ZSTANDARD:
            data = _zstandard(opened_zip.stream, info)
        else:
            with opened_zip.file.open(info) as file:
                data = file.read(longest + 1)
    except (
        OSError,
        EOFError,
        RuntimeError,  # encrypted; NotImplementedError is one
        ValueError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise Damaged(f"cannot be unpacked ({name(error, 80)})") from None
    if len(data) != info.file_size:
        raise Damaged(f"unpacks to another size than the {info.file_size} bytes that it is to have")
    return data


def _zstandard(stream: BinaryIO, info: zipfile.ZipInfo) -> bytes:
    """What one member unpacks to: at most a byte more than it should."""
    import pyarrow

    stream.seek(info.header_offset)
    header = stream.read(LOCAL_HEADER)
    if len(header) < LOCAL_HEADER or header[:4] != b"PK\x03\x04":
        raise ValueError("no member stands where the contents say")
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    stream.seek(name_length + extra_length, 1)
    packed = pyarrow.BufferReader(stream.read(info.compress_size))
    with pyarrow.CompressedInputStream(packed, "zstd") as unpacked:
        data = unpacked.read(info.file_size + 1)
    if zlib.crc32(data) != info.CRC:
        raise ValueError("its checksum is wrong")
    return data
