"""The values inside one large JSON text, one at a time: a list of rollouts is never in memory as a whole.

for path, data in pieces(stream, lambda path: len(path) < 2): ...     data: the bytes of the value at `path`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from workbench.basics.regular_files import parse_json
from workbench.extensions.interop.importers.values import LONGEST_LINE, Damaged, name
from workbench.values.errors import DataError

Path = tuple[str | int, ...]

CHUNK = 1 << 16
SPACE = b" \t\r\n"
STRING = rb'"(?:[^"\\]++|\\.)*+"'
# A quote alone is a string whose end has not been read yet.
MARKS = re.compile(rb"[\[\]{}]|" + STRING + rb'|"', re.DOTALL)
SCALAR_END = re.compile(rb"[\s,\]}:]")


def pieces(
    stream: BinaryIO, opened: Callable[[Path], bool], longest: int = LONGEST_LINE
) -> Iterator[tuple[Path, bytes]]:
    """(path, bytes) of each value. Lists and objects for which `opened(path)` holds are gone into, others are given as
    they are. DataError where the text is cut off or is no JSON, or where one value is longer than `longest`."""
    yield from _Scanner(stream, longest).walk((), opened)


def value_of(data: bytes) -> Any:
    """The value of a piece, or Damaged with the reason."""
    try:
        return parse_json(data)
    except UnicodeDecodeError:
        raise Damaged("not UTF-8") from None
    except ValueError as error:
        raise Damaged(f"not JSON ({name(error)})") from None


class _Scanner:
    """A window of the text: `data`, of which all before `start` has been taken."""

    def __init__(self, stream: BinaryIO, longest: int) -> None:
        self.stream = stream
        self.longest = longest
        self.data = b""
        self.start = 0

    def walk(self, path: Path, opened: Callable[[Path], bool]) -> Iterator[tuple[Path, bytes]]:
        mark = self._next_mark()
        if mark not in b"[{" or not opened(path):
            yield path, self._value()
            return
        self.start += 1
        closer = b"]" if mark == b"[" else b"}"
        if self._next_mark() == closer:
            self.start += 1
            return
        index = 0
        while True:
            key = index if closer == b"]" else self._key()
            yield from self.walk((*path, key), opened)
            index += 1
            mark = self._next_mark()
            self.start += 1
            if mark == closer:
                return
            if mark != b",":
                raise DataError(f"it is no JSON: {name(mark)} stands where a comma should")

    def _more(self) -> None:
        """Read as much again as is held, so that a long value costs its length once."""
        self.data = self.data[self.start :]
        self.start = 0
        if len(self.data) > self.longest:
            raise DataError(
                f"a value of it is longer than {self.longest >> 20} MiB; what comes after is not read"
            )
        chunk = self.stream.read(max(CHUNK, len(self.data)))
        if not chunk:
            raise DataError("it ends in the middle, as if it had been cut off")
        self.data += chunk

    def _next_mark(self) -> bytes:
        """The next character that is no space; it is not taken."""
        while True:
            while self.start < len(self.data):
                mark = self.data[self.start : self.start + 1]
                if mark not in SPACE:
                    return mark
                self.start += 1
            self._more()

    def _key(self) -> str:
        if self._next_mark() != b'"':
            raise DataError("it is no JSON: a key is missing")
        try:
            key = value_of(self._value())
        except Damaged as damage:
            raise DataError(f"a key of it is {damage}") from None
        if self._next_mark() != b":":
            raise DataError("it is no JSON: a key has no value")
        self.start += 1
        return key

    def _value(self) -> bytes:
        """The bytes of the next value, taken."""
        end = self._end_of_scalar() if self._next_mark() not in b'[{"' else self._end()
        value = self.data[self.start : end]
        self.start = end
        return value

    def _end(self) -> int:
        """Where the list, object or string that begins here ends."""
        depth = 0
        place = 0  # from `start`, which moves where more is read
        while True:
            match = MARKS.search(self.data, self.start + place)
            if match is None or match[0] == b'"':
                place = (len(self.data) if match is None else match.start()) - self.start
                self._more()
                continue
            if match[0] in b"[{":
                depth += 1
            elif match[0] in b"]}":
                depth -= 1
            place = match.end() - self.start
            if depth <= 0:
                return self.start + place

    def _end_of_scalar(self) -> int:
        while True:
            match = SCALAR_END.search(self.data, self.start)
            if match is not None:
                return match.start()
            self._more()
