"""Messages end to end on a socket: a length, then that many bytes. No reader takes a longer one than it said.

And the loop inside every worker process: calls are answered one after the other, in the order in which they come.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable

LENGTH = struct.Struct(">I")  # of a frame's content
LOOK_IN = "look in"  # begins a message that is no call: the folders in which to look for modules from now on
# Begins an answer of a worker: seconds it took, and when it was ready (monotonic clock).
TIMES = struct.Struct(">dd")


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


def serve_calls(connection: socket.socket, answer: Callable[..., bytes | None]) -> None:
    """Answer with `answer(*call)` until the connection ends; None is no answer and is not sent.

    Every answer begins with its `TIMES`. The first one is sent before any call: the worker has begun, and deadlines
    count from here on.
    """
    own = os.getpid()
    connection.sendall(frame(TIMES.pack(0.0, time.monotonic())))
    while content := read_frame(connection):
        began = time.monotonic()
        verb, *arguments = json.loads(content)
        if verb == LOOK_IN:
            sys.path[:] = arguments[0]
            importlib.invalidate_caches()
            continue
        answered = answer(verb, *arguments)
        # The code that was called forked, and this is its child: it must not answer too.
        if os.getpid() != own:
            os._exit(0)
        if answered is not None:
            ready = time.monotonic()
            connection.sendall(frame(TIMES.pack(ready - began, ready) + answered))
