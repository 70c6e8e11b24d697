"""Large files of records, one record in memory at a time, and complaints that name file, record and field.

A file is a JSON list or a record a line, plain or gzipped; its first character says which. The official
training files are one JSON list of half a gigabyte, which `json.load` would hold twice over.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from workbench.basics.regular_files import open_stream
from workbench.values.errors import DataError

LONGEST_RECORD = 16_000_000  # characters; a question with its paragraphs has some ten thousand
TIMES_UNPACKED = 50  # of a compressed file's bytes; texts have some five
SMALL_UNPACKED = 64 << 20  # bytes that any may have
_PIECE = 1_000_000
_SHOWN = 80
_DECODER = json.JSONDecoder()
_WHITE_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True)
class Record:
    """A record of a file: where it stands, and its fields. Asking for a field that is not as it should be raises
    DataError, which says what was expected."""

    path: Path
    number: int  # from 1
    fields: Mapping[str, Any]
    id_field: str = "_id"
    within: Record | None = None  # of what stands inside another: that one

    def wrong(self, field: str, expected: str) -> DataError:
        """The error for a field: expected this, found that."""
        if field in self.fields:
            actual = f"found {_shown(self.fields[field])}"
        else:
            actual = f"it is missing (there are: {', '.join(map(str, self.fields)) or 'none'})"
        known = (self.within or self).fields.get(self.id_field)
        named = f" (id {known!r:.60})" if isinstance(known, (str, int)) else ""
        return DataError(
            f"{self.path}, record {self.number}{named}, field {field!r}: expected {expected}; {actual}"
        )

    def text(self, field: str, default: str | None = None, *, empty: bool = False) -> str:
        """Text; where there is no such field (or it is null) the default, if there is one."""
        value = self.fields.get(field)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not (empty or value.strip()):
            raise self.wrong(field, "text" if empty else "text that is not empty")
        return value

    def texts(self, field: str, *, optional: bool = False) -> tuple[str, ...]:
        """A list of texts."""
        value = self.fields.get(field)
        if value is None and optional:
            return ()
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self.wrong(field, "a list of texts")
        return tuple(value)

    def pairs(self, field: str, second: type, expected: str) -> list[tuple[str, Any]]:
        """A list of pairs of a text and a `second`."""
        value = self.fields.get(field)
        if not isinstance(value, list) or not all(
            isinstance(pair, list)
            and len(pair) == 2
            and isinstance(pair[0], str)
            and isinstance(pair[1], second)
            for pair in value
        ):
            raise self.wrong(field, expected)
        return [(pair[0], pair[1]) for pair in value]

    def objects(self, field: str, expected: str) -> list[Record]:
        """A list of objects, each as a record of its own in this one's place."""
        value = self.fields.get(field)
        if not isinstance(value, list) or not all(isinstance(fields, dict) for fields in value):
            raise self.wrong(field, expected)
        return [Record(self.path, self.number, fields, self.id_field, self) for fields in value]


def records(path: Path | str, id_field: str = "_id") -> Iterator[Record]:
    """The records of a JSON list or of JSON lines (empty lines are passed over), `.gz` or not, one at a time.

    Raises DataError for a file that cannot be read, and for the first record that is no JSON object.
    """
    path = Path(path)
    number = 0
    try:
        with _opened(path) as stream:
            is_list = stream.read(_PIECE).lstrip().startswith("[")
            stream.seek(0)
            read = _list_items if is_list else _lines
            for number, value in enumerate(read(stream, path), start=1):
                if not isinstance(value, dict):
                    raise DataError(
                        f"{path}, record {number}: expected a JSON object with fields, found {_shown(value)}"
                    )
                yield Record(path, number, value, id_field)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected UTF-8, found the byte {error.object[error.start]:#04x} soon after record "
            f"{number}; is it in another encoding, or compressed?"
        ) from error


def rows(path: Path | str) -> Iterator[tuple[int, list[str]]]:
    """The lines of a tab-separated file with their numbers from 1, empty ones left out."""
    path = Path(path)
    with _opened(path) as stream:
        for number, line in enumerate(_text_lines(stream, path), start=1):
            if line.strip():
                yield number, line.rstrip("\r\n").split("\t")


class _Unpacked(gzip.GzipFile):
    """A compressed file that is given up where it unpacks to far more than texts do: a megabyte of zeros may be one of a
    thousand."""

    def __init__(self, packed: BinaryIO, path: Path) -> None:
        super().__init__(fileobj=packed)
        self._path = path
        self._most = max(SMALL_UNPACKED, TIMES_UNPACKED * path.stat().st_size)

    def read1(self, size: int = -1) -> bytes:
        if self.tell() > self._most:
            raise DataError(
                f"{self._path} unpacks to more than {self._most:,} bytes, {TIMES_UNPACKED} times its size, as no text does; "
                "unpack it yourself, if you trust it"
            )
        return super().read1(size)


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    try:
        with open_stream(path) as file:
            raw = _Unpacked(file, path) if path.suffix == ".gz" else file
            yield io.TextIOWrapper(raw, encoding="utf-8-sig", newline="\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}: the compressed file is damaged or cut short ({error}); fetch it again"
        ) from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _text_lines(stream: TextIO, path: Path) -> Iterator[str]:
    """Lines at "\\n" only, none longer than a record may be."""
    while line := stream.readline(LONGEST_RECORD + 1):
        if len(line) > LONGEST_RECORD:
            raise _endless(path, "a line")
        yield line.removesuffix("\n")


def _lines(stream: TextIO, path: Path) -> Iterator[Any]:
    for number, line in enumerate(_text_lines(stream, path), start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"{path}, line {number}: expected one JSON object a line, found {_shown(line)} "
                    f"({error}); a file that ends in the middle was not fetched whole"
                ) from error


def _list_items(stream: TextIO, path: Path) -> Iterator[Any]:
    """The items of one JSON list, decoded as their text comes in; what was decoded is given up."""
    text = stream.read(_PIECE)
    place = text.index("[") + 1
    number = 0

    def read_on() -> bool:
        nonlocal text, place
        piece = stream.read(_PIECE)
        text = text[place:] + piece
        place = 0
        return bool(piece)

    def next_mark() -> str:
        """The next character that is no white space, "" at the end."""
        nonlocal place
        while True:
            place = _WHITE_SPACE.match(text, place).end()
            if place < len(text) or not read_on():
                return text[place : place + 1]

    while (mark := next_mark()) != "]":
        if number:
            if mark != ",":
                actual = _shown(text[place : place + _SHOWN]) if mark else "the end of the file"
                raise DataError(
                    f"{path}: expected a comma or the end of the list after record {number}, found {actual}; "
                    "was the file fetched whole?"
                )
            place += 1
            next_mark()
        number += 1
        value, length, is_sure = _decoded(text, place)
        while not is_sure and read_on():
            value, length, is_sure = _decoded(text, place)
            if not is_sure and len(text) > LONGEST_RECORD:
                raise _endless(path, f"record {number}")
        if isinstance(value, Exception):
            raise DataError(
                f"{path}, record {number}: expected JSON, found {_shown(text[place : place + _SHOWN])} "
                f"({value}); was the file fetched whole?"
            ) from value
        place += length
        yield value
    place += 1
    if next_mark():
        raise DataError(
            f"{path}: expected nothing after the list of {number} records, found "
            f"{_shown(text[place : place + _SHOWN])}"
        )


def _decoded(text: str, place: int) -> tuple[Any, int, bool]:
    """The JSON value that begins at `place`, or the error; its length; whether further text could not change that."""
    try:
        value, end = _DECODER.raw_decode(text, place)
        return value, end - place, end < len(text)  # a number that ends with the text might go on
    except (ValueError, RecursionError) as error:
        is_cut = isinstance(error, json.JSONDecodeError) and (
            error.pos >= len(text) - len("\\uD83D\\uDE00")
            or error.msg.startswith("Unterminated string")
        )
        return error, 0, not is_cut


def _endless(path: Path, what: str) -> DataError:
    return DataError(
        f"{path}, {what}: more than {LONGEST_RECORD:,} characters and still not whole; expected a JSON list "
        "of records, or one record a line"
    )


def _shown(value: Any) -> str:
    """A value in a few words."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return repr(text[:_SHOWN]) + (f"... ({len(text):,} characters)" if len(text) > _SHOWN else "")
