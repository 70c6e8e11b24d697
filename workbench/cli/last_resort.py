"""Report an unexpected error: one line on stderr, the traceback in a file, an exit status of its own (never 1, which says no)."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from workbench.basics.annotated import is_of_a_file_name
from workbench.values.errors import own_line

UNEXPECTED = 3
LONGEST = 300  # characters of what an error says


def report_crash(error: BaseException, where: str) -> int:
    """Report an error that nothing handled, and return the exit status. `where`: which of several processes this is."""
    printable = "".join(c if c.isprintable() else " " for c in " ".join(str(error).split()))
    message = printable[:LONGEST]
    if is_of_a_file_name(error):
        reason = getattr(error, "strerror", message)
        print(
            f"workbench{where}: no file can have the name that was given: {reason}",
            file=sys.stderr,
        )
        return 2
    print(
        f"workbench{where}: unexpected {type(error).__name__}: {message or 'without a word'}. {_whose(error)}; "
        f"{_write_log(error)}",
        file=sys.stderr,
    )
    return UNEXPECTED


def _whose(error: BaseException) -> str:
    """In a sentence, whose code raised it."""
    if line := own_line(error):
        return (
            f"It was raised in your own code: {line.filename}, line {line.lineno}, in {line.name}"
        )
    return "This is a fault of the workbench, or of something that it was handed and should have refused"


def _write_log(error: BaseException) -> str:
    """Write the command and the traceback to a file; in words, where that is."""
    content = f"workbench {' '.join(sys.argv[1:])}\n\n{''.join(traceback.format_exception(error))}"
    now = time.time_ns()
    second, nanoseconds = divmod(now, 10**9)
    clock = time.strftime("%Y%m%d-%H%M%S", time.localtime(second))
    name = f"error-{clock}-{nanoseconds:09d}-{os.getpid()}.log"
    home = os.environ.get("XDG_STATE_HOME") or Path(os.path.expanduser("~"), ".local", "state")
    for folder in (Path(home, "agent-rl-workbench", "errors"), Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(fd, "w", errors="replace") as file:
                file.write(content)
        except (OSError, RuntimeError):
            continue
        return f"where it happened is in {folder / name}"
    return "where it happened could be written nowhere"
