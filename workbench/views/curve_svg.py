"""Learning curves as SVG, drawn in a few milliseconds: for pictures that are drawn again and again while a run trains.

The same panels, colours, dashes and marks as the PNG of `curve_pictures`, which takes most of a second of CPU time.
Inside a page it is an <img> (`svg_picture`): nothing in it can run, and it survives where inline <svg> is dropped.
"""
from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence

import numpy as np

from workbench.views import markup as m
from workbench.views import words
from workbench.views.curve_pictures import COURSE, COURSE_PALE, MODES, NEIGHBOUR_STYLES, OTHER_STYLE
from workbench.views.curves import SMOOTH, Curve
from workbench.views.markup import Html, tag

WIDTH, HEIGHT, GAP = 330, 200, 18  # of a panel with its labels, and between panels, in pixels
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 24, 24  # margins of the plotted box inside its panel
DASHES = {"random": "5 4", "untrained": "7 3 2 3", "solver": "2 3"}


def curves_svg(curves: Sequence[Curve]) -> tuple[Html, int, int]:
    """The picture, its width and its height in pixels."""
    columns = max(1, min(3, len(curves)))
    rows = -(-len(curves) // columns)
    width = columns * (WIDTH + GAP)
    parts, named = [], {}
    for index, curve in enumerate(curves):
        panel, legend = _panel(curve)
        named |= legend
        place = f"translate({index % columns * (WIDTH + GAP)},{index // columns * (HEIGHT + GAP)})"
        parts.append(tag("g", *panel, attributes={"transform": place}))
    legend, depth = _legend(named, width)
    parts.append(tag("g", *legend, attributes={"transform": f"translate(0,{rows * (HEIGHT + GAP)})"}))
    height = rows * (HEIGHT + GAP) + depth
    paper = tag("rect", attributes={"width": str(width), "height": str(height), "fill": m.CARD})
    return tag("svg", paper, *parts, attributes={
        "xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width} {height}", "width": str(width),
        "height": str(height), "font-family": m.SANS}), width, height


def svg_picture(curves: Sequence[Curve], alt: str) -> Html:
    """The curves as an image inside a page; its place is kept free, so that nothing jumps when it is drawn anew."""
    svg, width, height = curves_svg(curves)
    source = "data:image/svg+xml;base64," + base64.b64encode(svg.encode("utf-8", "replace")).decode("ascii")
    return tag("img", style=f"background-color:{m.CARD};max-width:100%;height:auto;margin:4px 0",
               attributes={"src": source, "alt": alt, "width": str(width), "height": str(height)})


# ------------------------------------------------------------------------------------------------ one panel


def _panel(curve: Curve) -> tuple[list[Html], dict[str, Html]]:
    """Everything inside a panel, and the legend's marks by name."""
    known = curve.value[np.isfinite(curve.value)]
    log = bool(curve.panel.log and len(known) and (known > 0).all())
    xs, ys = _scales(curve, known, log)
    parts, legend = [_text(LEFT, 14, curve.panel.title, size=12, colour=m.INK, weight="600")], {}
    parts += _axes(xs, ys)
    for line in curve.lines:
        colour = NEIGHBOUR_STYLES.get(line.name, OTHER_STYLE)[0]
        if not math.isnan(line.low):
            top, bottom = ys.at(line.high), ys.at(line.low)
            parts.append(tag("rect", attributes={
                "x": f"{LEFT}", "y": f"{top:.1f}", "width": f"{WIDTH - LEFT - RIGHT}", "height": f"{bottom - top:.1f}",
                "fill": colour, "fill-opacity": "0.10"}))
        mark = {"stroke": colour, "stroke-width": "1.5", "stroke-dasharray": DASHES.get(line.name, "8 3")}
        parts.append(_line(LEFT, ys.at(line.value), WIDTH - RIGHT, ys.at(line.value), mark))
        legend[line.name] = _line(0, -4, 24, -4, mark)
    for values, colour, thick in ((curve.value, COURSE_PALE, "1"), (curve.mean, COURSE, "2.2")):
        parts += _course(xs, ys, curve.step, values, colour, thick)
    if len(known):
        legend[f"training, mean of {SMOOTH} steps"] = _line(0, -4, 24, -4, {"stroke": COURSE, "stroke-width": "2.2"})
    for mode, (colour, shape) in MODES.items():
        own = [p for p in curve.points if p.mode == mode]
        for point in own:
            x = xs.at(point.step)
            if not math.isnan(point.low):
                bar = {"stroke": colour, "stroke-width": "1.2"}
                parts.append(_line(x, ys.at(point.low), x, ys.at(point.high), bar))
            parts.append(_mark(x, ys.at(point.value), shape, colour))
        if own:
            legend[f"held out, {mode}"] = _mark(12, -4, shape, colour)
    return parts, legend


class _Scale:
    """Where a value lies in pixels; `ticks` are the values that are labelled."""

    def __init__(self, low: float, high: float, start: float, end: float, ticks: Iterable[float], log: bool = False):
        self.low, self.high, self.start, self.end, self.log = low, high, start, end, log
        self.ticks = [tick for tick in ticks if low <= tick <= high]

    def at(self, value: float) -> float:
        low, high, value = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (min(max(value, low), high) - low) / (high - low) * (self.end - self.start)


def _scales(curve: Curve, known: np.ndarray, log: bool) -> tuple[_Scale, _Scale]:
    steps = [*curve.step, *(p.step for p in curve.points)]
    first, last = (min(steps), max(steps)) if steps else (0.0, 1.0)
    last = max(last, first + 1)
    xs = _Scale(first, last, LEFT + 4, WIDTH - RIGHT - 4, sorted({round(t) for t in _nice(first, last, 5)}))
    values = [*known, *(line.value for line in curve.lines)]
    values += [v for item in (*curve.points, *curve.lines) for v in (item.value, item.low, item.high)]
    values = [v for v in values if math.isfinite(v)]
    low, high = (float(min(values)), float(max(values))) if values else (0.0, 1.0)
    if log:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high) + 1e-9) + 1)
        marks = [float(f"{f}e{k}") for k in decades for f in ((1, 2, 5) if len(decades) < 5 else (1,))]
        marks = [mark for mark in marks if 0.0 < mark < math.inf]
        low = max((mark for mark in marks if mark <= low), default=low)
        high = min((mark for mark in marks if mark > high), default=high)
        return xs, _Scale(low, high, HEIGHT - BOTTOM, TOP, marks, log=True)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    low, high = low - room, high + room
    return xs, _Scale(low, high, HEIGHT - BOTTOM, TOP, _nice(low, high, 5))


def _nice(low: float, high: float, about: int) -> list[float]:
    """Round numbers between `low` and `high`: steps of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= raw * 0.999)
    return [round(k * step, 12) for k in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


def _axes(xs: _Scale, ys: _Scale) -> list[Html]:
    grid = {"stroke": "#e3e7eb", "stroke-width": "0.8"}
    parts = []
    for tick in ys.ticks:
        parts.append(_line(LEFT, ys.at(tick), WIDTH - RIGHT, ys.at(tick), grid))
        parts.append(_text(LEFT - 6, ys.at(tick) + 3.5, words.number(float(tick), 3), anchor="end"))
    for tick in xs.ticks:
        parts.append(_line(xs.at(tick), TOP, xs.at(tick), HEIGHT - BOTTOM, grid))
        parts.append(_text(xs.at(tick), HEIGHT - BOTTOM + 14, f"{tick:g}", anchor="middle"))
    edge = {"stroke": "#8a949e", "stroke-width": "1"}
    parts.append(_text(LEFT - 6, HEIGHT - BOTTOM + 14, "step", anchor="end"))
    return [*parts, _line(LEFT, TOP, LEFT, HEIGHT - BOTTOM, edge),
            _line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, edge)]


def _course(xs: _Scale, ys: _Scale, steps: np.ndarray, values: np.ndarray, colour: str, thick: str) -> list[Html]:
    """A line through the known values, broken where one is missing; a value between two missing ones is a dot."""
    runs: list[list[tuple[float, float]]] = [[]]
    for step, value in zip(*_thinned(steps, values)):
        if np.isfinite(value):
            runs[-1].append((xs.at(float(step)), ys.at(float(value))))
        elif runs[-1]:
            runs.append([])
    parts = []
    for run in runs:
        if len(run) == 1:
            parts.append(tag("circle", attributes={"cx": f"{run[0][0]:.1f}", "cy": f"{run[0][1]:.1f}", "r": "2",
                                                   "fill": colour}))
        elif run:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
            parts.append(tag("polyline", attributes={"points": points, "fill": "none", "stroke": colour,
                                                     "stroke-width": thick, "stroke-linejoin": "round"}))
    return parts


def _thinned(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What can be told apart of a long course: the lowest and the highest value over each pixel. A picture of ten
    thousand steps would be megabytes, sent to the browser each time a step is committed."""
    pixels = WIDTH - LEFT - RIGHT
    if len(values) <= 2 * pixels:
        return steps, values
    kept: list[int] = []
    for first, *rest in np.array_split(np.arange(len(values)), pixels):
        known = [index for index in (first, *rest) if np.isfinite(values[index])]
        kept += sorted({min(known, key=values.__getitem__), max(known, key=values.__getitem__)}) if known else [first]
    return np.asarray(steps)[kept], np.asarray(values)[kept]


# ------------------------------------------------------------------------------------------------ pieces


def _line(x1: float, y1: float, x2: float, y2: float, look: dict[str, str]) -> Html:
    return tag("line", attributes={"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}", **look})


def _mark(x: float, y: float, shape: str, colour: str) -> Html:
    if shape == "o":
        return tag("circle", attributes={"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": "3.5", "fill": colour})
    return tag("rect", attributes={"x": f"{x - 3.2:.1f}", "y": f"{y - 3.2:.1f}", "width": "6.4", "height": "6.4",
                                   "fill": m.CARD, "stroke": colour, "stroke-width": "1.5"})


def _text(x: float, y: float, text: str, *, size: int = 10, colour: str = m.MUTED, anchor: str = "start",
          weight: str = "400") -> Html:
    return tag("text", text, attributes={"x": f"{x:.1f}", "y": f"{y:.1f}", "font-size": str(size), "fill": colour,
                                         "text-anchor": anchor, "font-weight": weight})


def _legend(marks: dict[str, Html], width: int) -> tuple[list[Html], int]:
    """Marks and names in lines of text, and how deep they are in pixels."""
    parts, x, y = [], float(LEFT), 14.0
    for name, mark in marks.items():
        needs = 34 + 6.2 * words.display_width(name) + 22
        if x > LEFT and x + needs > width:
            x, y = float(LEFT), y + 20
        parts.append(tag("g", mark, attributes={"transform": f"translate({x:.1f},{y:.1f})"}))
        parts.append(_text(x + 32, y, name, size=11))
        x += needs
    return parts, int(y + 10)
