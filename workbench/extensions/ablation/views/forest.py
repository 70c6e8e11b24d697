"""Paired differences of an ablation, one below the other: how large, how sure, and what every seed said.

In the order of the plan, never by size, and no line is marked as the best: the verdict stands beside its interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import fill, wrap
from typing import Any

import numpy as np

from workbench.extensions.ablation.views.arms import pair_label, unit_of, verdict_words
from workbench.extensions.ablation.views.parts import (
    numbers_below,
    only_a_note,
    plotly_layout,
    safe_rows,
    write_title,
)
from workbench.look import doc
from workbench.look.escape import esc
from workbench.look.html import shown
from workbench.look.looks import BLUE, BOLD, GREY, INK, MUTED
from workbench.look.png import figure, plain, tidy
from workbench.values import View

Facts = Mapping[str, Any]
BAND = "#e3e7eb"  # colour of what lies within the margin
SAID = (
    "first minus second, seed by seed on the same tasks; the line: the simultaneous interval for all declared "
    "differences; dots: single seeds; grey: within the margin"
)


@dataclass(frozen=True)
class ForestRow:
    """One difference, in the unit that is shown.

    low, high: None where no interval is known.
    seeds: (seed, its difference, where that is from).
    """

    label: str
    mean: float
    low: float | None
    high: float | None
    seeds: tuple[tuple[str, float, str], ...]
    verdict: str

    @property
    def span(self) -> tuple[float, float]:
        if self.low is None or self.high is None:
            return self.mean, self.mean
        return self.low, self.high


def show_forest(table: Facts) -> View:
    """You will see a line per declared comparison and per control: a square at the mean, its simultaneous interval, a
    dot for every seed, a grey band where differences would not matter (the margin). Text: the same numbers, with the
    notebook of each seed."""
    unit = unit_of(table)
    rows = forest_rows(table)
    if not rows:
        return only_a_note(
            "nothing is compared: the plan has neither compare nor baseline, or no seed of both arms is there"
        )
    margin = _margin(table, unit.factor)
    name = "points of success" if unit.factor == 100 else "return"
    numbers = [_numbers_row(row, unit.digits) for row in rows]
    picture = doc.Picture(
        partial(_drawing, rows, margin, table["title"], name),
        "; ".join(" ".join(line[:3]) for line in numbers),
        figure=_figure(rows, margin, table["title"], name),
    )
    columns = (doc.Column("difference", look=BOLD), f"{name} [95 %]", "verdict", "seeds")
    parts = [picture, doc.Note(SAID), numbers_below(columns, numbers)]
    sources = []
    for row in rows:
        sources += [[row.label, seed, where] for seed, _, where in row.seeds if where]
    if sources:
        listed = doc.Table(("difference", "seed", "notebooks"), safe_rows(sources))
        parts.append(doc.Fold("Where every dot is from", (listed,)))
    return shown(doc.ViewDocument(tuple(parts)))


def _margin(table: Facts, factor: float) -> float | None:
    for pair in (*table["compared"], *table["controls"]):
        if pair["sampled"] and "margin" in pair["sampled"]:
            return factor * pair["sampled"]["margin"]
    return None


def _numbers_row(row: ForestRow, digits: int) -> list[str]:
    seeds = ", ".join(f"{seed}: {value:+.{digits}f}" for seed, value, _ in row.seeds)
    return [row.label, _interval(row, digits), row.verdict, seeds]


def forest_rows(table: Facts) -> list[ForestRow]:
    """One for each comparison and control of which there are numbers."""
    unit = unit_of(table)
    rows = []
    for pair in (*table["compared"], *table.get("interactions", ())):
        if pair["sampled"] is not None:
            rows.append(_pair_row(table, pair, unit.factor))
    for control in table["controls"]:
        if control["sampled"] is not None:
            rows.append(_control_row(control, table["seeds"], unit.factor))
    return rows


def _pair_row(table: Facts, pair: Facts, factor: float) -> ForestRow:
    judged = pair["sampled"]
    names = pair["weights"] if "weights" in pair else (pair["first"], pair["second"])
    seeds = []
    for seed, difference in judged["each"].items():
        runs = [table["arms"][name]["seeds"][seed] for name in names]
        where = " and ".join(str(run.get("notebook") or run["run"]) for run in runs)
        seeds.append((seed, factor * difference["mean"], where))
    verdict = verdict_words(judged, factor)
    return _forest_row(pair_label(table, pair), judged, seeds, verdict, factor)


def _control_row(control: Facts, seeds: Sequence[int], factor: float) -> ForestRow:
    judged = control["sampled"]
    mark = {True: "right", False: "WRONG", None: "not judged"}[control["check"]["held"]]
    dots = [(f"{seed}", factor * value, "") for seed, value in zip(seeds, judged["each"])]
    label = f"control, {control['kind']}: {control['words']}"
    return _forest_row(label, judged, dots, f"{judged['verdict']} ({mark})", factor)


def _forest_row(
    label: str,
    judged: Facts,
    seeds: Sequence[tuple[str, float, str]],
    verdict: str,
    factor: float,
) -> ForestRow:
    low = None if judged["low"] is None else factor * judged["low"]
    high = None if judged["high"] is None else factor * judged["high"]
    return ForestRow(label, factor * judged["mean"], low, high, tuple(seeds), verdict)


def _interval(row: ForestRow, digits: int) -> str:
    ends = "—"
    if row.low is not None and row.high is not None:
        ends = f"{row.low:+.{digits}f}, {row.high:+.{digits}f}"
    return f"{row.mean:+.{digits}f} [{ends}]"


# ------------------------------------------------------------------------------------------------ drawn


def _short(text: str, most: int = 48) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _wrapped(text: str) -> str:
    """The whole label, in lines that leave room for the figure."""
    return "<br>".join(esc(line) for line in wrap(text, 36))


def _figure(
    rows: Sequence[ForestRow], margin: float | None, title: str, name: str
) -> dict[str, Any]:
    """As plotly's JSON; all text escaped."""
    places = [*range(len(rows), 0, -1)]  # the first on top
    axis = {"gridcolor": BAND, "linecolor": "#8a949e", "zeroline": False, "showline": True}
    layout = plotly_layout(title, len(rows), left=20) | {
        "shapes": _shapes(margin),
        "xaxis": {**axis, "title": {"text": f"difference, {name}"}},
        "yaxis": {
            **axis,
            "tickvals": places,
            "ticktext": [_wrapped(row.label) for row in rows],
            "range": [0.4, len(rows) + 0.6],
            "automargin": True,
        },
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 1, "xanchor": "right"},
    }
    layout["height"] += 120
    return {"data": [_dots(rows, places), _squares(rows, places)], "layout": layout}


def _dots(rows: Sequence[ForestRow], places: Sequence[int]) -> dict[str, Any]:
    """Single seeds, a little below the mean."""
    x = []
    y = []
    hover = []
    for row, place in zip(rows, places):
        for seed, value, where in row.seeds:
            lines = (row.label, f"seed {seed}: {value:+.4g}", where)
            x.append(value)
            y.append(place - 0.22)
            hover.append("<br>".join(esc(line, newline=" ") for line in lines))
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "single seeds",
        "x": x,
        "y": y,
        "hovertext": hover,
        "hoverinfo": "text",
        "marker": {"color": GREY, "size": 7, "symbol": "circle-open"},
    }


def _squares(rows: Sequence[ForestRow], places: Sequence[int]) -> dict[str, Any]:
    """Means, and their intervals as error bars."""
    hover = []
    for row in rows:
        label = esc(row.label, newline=" ")
        hover.append(f"{label}<br>{row.mean:+.4g}: {esc(row.verdict, newline=' ')}")
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "mean and interval",
        "x": [row.mean for row in rows],
        "y": places,
        "hovertext": hover,
        "hoverinfo": "text",
        "marker": {"color": BLUE, "size": 9, "symbol": "square"},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "thickness": 1.6,
            "width": 5,
            "array": [row.span[1] - row.mean for row in rows],
            "arrayminus": [row.mean - row.span[0] for row in rows],
        },
    }


def _shapes(margin: float | None) -> list[dict[str, Any]]:
    """The line at zero, and the band within the margin."""
    whole_height = {"yref": "paper", "y0": 0, "y1": 1}
    zero = {"type": "line", "x0": 0, "x1": 0, **whole_height, "line": {"color": INK, "width": 1}}
    if margin is None:
        return [zero]
    band = {
        "type": "rect",
        "x0": -margin,
        "x1": margin,
        **whole_height,
        "layer": "below",
        "fillcolor": BAND,
        "line": {"width": 0},
    }
    return [zero, band]


def _drawing(
    rows: Sequence[ForestRow],
    margin: float | None,
    title: str,
    name: str,
    width: float = 11.1,
) -> Any:
    """In a narrow figure the names break into lines, and the verdicts are left to the text."""
    is_narrow = width < 8
    height = 1.1 + 0.5 * len(rows)
    drawing = figure(width, height)
    axes = drawing.add_subplot()
    tidy(axes, "", f"difference, {name}")
    if margin is not None:
        axes.axvspan(-margin, margin, color=BAND, linewidth=0)
    axes.axvline(0, color=INK, linewidth=1)
    places = np.arange(len(rows), 0, -1)
    hollow = {"linestyle": "", "marker": "o", "markerfacecolor": "none", "markersize": 4}
    beside = {"xycoords": ("axes fraction", "data"), "va": "center"}
    for row, place in zip(rows, places):
        axes.plot(row.span, [place, place], color=BLUE, linewidth=1.8)
        axes.plot([row.mean], [place], marker="s", color=BLUE, markersize=6)
        values = [value for _, value, _ in row.seeds]
        axes.plot(values, [place - 0.22] * len(values), color=MUTED, **hollow)
        if not is_narrow:
            verdict = plain(_short(row.verdict, 40))
            axes.annotate(verdict, (1.02, place), fontsize=8, color=INK, **beside)
    labels = [plain(_short(row.label)) for row in rows]
    if is_narrow:
        labels = [fill(label, 24) for label in labels]
    axes.set_yticks(places, labels, fontsize=7 if is_narrow else 8)
    axes.set_ylim(0.4, len(rows) + 0.6)
    write_title(drawing, title, height)
    return drawing
