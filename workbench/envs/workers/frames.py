"""Messages end to end on a socket: a length, then that many bytes. No reader takes a longer one than it said."""
from __future__ import annotations

import socket
import struct

LENGTH = struct.Struct(">I")   # of a frame's content
TIMES = struct.Struct(">dd")   # begins an answer of a worker: seconds it took, and when it was ready (monotonic clock)


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


def read_frame(connection: socket.socket) -> bytes | None:
    """The content of the next frame; waits for it. None where the other end is closed."""
    header = _exactly(connection, LENGTH.size)
    return header and _exactly(connection, LENGTH.unpack(header)[0])


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(count - len(data), 1 << 20))
        if not piece:
            return None
        data += piece
    return bytes(data)
