"""The end of a command's process: threads that an environment or a tool left behind must not keep it from ending.

Python waits for every thread that is no daemon. One that an environment or a tool left waiting for ever would hold the
shell, `run.wait()` and papermill, long after the run is committed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback

GRACE_S = 5.0  # for threads that are about to end, from when the command is done


def end_in_spite_of_threads(status: int) -> None:
    """Return at once; if threads are left after GRACE_S, name them and end the process with `status`."""
    threading.Thread(target=_watch, args=(status,), daemon=True, name="end of the process").start()


def _watch(status: int) -> None:
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until:
        time.sleep(0.05)
        if not _left():
            return
    left = _left()
    if not left:
        return
    threads = "1 thread" if len(left) == 1 else f"{len(left)} threads"
    places = "; ".join(_where(thread) for thread in left[:5])
    print(
        f"workbench: the command is done, and {threads} that it did not start would not end: {places}. The process "
        "ends without them. Whatever starts a thread in an environment or a tool ends it in close(), or makes it a "
        "daemon",
        file=sys.stderr,
    )
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def _left() -> list[threading.Thread]:
    """The threads that Python would wait for."""
    main = threading.main_thread()
    return [thread for thread in threading.enumerate() if not thread.daemon and thread is not main]


def _where(thread: threading.Thread) -> str:
    """Its name, and the line in which it waits: the innermost one that is not Python's own."""
    frame = sys._current_frames().get(thread.ident)
    if frame is None:
        return thread.name
    library = os.path.dirname(threading.__file__)
    of_python = (library, os.path.join(library, "concurrent/futures"))
    for line in reversed(traceback.extract_stack(frame)):
        if os.path.dirname(line.filename) not in of_python:
            return f"{thread.name} (in {line.name}, {line.filename}:{line.lineno})"
    return thread.name
