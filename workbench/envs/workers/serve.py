"""Inside every worker process: calls are answered one after the other, in the order in which they come."""
from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable

from workbench.envs.workers.frames import TIMES, frame, read_frame


def serve_calls(connection: socket.socket, answer: Callable[..., bytes | None]) -> None:
    """Answer with `answer(*call)` until the connection ends; None is no answer and is not sent.

    Every answer begins with its `TIMES`. The first one is sent before any call: the worker has begun, and deadlines
    count from here on.
    """
    own = os.getpid()
    connection.sendall(frame(TIMES.pack(0.0, time.monotonic())))
    while content := read_frame(connection):
        began = time.monotonic()
        answered = answer(*json.loads(content))
        if os.getpid() != own:  # the code that was called forked, and this is its child: it must not answer too
            os._exit(0)
        if answered is not None:
            ready = time.monotonic()
            connection.sendall(frame(TIMES.pack(ready - began, ready) + answered))
