"""Arrow files whose columns are compressed are not read: what they would take when they are unpacked, only they say.

    refuse_compressed(message)      of `pyarrow.ipc.MessageReader`

`datasets` writes none. Source: the format's definition (apache/arrow, Message.fbs), layout of FlatBuffers.
"""

from __future__ import annotations

from typing import Any

_HEADER = 2  # field of a message: the union's value; 1 is its kind
_COMPRESSION = 3  # field of a record batch
_INSIDE = {"record batch": (), "dictionary": (1,)}


def refuse_compressed(message: Any) -> None:
    """Raises ValueError for a message of columns whose bytes are compressed, and for one that is damaged."""
    way = _INSIDE.get(message.type)
    if way is None:
        return
    data = message.metadata.to_pybytes()
    try:
        table = _offset(data, 0)
        for field in (_HEADER, *way):
            place = _field(data, table, field)
            if not place:
                raise ValueError("a message without columns")
            table = place + _offset(data, place)
        compressed = _field(data, table, _COMPRESSION)
    except IndexError:
        raise ValueError("a message is cut off") from None
    if compressed:
        raise ValueError(
            "its columns are compressed; write them without (pyarrow: compression=None)"
        )


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table stands; 0 where it has none."""
    listed = table - _signed(data, table)
    at = 4 + 2 * number
    if at + 2 > _whole(data, listed, 2):
        return 0
    inside = _whole(data, listed + at, 2)
    return table + inside if inside else 0


def _offset(data: bytes, at: int) -> int:
    return _whole(data, at, 4)


def _signed(data: bytes, at: int) -> int:
    value = _whole(data, at, 4)
    return value - (1 << 32) if value >> 31 else value


def _whole(data: bytes, at: int, size: int) -> int:
    if at < 0 or at + size > len(data):
        raise IndexError
    return int.from_bytes(data[at : at + size], "little")
