"""Inside a sandbox that may start programs: one of them is run, with a bound on its time and output. Standard library only.

Imported before the clock of the sandbox is made to stand still: what bounds a program is the wall clock. What a program leaves
running in the background goes on with the sandbox's next call, unless it was late: then its group is killed.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic as _clock
from typing import Any

LOOK_S = 0.02
PIECE = 1 << 16
PART = 500_000  # bytes of one value that is told outside


def run_program(
    words: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    seconds: float,
    most: int,
    given: str | None = None,
) -> dict[str, Any]:
    """`given`: a file that is its standard input. {"status": as of `subprocess`, None if it was late; "out", "err": bytes,
    of each at most `most`; "cut": how many more came}. Raises OSError where it cannot be started."""
    with open(given or os.devnull, "rb") as source:
        process = subprocess.Popen(
            list(words),
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    ended = _Ended(process, most)
    until = _clock() + seconds
    poll = select.poll()
    for fd in ended.kept:
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    while _clock() < until and process.poll() is None:
        for fd, _ in poll.poll(1000 * LOOK_S):
            if not ended.take(fd):
                poll.unregister(fd)
    is_late = process.poll() is None
    if is_late:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for fd in ended.kept:  # what it had said before it ended; not what goes on behind it
        while _clock() < until and ended.take(fd):
            pass
    return ended.told(None if is_late else process.returncode)


class _Ended:
    """What a program said."""

    def __init__(self, process: subprocess.Popen, most: int) -> None:
        self.process = process
        self.most = most
        self.cut = 0
        self.kept = {pipe.fileno(): bytearray() for pipe in (process.stdout, process.stderr)}

    def take(self, fd: int) -> bool:
        """Whether there was something."""
        try:
            piece = os.read(fd, PIECE)
        except BlockingIOError:
            return False
        kept = self.kept[fd]
        fits = piece[: max(0, self.most - len(kept))]
        kept += fits
        self.cut += len(piece) - len(fits)
        return bool(piece)

    def told(self, status: int | None) -> dict[str, Any]:
        out, err = (bytes(kept) for kept in self.kept.values())
        self.process.stdout.close()
        self.process.stderr.close()
        return {"status": status, "out": out, "err": err, "cut": self.cut}
