"""A progress line: tqdm's own in a terminal, and its words as plain lines in a log or as one output of a notebook's cell.

    with progress(40, "training") as bar:
        for step in range(40):
            bar.advance(note=f"success {success:.0%}")

terminal   tqdm on stderr; where stderr is a file, a new line now and then, without carriage returns
notebook   one output that is updated in place (`display_id`), a few times a second: no widget, so that the saved
           notebook keeps the final state, which tqdm's widget does not
batch      the same, seldom: papermill copies every update into a file

`mode="auto"` chooses by what is there; the variable WORKBENCH_PROGRESS (terminal, notebook, batch, quiet) overrules it.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from tqdm import std, tqdm

from workbench.basics.annotated import checked_methods
from workbench.look.escape import visible
from workbench.values.errors import ConfigError

MODES = ("terminal", "notebook", "batch", "quiet")
SECONDS_BETWEEN = {
    "terminal": 0.1,
    "log": 10.0,
    "notebook": 0.25,
    "batch": 5.0,
    "quiet": float("inf"),
}


class Terminal(tqdm):
    """tqdm without its thread that watches over bars: processes are forked from here."""

    monitor_interval = 0


class ProgressLines(Terminal):
    """tqdm that hands its line to `put` instead of rewriting one in a terminal."""

    def __init__(self, put: Callable[[str], None], **settings: Any) -> None:
        self._put = put
        super().__init__(file=io.StringIO(), ascii=False, **settings)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        self._put(str(self))


@checked_methods
class Progress:
    """Counts up to `total` (None: not known) on a bar of tqdm. Use `progress(...)` to make one, as a context manager.

    Not to be called from several threads at once.
    """

    def __init__(self, bar: tqdm) -> None:
        self._bar = bar
        self.done = 0
        self.note = ""

    @property
    def total(self) -> int | None:
        return self._bar.total

    @total.setter
    def total(self, total: int | None) -> None:
        self._bar.total = total

    def found(self, done: int, note: str | None = None) -> None:
        """`done` were done before this line began; the time that is left is told from what is done since."""
        self._bar.initial = done
        self.update(done, note)

    def restart_clock(self) -> None:
        """The time that is left is told from now on: what came before, such as a run's baselines, was none of the work."""
        self._bar.start_t = std.time()
        self._bar.last_print_t = (
            self._bar.start_t
        )  # or tqdm takes it for a bar that was never shown

    def advance(self, amount: int = 1, note: str | None = None) -> None:
        """`amount` more are done; `note` replaces what stands behind the numbers."""
        self.update(self.done + amount, note)

    def update(self, done: int, note: str | None = None) -> None:
        """`done` are done in all; `note` replaces what stands behind the numbers."""
        self.done = done
        self.note = self.note if note is None else note
        self._bar.set_postfix_str(visible(self.note, newline=" "), refresh=False)
        self._bar.update(done - self._bar.n)

    def say(self, text: str) -> None:
        """Print a line above a bar that is being rewritten, without leaving half of it behind."""
        self._bar.write(visible(text))
        sys.stdout.flush()

    def close(self, ending: str = "") -> None:
        """Show the final state, whatever the throttle says. A second call does nothing."""
        words = ", ".join(filter(None, (ending, self.note)))
        self._bar.set_postfix_str(visible(words, newline=" "), refresh=False)
        self._bar.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        if kind is None:
            self.close()
        elif issubclass(kind, KeyboardInterrupt):
            self.close("stopped")
        else:
            self.close(f"ended by {kind.__name__}")


def progress(
    total: int | None, label: str, *, mode: str = "auto", stream: TextIO | None = None
) -> Progress:
    """A progress line for where this runs; see the top of this file for the modes."""
    if mode == "auto":
        mode = os.environ.get("WORKBENCH_PROGRESS") or (
            "notebook" if getattr(_shell(), "kernel", None) else "terminal"
        )
    if mode not in MODES:
        raise ConfigError(
            f"a progress line is one of {', '.join(MODES)} (or auto), got {mode!r}; see the mode "
            "argument and the variable WORKBENCH_PROGRESS"
        )
    stream = sys.stderr if stream is None else stream
    if mode == "terminal" and not getattr(stream, "isatty", lambda: False)():
        mode = "log"
    settings = {
        "total": total,
        "desc": visible(label, newline=" "),
        "mininterval": SECONDS_BETWEEN[mode],
        "miniters": 0,  # a new note is shown too
        "smoothing": 0,  # steps take unlike times: the mean of all
    }
    if mode == "terminal":
        return Progress(Terminal(file=stream, dynamic_ncols=True, **settings))
    return Progress(ProgressLines(_output(mode, stream), **settings))


def _shell() -> Any | None:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def _output(mode: str, stream: TextIO) -> Callable[[str], None]:
    """Where a line goes. Outside of IPython, where a variable that was inherited may ask for a notebook's way, into
    `stream`: nothing displays there."""
    cell = CellOutput()

    def put(line: str) -> None:
        if mode == "quiet":
            return
        if mode == "log" or _shell() is None:
            print(line, file=stream, flush=True)
        else:
            cell.put({"text/plain": line})

    return put


class CellOutput:
    """An output of the cell under way; what is put there next takes the place of what was."""

    def __init__(self) -> None:
        self._handle: Any = None

    def put(self, bundle: dict[str, Any]) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
