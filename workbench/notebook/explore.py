"""The navigator: from the curve to the token by clicking.

    wb.explore(run)                                         in JupyterLab, also while the run trains
    wb.explore([run, other], at="step 3 / task 2")          several runs overlaid, opened at a place
    wb.explore(run, at="step 3").save("step-3.html")        one page that needs no kernel and loads nothing

Its curves are drawn by its own script: plotly's would make every saved page five megabytes larger. `wb.show(run)` is the
same curves in plotly.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.notebook.explored import Answers, NavigatorReply
from workbench.notebook.live import has_widgets
from workbench.notebook.place import show_place
from workbench.run.store import Run, open_run
from workbench.run.writer import make_folder, write_file
from workbench.types import View
from workbench.types.address import Address
from workbench.types.errors import DataError, WorkbenchError
from workbench.types.pairs import LOST, WON
from workbench.types.view import HasView
from workbench.views.progress_line import CellOutput

if TYPE_CHECKING:
    from workbench.notebook.live_run import RunningRun

SCRIPTS = Path(__file__).resolve().parents[1] / "views"
EVERY_S = 3.0  # between two looks at a run that trains
KEEP_S = 0.7  # at one place, until the picture below is drawn
KINDS = {"f": ("f8", np.float64), "i": ("i4", np.int32), "u": ("u1", np.uint8)}
MOST_SAVED = 200_000_000  # bytes of one page
MOST_PAIRS = 64  # tasks that training won or lost whose attempts a page holds


class Navigator(HasView):
    """Runs to walk through. As the last line of a cell it is a widget, and where there is no kernel a picture of the place where
    it was. `at` is where it is now, in words that `workbench show RUN --at` and `wb.explore(run, at=...)` take."""

    def __init__(self, runs: Sequence[Run], at: str | Address = "") -> None:
        self.runs, self._answers = tuple(runs), Answers(runs)
        self._at, self._widget = self._answers.address(at), None
        self._saved: CellOutput | None = None  # where the picture is, once it was shown
        self._timer: asyncio.TimerHandle | None = None  # ... and when it is brought up to date

    @property
    def at(self) -> str:
        return str(self._at) if self._widget is None else self._widget.at

    def view(self) -> View:
        """The same place of the run that is looked at, without a script."""
        return show_place(self.runs[0 if self._widget is None else self._widget.run], self.at)

    def widget(self) -> Any:
        """The widget, made on first use. Raises WorkbenchError where anywidget is not installed."""
        if self._widget is None:
            self._widget = _widget(self._answers, str(self._at))
            self._widget.observe(self._moved, ["at", "run"])
        return self._widget

    def save(self, path: str | os.PathLike, *, steps: Sequence[int] | None = None) -> Path:
        """One page with the curves and `steps` (None: that of `at`, else the last), every attempt of them down to its tokens.

        Raises DataError where it would exceed 200 MB, and where a step is not there."""
        place = Address.of(self.at)
        if steps is None:
            steps = [place.step] if place.step is not None else self.runs[0].steps()[-1:]
        page = _page(
            self._answers, steps, str(place), 0 if self._widget is None else self._widget.run
        )
        make_folder(Path(path).absolute().parent)
        write_file(Path(path), replace=True, content=page)
        return Path(path)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        self._saved = CellOutput()
        if has_widgets():
            data = self.widget()._repr_mimebundle_()
            data = data[0] if isinstance(data, tuple) else data
            display(
                {key: value for key, value in data.items() if "widget" in key}
                | {"text/plain": repr(self)},
                raw=True,
            )
        self._keep()

    def _keep(self) -> None:
        """Bring the picture below the widget to where the widget is: a notebook that is saved keeps it, and shows it where
        there is no kernel. While the widget is alive the picture is hidden (navigator.css)."""
        if self._saved is not None:
            self._saved.put(self.view()._repr_mimebundle_())

    def _moved(self, _change: Any) -> None:
        """The widget went elsewhere: the picture follows once it stays there, so that no click waits for a picture."""
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._timer = asyncio.get_running_loop().call_later(KEEP_S, self._keep)
        except RuntimeError:  # no loop runs: nobody waits
            self._keep()

    def __repr__(self) -> str:
        return f"<navigator of {', '.join(run.name for run in self.runs)}{f' at {self.at}' if self.at else ''}>"[
            :2000
        ]


def explore(
    run: Run | RunningRun | str | Path | Sequence[Run | str | Path], *, at: str | Address = ""
) -> Navigator:
    """Walk through a run (or several, their curves overlaid): curves, the groups of a step, attempts, turns, tokens.

    `at`: where to begin, such as "step 3 / task 2 / attempt 5 / token 812". Raises DataError for a place that is not there.
    """
    several = run if isinstance(run, (list, tuple)) else [run]
    if not several or not all(isinstance(each, (str, os.PathLike, Run)) for each in several):
        raise DataError(
            f"wb.explore takes a run or a list of runs, each a Run, a RunningRun or a path; got {run!r:.100}"
        )
    return Navigator([open_run(each) for each in several], at)


# ------------------------------------------------------------------------------------------------ widget and page


def _widget(answers: Answers, at: str) -> Any:
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise WorkbenchError(
            "the navigator needs anywidget: pip install 'agent-rl-workbench[lab]'; wb.show(run, step=...) "
            "does without"
        ) from error

    class NavigatorWidget(anywidget.AnyWidget):
        _esm, _css = script(), style()
        at = traitlets.Unicode("").tag(sync=True)
        run = traitlets.Int(0).tag(sync=True)  # the number of the run that `at` is in
        every_s = traitlets.Float(EVERY_S).tag(sync=True)

    widget = NavigatorWidget(at=at)
    widget.on_msg(lambda _, message, __: _answer(widget, answers, message))
    return widget


def _answer(widget: Any, answers: Answers, message: Mapping[str, Any]) -> None:
    content, arrays, buffers = _packed(answers.of(message["question"]))
    widget.send({"id": message["id"], "content": content, "arrays": arrays}, buffers=buffers)


def _packed(reply: NavigatorReply) -> tuple[dict[str, Any], list[list[str]], list[bytes]]:
    """(content, [name, kind] of each array, their bytes): what a message to the page consists of."""
    arrays, buffers = [], []
    for name, values in reply.arrays.items():
        code, dtype = KINDS[values.dtype.kind]
        arrays.append([name, code])
        buffers.append(np.ascontiguousarray(values, dtype).tobytes())
    return reply.content, arrays, buffers


def script() -> str:
    """One module: anywidget takes no other kind."""
    return "\n".join(
        (SCRIPTS / name).read_text(encoding="utf-8")
        for name in ("navigator_credit.js", "navigator_groups.js", "navigator.js")
    )


def style() -> str:
    return (SCRIPTS / "navigator.css").read_text(encoding="utf-8")


def _page(answers: Answers, steps: Sequence[int], at: str, run: int) -> bytes:
    questions: list[dict[str, Any]] = [{"ask": "runs"}]
    for number in range(len(answers.runs)):
        questions.append({"ask": "spread", "run": number})
        for other in (-1, *(each for each in range(len(answers.runs)) if each != number)):
            questions.append(question := {"ask": "pairs", "run": number, "other": other})
            rows = [
                row
                for row in answers.of(question).content.get("rows", ())
                if row["change"] in (LOST, WON)
            ]
            questions += [question | {"pair": row["pair"]} for row in rows[:MOST_PAIRS]]
        for step in steps:
            if number and step not in answers.runs[number].steps():
                continue  # a shorter run beside a longer one
            groups = answers.step(number, step).groups
            questions.append({"ask": "step", "run": number, "step": step})
            questions.append({"ask": "credit", "run": number, "step": step, "edit": "{}"})
            questions += [
                {"ask": "columns", "run": number, "step": step, "task": task}
                for task in range(len(groups))
            ]
            questions += [
                {"ask": ask, "run": number, "step": step, "task": task, "attempt": attempt}
                for task, group in enumerate(groups)
                for attempt in range(len(group))
                for ask in ("attempt", "terms")
            ]
    held, size = {}, 0
    for question in questions:
        content, arrays, buffers = _packed(answers.of(question))
        coded = [base64.b64encode(buffer).decode() for buffer in buffers]
        size += sum(map(len, coded)) + len(content.get("texts", ())) * 8
        if size > MOST_SAVED:
            raise DataError(
                f"a page with {len(steps)} steps would exceed {MOST_SAVED // 10**6} MB; ask for fewer: save(path, steps=[...])"
            )
        held[json.dumps(question, separators=(",", ":"))] = {
            "content": content,
            "arrays": arrays,
            "buffers": coded,
        }
    # "<" and what ends a line in a script are spelled out: foreign text can neither end the script nor begin another.
    data = (
        json.dumps(held, allow_nan=False)
        .replace("<", "\\u003c")
        .replace("\u2028", "\\u2028")
        .replace("\u2029", "\\u2029")
    )
    name = json.dumps(at).replace("<", "\\u003c")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<title>navigator</title><style>body{{margin:12px;color-scheme:light dark}}{style()}</style><div id="navigator"></div>'
        f'<script type="module">{script().replace("export default { render };", "").replace("export function", "function")}\n'
        f"const answers = {data};\nrenderSaved(document.getElementById('navigator'), answers, {name}, {run});</script></html>\n"
    ).encode()
