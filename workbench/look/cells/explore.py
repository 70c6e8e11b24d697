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
import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.basics.annotated import checked_methods
from workbench.look import doc
from workbench.look.cells.explored import Answers, NavigatorReply
from workbench.look.cells.place import place_view
from workbench.look.html import view_from
from workbench.look.live import has_widgets, page_text, widget_bundle
from workbench.look.markup import finished, join
from workbench.look.overlay import overlay_view
from workbench.look.pairs import LOST, WON
from workbench.look.progress_line import CellOutput
from workbench.run.store import Run, open_run
from workbench.run.writer import make_folder, write_file
from workbench.values import View
from workbench.values.address import Address
from workbench.values.errors import DataError, WorkbenchError
from workbench.values.view import HasView

if TYPE_CHECKING:
    from workbench.look.cells.live_run import RunningRun

SCRIPT = (
    "drawing.js",
    "page_parts.js",
    "navigator_credit.js",
    "navigator_groups.js",
    "navigator_tools.js",
    "navigator.js",
)
EVERY_S = 3.0  # between two looks at a run that trains
KEEP_S = 0.7  # at one place, until the picture below is drawn
KINDS = {"f": ("f8", np.float64), "i": ("i4", np.int32), "u": ("u1", np.uint8)}
MOST_SAVED = 200_000_000  # bytes of one page
MOST_PAIRS = 64  # tasks that training won or lost whose trajectories a page holds


@checked_methods
class Navigator(HasView):
    """Runs to walk through. As the last line of a cell it is a widget, and where there is no kernel a picture of the place where
    it was. `at` is where it is now, in words that `workbench show RUN --at` and `wb.explore(run, at=...)` take."""

    def __init__(self, runs: Sequence[Run], at: str | Address = "") -> None:
        self.runs = tuple(runs)
        self._answers = Answers(runs)
        self._at = self._answers.address(at)
        self._widget = None
        self._saved: CellOutput | None = None  # where the picture is, once it was shown
        self._timer: asyncio.TimerHandle | None = None  # ... and when it is brought up to date

    @property
    def at(self) -> str:
        return str(self._at) if self._widget is None else self._widget.at

    def view(self) -> View:
        """The same place of the run that is looked at, without a script; of several runs below the curves of all."""
        at = self.at
        run = self.runs[0 if self._widget is None else self._widget.run]
        if len(self.runs) == 1:
            return place_view(run, at)
        curves = overlay_view(self.runs)
        if not at:
            return curves
        place = place_view(run, at)
        name = view_from(doc.Note(f"{run.name}, {at}"))
        html = join([curves.html, name.html, place.html])
        return finished(html, f"{curves.text}\n{name.text}\n{place.text}", curves.png)

    def widget(self) -> Any:
        """The widget, made on first use. Raises WorkbenchError where anywidget is not installed."""
        if self._widget is None:
            self._widget = _widget(self._answers, str(self._at))
            self._widget.observe(self._moved, ["at", "run"])
        return self._widget

    def save(self, path: str | os.PathLike, *, steps: Sequence[int] | None = None) -> Path:
        """One page with the curves and `steps` (None: that of `at`, else the last), every trajectory of them down to its tokens.

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
            display(widget_bundle(self.widget(), repr(self)), raw=True)
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
    """Walk through a run (or several, their curves overlaid): curves, the groups of a step, trajectories, turns, tokens.

    `at`: where to begin, such as "step 3 / task 2 / attempt 5 / token 812". Raises DataError for a place that is not there.
    """
    several = run if isinstance(run, (list, tuple)) else [run]
    if not several or not all(isinstance(member, (str, os.PathLike, Run)) for member in several):
        raise DataError(
            f"wb.explore takes a run or a list of runs, each a Run, a RunningRun or a path; got {run!r:.100}"
        )
    return Navigator([open_run(member) for member in several], at)


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
        _esm = script()
        _css = style()
        at = traitlets.Unicode("").tag(sync=True)
        run = traitlets.Int(0).tag(sync=True)  # the number of the run that `at` is in
        every_s = traitlets.Float(EVERY_S).tag(sync=True)
        # Answers that the page has before the kernel is free.
        first = traitlets.Dict().tag(sync=True)

    widget = NavigatorWidget(at=at, first=dict(_held(answers, _first_questions(Address.of(at)))))
    widget.on_msg(lambda _, message, __: _answer(widget, answers, message))
    return widget


def _answer(widget: Any, answers: Answers, message: Mapping[str, Any]) -> None:
    content, arrays, buffers = _packed(answers.of(message["question"]))
    widget.send({"id": message["id"], "content": content, "arrays": arrays}, buffers=buffers)


def _packed(reply: NavigatorReply) -> tuple[dict[str, Any], list[list[str]], list[bytes]]:
    """(content, [name, kind] of each array, their bytes): what a message to the page consists of."""
    arrays = []
    buffers = []
    for name, values in reply.arrays.items():
        code, dtype = KINDS[values.dtype.kind]
        arrays.append([name, code])
        buffers.append(np.ascontiguousarray(values, dtype).tobytes())
    return reply.content, arrays, buffers


def script() -> str:
    return page_text(*SCRIPT)


def style() -> str:
    return page_text("navigator.css")


def script_data(value: Any) -> str:
    """The value as JSON that may stand in a script: "<" and what ends a line there are spelled out, so that foreign text can
    neither end the script nor begin another."""
    text = json.dumps(value, allow_nan=False)
    for character in "<\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


Question = dict[str, Any]


def _questions(answers: Answers, steps: Sequence[int]) -> Iterator[Question]:
    """What a saved page has answers to: the curves and pairs of every run, and all of these steps down to the tokens."""
    yield {"ask": "runs"}
    for number, run in enumerate(answers.runs):
        yield {"ask": "spread", "run": number}
        yield from _pair_questions(answers, number)
        for step in steps:
            if not number or step in run.steps():  # one beside it may be shorter
                yield from _step_questions(answers, number, step)


def _pair_questions(answers: Answers, number: int) -> Iterator[Question]:
    others = [index for index in range(len(answers.runs)) if index != number]
    for other in (-1, *others):
        question = {"ask": "pairs", "run": number, "other": other}
        yield question
        rows = answers.of(question).content.get("rows", ())
        changed = [row["pair"] for row in rows if row["change"] in (LOST, WON)]
        yield from (question | {"pair": pair} for pair in changed[:MOST_PAIRS])


def _step_questions(answers: Answers, number: int, step: int) -> Iterator[Question]:
    here = {"run": number, "step": step}
    yield {"ask": "step", **here}
    yield {"ask": "credit", **here, "edit": "{}"}
    groups = answers.step(number, step).groups
    yield from ({"ask": "columns", **here, "task": task} for task in range(len(groups)))
    for task, group in enumerate(groups):
        for attempt in range(len(group)):
            yield {"ask": "attempt", **here, "task": task, "attempt": attempt}
            yield {"ask": "terms", **here, "task": task, "attempt": attempt}


def _first_questions(place: Address) -> Iterator[Question]:
    """What the page asks before anything is clicked."""
    yield {"ask": "runs"}
    if place.step is not None:
        yield {"ask": "step", "run": 0, "step": place.step}
    if place.attempt is not None:
        address = {"step": place.step, "task": place.task, "attempt": place.attempt}
        yield {"ask": "attempt", "run": 0, **address}


def _held(answers: Answers, questions: Iterable[Question]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(question as the page writes it, its answer as JSON)"""
    for question in questions:
        content, arrays, buffers = _packed(answers.of(question))
        coded = [base64.b64encode(buffer).decode() for buffer in buffers]
        answer = {"content": content, "arrays": arrays, "buffers": coded}
        yield json.dumps(question, separators=(",", ":")), answer


def _page(answers: Answers, steps: Sequence[int], at: str, run: int) -> bytes:
    held = {}
    size = 0
    for key, answer in _held(answers, _questions(answers, steps)):
        size += sum(map(len, answer["buffers"])) + len(answer["content"].get("texts", ())) * 8
        if size > MOST_SAVED:
            raise DataError(
                f"a page with {len(steps)} steps would exceed {MOST_SAVED // 10**6} MB; ask for fewer: save(path, steps=[...])"
            )
        held[key] = answer
    # Base 64 also keeps foreign text from ending the script or beginning another.
    packed = gzip.compress(json.dumps(held, allow_nan=False).encode(), mtime=0)
    data = base64.b64encode(packed).decode()
    name = script_data(at)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<title>navigator</title><style>body{{margin:12px;color-scheme:light dark}}{style()}</style><div id="navigator"></div>'
        f'<script type="module">{script().replace("export default { render };", "").replace("export function", "function")}\n'
        f"const answers = await unpacked(\"{data}\");\nrenderSaved(document.getElementById('navigator'), answers, {name}, {run});</script></html>\n"
    ).encode()
