"""A run that trains, at a glance: one line of facts, what is wrong, and the curves with their baselines so far.

    show_status(status)                          the line
    show_live(status, rows, evaluations)         the line above the curves, random, untrained and solver on them (law 12)

`Status` is what a notebook's `run.status` is. Everything in it that came from a file or a process is escaped.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.types import View
from workbench.views import markup as m
from workbench.views import words
from workbench.views.curves import PANELS, Curve, Panel, curves_of, show_curves
from workbench.views.escape import capped, visible
from workbench.views.markup import Html, tag
from workbench.views.progress_line import duration

# Word and colour of each state; the word says it all, the colour only helps.
STATES = {"running": m.BLUE, "stopping": m.ORANGE, "done": m.GREEN, "stopped": m.GREY, "failed": "#a01626",
          "ended": m.ORANGE}
LIVE_PANELS = (
    *(panel for panel in PANELS if panel.title != "valid format"),
    Panel("KL(old || new), nats per token", ("approx_kl",)),
    Panel("KL to the reference, nats per token", ("kl_ref",)),
    Panel("explained variance of the critic", ("explained_variance",)),
    Panel("valid format", ("valid_format",), "valid_format"),
)
LONGEST_PROBLEM = 600  # characters


@dataclass(frozen=True)
class Status:
    """How a run stands. `state`: running, stopping, done, stopped (on request), failed, or ended (before its last step,
    nobody knows why). `step` of `steps` are committed (None: not known yet). `phase`: what its process is at.
    `elapsed_s`: seconds since that process began, until it ended. `problems`: what went wrong, the worst last."""

    name: str
    state: str
    step: int
    steps: int | None
    phase: str
    elapsed_s: float | None = None
    problems: tuple[str, ...] = ()

    @property
    def running(self) -> bool:
        return self.state in ("running", "stopping")

    def _repr_mimebundle_(self, include=None, exclude=None):
        return show_status(self)._repr_mimebundle_()

    def __str__(self) -> str:
        return show_status(self).text


def show_status(status: Status) -> View:
    """One line: name, state, step, phase, elapsed time; below it what went wrong."""
    facts = _facts(status)
    text = [f"{visible(status.name, newline=' ')}  [{status.state}]  {' · '.join(facts)}"]
    text += [f"! {visible(capped(problem, LONGEST_PROBLEM))}" for problem in status.problems]
    return m.finished(m.card(*status_line(status)), "\n".join(text))


def status_line(status: Status) -> list[Html]:
    """The same as parts of a page, without paper of its own."""
    line = tag("div", tag("b", visible(status.name, newline=" ")), " ",
               m.badge(status.state, STATES.get(status.state, m.GREY)), _bar(status), " · ".join(_facts(status)),
               style="font-size:13px;margin:0 0 2px 0")
    return [line, *(m.warning(capped(problem, LONGEST_PROBLEM)) for problem in status.problems)]


def _facts(status: Status) -> list[str]:
    steps = "" if status.steps is None else f" of {status.steps}"
    facts = [f"step {status.step}{steps}"]
    if status.running and status.phase != "done":
        facts.append(visible(status.phase, newline=" "))
    if status.elapsed_s is not None:
        facts.append(duration(status.elapsed_s))
    return facts


def _bar(status: Status) -> Html | None:
    if not status.steps:
        return None
    full = round(160 * min(1.0, status.step / status.steps))
    boxes = [
        tag("span", style=f"display:inline-block;height:9px;width:{width}px;background-color:{colour};vertical-align:middle")
        for width, colour in ((full, m.BLUE), (160 - full, "#dfe5ea")) if width
    ]
    return tag("span", *boxes, style="display:inline-block;margin:0 10px 0 6px;white-space:nowrap")


def live_curves(rows: Sequence[Mapping[str, Any]], evaluations: Mapping[str, Any]) -> list[Curve]:
    """The panels worth drawing while a run trains: not a KL whose every value is zero (one update a step)."""
    return [curve for curve in curves_of(rows, evaluations, None, LIVE_PANELS)
            if not curve.panel.title.startswith("KL") or np.nan_to_num(curve.value).any()]


def show_live(status: Status, rows: Sequence[Mapping[str, Any]], evaluations: Mapping[str, Any], *,
              hint: str = "") -> View:
    """The status above the curves so far. While the run goes on the picture is SVG, drawn in milliseconds, and the text
    form is short; of a run that has ended it is what `show_curves` shows, with a PNG for web pages. `hint`: a line on
    what to do."""
    line = status_line(status)
    if hint:
        line.append(m.note(hint))
    text = "\n".join([show_status(status).text, *([visible(hint)] if hint else [])])
    curves = live_curves(rows, evaluations)
    if not curves:
        return m.finished(m.card(*line), text)
    if not status.running:
        drawn = show_curves(rows, evaluations, title=status.name, panels=[curve.panel for curve in curves])
        curves_html = tag("div", Html(drawn.html), style="margin-top:4px")
        return m.finished(tag("div", m.card(*line), curves_html), f"{text}\n{drawn.text}", drawn.png)
    return m.finished(m.card(*line, live_picture(curves)), f"{text}\n{_words(curves)}")


def live_picture(curves: Sequence[Curve]) -> Html:
    """The curves alone, as an image that is drawn in milliseconds."""
    from workbench.views.curve_svg import svg_picture

    return svg_picture(curves, _words(curves))


def _words(curves: Sequence[Curve]) -> str:
    """The picture for whoever does not see it: where each curve is now, and the levels beside it."""
    parts = []
    for curve in curves:
        known = curve.value[np.isfinite(curve.value)]
        levels = ", ".join(f"{line.name} {words.number(line.value, 3)}" for line in curve.lines)
        now = words.number(float(known[-1]), 3) if len(known) else "not yet"
        parts.append(visible(f"{curve.panel.title} {now}" + (f" ({levels})" if levels else ""), newline=" "))
    return "; ".join(parts)
