"""What nobody expected: one line on stderr, the whole story in a file, an exit status of its own. Never 1, which says no."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

UNEXPECTED = 3
LONGEST = 300  # characters of what an error says


def told(error: Exception, where: str) -> int:
    """Say what escaped; the exit status. `where`: which of several processes this is."""
    said = "".join(c if c.isprintable() else " " for c in " ".join(str(error).split()))[:LONGEST]
    if (
        isinstance(error, OSError)
        and error.errno in (errno.ENAMETOOLONG, errno.ELOOP)
        or (isinstance(error, RuntimeError) and said.startswith("Symlink loop"))
    ):  # only a name that was given can be
        print(
            f"workbench{where}: no file can have the name that was given: {getattr(error, 'strerror', said)}",
            file=sys.stderr,
        )
        return 2
    log = _kept(error)
    print(
        f"workbench{where}: unexpected {type(error).__name__}: {said or 'without a word'}. This is a fault of the workbench, "
        f"or of something that it was handed and should have refused; {log}",
        file=sys.stderr,
    )
    return UNEXPECTED


def _kept(error: Exception) -> str:
    """Write down where it came from; in words, where that is."""
    story = f"workbench {' '.join(sys.argv[1:])}\n\n{''.join(traceback.format_exception(error))}"
    now = time.time_ns()
    name = f"error-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now // 10**9))}-{now % 10**9:09d}-{os.getpid()}.log"
    home = os.environ.get("XDG_STATE_HOME") or Path(os.path.expanduser("~"), ".local", "state")
    for folder in (Path(home, "agent-rl-workbench", "errors"), Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with open(
                os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600),
                "w",
                errors="replace",
            ) as file:
                file.write(story)
        except (OSError, RuntimeError):
            continue
        return f"where it happened is in {folder / name}"
    return "where it happened could be written nowhere"
