"""Messages end to end on a socket: a length, then that many bytes. No reader takes a longer one than it said."""
from __future__ import annotations

import json
import socket
import struct
from typing import Any

LENGTH = struct.Struct(">I")   # of a frame's content


def frame(content: bytes) -> bytes:
    return LENGTH.pack(len(content)) + content


def take_frames(buffer: bytearray, limit: int) -> list[bytes]:
    """Cut whole frames off the front of `buffer`. Raises ValueError for one that says it is longer than `limit`."""
    frames = []
    while len(buffer) >= LENGTH.size:
        (length,) = LENGTH.unpack_from(buffer)
        if length > limit:
            raise ValueError(f"{length:,} bytes in one answer")
        if len(buffer) < LENGTH.size + length:
            break
        frames.append(bytes(buffer[LENGTH.size : LENGTH.size + length]))
        del buffer[: LENGTH.size + length]
    return frames


def read_call(connection: socket.socket) -> list[Any] | None:
    """The next call for this worker, as JSON; waits for it. None where the trainer is gone or has let go of it."""
    header = _exactly(connection, LENGTH.size)
    content = header and _exactly(connection, LENGTH.unpack(header)[0])
    return json.loads(content) if content else None


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(count - len(data), 1 << 20))
        if not piece:
            return None
        data += piece
    return bytes(data)
