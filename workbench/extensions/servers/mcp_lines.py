"""Between an MCP server that a command starts and the client that reads its lines: none is longer, or takes longer, than it may.

    python -I -S mcp_lines.py MOST_BYTES SECONDS COMMAND...      its output goes on line by line; the rest is the server's own

A message of the server's is a line, and the official client keeps what has come of one, however much that is. Here a line
that has more bytes, or is not ended so many seconds after it began, ends the server, with the reason as its last words.
Standard library only: it is begun as a file, without this package.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time


class _LineError(Exception):
    """A line that is not passed on."""


def pass_on(source: int, target: int, most: int, seconds: float) -> None:
    """All lines that come, until there is no more. Raises _LineError."""
    held = bytearray()
    ends = None
    while True:
        if (
            ends is not None
            and not select.select([source], [], [], max(0.0, ends - time.monotonic()))[0]
        ):
            raise _LineError(f"it did not end a line within {seconds:g} s of beginning it")
        data = os.read(source, 1 << 16)
        if not data:
            return
        whole, newline, rest = data.rpartition(b"\n")
        if len(held) + len(data.partition(b"\n")[0]) > most:
            raise _LineError(
                f"it sent a line of more than {most:,} bytes, which is the most that is read"
            )
        if newline:
            _write(target, bytes(held) + whole + newline)
            held = bytearray()
            ends = None
        held += rest
        if held and ends is None:
            ends = time.monotonic() + seconds


def _write(target: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(target, left) :]


def main(most: int, seconds: float, command: list[str]) -> int:
    """The exit status of the server; 1 where it was ended here."""
    try:
        server = subprocess.Popen(command, stdout=subprocess.PIPE)
    except OSError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 127
    try:
        pass_on(server.stdout.fileno(), 1, most, seconds)
        return server.wait()
    except _LineError as error:
        print(f"the server was ended: {error}", file=sys.stderr)
    except BrokenPipeError:  # nobody reads any more
        pass
    server.kill()
    return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
