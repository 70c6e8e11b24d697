"""Learning curves as pictures: matplotlib for a PNG that survives anywhere, plotly for a live notebook.

Both packages are imported on first use. Lines differ by dash and marker as well as by colour.
"""
from __future__ import annotations

import io
import warnings
from collections.abc import Sequence

import numpy as np

from workbench.types.errors import WorkbenchError
from workbench.views.curves import SMOOTH, Curve
from workbench.views.escape import visible

COURSE, COURSE_PALE = "#0072b2", "#9ccbe8"
MODES = {"sampled": ("#06283f", "o"), "greedy": ("#d55e00", "s")}
NEIGHBOUR_STYLES = {"random": ("#5a6775", (0, (4, 3)), "dash"), "untrained": ("#8a5fa8", (0, (6, 2, 1, 2)), "dashdot"),
                    "solver": ("#00734f", (0, (1, 1.6)), "dot")}
OTHER_STYLE = ("#7a6a00", (0, (8, 3)), "longdash")


def figure(width: float, height: float):
    """A matplotlib figure with white paper, drawn without pyplot: no global state, no window."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise WorkbenchError("pictures need matplotlib: pip install matplotlib; the text form needs nothing") from error
    drawing = Figure(figsize=(width, height), dpi=110, facecolor="#ffffff", layout="constrained")
    FigureCanvasAgg(drawing)
    return drawing


def png_of(drawing, colours: int = 256) -> bytes:
    """The same figure gives the same bytes: no date, no version inside. A palette of few colours, because saved
    notebooks carry these pictures: a third of the size, and no difference to be seen in lines and text. Fewer than 256
    are spread over the colours there are: cut by how often they occur, the few pixels of a marker would lose theirs."""
    from PIL import Image  # comes with matplotlib

    buffer, small = io.BytesIO(), io.BytesIO()
    with warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; the text form has it in full.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        drawing.savefig(buffer, format="png", metadata={"Software": None})
    with Image.open(buffer) as picture:
        few = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        if colours < 256:
            few = few.convert("RGB").quantize(colours, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(small, "png", optimize=True)
    return small.getvalue()


def plain(text: str) -> str:
    """Text that matplotlib draws as it is: a `$` would start a formula, and a bad formula raises."""
    return visible(text, newline=" ").replace("$", r"\$")


def tidy(axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#e3e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", labelsize=8, colors="#525f6b")


def curves_png(curves: Sequence[Curve], title: str) -> bytes:
    columns = min(3, len(curves))
    rows = -(-len(curves) // columns)
    drawing = figure(3.7 * columns, 2.6 * rows + 0.7)
    handles: dict[str, object] = {}
    for index, curve in enumerate(curves):
        axes = drawing.add_subplot(rows, columns, index + 1)
        handles |= _draw(axes, curve)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_title(plain(curve.panel.title), fontsize=10, loc="left", color="#1b2733")
        if index >= len(curves) - columns:
            axes.set_xlabel("step", fontsize=8, color="#525f6b")
    drawing.suptitle(plain(title), fontsize=11, x=0.01, ha="left", fontweight="bold", color="#1b2733")
    drawing.legend(handles.values(), [plain(name) for name in handles], loc="outside lower center", ncols=4, fontsize=8,
                   frameon=False)
    return png_of(drawing)


def _draw(axes, curve: Curve) -> dict[str, object]:
    """One panel; returns what the legend names."""
    tidy(axes)
    handles: dict[str, object] = {}
    for line in curve.lines:
        colour, dash, _ = NEIGHBOUR_STYLES.get(line.name, OTHER_STYLE)
        if not np.isnan(line.low):
            axes.axhspan(line.low, line.high, color=colour, alpha=0.10, linewidth=0)
        handles[line.name] = axes.axhline(line.value, color=colour, linestyle=dash, linewidth=1.4)
    if np.isfinite(curve.value).any():
        axes.plot(curve.step, curve.value, color=COURSE_PALE, linewidth=0.9)
        look = {"color": COURSE, "linewidth": 2, "marker": "o" if len(curve.step) == 1 else None, "markersize": 3}
        handles[f"training, mean of {SMOOTH} steps"] = axes.plot(curve.step, curve.mean, **look)[0]
    for mode, (colour, marker) in MODES.items():
        own = [p for p in curve.points if p.mode == mode]
        if own:
            handles[f"held out, {mode}"] = _draw_points(axes, own, colour, marker)
    if curve.panel.log and (curve.value[np.isfinite(curve.value)] > 0).all():
        axes.set_yscale("log")
    return handles


def _draw_points(axes, own, colour: str, marker: str):
    """Evaluations with their 95 % intervals: bars, and a band between them."""
    step, value = [p.step for p in own], np.array([p.value for p in own])
    low, high = np.array([p.low for p in own]), np.array([p.high for p in own])
    known = np.isfinite(low)
    if known.any():
        axes.fill_between(np.array(step)[known], low[known], high[known], color=colour, alpha=0.10, linewidth=0)
    bars = np.where(known, [value - low, high - value], 0.0)
    return axes.errorbar(step, value, yerr=bars, color=colour, marker=marker, markersize=4.5, linewidth=1, capsize=2,
                         markerfacecolor=colour if marker == "o" else "#ffffff")


# ------------------------------------------------------------------------------------------------ plotly


def curves_plotly(curves: Sequence[Curve], title: str):
    """The same panels in plotly, which drops markup in titles and names; control characters are spelled out."""
    try:
        from plotly import graph_objects as go
        from plotly.subplots import make_subplots
    except ImportError as error:
        raise WorkbenchError("live curves need plotly: pip install plotly; show_curves does without") from error
    columns = max(1, min(3, len(curves)))
    rows = max(1, -(-len(curves) // columns))
    drawing = make_subplots(rows=rows, cols=columns, subplot_titles=[visible(c.panel.title) for c in curves])
    seen: set[str] = set()
    for index, curve in enumerate(curves):
        for trace in _traces(go, curve):
            trace.showlegend = trace.name not in seen
            trace.legendgroup = trace.name
            seen.add(trace.name)
            drawing.add_trace(trace, row=index // columns + 1, col=index % columns + 1)
        if curve.panel.log and (curve.value[np.isfinite(curve.value)] > 0).all():
            drawing.update_yaxes(type="log", row=index // columns + 1, col=index % columns + 1)
    drawing.update_layout(
        title=visible(title),
        height=270 * rows + 90,
        template="plotly_white",
        margin={"t": 70, "b": 30},
        legend={"orientation": "h", "y": -0.12},
    )
    return drawing


def _traces(go, curve: Curve) -> list:
    """Training, evaluations with bars, and a line from end to end for every neighbour."""
    steps = [*curve.step, *(p.step for p in curve.points)] or [0.0]
    ends = [min(steps), max(steps)]
    traces = []
    for line in curve.lines:
        colour, _, dash = NEIGHBOUR_STYLES.get(line.name, OTHER_STYLE)
        traces.append(go.Scatter(x=ends, y=[line.value] * 2, name=visible(line.name), mode="lines",
                                 line={"color": colour, "dash": dash}))
    if np.isfinite(curve.value).any():
        traces.append(go.Scatter(x=curve.step, y=curve.value, name="training", line={"color": COURSE_PALE, "width": 1}))
        traces.append(go.Scatter(x=curve.step, y=curve.mean, name=f"training, mean of {SMOOTH} steps",
                                 line={"color": COURSE, "width": 2.5}))
    for mode, (colour, marker) in MODES.items():
        own = [p for p in curve.points if p.mode == mode]
        if own:
            bars = {"array": [p.high - p.value for p in own], "arrayminus": [p.value - p.low for p in own],
                    "type": "data", "symmetric": False}
            traces.append(go.Scatter(x=[p.step for p in own], y=[p.value for p in own], name=f"held out, {mode}",
                                     error_y=bars, line={"color": colour},
                                     marker={"symbol": "circle" if marker == "o" else "square-open", "size": 7}))
    return traces
