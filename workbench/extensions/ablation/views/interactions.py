"""Whether one setting of a grid matters more where another is higher: lines that are not parallel, and by how much."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.extensions.ablation.contrasts import (
    Places,
    arms_at,
    axes_in,
    interaction_weights,
    named_axis,
    places_in,
    values_along,
)
from workbench.extensions.ablation.crossed import crossed_mean
from workbench.extensions.ablation.views.arms import ARM_LOOKS, unit_of, verdict_words
from workbench.extensions.ablation.views.doses import is_geometric
from workbench.extensions.ablation.views.parts import only_a_note, picture_with_numbers
from workbench.look import doc
from workbench.look.figures import Plot, Trace
from workbench.look.looks import BOLD
from workbench.look.png import curves_picture
from workbench.values import View
from workbench.values.errors import ConfigError
from workbench.values.stats import Estimate

Facts = Mapping[str, Any]
ASIDE = 0.03  # of the width: how far lines stand apart, so that their bars do not hide each other


def interaction_view(table: Facts, a: str | None = None, b: str | None = None) -> View:
    """You will see one line for each value of `b` along `a` (the first axes that were declared as an interaction, else
    those of the grid, if they are not named): means with their 95 % intervals, the rest of the grid averaged over. Below:
    the difference of differences between first and last values, with its interval and, where it was declared, its
    verdict. ConfigError for an axis that the grid has not."""
    places = places_in({name: arm for name, arm in table["arms"].items() if arm["seeds"]})
    axes = axes_in(places)
    if a is None and b is None:
        if len(axes) < 2:
            number = f"one: {axes[0]}" if axes else "none"
            return only_a_note(
                f"an interaction is of two axes of a grid, and this plan has {number}"
            )
        declared = [interaction["axes"] for interaction in table.get("interactions", ())]
        a, b = declared[0] if declared else axes[:2]
    if a is None or b is None:
        raise ConfigError(
            f"an interaction is of two axes: name both of {', '.join(axes)}, or neither"
        )
    a = named_axis(a, axes)
    b = named_axis(b, axes)
    unit = unit_of(table)
    rows = []
    traces = []
    x_axis = _x_axis(values_along(places, a))
    values_b = values_along(places, b)
    for number, ((colour, dash), value_b) in enumerate(zip(ARM_LOOKS * len(values_b), values_b)):
        means = _means_along(table, places, a, {b: value_b})
        name = f"{b.rpartition('.')[2]} = {_value_words(value_b)}"
        aside = number - (len(values_b) - 1) / 2
        traces.append(_trace(name, x_axis, means, unit.factor, colour, dash, aside))
        for value, mean in means:
            interval = unit.within(mean.mean, *_ends(mean))
            rows.append([name, _value_words(value), interval, f"{mean.n}"])
    plot = Plot(
        f"along {a}, one line for each {b}",
        tuple(traces),
        x_label=a,
        log_x=x_axis.log,
        ticks=x_axis.ticks,
    )
    caption = "; ".join(" ".join(row[:3]) for row in rows)
    measure = "success, %" if unit.factor == 100 else "return"
    columns = (
        doc.Column("", look=BOLD),
        *doc.numbers(a),
        f"{measure} [95 %]",
        *doc.numbers("seeds"),
    )
    return picture_with_numbers(
        curves_picture([plot], table["title"], caption),
        f"{table['title']}. {contrast_words(table, a, b)}",
        columns,
        rows,
    )


def _means_along(
    table: Facts, places: Places, axis: str, others: Mapping[str, Any]
) -> list[tuple[Any, Estimate]]:
    """(value of `axis`, mean of the arms there with these `others`), where some seed has all of those arms."""
    means = []
    for value in values_along(places, axis):
        arms = arms_at(places, {axis: value, **others})
        mean = _weighted_mean(table, dict.fromkeys(arms, 1 / len(arms))) if arms else None
        if mean is not None:
            means.append((value, mean))
    return means


def contrast_words(table: Facts, a: str, b: str) -> str:
    """The difference of differences, in a sentence."""
    unit = unit_of(table)
    places = places_in(table["arms"])
    a0, *_, a1 = map(_value_words, values_along(places, a))
    b0, *_, b1 = map(_value_words, values_along(places, b))
    question = f"From {a} = {a0} to {a1}: how much more at {b} = {b1} than at {b0}"
    for interaction in table.get("interactions", ()):
        judged = interaction["sampled"]
        if {*interaction["axes"]} == {a, b} and judged is not None:
            verdict = verdict_words(judged, unit.factor) if "verdict" in judged else "not judged"
            return f"{question}: {unit.difference(judged)}, {verdict}"
    try:
        weights = interaction_weights(places, a, b)
    except ConfigError as error:
        return f"{error}"
    mean = _weighted_mean(table, weights)
    if mean is None:
        return f"{question}: not known, no seed has all of these arms"
    low, high = _ends(mean)
    difference = unit.difference({"mean": mean.mean, "low": low, "high": high})
    return f"{question}: {difference}; exploratory, it was not declared (interactions of the plan)"


def _weighted_mean(table: Facts, weights: Mapping[str, float]) -> Estimate | None:
    """The weighted sum of some arms, seed by seed and task by task; None where no seed has all of them."""
    runs = {name: table["arms"][name]["seeds"] for name in weights}
    seeds = [
        seed
        for seed in next(iter(runs.values()))
        if all(seed in by_seed for by_seed in runs.values())
    ]
    if not seeds:
        return None
    values_RN: Any = 0
    for name, weight in weights.items():
        values_RN = values_RN + weight * np.array([runs[name][seed]["sampled"] for seed in seeds])
    return crossed_mean(values_RN)


def _ends(mean: Estimate) -> tuple[float | None, float | None]:
    return (mean.low, mean.high) if np.isfinite(mean.low) else (None, None)


@dataclass(frozen=True)
class _XAxis:
    """Where values stand along x.

    place: of each value.
    log: whether on a logarithmic scale.
    ticks: names of the places, where they are not numbers.
    width: of the whole axis.
    """

    place: Mapping[Any, float]
    log: bool
    ticks: tuple[tuple[float, str], ...]
    width: float


def _x_axis(values: list[Any]) -> _XAxis:
    """Numbers stand where they are, others side by side with their names."""
    if all(type(value) in (int, float) for value in values):
        log = is_geometric(sorted(values))
        width = np.log(max(values) / min(values)) if log else max(values) - min(values)
        return _XAxis({value: float(value) for value in values}, log, (), width)
    names = [_value_words(value) for value in values]
    place = {name: float(number) for number, name in enumerate(names)}
    ticks = tuple((number, name) for name, number in place.items())
    return _XAxis(place, False, ticks, len(values))


def _trace(
    name: str,
    x_axis: _XAxis,
    means: list[tuple[Any, Estimate]],
    factor: float,
    colour: str,
    dash: str,
    aside: float,
) -> Trace:
    """A line with bars, so many steps aside that its bars do not hide another line's."""
    places = [x_axis.place.get(value, x_axis.place.get(_value_words(value))) for value, _ in means]
    x = np.array(places, dtype=float)
    step = aside * ASIDE * x_axis.width
    x = x * np.exp(step) if x_axis.log else x + step
    ends = [(mean.mean, mean.low, mean.high) for _, mean in means]
    mean, low, high = (np.array(ends, dtype=float).reshape(-1, 3) * factor).T
    low = np.where(np.isfinite(low), low, np.nan)
    high = np.where(np.isfinite(high), high, np.nan)
    return Trace(name, x, mean, colour, dash, 1.8, marker="o", low=low, high=high, bars=True)


def _value_words(value: Any) -> str:
    if type(value) in (int, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
