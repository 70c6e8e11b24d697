"""What a setting does: success along one numeric axis of a grid, or over two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from workbench.extensions.ablation.contrasts import named_axis
from workbench.extensions.ablation.views.arms import ARM_LOOKS, unit_of
from workbench.extensions.ablation.views.parts import (
    picture_with_numbers,
    plotly_layout,
    write_title,
)
from workbench.look import doc
from workbench.look.escape import esc
from workbench.look.figures import Plot, Trace
from workbench.look.looks import BOLD, GREY, INK
from workbench.look.png import curves_picture, figure, plain
from workbench.values import View
from workbench.values.errors import ConfigError

Facts = Mapping[str, Any]
Point = tuple[float, Facts]  # value of the axis, arm
SCALE = ("#f7f9fb", "#08306b")  # from low to high: one hue, so that no value looks like a warning


def dose_view(table: Facts, axis: str | None = None) -> View:
    """You will see one line per combination of the grid's other settings: the mean over seeds with its 95 % interval at
    each value of `axis` (the only numeric one, if it is not named), and a dot for every seed. ConfigError for an axis
    that the grid has not, or that is not numeric."""
    axis = axis_named(table, axis)
    unit = unit_of(table)
    lines = _points_by_line(table, axis)
    traces = []
    rows = []
    for (colour, dash), (name, points) in zip(ARM_LOOKS * len(lines), lines.items()):
        traces.append(_mean_trace(name, points, unit.factor, colour, dash))
        traces.append(_seed_dots(points, unit.factor))
        rows += [_dose_row(name, value, arm, unit) for value, arm in points]
    values = sorted({float(arm["at"][axis]) for arm in _arms(table)})
    title = f"{_measure(unit)} along {axis}"
    plot = Plot(title, tuple(traces), x_label=axis, log_x=is_geometric(values))
    caption = "; ".join(f"{row[0]} {row[1]}: {row[2]}" for row in rows)
    columns = (
        doc.Column("", look=BOLD),
        *doc.numbers(axis),
        f"{_measure(unit)} [95 %]",
        "range over seeds",
        *doc.numbers("seeds"),
    )
    return picture_with_numbers(curves_picture([plot], table["title"], caption), "", columns, rows)


def _points_by_line(table: Facts, axis: str) -> dict[str, list[Point]]:
    """Arms that differ in `axis` alone, by what else they set, from low to high."""
    lines: dict[str, list[Point]] = {}
    for arm in _arms(table):
        name = _rest(arm["at"], (axis,)) or arm_root(arm)
        lines.setdefault(name, []).append((float(arm["at"][axis]), arm))
    for points in lines.values():
        points.sort(key=lambda point: point[0])
    return lines


def _mean_trace(name: str, points: Sequence[Point], factor: float, colour: str, dash: str) -> Trace:
    x = np.array([value for value, _ in points])
    ends = [
        # None becomes NaN: no bar is drawn where an end is not known.
        np.array([arm["sampled"][end] for _, arm in points], dtype=float) * factor
        for end in ("mean", "low", "high")
    ]
    mean, low, high = ends
    return Trace(name, x, mean, colour, dash, 1.8, low=low, high=high, bars=True)


def _seed_dots(points: Sequence[Point], factor: float) -> Trace:
    dots = []
    for value, arm in points:
        for facts in arm["seeds"].values():
            dots.append((value, factor * float(np.mean(facts["sampled"]))))
    x, y = np.array(dots, dtype=float).T
    return Trace("single seeds", x, y, GREY, width=0, marker=".")


def _dose_row(name: str, value: float, arm: Facts, unit: Any) -> list[str]:
    sampled = arm["sampled"]
    interval = unit.within(sampled["mean"], sampled["low"], sampled["high"])
    return [name, f"{value:g}", interval, unit.spread(sampled), f"{len(arm['seeds'])}"]


def heat_view(table: Facts, x: str | None = None, y: str | None = None) -> View:
    """You will see the mean over seeds at every pair of values of two numeric axes (the grid's first two, if they are
    not named), darker where it is higher; the rest of the grid is averaged over. Text: the same as a table."""
    x, y = _two_axes(table, x, y)
    unit = unit_of(table)
    cells: dict[tuple[float, float], list[float]] = {}
    for arm in _arms(table):
        place = (float(arm["at"][y]), float(arm["at"][x]))
        cells.setdefault(place, []).append(unit.factor * arm["sampled"]["mean"])
    ys = sorted({place[0] for place in cells})
    xs = sorted({place[1] for place in cells})
    value_YX = np.full((len(ys), len(xs)), np.nan)
    for (value_y, value_x), means in cells.items():
        value_YX[ys.index(value_y), xs.index(value_x)] = np.mean(means)
    rows = []
    for value_y, row in zip(ys, value_YX):
        figures = ["—" if np.isnan(value) else f"{value:.{unit.digits}f}" for value in row]
        rows.append([f"{value_y:g}", *figures])
    columns = (f"{y} below, {x} to the right", *doc.numbers(*(f"{value:g}" for value in xs)))
    measure = _measure(unit)
    picture = doc.Picture(
        partial(_heat_drawing, value_YX, xs, ys, (x, y), table["title"], unit.digits),
        f"{measure} over {x} and {y}",
        figure=_heat_figure(value_YX, xs, ys, (x, y), table["title"]),
    )
    note = f"{table['title']}: {measure}, mean over seeds"
    if len(numeric_axes(table)) > 2 or any(len(means) > 1 for means in cells.values()):
        note += " and over the rest of the grid"
    return picture_with_numbers(picture, note, columns, rows)


def _two_axes(table: Facts, x: str | None, y: str | None) -> tuple[str, str]:
    numeric = numeric_axes(table)
    if (x is None or y is None) and len(numeric) < 2:
        raise ConfigError(
            f"a heat map needs two numeric axes of a grid, this one has {', '.join(numeric) or 'none'}; "
            "dose() draws one"
        )
    if x is None:
        taken = axis_named(table, y) if y else None
        x = next(axis for axis in numeric if axis != taken)
    x = axis_named(table, x)
    y = axis_named(table, y or next(axis for axis in numeric if axis != x))
    if x == y:
        raise ConfigError(f"a heat map is over two different axes, got {x} twice")
    return x, y


# ------------------------------------------------------------------------------------------------ axes


def axis_named(table: Facts, name: str | None) -> str:
    """The numeric axis of this name, or of which it is the last part; the only one where no name is given."""
    numeric = numeric_axes(table)
    if not numeric:
        raise ConfigError("this grid has no numeric axis")
    return named_axis(name, numeric, "numeric axes")


def numeric_axes(table: Facts) -> list[str]:
    """Settings of the grid all of whose values are numbers, in its order."""
    places = [arm["at"] for arm in _arms(table)]
    names = dict.fromkeys(name for at in places for name in at)
    axes = []
    for name in names:
        values = [at.get(name) for at in places]
        if all(type(value) in (int, float) for value in values) and len({*values}) > 1:
            axes.append(name)
    return axes


def is_geometric(values: Sequence[float]) -> bool:
    """Whether values from low to high are better seen on a logarithmic scale: they span a factor of ten."""
    return len(values) > 1 and values[0] > 0 and values[-1] >= 10 * values[0]


def arm_root(arm: Facts) -> str:
    """What an arm is called apart from its place in the grid."""
    first = arm["label"].split(", ")[0]
    return "all else equal" if " = " in first else first


def _arms(table: Facts) -> list[Facts]:
    return [arm for arm in table["arms"].values() if arm.get("at") and arm["sampled"] is not None]


def _rest(at: Mapping[str, Any], without: Sequence[str]) -> str:
    return ", ".join(
        f"{name.rpartition('.')[2]} = {value}" for name, value in at.items() if name not in without
    )


def _measure(unit: Any) -> str:
    return "success, %" if unit.factor == 100 else "return"


# ------------------------------------------------------------------------------------------------ drawn


def _heat_figure(
    value_YX: np.ndarray,
    xs: Sequence[float],
    ys: Sequence[float],
    names: tuple[str, str],
    title: str,
) -> dict[str, Any]:
    heatmap = {
        "type": "heatmap",
        "z": [[_six_digits(value) for value in row] for row in value_YX],
        "x": [f"{value:g}" for value in xs],
        "y": [f"{value:g}" for value in ys],
        "colorscale": [[0, SCALE[0]], [1, SCALE[1]]],
        "texttemplate": "%{z:.4g}",
        "hoverongaps": False,
    }
    layout = plotly_layout(title, len(ys), left=60)
    layout["height"] += 140
    for axis, name in zip(("xaxis", "yaxis"), names):
        layout[axis] = {"type": "category", "title": {"text": esc(name, newline=" ")}}
    return {"data": [heatmap], "layout": layout}


def _six_digits(value: float) -> float | None:
    return None if np.isnan(value) else float(f"{value:.6g}")


def _heat_drawing(
    value_YX: np.ndarray,
    xs: Sequence[float],
    ys: Sequence[float],
    names: tuple[str, str],
    title: str,
    digits: int,
    width: float = 6.5,
) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    height = 1.4 + 0.5 * len(ys)
    drawing = figure(width, height, layout=None)
    axes = drawing.add_axes((0.16, 0.6 / height, 0.8, (height - 1.1) / height))
    colours = LinearSegmentedColormap.from_list("one hue", SCALE)
    axes.imshow(value_YX, origin="lower", aspect="auto", cmap=colours)
    axes.set_xticks(range(len(xs)), [f"{value:g}" for value in xs], fontsize=8)
    axes.set_yticks(range(len(ys)), [f"{value:g}" for value in ys], fontsize=8)
    axes.set_xlabel(plain(names[0]), fontsize=8)
    axes.set_ylabel(plain(names[1]), fontsize=8)
    middle = (np.nanmin(value_YX) + np.nanmax(value_YX)) / 2
    centred = {"ha": "center", "va": "center", "fontsize": 8}
    for (row, column), value in np.ndenumerate(value_YX):
        if np.isfinite(value):
            colour = "#ffffff" if value > middle else INK
            axes.text(column, row, f"{value:.{digits}f}", color=colour, **centred)
    write_title(drawing, title, height)
    return drawing
