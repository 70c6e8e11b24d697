"""How likely a table finds a difference, by its size and the number of seeds and tasks, with the variances it measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.extensions.ablation.crossed import chance_equal, chance_found
from workbench.extensions.ablation.views.arms import ARM_LOOKS, unit_of
from workbench.extensions.ablation.views.parts import only_a_note, picture_with_numbers
from workbench.look import doc, words
from workbench.look.figures import LevelLine, Plot, Trace
from workbench.look.looks import BOLD, GREY
from workbench.look.png import curves_picture
from workbench.values import View

Facts = Mapping[str, Any]
# Of effects, where no margin was declared: shares, or of the deviation of a run's mean.
SIZES = (0.02, 0.05, 0.1)
LISTED_SEEDS = (3, 5, 8, 12, 20)
MOST_SEEDS = 20
TASKS = tuple(2**k for k in range(4, 13))
LIKELY = 80  # per cent


def show_power(table: Facts) -> View:
    """You will see statistical power (the chance of a verdict) against the number of seeds (at the table's tasks) and of tasks (at its seeds):
    a line for a true difference of one, two and four times the margin, and a dotted one for arms that are equal and
    called so. At the last look, in a family of this size, with the variances of the differences at hand."""
    known = table.get("power")
    if known is None:
        return only_a_note(
            "power is computed from measured variances: it takes one difference with two seeds"
        )
    factor = unit_of(table).factor
    name = "points" if factor == 100 else "return"
    effects = effects_of(known, shares=factor == 100)
    lines = _lines(known, factor, name, effects)
    most = max(MOST_SEEDS, known["runs"])
    by_seeds = [(seeds, known["tasks"]) for seeds in range(2, most + 1)]
    plots = [_plot(known, lines, "seeds", by_seeds)]
    if known["tasks"] > 1:
        by_tasks = [(known["runs"], tasks) for tasks in sorted({*TASKS, known["tasks"]})]
        plots.append(_plot(known, lines, "tasks", by_tasks))
    listed = [(seeds, known["tasks"]) for seeds in LISTED_SEEDS]
    rows = []
    for line, effect, equal in lines:
        chances = _chances(known, effect, equal, listed)
        rows.append([line, *(f"{chance:.0f}" for chance in chances)])
    caption = "; ".join(" ".join(row) for row in rows)
    columns = (
        doc.Column("true difference", look=BOLD),
        *doc.numbers(*(f"{seeds} seeds, %" for seeds in LISTED_SEEDS)),
    )
    return picture_with_numbers(
        curves_picture(plots, table["title"], caption, columns=2),
        f"{table['title']}: statistical power. {_variances(known, factor, name)}",
        columns,
        rows,
    )


def _variances(known: Facts, factor: float, name: str) -> str:
    """From which numbers the power was computed."""
    deviation = {part: f"{factor * known[part] ** 0.5:.3g}" for part in ("seed", "task", "rest")}
    text = (
        f"{words.count(known['family'], 'difference')} judged together, {words.count(known['tasks'], 'task')}; "
        f"SD of seeds {deviation['seed']}, tasks {deviation['task']}, residual {deviation['rest']} {name}"
    )
    if known["few"] > 2:
        text += f"; below {known['few']} seeds nothing is decided"
    return text


def effects_of(known: Facts, shares: bool) -> list[float]:
    """Once, twice and four times the margin; without one, what may interest anybody."""
    if known["margin"] is not None:
        return [known["margin"] * times for times in (1, 2, 4)]
    scale = 1.0
    if not shares:
        variance = known["seed"] + (known["task"] + known["rest"]) / known["tasks"]
        scale = 10 * variance**0.5
    return [scale * size for size in SIZES]


def _lines(
    known: Facts, factor: float, name: str, effects: list[float]
) -> list[tuple[str, float, bool]]:
    """(what a line is of, the difference, whether equality is to be shown)."""
    lines = [(f"{factor * effect:.3g} {name}, detected", effect, False) for effect in effects]
    margin = known["margin"]
    if margin is not None:
        lines.append((f"none, judged equal within {factor * margin:.3g}", margin, True))
    return lines


def _chances(known: Facts, effect: float, equal: bool, sizes: list[tuple[int, int]]) -> np.ndarray:
    """Per cent for each (seeds, tasks)."""
    parts = known["seed"], known["task"], known["rest"]
    chance = chance_equal if equal else chance_found
    chances = np.zeros(len(sizes))
    for place, (runs, tasks) in enumerate(sizes):
        if runs >= known["few"]:
            chances[place] = 100 * chance(effect, *parts, runs, tasks, known["level"])
    return chances


def _plot(
    known: Facts,
    lines: list[tuple[str, float, bool]],
    axis: str,
    sizes: list[tuple[int, int]],
) -> Plot:
    x = np.array([size[axis == "tasks"] for size in sizes], dtype=float)
    traces = []
    for (colour, dash), (line, effect, equal) in zip(ARM_LOOKS, lines):
        chances = _chances(known, effect, equal, sizes)
        traces.append(Trace(line, x, chances, colour, "dot" if equal else dash, 1.8))
    if axis == "seeds":
        other = words.count(known["tasks"], "task")
    else:
        other = words.count(known["runs"], "seed")
    return Plot(
        f"power, %, at {other}",
        tuple(traces),
        (LevelLine("80 % power", LIKELY, GREY),),
        x_label=axis,
        log_x=axis == "tasks",
    )
