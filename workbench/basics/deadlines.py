"""A deadline by the wall clock that closes connections: a time-out of a socket begins anew with every byte that trickles in.

with Deadline(5.0) as deadline:
    deadline.watch(sock)          whatever is going on in it after 5 s, it breaks
    ...
deadline.passed                   whether that is why
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress


class Deadline:
    """So many seconds from now. Thread-safe."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.until = time.monotonic() + seconds
        self.passed = False
        self._lock = threading.Lock()
        self._watched: list[socket.socket] = []
        self._timer = threading.Timer(max(seconds, 0.0), self._cut)
        self._timer.daemon = True
        self._timer.start()

    @property
    def left(self) -> float:
        """Seconds, at least a millisecond."""
        return max(self.until - time.monotonic(), 0.001)

    def watch(self, sock: socket.socket) -> None:
        """Break this connection at the deadline: by a second descriptor of it, since TLS takes the first one away."""
        copy = socket.socket(fileno=os.dup(sock.fileno()))
        with self._lock:
            self._watched.append(copy)
            if self.passed:
                _break(copy)

    def close(self) -> None:
        """Stop watching: what was to be done is done in time."""
        self._timer.cancel()
        with self._lock:
            while self._watched:
                self._watched.pop().close()

    def _cut(self) -> None:
        with self._lock:
            self.passed = True
            for connection in self._watched:
                _break(connection)

    def __enter__(self) -> Deadline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _break(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
