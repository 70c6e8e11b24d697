"""Runs a command in a process group of its own and ends the whole group as soon as whoever started it is gone.

    python -m workbench.extensions.vllm_server.keeper FOLDERS COMMAND ...

Standard input is a pipe: it ends when the other side has died, however it died, or closes it on purpose. Then, and when the
command ends by itself, no process of the group is left; and of FOLDERS (separated as in PATH) nothing, unless a byte was
written into the pipe before it was closed.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time

GRACE_S = 3.0  # between asking and killing


def main(folders: str, *command: str) -> None:
    # It is the one that is left when the group is told to end.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while child.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], 0.5)
        if readable:
            if not os.read(sys.stdin.fileno(), 1):
                for folder in filter(None, folders.split(os.pathsep)):
                    shutil.rmtree(folder, ignore_errors=True)
            break
    if child.poll() is None:
        os.killpg(0, signal.SIGTERM)
        ends = time.monotonic() + GRACE_S
        while child.poll() is None and time.monotonic() < ends:
            time.sleep(0.05)
    os.killpg(0, signal.SIGKILL)  # this process too


if __name__ == "__main__":
    main(*sys.argv[1:])
