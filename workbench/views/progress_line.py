"""A progress line for the three places where this runs: a terminal, a live notebook, a notebook run as a batch.

    with progress(40, "training") as bar:
        for step in range(40):
            bar.advance(note=f"success {success:.0%}")

terminal   one line on stderr that is rewritten; where stderr is a file, a new line now and then
notebook   one output that is updated in place (`display_id`), a few times a second: no widget, so that the saved
           notebook keeps the final state, which tqdm's widget does not
batch      the same as text, seldom: papermill copies every update into a file

`mode="auto"` chooses by what is there; the variable WORKBENCH_PROGRESS (terminal, notebook, batch, quiet) overrules it.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TextIO

from workbench.types import View
from workbench.types.errors import ConfigError
from workbench.views import doc
from workbench.views.escape import visible
from workbench.views.html import shown
from workbench.views.looks import BLUE, BOLD

MODES = ("terminal", "notebook", "batch", "quiet")
SECONDS_BETWEEN = {
    "terminal": 0.1,
    "log": 10.0,
    "notebook": 0.25,
    "batch": 5.0,
    "quiet": float("inf"),
}


class Progress:
    """Counts up to `total` (None: not known) and shows it. Use `progress(...)` to make one, as a context manager.

    `show(view, last)` is called at most every `between` seconds, and once at the end. Not to be called from several
    threads at once.
    """

    def __init__(
        self,
        total: int | None,
        label: str,
        show: Callable[[View, bool], None],
        between: float,
        clock: Callable[[], float],
        make_room: Callable[[], None] = lambda: None,
    ) -> None:
        self.total, self.label, self.done, self.note = total, label, 0, ""
        self._before = 0  # done before this line began: says nothing about how fast it goes
        self._show, self._between, self._clock, self._make_room = show, between, clock, make_room
        self._began, self._last, self._closed = clock(), float("-inf"), False

    def found(self, done: int, note: str | None = None) -> None:
        """`done` were done before this line began; the time that is left is told from what is done since."""
        self._before = done
        self.update(done, note)

    def advance(self, amount: int = 1, note: str | None = None) -> None:
        """`amount` more are done; `note` replaces what stands behind the numbers."""
        self.update(self.done + amount, note)

    def update(self, done: int, note: str | None = None) -> None:
        """`done` are done in all; `note` replaces what stands behind the numbers."""
        self.done = done
        self.note = self.note if note is None else note
        now = self._clock()
        if now - self._last >= self._between:
            self._last = now
            self._show(self.view(now), False)

    def say(self, text: str) -> None:
        """Print a line above a bar that is being rewritten, without leaving half of it behind."""
        self._make_room()
        print(visible(text), flush=True)

    def close(self, ending: str = "") -> None:
        """Show the final state, whatever the throttle says. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._show(self.view(self._clock(), ending), True)

    def __enter__(self) -> Progress:
        self._show(self.view(self._clock()), False)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        asked = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.close("" if kind is None else "stopped" if asked else f"ended by {kind.__name__}")

    def view(self, now: float, ending: str = "") -> View:
        """The line, as text and as HTML."""
        elapsed = now - self._began
        share = min(1.0, self.done / self.total) if self.total else None
        counted = f"{self.done}/{self.total}" if self.total is not None else f"{self.done}"
        facts = [
            counted,
            *([f"{100 * share:.0f} %"] if share is not None else []),
            f"{duration(elapsed)} so far",
        ]
        made = self.done - self._before
        if share and share < 1 and made > 0 and not ending:
            facts.append(f"about {duration(elapsed * (self.total - self.done) / made)} left")
        facts += [part for part in (ending, self.note) if part]
        blocks = (
            "" if share is None else "█" * round(20 * share) + "░" * (20 - round(20 * share)) + "  "
        )
        label = visible(self.label, newline=" ")
        bar = () if share is None else (bar_of(share, 200, "0 10px"),)
        return shown(
            doc.ViewDocument(
                (
                    doc.TextPart(f"{label}  {blocks}{visible(' · '.join(facts), newline=' ')}"),
                    doc.PagePart(
                        (doc.Note((doc.Styled(f"{label} ", BOLD), *bar, " · ".join(facts))),)
                    ),
                )
            )
        )


def bar_of(share: float, width: int, margin: str) -> doc.Bar:
    """How much is done, as a bar on a page."""
    full = round(width * share)
    return doc.Bar(((full, BLUE), (width - full, "#dfe5ea")), margin=margin)


def duration(seconds: float) -> str:
    """8 s, 1:23, 2:03:09."""
    whole = int(round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return (
        f"{minutes}:{rest:02d}"
        if minutes < 60
        else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
    )


def progress(
    total: int | None,
    label: str,
    *,
    mode: str = "auto",
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
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
    if mode in ("notebook", "batch"):
        return Progress(total, label, _notebook_output(mode, stream), SECONDS_BETWEEN[mode], clock)
    if mode == "quiet":
        return Progress(total, label, lambda view, last: None, SECONDS_BETWEEN[mode], clock)
    stream = sys.stderr if stream is None else stream
    if not getattr(stream, "isatty", lambda: False)():
        return Progress(
            total, label, _terminal_output(stream, rewrites=False), SECONDS_BETWEEN["log"], clock
        )
    return Progress(
        total,
        label,
        _terminal_output(stream, rewrites=True),
        SECONDS_BETWEEN["terminal"],
        clock,
        make_room=partial(_clear_line, stream),
    )


def _shell() -> Any | None:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def _clear_line(stream: TextIO) -> None:
    stream.write("\r\x1b[K")
    stream.flush()


def _terminal_output(stream: TextIO, rewrites: bool) -> Callable[[View, bool], None]:
    def show(view: View, last: bool) -> None:
        if rewrites:
            width = max(20, shutil.get_terminal_size().columns - 1)
            stream.write(f"\r\x1b[K{view.text[:width]}" + ("\n" if last else ""))
        else:
            stream.write(view.text + "\n")
        stream.flush()

    return show


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


def _notebook_output(mode: str, stream: TextIO | None) -> Callable[[View, bool], None]:
    """Outside of IPython, where a variable that was inherited may ask for this, plain lines: nothing displays there."""
    output = CellOutput()

    def show(view: View, last: bool) -> None:
        if _shell() is None:
            return _terminal_output(sys.stderr if stream is None else stream, rewrites=False)(
                view, last
            )
        output.put(
            {"text/plain": view.text, **({} if mode == "batch" else {"text/html": view.html})}
        )

    return show
