"""A run that trains, at a glance: one line of facts, what is wrong, and the curves with their baselines so far.

    show_status(status)                          the line
    show_live(status, rows, evaluations)         ... above the curves, on them random, untrained and solver (law 12)

`Status` is what a notebook's `run.status` is. Everything in it that came from a file or a process is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.types import View
from workbench.types.view import HasView
from workbench.views import doc, words
from workbench.views.curves import PANELS, Curve, Panel, curves_document, curves_of, plot_of
from workbench.views.escape import capped, visible
from workbench.views.figures import plotly_figure
from workbench.views.html import shown
from workbench.views.looks import BLUE, BOLD, GREEN, GREY, ORANGE, RED
from workbench.views.progress_line import bar_of, duration

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


@dataclass(frozen=True)
class Status(HasView):
    """How a run stands. `state`: running, stopping, done, stopped (on request), failed, or ended (before its last step,
    nobody knows why). `step` of `steps` are committed (None: not known yet). `phase`: what its process is at.
    `elapsed_s`: seconds since that process began, until it ended. `problems`: what went wrong, the worst last. `idle`: who
    waited lately, as `RunFollower.idle` says it, where learner and engine work side by side."""

    name: str
    state: str
    step: int
    steps: int | None
    phase: str
    elapsed_s: float | None = None
    problems: tuple[str, ...] = ()
    idle: Mapping[str, float] | None = None

    @property
    def running(self) -> bool:
        return self.state in ("running", "stopping")

    def view(self) -> View:
        return show_status(self)


def show_status(status: Status) -> View:
    """One line: name, state, step, phase, elapsed time; below it what went wrong."""
    return shown(doc.ViewDocument(status_parts(status)))


def status_parts(status: Status, hint: str = "") -> tuple[doc.Part, ...]:
    """The same as parts of a larger view. `hint`: a line on what to do."""
    name = doc.Styled(f"{visible(status.name, newline=' ')} ", BOLD)
    state = doc.Badge(status.state, STATES.get(status.state, GREY), plain=f" [{status.state}]  ")
    share = min(1.0, status.step / status.steps) if status.steps else None
    bar = () if share is None else (bar_of(share, 160, "0 10px 0 6px"),)
    return (
        doc.Heading((name, state, *bar, " · ".join(_facts(status)))),
        *(doc.WarningLine(capped(problem, LONGEST_PROBLEM)) for problem in status.problems),
        *([doc.Note(hint)] if hint else []),
    )


def _facts(status: Status) -> list[str]:
    steps = "" if status.steps is None else f" of {status.steps}"
    facts = [f"step {status.step}{steps}"]
    if status.running and status.phase != "done":
        facts.append(visible(status.phase, newline=" "))
    if status.running and status.idle is not None:
        facts.append(
            f"idle: learner {status.idle['learner_idle']:.0%}, engine {status.idle['engine_idle']:.0%}; sync "
            f"{status.idle['sync_share']:.0%}"
        )
    if status.elapsed_s is not None:
        facts.append(duration(status.elapsed_s))
    return facts


def live_curves(rows: Sequence[Mapping[str, Any]], evaluations: Mapping[str, Any]) -> list[Curve]:
    """The panels worth drawing while a run trains: not a KL whose every value is zero (one update a step)."""
    return [
        curve
        for curve in curves_of(rows, evaluations, None, LIVE_PANELS)
        if not curve.panel.title.startswith("KL") or np.nan_to_num(curve.value).any()
    ]


def show_live(
    status: Status,
    rows: Sequence[Mapping[str, Any]],
    evaluations: Mapping[str, Any],
    *,
    hint: str = "",
) -> View:
    """The status above the curves so far. While the run goes on the curves are words on this page, for a screen draws
    them beside it (`live_figure`); of a run that has ended it is what `show_curves` shows, with a PNG. `hint`: a line
    on what to do."""
    parts = status_parts(status, hint)
    curves = live_curves(rows, evaluations)
    if not curves:
        return shown(doc.ViewDocument(parts))
    if status.running:
        return shown(doc.ViewDocument((*parts, doc.Note(_words(curves)))))
    return shown(doc.ViewDocument((*parts, *curves_document(curves, status.name).parts)))


def live_figure(curves: Sequence[Curve], title: str = "") -> dict[str, Any]:
    """The curves alone, as plotly's JSON: made in milliseconds, to be sent again and again while a run trains."""
    return plotly_figure([plot_of(curve) for curve in curves], title)


def _words(curves: Sequence[Curve]) -> str:
    """The picture for whoever does not see it: where each curve is now, and the levels beside it."""
    parts = []
    for curve in curves:
        known = curve.value[np.isfinite(curve.value)]
        levels = ", ".join(f"{line.name} {words.number(line.value, 3)}" for line in curve.lines)
        now = words.number(float(known[-1]), 3) if len(known) else "not yet"
        parts.append(
            visible(f"{curve.panel.title} {now}" + (f" ({levels})" if levels else ""), newline=" ")
        )
    return "; ".join(parts)
