"""What a setting does: success along one numeric axis of a grid, or over two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from workbench.types import View
from workbench.types.contrasts import named_axis
from workbench.types.errors import ConfigError
from workbench.views import doc
from workbench.views.arms import ARM_LOOKS, unit_of
from workbench.views.escape import esc
from workbench.views.figures import Plot, Trace
from workbench.views.html import shown
from workbench.views.looks import BOLD, CARD, GREY, INK
from workbench.views.png import curves_picture, figure, plain, png_of

Facts = Mapping[str, Any]
SCALE = ("#f7f9fb", "#08306b")  # from low to high: one hue, so that no value looks like a warning


def show_dose(table: Facts, axis: str | None = None) -> View:
    """You will see one line per combination of the grid's other settings: the mean over seeds with its 95 % interval at
    each value of `axis` (the only numeric one, if it is not named), and a dot for every seed. ConfigError for an axis
    that the grid has not, or that is not numeric."""
    axis, unit = axis_named(table, axis), unit_of(table)
    lines: dict[str, list[tuple[float, Facts]]] = {}
    for arm in _arms(table):
        lines.setdefault(_rest(arm["at"], (axis,)) or arm_root(arm), []).append(
            (float(arm["at"][axis]), arm)
        )
    traces, rows = [], []
    for (colour, dash), (name, points) in zip(ARM_LOOKS * len(lines), lines.items()):
        points = sorted(points, key=lambda point: point[0])
        x, y = (
            np.array([at for at, _ in points]),
            np.array([arm["sampled"]["mean"] for _, arm in points]) * unit.factor,
        )
        low, high = (
            np.array(
                [
                    np.nan if arm["sampled"][end] is None else arm["sampled"][end]
                    for _, arm in points
                ],
                dtype=float,
            )
            * unit.factor
            for end in ("low", "high")
        )
        traces.append(Trace(name, x, y, colour, dash, 1.8, low=low, high=high, bars=True))
        dots = [
            (at, unit.factor * float(np.mean(facts["sampled"])))
            for at, arm in points
            for facts in arm["seeds"].values()
        ]
        traces.append(
            Trace("single seeds", *np.array(dots, dtype=float).T, GREY, width=0, marker=".")
        )
        rows += [
            [
                name,
                f"{at:g}",
                unit.within(*(arm["sampled"][end] for end in ("mean", "low", "high"))),
                f"{unit.figure(arm['sampled']['lowest'])} to {unit.figure(arm['sampled']['highest'])}",
                f"{len(arm['seeds'])}",
            ]
            for at, arm in points
        ]
    values = sorted({float(arm["at"][axis]) for arm in _arms(table)})
    plot = Plot(
        f"{_measure(unit)} along {axis}", tuple(traces), x_label=axis, log_x=is_geometric(values)
    )
    columns = (
        doc.Column("", look=BOLD),
        *doc.numbers(axis),
        f"{_measure(unit)} [95 %]",
        "lowest to highest",
        *doc.numbers("seeds"),
    )
    return shown(
        doc.ViewDocument(
            (
                curves_picture(
                    [plot],
                    table["title"],
                    "; ".join(f"{row[0]} {row[1]}: {row[2]}" for row in rows),
                ),
                doc.Fold(
                    "The numbers",
                    (
                        doc.Table(
                            columns, [[cell.replace("|", "/") for cell in row] for row in rows]
                        ),
                    ),
                ),
            )
        )
    )


def show_heat(table: Facts, x: str | None = None, y: str | None = None) -> View:
    """You will see the mean over seeds at every pair of values of two numeric axes (the grid's first two, if they are
    not named), darker where it is higher; the rest of the grid is averaged over. Text: the same as a table."""
    numeric = numeric_axes(table)
    if (x is None or y is None) and len(numeric) < 2:
        raise ConfigError(
            f"a heat map needs two numeric axes of a grid, this one has {', '.join(numeric) or 'none'}; "
            "dose() draws one"
        )
    x = axis_named(
        table, x or next(axis for axis in numeric if axis != (y and axis_named(table, y)))
    )
    y = axis_named(table, y or next(axis for axis in numeric if axis != x))
    if x == y:
        raise ConfigError(f"a heat map is over two different axes, got {x} twice")
    unit, cells = unit_of(table), {}
    for arm in _arms(table):
        cells.setdefault((float(arm["at"][y]), float(arm["at"][x])), []).append(
            unit.factor * arm["sampled"]["mean"]
        )
    xs, ys = (sorted({pair[side] for pair in cells}) for side in (1, 0))
    value_YX = np.array(
        [[np.mean(cells[b, a]) if (b, a) in cells else np.nan for a in xs] for b in ys]
    )
    rows = [
        [f"{b:g}", *("—" if np.isnan(value) else f"{value:.{unit.digits}f}" for value in row)]
        for b, row in zip(ys, value_YX)
    ]
    names = (f"{y} below, {x} to the right", *doc.numbers(*(f"{a:g}" for a in xs)))
    averaged = len(numeric) > 2 or any(len(found) > 1 for found in cells.values())
    return shown(
        doc.ViewDocument(
            (
                doc.Picture(
                    partial(_heat_png, value_YX, xs, ys, (x, y), table["title"], unit.digits),
                    f"{_measure(unit)} over {x} and {y}",
                    figure=_heat_figure(value_YX, xs, ys, (x, y), table["title"]),
                ),
                doc.Note(
                    f"{table['title']}: {_measure(unit)}, mean over seeds"
                    + (" and over the rest of the grid" if averaged else "")
                ),
                doc.Fold("The numbers", (doc.Table(names, rows),)),
            )
        )
    )


# ------------------------------------------------------------------------------------------------ axes


def axis_named(table: Facts, name: str | None) -> str:
    """The numeric axis of this name, or of which it is the last part; the only one where no name is given."""
    if not (numeric := numeric_axes(table)):
        raise ConfigError("this grid has no numeric axis")
    return named_axis(name, numeric, "numeric axes")


def numeric_axes(table: Facts) -> list[str]:
    """Settings of the grid all of whose values are numbers, in its order."""
    arms = _arms(table)
    names = dict.fromkeys(name for arm in arms for name in arm["at"])
    return [
        name
        for name in names
        if all(type(arm["at"].get(name)) in (int, float) for arm in arms)
        and len({arm["at"][name] for arm in arms}) > 1
    ]


def is_geometric(values: Sequence[float]) -> bool:
    """Whether values from low to high are better seen on a logarithmic scale: they span a factor of ten."""
    return len(values) > 1 and values[0] > 0 and values[-1] >= 10 * values[0]


def arm_root(arm: Facts) -> str:
    """What an arm is called apart from its place in the grid."""
    return "all else equal" if " = " in arm["label"].split(", ")[0] else arm["label"].split(", ")[0]


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
    drawn = [
        [None if np.isnan(value) else float(f"{value:.6g}") for value in row] for row in value_YX
    ]
    return {
        "data": [
            {
                "type": "heatmap",
                "z": drawn,
                "x": [f"{a:g}" for a in xs],
                "y": [f"{b:g}" for b in ys],
                "colorscale": [[0, SCALE[0]], [1, SCALE[1]]],
                "texttemplate": "%{z:.4g}",
                "hoverongaps": False,
            }
        ],
        "layout": {
            "title": {"text": f"<b>{esc(title, newline=' ')}</b>", "x": 0.01, "font": {"size": 15}},
            "height": 140 + 46 * len(ys),
            "margin": {"t": 50, "b": 50, "l": 60, "r": 20},
            "autosize": True,
            "paper_bgcolor": CARD,
            "plot_bgcolor": CARD,
            "font": {"color": INK, "size": 11},
            "xaxis": {"type": "category", "title": {"text": esc(names[0], newline=" ")}},
            "yaxis": {"type": "category", "title": {"text": esc(names[1], newline=" ")}},
        },
    }


def _heat_png(
    value_YX: np.ndarray,
    xs: Sequence[float],
    ys: Sequence[float],
    names: tuple[str, str],
    title: str,
    digits: int,
) -> bytes:
    from matplotlib.colors import LinearSegmentedColormap

    height = 1.4 + 0.5 * len(ys)
    drawing = figure(6.5, height, layout=None)
    axes = drawing.add_axes((0.16, 0.6 / height, 0.8, (height - 1.1) / height))
    axes.imshow(
        value_YX,
        origin="lower",
        aspect="auto",
        cmap=LinearSegmentedColormap.from_list("one hue", SCALE),
    )
    axes.set_xticks(range(len(xs)), [f"{a:g}" for a in xs], fontsize=8)
    axes.set_yticks(range(len(ys)), [f"{b:g}" for b in ys], fontsize=8)
    axes.set_xlabel(plain(names[0]), fontsize=8)
    axes.set_ylabel(plain(names[1]), fontsize=8)
    middle = (np.nanmin(value_YX) + np.nanmax(value_YX)) / 2
    for (row, column), value in np.ndenumerate(value_YX):
        if np.isfinite(value):
            axes.text(
                column,
                row,
                f"{value:.{digits}f}",
                ha="center",
                va="center",
                fontsize=8,
                color="#ffffff" if value > middle else INK,
            )
    drawing.suptitle(
        plain(title),
        fontsize=11,
        x=0.01,
        y=1 - 0.08 / height,
        ha="left",
        va="top",
        fontweight="bold",
        color=INK,
    )
    return png_of(drawing)
