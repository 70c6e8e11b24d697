"""How likely a table finds a difference, by its size and the number of seeds and tasks, with the variances it measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.types import View
from workbench.types.crossed import chance_equal, chance_found
from workbench.views import doc, words
from workbench.views.arms import ARM_LOOKS, unit_of
from workbench.views.figures import LevelLine, Plot, Trace
from workbench.views.html import shown
from workbench.views.looks import BOLD, GREY
from workbench.views.png import curves_picture

Facts = Mapping[str, Any]
SIZES = (
    0.02,
    0.05,
    0.1,
)  # of effects, where no margin was declared: shares, or of the deviation of a run's mean
MOST_SEEDS, TASKS = 20, tuple(2**k for k in range(4, 13))
LIKELY = 80  # per cent


def show_power(table: Facts) -> View:
    """You will see the chance of a verdict against the number of seeds (at the table's tasks) and of tasks (at its seeds):
    a line for a true difference of one, two and four times the margin, and a dotted one for arms that are equal and
    called so. At the last look, in a family of this size, with the variances of the differences at hand."""
    known = table.get("power")
    if known is None:
        return shown(
            doc.ViewDocument(
                (
                    doc.Note(
                        "the chance of a verdict rests on measured variances: it takes one "
                        "difference with two seeds"
                    ),
                )
            )
        )
    unit, name = unit_of(table), "points" if unit_of(table).factor == 100 else "return"
    effects = effects_of(known, shares=unit.factor == 100)
    most = max(MOST_SEEDS, known["runs"])
    seeds, tasks = (
        [*range(2, most + 1)],
        [known["tasks"]] if known["tasks"] < 2 else sorted({*TASKS, known["tasks"]}),
    )
    plots = [
        _plot(
            known, unit.factor, name, effects, "seeds", [(count, known["tasks"]) for count in seeds]
        )
    ]
    if known["tasks"] > 1:
        plots.append(
            _plot(
                known,
                unit.factor,
                name,
                effects,
                "tasks",
                [(known["runs"], count) for count in tasks],
            )
        )
    rows = [
        [
            line,
            *(
                f"{value:.0f}"
                for value in _chances(
                    known, effect, equal, [(count, known["tasks"]) for count in (3, 5, 8, 12, 20)]
                )
            ),
        ]
        for line, effect, equal in _lines(known, unit.factor, name, effects)
    ]
    said = (
        f"{words.count(known['family'], 'difference')} judged together, {words.count(known['tasks'], 'task')}; deviations "
        f"of seeds {unit.factor * known['seed'] ** 0.5:.3g}, tasks {unit.factor * known['task'] ** 0.5:.3g}, the rest "
        f"{unit.factor * known['rest'] ** 0.5:.3g} {name}"
        + (f"; below {known['few']} seeds nothing is decided" if known["few"] > 2 else "")
    )
    columns = (
        doc.Column("true difference", look=BOLD),
        *doc.numbers(*(f"{count} seeds, %" for count in (3, 5, 8, 12, 20))),
    )
    return shown(
        doc.ViewDocument(
            (
                curves_picture(
                    plots, table["title"], "; ".join(" ".join(row) for row in rows), columns=2
                ),
                doc.Note(f"{table['title']}: chance of a verdict. {said}"),
                doc.Fold("The numbers", (doc.Table(columns, rows),)),
            )
        )
    )


def effects_of(known: Facts, shares: bool) -> list[float]:
    """Once, twice and four times the margin; without one, what may interest anybody."""
    if known["margin"] is not None:
        return [known["margin"] * times for times in (1, 2, 4)]
    scale = (
        1.0
        if shares
        else 10 * (known["seed"] + (known["task"] + known["rest"]) / known["tasks"]) ** 0.5
    )
    return [scale * size for size in SIZES]


def _lines(
    known: Facts, factor: float, name: str, effects: list[float]
) -> list[tuple[str, float, bool]]:
    lines = [(f"{factor * effect:.3g} {name}, found", effect, False) for effect in effects]
    return lines + (
        [(f"none, called equal within {factor * known['margin']:.3g}", known["margin"], True)]
        if known["margin"] is not None
        else []
    )


def _chances(known: Facts, effect: float, equal: bool, sizes: list[tuple[int, int]]) -> np.ndarray:
    """Per cent for each (seeds, tasks)."""
    parts = known["seed"], known["task"], known["rest"]
    chance = chance_equal if equal else chance_found
    return np.array(
        [
            100 * chance(effect, *parts, runs, tasks, known["level"])
            if runs >= known["few"]
            else 0.0
            for runs, tasks in sizes
        ]
    )


def _plot(
    known: Facts,
    factor: float,
    name: str,
    effects: list[float],
    axis: str,
    sizes: list[tuple[int, int]],
) -> Plot:
    x = np.array([size[axis == "tasks"] for size in sizes], dtype=float)
    traces = tuple(
        Trace(line, x, _chances(known, effect, equal, sizes), colour, "dot" if equal else dash, 1.8)
        for (colour, dash), (line, effect, equal) in zip(
            ARM_LOOKS, _lines(known, factor, name, effects)
        )
    )
    other = (
        words.count(known["tasks"], "task")
        if axis == "seeds"
        else words.count(known["runs"], "seed")
    )
    return Plot(
        f"chance of a verdict, %, at {other}",
        traces,
        (LevelLine("four in five", LIKELY, GREY),),
        x_label=axis,
        log_x=axis == "tasks",
    )
