"""The curves of several runs, one over the other.

overlay_picture([run_curves(open_run("runs/a")), run_curves(open_run("runs/b"))])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.look import doc, words
from workbench.look.curves import Curve, curves_of
from workbench.look.figures import DASHES, LevelLine, Plot, Trace
from workbench.look.html import view_from
from workbench.look.live import LIVE_PANELS
from workbench.look.looks import BLUE, GREEN, GREY, PURPLE, RED
from workbench.look.png import curves_picture
from workbench.run.store import Run
from workbench.values import View

# Of the first run, the second, ... A curve that lies on the first one leaves it visible between its dashes.
COLOURS = (BLUE, "#d55e00", GREEN, PURPLE, RED, GREY)


@dataclass(frozen=True, eq=False)
class RunCurves:
    """What is drawn of a run: its name, a row a step, and its evaluations by name, which hold the baselines."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    evaluations: Mapping[str, Any]


def run_curves(run: Run) -> RunCurves:
    return RunCurves(run.name, run.metrics_rows(), run.evaluations())


def overlay_view(runs: Sequence[Run]) -> View:
    """You will see every metric of all these runs over the steps, with their baselines; below it in words where each curve
    begins and ends."""
    picture = overlay_picture([run_curves(run) for run in runs])
    heading = doc.Heading(", ".join(run.name for run in runs))
    return view_from(heading, picture, doc.TextPart(picture.alt if picture else "no steps yet"))


def overlay_picture(runs: Sequence[RunCurves]) -> doc.Picture | None:
    """Small multiples of every metric that one of them has; None where there is none. Runs differ by colour, dash and
    width. A baseline stands once where all runs have the same, else with the name of its run."""
    traces: dict[str, list[Trace]] = {}
    levels: dict[str, list[LevelLine]] = {}
    ends: dict[str, list[str]] = {}
    for number, run in enumerate(runs):
        for curve in curves_of(run.rows, run.evaluations, None, LIVE_PANELS):
            if not np.nan_to_num(curve.value).any():
                continue
            title = curve.panel.title
            traces.setdefault(title, []).append(_trace(number, run.name, curve))
            ends.setdefault(title, []).append(f"{run.name} {_ends(curve)}")
            known = levels.setdefault(title, [])
            known += _other_levels(known, run.name, curve)
    if not traces:
        return None
    for title, lines in levels.items():
        ends[title] += [f"{line.name} {words.number(line.value, 3)}" for line in lines]
    plots = [Plot(title, tuple(own), tuple(levels[title])) for title, own in traces.items()]
    alt = "\n".join(f"{title}: {'; '.join(listed)}" for title, listed in ends.items())
    return curves_picture(plots, " and ".join(run.name for run in runs), alt)


def _trace(number: int, name: str, curve: Curve) -> Trace:
    colour = COLOURS[number % len(COLOURS)]
    dash = DASHES[number % len(DASHES)]
    return Trace(name, curve.step, curve.value, colour, dash, 1.4 if number else 2.4)


def _ends(curve: Curve) -> str:
    known = curve.value[np.isfinite(curve.value)]
    return f"{words.number(float(known[0]), 3)} to {words.number(float(known[-1]), 3)}"


def _other_levels(known: Sequence[LevelLine], name: str, curve: Curve) -> list[LevelLine]:
    """The baselines of a run that no run before it has just so."""
    before = {line.name: line.value for line in known}
    others = []
    for line in curve.lines:
        if before.get(line.name) != line.value:
            own = f"{line.name}, {name}" if line.name in before else line.name
            others.append(replace(line, name=own))
    return others
