"""The live view of a run: one output, drawn again by a thread when the run's folder says something new.

Two screens. Where somebody looks (JupyterLab), a widget: the line of facts, a Stop button and the curves of plotly,
each changed only when its content changes. Elsewhere (papermill, or without ipywidgets and plotly) one output under a
display id, in words while the run goes on. When the run has ended, both become a plain picture with its PNG, which
needs no kernel and stays in the saved notebook.

No cell is blocked and nothing is polled in a hurry: the thread sleeps in the kernel of the operating system until the
run's process ends or a second has passed, then asks three files for their size. Drawing takes milliseconds; should it
take longer (a slow disk), the pauses grow with it, so that the view never takes more than a tenth of a core.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from workbench.run.follow import RunFollower
from workbench.types import View
from workbench.types.errors import StoreError
from workbench.types.view import HasView
from workbench.views.live import Status, live_curves, live_figure, show_live, show_status
from workbench.views.progress_line import CellOutput

if TYPE_CHECKING:
    from workbench.notebook.live_run import RunningRun

LOOK_S = 1.0  # between two looks at the folder
SHARE = 0.1  # of a core, at most
COARSE_S = 5.0  # elapsed time is shown in steps of this: a clock that ticks is not news


Rows = Sequence[Mapping[str, Any]]


class Screen(Protocol):
    """Where a live view is drawn."""

    def show(self, status: Status, rows: Rows, evaluations: Mapping[str, Any]) -> None:
        """Draw the run as it is now. Of one that has ended (`status.running` is False) it is the last picture."""

    def line(self, status: Status) -> None:
        """Only the line of facts has changed (the time that has passed)."""


class LiveView(HasView):
    """A run being watched. Shows itself as the last line of a cell, once; `close` ends the watching, not the run."""

    def __init__(
        self,
        running: RunningRun,
        *,
        every_s: float = 2.0,
        button: bool | None = None,
        screen: Callable[[LiveView], Screen] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.running, self.every_s = running, every_s
        self.button = is_looked_at() if button is None else button
        self.drawn = 0  # how often the picture was drawn
        self._screen_of = screen or _screen
        self._screen: Screen | None = None
        self._clock, self._last, self._key = clock, float("-inf"), None
        self._follower = RunFollower(running.path)
        self._lock = (
            threading.Lock()
        )  # the thread draws, and so does `draw`, which the main thread calls
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    # -------------------------------------------------------------------------------------------- drawing

    def look(self) -> bool:
        """Read what is new and draw it, if it is time; True where the run has ended and the last picture is drawn."""
        with self._lock:
            began = self._clock()
            if began - self._last < self.every_s and not self._has_ended():
                return False
            status = self._read()
            key = (self._follower.version, status.state, status.phase, status.problems)
            if key != self._key:
                self._draw(status)
                self._key = key
                self._last = began + max(0.0, (self._clock() - began) / SHARE - self.every_s)
            else:
                self._screen.line(status)
            return not status.running

    def _has_ended(self) -> bool:
        return self.running.process is None or self.running.process.ended()

    def _read(self) -> Status:
        """How the run stands, after reading what is new. One that cannot be read has failed, and the reason is shown."""
        try:
            self._follower.read()
            status = self.running.status_of(self._follower)
        except StoreError as error:
            name, step, steps = self.running.path.name, self._follower.step, self._follower.steps
            return Status(name, "failed", step, steps, "", None, (str(error),))
        if status.running and status.elapsed_s is not None:
            status = replace(status, elapsed_s=COARSE_S * (status.elapsed_s // COARSE_S))
        return status

    def _draw(self, status: Status) -> None:
        self.drawn += 1
        self._screen.show(status, self._follower.rows, self._follower.evaluations)

    def view(self) -> View:
        """The picture as it is now, as a value."""
        with self._lock:
            return show_live(self._read(), self._follower.rows, self._follower.evaluations)

    # -------------------------------------------------------------------------------------------- the thread

    def _ipython_display_(self) -> None:
        if self._screen is not None:  # it is drawn elsewhere already: here stands how it is now
            return PictureScreen().show(
                self._read(), self._follower.rows, self._follower.evaluations
            )
        self._screen = self._screen_of(self)
        if not self.look():
            self._thread = threading.Thread(
                target=self._follow, name=f"watch {self.running.path.name}", daemon=True
            )
            self._thread.start()

    def _follow(self) -> None:
        while not self._closed.is_set():
            if self.running.process is not None:
                self.running.process.ended(LOOK_S)
            if not self._closed.is_set() and self.look():
                return

    def close(self) -> None:
        """Watch no longer; the picture stays as it is."""
        self._closed.set()

    def draw(self) -> None:
        """Draw it as it is now, from the caller's thread: a notebook that is executed without anybody looking takes in
        only what the cell under way sends. Of a run that has ended this is the last picture."""
        if self._screen is None:
            return
        if (
            self._has_ended()
            and self._thread is not None
            and self._thread is not threading.current_thread()
        ):
            self._closed.set()
            self._thread.join(timeout=30)
        with self._lock:
            self._draw(self._read())


def is_looked_at() -> bool:
    """Is a notebook open in front of somebody? Jupyter's server names its path to the kernel; VS Code and Colab leave
    marks of their own. A kernel that papermill starts has none of them."""
    if os.environ.get("WORKBENCH_PROGRESS") in ("batch", "quiet", "terminal"):
        return False
    return any(
        name in os.environ for name in ("JPY_SESSION_NAME", "VSCODE_PID", "COLAB_RELEASE_TAG")
    )


# ------------------------------------------------------------------------------------------------ screens


def _screen(live: LiveView) -> Screen:
    live.button = live.button and _installed(
        "ipywidgets", "plotly", "anywidget"
    )  # plotly's widget needs the last
    return WidgetScreen(live.running) if live.button else PictureScreen()


class PictureScreen(CellOutput):
    """One output, whose picture is replaced by each new one."""

    def show(self, status: Status, rows: Rows, evaluations: Mapping[str, Any]) -> None:
        hint = "run.stop() stops it; it goes on without this notebook" if status.running else ""
        self.put(show_live(status, rows, evaluations, hint=hint)._repr_mimebundle_())

    def line(self, status: Status) -> None:
        pass  # not worth a new picture


class WidgetScreen:
    """Line, button and curves as one widget, the curves to hover over and to zoom; beside it in the same output the
    words as they were at first, for whoever opens the notebook without a kernel. The last picture takes the place of
    all."""

    def __init__(self, running: RunningRun) -> None:
        import ipywidgets
        from plotly.graph_objects import FigureWidget

        self._running, self._output, self._said = running, PictureScreen(), ""
        self._facts, self._curves = ipywidgets.HTML(), FigureWidget()
        self._button = ipywidgets.Button(
            description="Stop",
            icon="stop",
            tooltip="asks the run to end; committed steps stay",
            layout=ipywidgets.Layout(width="170px", height="28px", margin="0 0 4px 2px"),
        )
        self._button.add_class("wb-stop")
        self._button.on_click(self._stop)
        self._box = ipywidgets.VBox([self._facts, self._button])
        self._shown = False

    def show(self, status: Status, rows: Rows, evaluations: Mapping[str, Any]) -> None:
        if not status.running:
            self._output.show(status, rows, evaluations)
            self._box.close()
            return
        self.line(status)
        curves = live_curves(rows, evaluations)
        if curves:
            redraw(self._curves, live_figure(curves, status.name))
            self._box.children = (self._facts, self._button, self._curves)
        if not self._shown:
            self._shown = True
            widget = self._box._repr_mimebundle_()
            widget = widget[0] if isinstance(widget, tuple) else widget
            hint = f"as it stood when this cell was run; workbench.attach({str(self._running.path)!r}) follows it again"
            self._output.put(
                {**widget, **show_live(status, rows, evaluations, hint=hint)._repr_mimebundle_()}
            )

    def line(self, status: Status) -> None:
        html = show_status(status).html
        if self._said != html:  # every change is a message to the browser
            self._said = self._facts.value = html
        if status.state == "stopping":
            self._button.description, self._button.icon = "Stopping: kill it now", "times"
            self._button.tooltip = "ends it at once; committed steps stay"

    def _stop(self, _button: Any) -> None:
        self._running.stop()
        self._button.description, self._button.icon = "Stopping: kill it now", "times"


def redraw(widget: Any, figure: Mapping[str, Any]) -> None:
    """Bring a plotly `FigureWidget` up to date: new numbers in the traces that are there, so that what was zoomed stays
    zoomed; drawn anew where the traces are others."""
    names = [(trace["name"], trace["xaxis"]) for trace in figure["data"]]
    if names == [(trace.name, trace.xaxis) for trace in widget.data]:
        with widget.batch_update():
            for trace, new in zip(widget.data, figure["data"]):
                trace.update({key: new[key] for key in ("x", "y", "error_y") if key in new})
        return
    with widget.batch_update():
        widget.data = []
        widget.layout = figure["layout"]
    widget.add_traces(figure["data"])


def has_widgets() -> bool:
    """True where somebody looks and ipywidgets is there to answer them."""
    return is_looked_at() and _installed("ipywidgets")


def _installed(*packages: str) -> bool:
    return all(find_spec(package) is not None for package in packages)
