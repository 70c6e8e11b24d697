"""Curves and bars as values, drawn in two ways: plotly to hover over and to zoom, matplotlib (`png.py`) for the PNG.

    plots = (Plot("success", (Trace("training", step, value, BLUE),)),)
    plotly_figure(plots, "first run")        {"data", "layout"}: what JupyterLab draws; plotly itself is not imported
    png.plots_drawing(plots, "first run")

Lines differ by dash and marker as well as by colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.look.escape import esc, visible

DASHES = ("solid", "dash", "dashdot", "dot", "longdash", "longdashdot")  # plotly's names
STROKES = dict(zip(DASHES, ("━━", "╍╍", "━ ·", "┈┈", "━ ━", "━━ ·")))  # of a line, in words
SYMBOLS = {"o": "circle", "s": "square-open", ".": "circle"}
# plotly knows no theme: the page shines through, and this grey reads on light and dark paper alike.
CLEAR = "rgba(0,0,0,0)"
NEUTRAL = "#7f8a95"
ON_ANY_PAPER = {
    "#06283f": NEUTRAL,
    "#9ccbe8": "rgba(0,114,178,0.55)",
    "#00734f": "#00875c",
    "#5a6775": "#76838f",
    "#a01626": "#c8404c",
}
INKED = (
    f"<span style='color:var(--jp-content-font-color1,{NEUTRAL})'>"  # whatever the theme's ink is
)
_AXIS = {
    "gridcolor": "#7f8a9538",
    "linecolor": NEUTRAL,
    "zeroline": False,
    "showline": True,
    "tickprefix": INKED,
    "ticksuffix": "</span>",
}
# Of all panels, said once: saved notebooks carry it.
COMMON = {
    "xaxis": _AXIS,
    "yaxis": _AXIS,
    "annotationdefaults": {
        "align": "left",
        "x": 0,
        "y": 1.02,
        "xanchor": "left",
        "yanchor": "bottom",
        "showarrow": False,
    },
}
PANEL_HEIGHT = 250
PANELS_WIDE = 3
TITLE_HEIGHT = 55
NAMES_HEIGHT = 15  # of a line of two names
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

    def over(self, ends: tuple[float, float]) -> Trace:
        """The line itself, from end to end."""
        return Trace(
            self.name, np.array(ends), np.full(2, self.value), self.colour, self.dash, width=1.6
        )


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
    def parts(self) -> tuple[LevelLine | Trace, ...]:
        """Whatever is drawn and has a name."""
        return tuple(part for part in (*self.levels, *self.traces) if part.name)

    @property
    def is_log(self) -> bool:
        known = np.concatenate(
            [np.zeros(0), *(trace.y[np.isfinite(trace.y)] for trace in self.traces)]
        )
        return bool(self.log and len(known) and (known > 0).all())

    @property
    def ends(self) -> tuple[float, float]:
        """The first and the last x."""
        known = np.concatenate([np.zeros(0), *(trace.x for trace in self.traces)])
        return (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)


def lines_of_names(plots: Sequence[Plot]) -> int:
    """Lines of two names above each panel: 0 where one legend serves, because no two names look the same."""
    looks: dict[str, tuple[str, str, str]] = {}
    for plot in plots:
        for part in plot.parts:
            looks[part.name] = (part.colour, part.dash, getattr(part, "marker", ""))
    if len(set(looks.values())) == len(looks):
        return 0
    return -(-max(len(plot.parts) for plot in plots) // 2)


def plotly_figure(plots: Sequence[Plot], title: str) -> dict[str, Any]:
    """The panels as plotly's JSON. All text is escaped, for plotly reads markup."""
    columns = max(1, min(PANELS_WIDE, len(plots)))
    rows = max(1, -(-len(plots) // columns))
    named_above = NAMES_HEIGHT * lines_of_names(plots)
    height = (PANEL_HEIGHT + named_above) * rows + 110
    gap_y = (TITLE_HEIGHT + named_above) / (PANEL_HEIGHT + named_above) / rows
    layout: dict[str, Any] = {
        "title": {
            "text": f"{INKED}<b>{esc(title, newline=' ')}</b></span>",
            "x": 0.01,
            "y": 1 - 14 / height,
            "yanchor": "top",
            "font": {"size": 15},
        },
        "height": height,
        "margin": {"t": 56, "b": 60, "l": 50, "r": 20},
        "annotations": [],
        "showlegend": not named_above,
        "template": {"layout": COMMON},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": {"color": NEUTRAL, "size": 11},
        "hovermode": "x",
        "autosize": True,
        "hoverlabel": {"namelength": -1},
        "legend": {"orientation": "h", "y": -0.06 * 3 / rows, "yanchor": "top"},
    }
    data = []
    named = set()
    for index, plot in enumerate(plots):
        number = "" if index == 0 else str(index + 1)
        layout |= _axes(plot, number, index // columns, index % columns, rows, columns, gap_y)
        layout["annotations"].append(_panel_title(plot, number, named_above > 0))
        for part in (*(level.over(plot.ends) for level in plot.levels), *plot.traces):
            trace = _trace(replace(part, colour=ON_ANY_PAPER.get(part.colour, part.colour)))
            trace |= {"xaxis": f"x{number}", "yaxis": f"y{number}"} | _places(trace.pop("x"))
            if trace["mode"] == "lines":
                del trace["marker"]
            if not named_above:
                trace["showlegend"] = trace["name"] not in named
                trace["legendgroup"] = trace["name"]
            named.add(trace["name"])
            data.append(trace)
    return {"data": data, "layout": layout}


def panels_json(plots: Sequence[Plot]) -> list[dict[str, Any]]:
    """The panels for a page that draws them by its own script (live.js): title, scale, and lines as plotly has them."""
    panels = []
    for plot in plots:
        levels = [_trace(level.over(plot.ends)) | {"level": True} for level in plot.levels]
        traces = levels + [_trace(trace) for trace in plot.traces]
        title = visible(plot.title, newline=" ")
        panels.append({"title": title, "log": plot.is_log, "traces": traces})
    return panels


def _axes(
    plot: Plot, number: str, row: int, column: int, rows: int, columns: int, gap_y: float
) -> dict[str, Any]:
    """Where the panel lies, in shares of the figure."""
    wide = 1 / columns
    tall = 1 / rows
    gap_x = 0.045
    left = column * wide
    top = 1 - row * tall
    x: dict[str, Any] = {
        "domain": _numbers(np.array([left + gap_x * (column > 0), left + wide])),
        "anchor": f"y{number}",
        "type": "log" if plot.log_x else "linear",
    }
    if plot.ticks:
        x["tickvals"] = [at for at, _ in plot.ticks]
        x["ticktext"] = [esc(name, newline=" ") for _, name in plot.ticks]
    y = {
        "domain": _numbers(np.array([max(0.0, top - tall), top - gap_y])),
        "anchor": f"x{number}",
        "type": "log" if plot.is_log else "linear",
    }
    return {f"xaxis{number}": x, f"yaxis{number}": y}


def _panel_title(plot: Plot, number: str, names: bool) -> dict[str, Any]:
    """The title, and below it what each line is where `names` says so."""
    told = [
        f"<span style='color:{part.colour}'>{STROKES[part.dash]} {esc(part.name, newline=' ')}</span>"
        for part in plot.parts
        if names
    ]
    pairs = ["&nbsp; ".join(told[start : start + 2]) for start in range(0, len(told), 2)]
    return {
        "text": "<br>".join([f"{INKED}<b>{esc(plot.title, newline=' ')}</b></span>", *pairs]),
        "xref": f"x{number} domain",
        "yref": f"y{number} domain",
    }


def _trace(trace: Trace) -> dict[str, Any]:
    name = esc(trace.name, newline=" ")
    x, y = thinned(trace.x, trace.y)
    mode = "+".join(
        ["lines"] * (trace.width > 0) + ["markers"] * (bool(trace.marker) or len(x) == 1)
    )
    drawn = {
        "name": name,
        "mode": mode,
        "x": _numbers(x),
        "y": _numbers(y),
        "line": {"color": trace.colour, "width": trace.width, "dash": trace.dash},
        "marker": {"color": trace.colour, "size": 7, "symbol": SYMBOLS.get(trace.marker, "circle")},
    }
    if trace.bars and trace.low is not None and np.isfinite(trace.low).any():
        drawn["error_y"] = {
            "type": "data",
            "symmetric": False,
            "width": 3,
            "thickness": 1.2,
            "array": _numbers(trace.high - trace.y),
            "arrayminus": _numbers(trace.y - trace.low),
        }
    return drawn


def _numbers(values: np.ndarray) -> list[float | None]:
    """Five digits are more than a picture shows; what is missing is a gap."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values.tolist()]


def _places(x: list[float]) -> dict[str, Any]:
    """Of points that are as far apart as the first two: where they begin, and how far."""
    if len(x) < 3 or None in x or len(set(np.diff(x).tolist())) > 1:
        return {"x": x}
    return {"x0": x[0], "dx": x[1] - x[0]}


def thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What can be told apart of a long course: the lowest and the highest value of each stretch. One value for each
    would lose a single bad step; all of them would be megabytes in every saved notebook."""
    if len(y) <= MOST_POINTS:
        return x, y
    kept: list[int] = []
    for stretch in np.array_split(np.arange(len(y)), MOST_POINTS // 2):
        known = [index for index in stretch.tolist() if np.isfinite(y[index])]
        kept += (
            sorted({min(known, key=y.__getitem__), max(known, key=y.__getitem__)})
            if known
            else [int(stretch[0])]
        )
    return x[kept], y[kept]
