"""Curves and bars as values, drawn in two ways: plotly to hover over and to zoom, matplotlib (`png.py`) for the PNG.

    plots = (Plot("success", (Trace("training", step, value, BLUE),)),)
    plotly_figure(plots, "first run")        {"data", "layout"}: what JupyterLab draws; plotly itself is not imported
    png.plots_png(plots, "first run")

Lines differ by dash and marker as well as by colour.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.views.escape import esc
from workbench.views.looks import CARD, INK

DASHES = ("solid", "dash", "dashdot", "dot", "longdash", "longdashdot")  # plotly's names
SYMBOLS = {"o": "circle", "s": "square-open", ".": "circle"}
PANEL_HEIGHT, PANELS_WIDE = 250, 3
MOST_POINTS = 600  # of a line, on a page; of more, the lowest and the highest of each stretch


@dataclass(frozen=True, eq=False)
class Trace:
    """A line through (x, y), or points where `width` is 0. `low` and `high` [like x], where known: bars at each point
    if `bars`, else a band. A name stands once in the legend; without one it is not there."""

    name: str
    x: np.ndarray
    y: np.ndarray
    colour: str
    dash: str = "solid"
    width: float = 2.0
    marker: str = ""
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    bars: bool = False


@dataclass(frozen=True)
class LevelLine:
    """A horizontal line from end to end, with its interval where there is one (NaN: none)."""

    name: str
    value: float
    colour: str
    dash: str = "dash"
    low: float = float("nan")
    high: float = float("nan")


@dataclass(frozen=True, eq=False)
class Plot:
    """One panel. `log`: a logarithmic scale, where every value is above zero; `log_x`: the same of what is below; `ticks`:
    names of places along x."""

    title: str
    traces: tuple[Trace, ...]
    levels: tuple[LevelLine, ...] = ()
    log: bool = False
    x_label: str = "step"
    log_x: bool = False
    ticks: tuple[tuple[float, str], ...] = ()

    @property
    def is_log(self) -> bool:
        known = np.concatenate([np.zeros(0), *(trace.y[np.isfinite(trace.y)] for trace in self.traces)])
        return bool(self.log and len(known) and (known > 0).all())

    @property
    def ends(self) -> tuple[float, float]:
        """The first and the last x."""
        known = np.concatenate([np.zeros(0), *(trace.x for trace in self.traces)])
        return (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)


def plotly_figure(plots: Sequence[Plot], title: str) -> dict[str, Any]:
    """The panels as plotly's JSON. All text is escaped, for plotly reads markup."""
    columns = max(1, min(PANELS_WIDE, len(plots)))
    rows = max(1, -(-len(plots) // columns))
    height = PANEL_HEIGHT * rows + 110
    layout: dict[str, Any] = {
        "title": {"text": f"<b>{esc(title, newline=' ')}</b>", "x": 0.01, "y": 1 - 14 / height, "yanchor": "top",
                  "font": {"size": 15}},
        "height": height, "margin": {"t": 56, "b": 60, "l": 50, "r": 20}, "annotations": [],
        "paper_bgcolor": CARD, "plot_bgcolor": CARD, "font": {"color": INK, "size": 11}, "hovermode": "x",
        "autosize": True, "hoverlabel": {"namelength": -1},
        "legend": {"orientation": "h", "y": -0.06 * 3 / rows, "yanchor": "top"}, "uirevision": "kept"}
    data, named = [], set()
    for index, plot in enumerate(plots):
        number = "" if index == 0 else str(index + 1)
        layout |= _axes(plot, number, index // columns, index % columns, rows, columns)
        layout["annotations"].append(_panel_title(plot, number))
        for trace in (*(_level(level, plot.ends) for level in plot.levels), *map(_trace, plot.traces)):
            trace |= {"xaxis": f"x{number}", "yaxis": f"y{number}", "showlegend": trace["name"] not in named}
            named.add(trace["name"])
            data.append(trace)
    return {"data": data, "layout": layout}


def _axes(plot: Plot, number: str, row: int, column: int, rows: int, columns: int) -> dict[str, Any]:
    """Where the panel lies, in shares of the figure."""
    wide, tall, gap_x, gap_y = 1 / columns, 1 / rows, 0.045, 0.22 / rows
    look = {"gridcolor": "#e3e7eb", "linecolor": "#8a949e", "zeroline": False, "showline": True}
    left, top = column * wide, 1 - row * tall
    x = {**look, "domain": [left + gap_x * (column > 0), left + wide], "anchor": f"y{number}",
         **({"type": "log"} if plot.log_x else {}), **({} if not plot.ticks else {
             "tickvals": [at for at, _ in plot.ticks], "ticktext": [esc(name, newline=" ") for _, name in plot.ticks]})}
    y = {**look, "domain": [max(0.0, top - tall), top - gap_y], "anchor": f"x{number}"}
    return {f"xaxis{number}": x, f"yaxis{number}": {**y, **({"type": "log"} if plot.is_log else {})}}


def _panel_title(plot: Plot, number: str) -> dict[str, Any]:
    return {"text": f"<b>{esc(plot.title, newline=' ')}</b>", "xref": f"x{number} domain", "yref": f"y{number} domain",
            "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom", "showarrow": False}


def _trace(trace: Trace) -> dict[str, Any]:
    name = esc(trace.name, newline=" ")
    x, y = thinned(trace.x, trace.y)
    mode = "+".join(["lines"] * (trace.width > 0) + ["markers"] * (bool(trace.marker) or len(x) == 1))
    drawn = {"type": "scatter", "name": name, "legendgroup": name, "mode": mode, "x": _numbers(x), "y": _numbers(y),
             "line": {"color": trace.colour, "width": trace.width, "dash": trace.dash}, "connectgaps": False,
             "marker": {"color": trace.colour, "size": 7, "symbol": SYMBOLS.get(trace.marker, "circle")}}
    if trace.bars and trace.low is not None and np.isfinite(trace.low).any():
        drawn["error_y"] = {"type": "data", "symmetric": False, "width": 3, "thickness": 1.2,
                            "array": _numbers(trace.high - trace.y), "arrayminus": _numbers(trace.y - trace.low)}
    return drawn


def _level(level: LevelLine, ends: tuple[float, float]) -> dict[str, Any]:
    name = esc(level.name, newline=" ")
    return {"type": "scatter", "name": name, "legendgroup": name, "mode": "lines", "x": list(ends),
            "y": [level.value] * 2, "line": {"color": level.colour, "dash": level.dash, "width": 1.6}}


def _numbers(values: np.ndarray) -> list[float | None]:
    """Six digits are more than a picture shows; what is missing is a gap."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values.tolist()]


def thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What can be told apart of a long course: the lowest and the highest value of each stretch. One value for each
    would lose a single bad step; all of them would be megabytes in every saved notebook."""
    if len(y) <= MOST_POINTS:
        return x, y
    kept: list[int] = []
    for stretch in np.array_split(np.arange(len(y)), MOST_POINTS // 2):
        known = [index for index in stretch.tolist() if np.isfinite(y[index])]
        kept += sorted({min(known, key=y.__getitem__), max(known, key=y.__getitem__)}) if known else [int(stretch[0])]
    return x[kept], y[kept]
