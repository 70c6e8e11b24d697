"""Thrift's compact protocol, read: what stands before each page of a parquet file, and at its end.

    struct_at(data, 0)       ({1: 21, 5: {1: b"name"}}, 17): number of each field -> its value, and where the bytes end

Source: the protocol's definition (apache/thrift, doc/specs/thrift-compact-protocol.md).
"""

from __future__ import annotations

import struct
from typing import Any

MOST_NESTING = 16
_BOOLEAN = (1, 2)  # kinds of values
_LIST = (9, 10)


def struct_at(data: bytes | memoryview, start: int) -> tuple[dict[int, Any], int]:
    """Raises IndexError where the bytes end too soon, ValueError where they are none of the protocol."""
    reader = _Reader(data, start)
    return reader.struct(0), reader.at


def varint_at(data: bytes | memoryview, at: int, bits: int = 70) -> tuple[int, int]:
    """A number of at most so many bits, in pieces of seven, and where it ends. Raises as `struct_at`."""
    value = 0
    for shift in range(0, bits, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number has no end")


class _Reader:
    def __init__(self, data: bytes | memoryview, at: int) -> None:
        self._data = data
        self.at = at

    def struct(self, depth: int) -> dict[int, Any]:
        if depth > MOST_NESTING:
            raise ValueError("it is nested too deep")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            fields[number] = kind == 1 if kind in _BOOLEAN else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _BOOLEAN:  # of a list, where each has a byte
            return self._byte() == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 7:
            return struct.unpack("<d", self._bytes(8))[0]
        if kind == 8:
            return self._bytes(self._varint())
        if kind in _LIST:
            return self._items(depth)
        if kind == 12:
            return self.struct(depth + 1)
        raise ValueError("it is none of Thrift's compact protocol")

    def _items(self, depth: int) -> list[Any]:
        head = self._byte()
        count = self._varint() if head >> 4 == 15 else head >> 4
        if count > len(self._data) - self.at:  # each takes a byte at least
            raise IndexError
        return [self._value(head & 15, depth + 1) for _ in range(count)]

    def _byte(self) -> int:
        byte = self._data[self.at]
        self.at += 1
        return byte

    def _bytes(self, count: int) -> bytes:
        start = self.at
        self.at += count
        if self.at > len(self._data):
            raise IndexError
        return bytes(self._data[start : self.at])

    def _varint(self) -> int:
        value, self.at = varint_at(self._data, self.at)
        return value

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
