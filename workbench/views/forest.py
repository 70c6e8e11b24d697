"""Paired differences of an ablation, one below the other: how large, how sure, and what every seed said.

In the order of the plan, never by size, and no line is marked as the best: the verdict stands beside its interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from workbench.types import View
from workbench.views import doc
from workbench.views.arms import interaction_label, unit_of, verdict_words
from workbench.views.escape import esc
from workbench.views.html import shown
from workbench.views.looks import BLUE, BOLD, CARD, GREY, INK, MUTED
from workbench.views.png import figure, plain, png_of, tidy

Facts = Mapping[str, Any]
SAID = (
    "first minus second, seed by seed on the same tasks; the line: the interval that holds for all declared differences "
    "together; dots: single seeds; grey: within the margin"
)


@dataclass(frozen=True)
class ForestRow:
    """One difference, in the unit that is shown. `low` and `high`: None where no interval is known."""

    label: str
    mean: float
    low: float | None
    high: float | None
    seeds: tuple[tuple[str, float, str], ...]  # (seed, difference, where it is from)
    verdict: str

    @property
    def span(self) -> tuple[float, float]:
        return (
            (self.mean, self.mean)
            if self.low is None or self.high is None
            else (self.low, self.high)
        )


def show_forest(table: Facts) -> View:
    """You will see a line per declared comparison and per control: a square at the mean, its simultaneous interval, a
    dot for every seed, a grey band where differences would not matter (the margin). Text: the same numbers, with the
    notebook of each seed."""
    unit = unit_of(table)
    rows = forest_rows(table)
    if not rows:
        return shown(
            doc.ViewDocument(
                (
                    doc.Note(
                        "nothing is compared: the plan has neither compare nor baseline, or no seed "
                        "of both arms is there"
                    ),
                )
            )
        )
    margin = next(
        (
            unit.factor * pair["sampled"]["margin"]
            for pair in (*table["compared"], *table["controls"])
            if pair["sampled"] and "margin" in pair["sampled"]
        ),
        None,
    )
    name = "points of success" if unit.factor == 100 else "return"
    numbers = [
        [
            row.label,
            _interval(row, unit.digits),
            row.verdict,
            ", ".join(f"{seed}: {value:+.{unit.digits}f}" for seed, value, _ in row.seeds),
        ]
        for row in rows
    ]
    sources = [[row.label, seed, where] for row in rows for seed, _, where in row.seeds if where]
    columns = (doc.Column("difference", look=BOLD), f"{name} [95 %]", "so it is", "seeds")
    picture = doc.Picture(
        partial(_png, rows, margin, table["title"], name),
        "; ".join(" ".join(line[:3]) for line in numbers),
        figure=_figure(rows, margin, table["title"], name),
    )
    return shown(
        doc.ViewDocument(
            (
                picture,
                doc.Note(SAID),
                doc.Fold("The numbers", (doc.Table(columns, _plain(numbers)),)),
                doc.Fold(
                    "Where every dot is from",
                    (doc.Table(("difference", "seed", "notebooks"), _plain(sources)),),
                )
                if sources
                else None,
            )
        )
    )


def forest_rows(table: Facts) -> list[ForestRow]:
    """One for each comparison and control of which there are numbers."""
    unit, arms, found = unit_of(table), table["arms"], []
    for pair in table["compared"]:
        if pair["sampled"] is None:
            continue
        each = {seed: one["mean"] for seed, one in pair["sampled"]["each"].items()}
        label = f"{arms[pair['first']]['label']} - {arms[pair['second']]['label']}"
        both = [arms[pair[side]]["seeds"] for side in ("first", "second")]
        sources = {
            seed: " and ".join(
                str(runs[seed].get("notebook") or runs[seed]["run"]) for runs in both
            )
            for seed in each
        }
        found.append(
            _row(
                label,
                pair["sampled"],
                each,
                sources,
                verdict_words(pair["sampled"], unit.factor),
                unit.factor,
            )
        )
    for pair in table.get("interactions", ()):
        if pair["sampled"] is not None:
            each = {seed: one["mean"] for seed, one in pair["sampled"]["each"].items()}
            sources = {
                seed: " and ".join(
                    str(
                        arms[name]["seeds"][seed].get("notebook")
                        or arms[name]["seeds"][seed]["run"]
                    )
                    for name in pair["weights"]
                )
                for seed in each
            }
            found.append(
                _row(
                    interaction_label(pair),
                    pair["sampled"],
                    each,
                    sources,
                    verdict_words(pair["sampled"], unit.factor),
                    unit.factor,
                )
            )
    for control in table["controls"]:
        if control["sampled"] is not None:
            check = control["check"]
            mark = {True: "right", False: "WRONG", None: "not judged"}[check["held"]]
            each = dict(zip(map(str, table["seeds"]), control["sampled"]["each"]))
            found.append(
                _row(
                    f"control, {control['kind']}: {control['words']}",
                    control["sampled"],
                    each,
                    {},
                    f"{control['sampled']['verdict']} ({mark})",
                    unit.factor,
                )
            )
    return found


def _row(
    label: str,
    judged: Facts,
    each: Mapping[str, float],
    sources: Mapping[str, str],
    verdict: str,
    factor: float,
) -> ForestRow:
    ends = [None if judged[end] is None else factor * judged[end] for end in ("low", "high")]
    seeds = tuple((seed, factor * value, sources.get(seed, "")) for seed, value in each.items())
    return ForestRow(label, factor * judged["mean"], *ends, seeds, verdict)


def _interval(row: ForestRow, digits: int) -> str:
    known = row.low is not None and row.high is not None
    return f"{row.mean:+.{digits}f} [" + (
        f"{row.low:+.{digits}f}, {row.high:+.{digits}f}]" if known else "—]"
    )


def _plain(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[cell.replace("|", "/") for cell in row] for row in rows]


# ------------------------------------------------------------------------------------------------ drawn


def _short(text: str, most: int = 48) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _figure(
    rows: Sequence[ForestRow], margin: float | None, title: str, name: str
) -> dict[str, Any]:
    """As plotly's JSON; all text escaped."""
    places = [*range(len(rows), 0, -1)]  # the first on top
    dots = [
        (
            value,
            place,
            "<br>".join(
                esc(part, newline=" ") for part in (row.label, f"seed {seed}: {value:+.4g}", where)
            ),
        )
        for row, place in zip(rows, places)
        for seed, value, where in row.seeds
    ]
    spans = [row.span for row in rows]
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "single seeds",
            "x": [dot[0] for dot in dots],
            "y": [dot[1] - 0.22 for dot in dots],
            "hovertext": [dot[2] for dot in dots],
            "hoverinfo": "text",
            "marker": {"color": GREY, "size": 7, "symbol": "circle-open"},
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": "mean and interval",
            "x": [row.mean for row in rows],
            "y": places,
            "hovertext": [
                f"{esc(row.label, newline=' ')}<br>{row.mean:+.4g}: {esc(row.verdict, newline=' ')}"
                for row in rows
            ],
            "hoverinfo": "text",
            "marker": {"color": BLUE, "size": 9, "symbol": "square"},
            "error_x": {
                "type": "data",
                "symmetric": False,
                "thickness": 1.6,
                "width": 5,
                "array": [high - row.mean for row, (_, high) in zip(rows, spans)],
                "arrayminus": [row.mean - low for row, (low, _) in zip(rows, spans)],
            },
        },
    ]
    shapes = [
        {
            "type": "line",
            "x0": 0,
            "x1": 0,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"color": INK, "width": 1},
        }
    ]
    if margin is not None:
        shapes.append(
            {
                "type": "rect",
                "x0": -margin,
                "x1": margin,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "layer": "below",
                "fillcolor": "#e3e7eb",
                "line": {"width": 0},
            }
        )
    look = {"gridcolor": "#e3e7eb", "linecolor": "#8a949e", "zeroline": False, "showline": True}
    layout = {
        "title": {"text": f"<b>{esc(title, newline=' ')}</b>", "x": 0.01, "font": {"size": 15}},
        "height": 120 + 46 * len(rows),
        "margin": {"t": 50, "b": 50, "l": 20, "r": 20},
        "autosize": True,
        "paper_bgcolor": CARD,
        "plot_bgcolor": CARD,
        "font": {"color": INK, "size": 11},
        "shapes": shapes,
        "xaxis": {**look, "title": {"text": f"difference, {name}"}},
        "yaxis": {
            **look,
            "tickvals": places,
            "ticktext": [esc(_short(row.label), newline=" ") for row in rows],
            "range": [0.4, len(rows) + 0.6],
            "automargin": True,
        },
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 1, "xanchor": "right"},
    }
    return {"data": data, "layout": layout}


def _png(rows: Sequence[ForestRow], margin: float | None, title: str, name: str) -> bytes:
    height = 1.1 + 0.5 * len(rows)
    drawing = figure(11.1, height, layout=None)
    axes = drawing.add_axes((0.36, 0.55 / height, 0.4, (height - 0.95) / height))
    tidy(axes, "", f"difference, {name}")
    if margin is not None:
        axes.axvspan(-margin, margin, color="#e3e7eb", linewidth=0)
    axes.axvline(0, color=INK, linewidth=1)
    places = np.arange(len(rows), 0, -1)
    for row, place in zip(rows, places):
        axes.plot(row.span, [place, place], color=BLUE, linewidth=1.8)
        axes.plot([row.mean], [place], marker="s", color=BLUE, markersize=6)
        axes.plot(
            [value for _, value, _ in row.seeds],
            [place - 0.22] * len(row.seeds),
            linestyle="",
            marker="o",
            markerfacecolor="none",
            color=MUTED,
            markersize=4,
        )
        axes.annotate(
            plain(_short(row.verdict, 40)),
            (1.02, place),
            xycoords=("axes fraction", "data"),
            fontsize=8,
            va="center",
            color=INK,
        )
    axes.set_yticks(places, [plain(_short(row.label)) for row in rows], fontsize=8)
    axes.set_ylim(0.4, len(rows) + 0.6)
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
