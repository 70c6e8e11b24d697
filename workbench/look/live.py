"""A run that trains, at a glance: one line of facts, what is wrong, and the curves with their baselines so far.

    status.view()                             the line
    live_view(status, rows, evaluations)      ... above the curves, on them random, untrained and solver (invariant 12)
    LiveView(followed)                        the same, drawn again when the run's folder says something new

`Status` is what a notebook's `run.status` is. Everything in it that came from a file or a process is escaped. A grid of
runs is followed by the same `LiveView` (`extensions/ablation`): whatever has a `moment()` is.

Two screens. Where somebody looks (JupyterLab), two outputs: a widget whose own script draws the curves (`live.js`, some
kilobytes, nothing else to load), and below it a picture that needs no widget. While the widget is drawn the picture is
hidden. Where the page has not said within seconds that it is (a front end without widgets, a script that ran out of its
time on a busy machine), the picture is drawn again with all that is new. Elsewhere (papermill) there is one output, in
words while the run goes on. When the run has ended, all become one plain picture with its PNG, which needs no kernel and
stays in the saved notebook.

No cell is blocked and nothing is polled in a hurry: the thread sleeps in the kernel of the operating system until the
run's process ends or a second has passed, then asks three files for their size. The pauses grow with what drawing costs
and with what is sent: never more than a tenth of a core, and no queue on a slow line.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from workbench.look import doc, words
from workbench.look.curves import PANELS, Curve, Panel, curves_document, curves_of, plot_of
from workbench.look.escape import capped, visible
from workbench.look.figures import panels_json
from workbench.look.html import view_from
from workbench.look.looks import BLUE, BOLD, GREEN, GREY, ORANGE, RED, TRACK
from workbench.look.progress_line import CellOutput
from workbench.values import View
from workbench.values.view import HasView

# Word and colour of each state; the word says it all, the colour only helps.
STATES = {
    "running": BLUE,
    "stopping": ORANGE,
    "done": GREEN,
    "stopped": GREY,
    "failed": RED,
    "ended": ORANGE,
}
LIVE_PANELS = (
    *(panel for panel in PANELS if panel.title != "valid format"),
    Panel("KL(old || new), nats per token", ("approx_kl",)),
    Panel("KL to the reference, nats per token", ("kl_ref",)),
    Panel("explained variance of the critic", ("explained_variance",)),
    Panel("valid format", ("valid_format",), "valid_format"),
)
LONGEST_PROBLEM = 600  # characters
LOOK_S = 1.0  # between two looks at the folder
SHARE = 0.1  # of a core, at most
BYTES_PER_S = 20_000  # that are sent to the page, at most
LONGEST_PAUSE_S = (
    15.0  # a page that hears nothing for longer says that it is disconnected (live.js)
)
GRACE_S = 8.0  # for the page to say that the widget is drawn, until the picture takes its place
COARSE_S = 5.0  # elapsed time is shown in steps of this: a clock that ticks is not news

Rows = Sequence[Mapping[str, Any]]


# ------------------------------------------------------------------------------------------------ the line of facts


@dataclass(frozen=True)
class Status(HasView):
    """How a run stands.

    name       of the run
    state      running, stopping, done, stopped (on request), failed, or ended (before its last step, nobody knows why)
    step       the last one that is committed
    steps      how many there are to be; None: not known yet
    phase      what its process is at
    elapsed_s  seconds since that process began, until it ended
    problems   what went wrong, the worst last
    remark     of one that has ended: what the lint said, and what it could not check
    idle       who waited lately, as `RunFollower.idle` says it, where learner and engine work side by side
    unit       what is counted
    """

    name: str
    state: str
    step: int
    steps: int | None
    phase: str
    elapsed_s: float | None = None
    problems: tuple[str, ...] = ()
    idle: Mapping[str, float] | None = None
    remark: str = ""
    unit: str = "step"

    @property
    def running(self) -> bool:
        return self.state in ("running", "stopping")

    def view(self) -> View:
        """One line: name, state, step, phase, elapsed time; below it what went wrong."""
        return view_from(*status_parts(self))

    @property
    def share(self) -> float | None:
        """How much is done; None: nobody knows how much there is."""
        return min(1.0, self.step / self.steps) if self.steps else None


def status_parts(status: Status, hint: str = "") -> tuple[doc.Part, ...]:
    """The same as parts of a larger view. `hint`: a line on what to do."""
    name = doc.Styled(f"{visible(status.name, newline=' ')} ", BOLD)
    state = doc.Badge(status.state, STATES.get(status.state, GREY), plain=f" [{status.state}]  ")
    bar: tuple[doc.Bar, ...] = ()
    if status.share is not None:
        bar = (bar_of(status.share, 160, "0 10px 0 6px"),)
    return (
        doc.Heading((name, state, *bar, _facts(status))),
        *(doc.WarningLine(capped(problem, LONGEST_PROBLEM)) for problem in status.problems),
        *(doc.Note(line) for line in (status.remark, hint) if line),
    )


def _facts(status: Status) -> str:
    steps = "" if status.steps is None else f" of {status.steps}"
    facts = [f"{status.unit} {status.step}{steps}"]
    if status.running and status.phase != "done":
        facts.append(visible(status.phase, newline=" "))
    if status.running and status.idle is not None:
        facts.append(
            f"idle: learner {status.idle['learner_idle']:.0%}, engine {status.idle['engine_idle']:.0%}; sync "
            f"{status.idle['sync_share']:.0%}"
        )
    if status.elapsed_s is not None:
        facts.append(duration(status.elapsed_s))
    return " · ".join(facts)


def bar_of(share: float, width: int, margin: str) -> doc.Bar:
    """How much is done, as a bar on a page."""
    full = round(width * share)
    return doc.Bar(((full, BLUE), (width - full, TRACK)), margin=margin)


def duration(seconds: float) -> str:
    """8 s, 1:23, 2:03:09."""
    whole = int(round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


# ------------------------------------------------------------------------------------------------ the curves so far


def live_curves(rows: Rows, evaluations: Mapping[str, Any]) -> list[Curve]:
    """The panels worth drawing while a run trains: not a KL whose every value is zero (one update a step)."""
    curves = curves_of(rows, evaluations, None, LIVE_PANELS)
    return [
        curve
        for curve in curves
        if not curve.panel.title.startswith("KL") or np.nan_to_num(curve.value).any()
    ]


def live_view(
    status: Status,
    rows: Rows,
    evaluations: Mapping[str, Any],
    *,
    hint: str = "",
    drawn: bool = False,
) -> View:
    """The status above the curves so far. While the run goes on the curves are words, or a picture if `drawn`; of a run
    that has ended it is what `curves_view` shows, with a PNG. `hint`: a line on what to do."""
    parts = status_parts(status, hint)
    curves = live_curves(rows, evaluations)
    if not curves:
        return view_from(*parts)
    if status.running and not drawn:
        return view_from(*parts, doc.Note(_curves_words(curves)))
    return view_from(*parts, *curves_document(curves, status.name).parts)


def live_panels(rows: Rows, evaluations: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The curves alone, as the page draws them: made in milliseconds, to be sent again and again while a run trains."""
    return panels_json([plot_of(curve) for curve in live_curves(rows, evaluations)])


def _curves_words(curves: Sequence[Curve]) -> str:
    """The picture for whoever does not see it: where each curve is now, and the levels beside it."""
    parts = []
    for curve in curves:
        known = curve.value[np.isfinite(curve.value)]
        levels = ", ".join(f"{line.name} {words.number(line.value, 3)}" for line in curve.lines)
        now = words.number(float(known[-1]), 3) if len(known) else "not yet"
        beside = f" ({levels})" if levels else ""
        parts.append(visible(f"{curve.panel.title} {now}{beside}", newline=" "))
    return "; ".join(parts)


# ------------------------------------------------------------------------------------------------ drawn again and again


@dataclass(frozen=True, eq=False)
class LiveState:
    """What a live view shows.

    status   the line of facts
    version  another one where there is something new to draw below it
    body     what the page draws: "panels" of curves, or "columns" and "rows" of a table
    view     the same without a script: `view(hint, drawn)`, in words while it goes on, unless `drawn`
    again    how to follow it again, from another kernel
    stop     what the button says; "": it cannot be pressed
    """

    status: Status
    version: Any
    body: Callable[[], Mapping[str, Any]]
    view: Callable[[str, bool], View]
    again: str
    stop: str = ""


class Watched(Protocol):
    """What a live view follows: a run, or the jobs of a grid."""

    def ended(self, within_s: float = 0.0) -> bool:
        """Whether nothing more will come, waited for at most so long."""

    def moment(self) -> LiveState:
        """How it is now, after reading what is new."""

    def stop(self) -> None:
        """Ask it to end; returns at once."""


class LiveView(HasView):
    """A run being watched. Shows itself as the last line of a cell, once."""

    def __init__(
        self,
        followed: Watched,
        *,
        every_s: float = 2.0,
        screen: Callable[[Watched], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.followed = followed
        self.every_s = every_s
        self.drawn = 0  # how often the picture was drawn
        self._screen_of = screen or _screen
        self._screen: Any = None
        self._clock = clock
        self._last = float("-inf")
        self._version: Any = None
        # The thread draws, and so does `draw`, which the main thread calls.
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    # -------------------------------------------------------------------------------------------- drawing

    def look(self) -> bool:
        """Read what is new and draw it, if it is time; True where the run has ended and the last picture is drawn."""
        with self._lock:
            began = self._clock()
            if began - self._last < self.every_s and not self.followed.ended():
                return False
            moment = self.followed.moment()
            if moment.version != self._version:
                sent = self._draw(moment)
                self._version = moment.version
                pause = max((self._clock() - began) / SHARE, sent / BYTES_PER_S)
                self._last = began + max(0.0, min(pause, LONGEST_PAUSE_S) - self.every_s)
            else:
                self._screen.line(moment)
            return not moment.status.running

    def _draw(self, moment: LiveState) -> int:
        self.drawn += 1
        return self._screen.show(moment)

    def view(self) -> View:
        """The picture as it is now, as a value."""
        with self._lock:
            return self.followed.moment().view("", False)

    # -------------------------------------------------------------------------------------------- the thread

    def _ipython_display_(self) -> None:
        if self._screen is not None:  # it is drawn elsewhere already: here stands how it is now
            PictureScreen().show(self.followed.moment())
            return
        self._screen = self._screen_of(self.followed)
        if not self.look():
            self._thread = threading.Thread(target=self._follow, name="live view", daemon=True)
            self._thread.start()

    def _follow(self) -> None:
        while not self._closed.is_set():
            self.followed.ended(LOOK_S)
            if not self._closed.is_set() and self.look():
                return

    def draw(self) -> None:
        """Draw it as it is now, from the caller's thread: a notebook that is executed without anybody looking takes in
        only what the cell under way sends. Of a run that has ended this is the last picture."""
        if self._screen is None:
            return
        has_thread = self._thread is not None and self._thread is not threading.current_thread()
        if has_thread and self.followed.ended():
            self._closed.set()
            self._thread.join(timeout=30)
        with self._lock:
            self._draw(self.followed.moment())


def is_looked_at() -> bool:
    """Is a notebook open in front of somebody? Jupyter's server names its path to the kernel; VS Code and Colab leave
    marks of their own. A kernel that papermill starts has none of them."""
    if os.environ.get("WORKBENCH_PROGRESS") in ("batch", "quiet", "terminal"):
        return False
    marks = ("JPY_SESSION_NAME", "VSCODE_PID", "COLAB_RELEASE_TAG")
    return any(name in os.environ for name in marks)


# ------------------------------------------------------------------------------------------------ screens


def _screen(followed: Watched) -> PictureScreen | WidgetScreen:
    return WidgetScreen(followed) if has_widgets() else PictureScreen()


class PictureScreen(CellOutput):
    """One output, whose picture is replaced by each new one. It needs no widget."""

    def show(self, moment: LiveState, drawn: bool = False) -> int:
        """Draw what is new; returns how many bytes were sent. Of what has ended it is the last picture."""
        hint = ""
        if moment.status.running:
            hint = f"as of {time.strftime('%H:%M:%S')}; if that is long ago: {moment.again}"
        bundle = moment.view(hint, drawn)._repr_mimebundle_()
        self.put(bundle)
        return sum(map(len, bundle.values()))

    def line(self, moment: LiveState) -> None:
        """Only the line of facts has changed (the time that has passed): not worth a new picture."""


class WidgetScreen:
    """The widget (live.js), and below it the picture, hidden while the widget is drawn: in words as it was at first,
    for whoever opens the notebook without a kernel, and drawn anew while the page does not say that the widget is there.
    At the end the picture takes the place of all."""

    def __init__(self, followed: Watched) -> None:
        self._followed = followed
        self._above = CellOutput()
        self._picture = PictureScreen()
        self._widget = _live_widget()
        self._widget.on_msg(self._heard)
        self._shown_at: float | None = None
        self._is_drawn = False  # as the page says
        self._missing: LiveState | None = None  # what the picture does not show yet

    def show(self, moment: LiveState) -> int:
        if not moment.status.running:
            if self._shown_at is not None:
                self._above.put({})
            self._widget.close()
            return self._picture.show(moment)
        body = moment.body()
        self._widget.body = body
        self._missing = moment
        self.line(moment)
        if self._shown_at is None:
            self._shown_at = time.monotonic()
            self._widget.again = moment.again
            self._above.put(widget_bundle(self._widget, f"{moment.status}"))
            self._picture.show(moment)
        return len(json.dumps(body))

    def line(self, moment: LiveState) -> None:
        status = moment.status
        self._widget.status = {
            "name": visible(status.name, newline=" "),
            "state": status.state,
            "colour": STATES.get(status.state, GREY),
            "share": status.share,
            "facts": _facts(status),
            "problems": [visible(capped(text, LONGEST_PROBLEM)) for text in status.problems],
            "stop": moment.stop,
            "beat": time.monotonic() // COARSE_S,
        }
        is_late = self._shown_at is not None and time.monotonic() - self._shown_at > GRACE_S
        if is_late and not self._is_drawn and self._missing is not None:
            self._missing = None
            self._picture.show(moment, drawn=True)

    def _heard(self, _widget: Any, content: Mapping[str, Any], _buffers: Any) -> None:
        if content.get("ask") == "stop":
            self._followed.stop()
        else:  # "drawn" or "failed"
            self._is_drawn = content.get("ask") == "drawn"


def _live_widget() -> Any:
    """A widget that draws what its traits hold."""
    import anywidget
    import traitlets

    class LiveWidget(anywidget.AnyWidget):
        _esm = page_text("drawing.js", "live.js")
        _css = page_text("live.css")
        status = traitlets.Dict().tag(sync=True)
        body = traitlets.Dict().tag(sync=True)
        again = traitlets.Unicode().tag(sync=True)

    return LiveWidget()


def page_text(*names: str) -> str:
    """Files of this folder, one after the other: anywidget takes a script as one module."""
    folder = Path(__file__).parent
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def widget_bundle(widget: Any, text: str) -> dict[str, Any]:
    """What a widget hands to a notebook, without the metadata that some versions add, and with `text` where there are
    no widgets."""
    bundle = widget._repr_mimebundle_()
    kinds = bundle[0] if isinstance(bundle, tuple) else bundle
    return {kind: value for kind, value in kinds.items() if "widget" in kind} | {"text/plain": text}


def has_widgets() -> bool:
    """True where somebody looks and anywidget (with ipywidgets) is there to answer them."""
    return is_looked_at() and find_spec("anywidget") is not None
