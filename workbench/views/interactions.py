"""Whether one setting of a grid matters more where another is higher: lines that are not parallel, and by how much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.types import View
from workbench.types.contrasts import (
    arms_at,
    axes_in,
    interaction_weights,
    named_axis,
    places_in,
    values_along,
)
from workbench.types.crossed import crossed_mean
from workbench.types.errors import ConfigError
from workbench.types.stats import Estimate
from workbench.views import doc
from workbench.views.arms import ARM_LOOKS, unit_of, verdict_words
from workbench.views.doses import is_geometric
from workbench.views.figures import Plot, Trace
from workbench.views.html import shown
from workbench.views.looks import BOLD
from workbench.views.png import curves_picture

Facts = Mapping[str, Any]
ASIDE = 0.03  # of the width: how far lines stand apart, so that their bars do not hide each other


def show_interaction(table: Facts, a: str | None = None, b: str | None = None) -> View:
    """You will see one line for each value of `b` along `a` (the first axes that were declared as an interaction, else
    those of the grid, if they are not named): means with their 95 % intervals, the rest of the grid averaged over. Below:
    the difference of differences between first and last values, with its interval and, where it was declared, its
    verdict. ConfigError for an axis that the grid has not."""
    places = places_in({name: arm for name, arm in table["arms"].items() if arm["seeds"]})
    axes, declared = axes_in(places), [tuple(one["axes"]) for one in table.get("interactions", ())]
    if a is None and b is None and len(axes) < 2:
        return shown(
            doc.ViewDocument(
                (
                    doc.Note(
                        "an interaction is of two axes of a grid, and this plan has "
                        f"{'one: ' + axes[0] if axes else 'none'}"
                    ),
                )
            )
        )
    first, second = (
        declared[0]
        if declared and a is None and b is None
        else axes[:2]
        if a is None and b is None
        else (a, b)
    )
    if first is None or second is None:
        raise ConfigError(
            f"an interaction is of two axes: name both of {', '.join(axes)}, or neither"
        )
    a, b = named_axis(first, axes), named_axis(second, axes)
    unit, rows, traces, plot_x = unit_of(table), [], [], _places_of(values_along(places, a))
    values_b = values_along(places, b)
    for number, ((colour, dash), value_b) in enumerate(zip(ARM_LOOKS * len(values_b), values_b)):
        cells = [
            (value, _cell(table, arms))
            for value in values_along(places, a)
            if (arms := arms_at(places, {a: value, b: value_b}))
        ]
        known = [(value, found) for value, found in cells if found is not None]
        name = f"{b.rpartition('.')[2]} = {_said(value_b)}"
        traces.append(
            _trace(name, plot_x, known, unit.factor, colour, dash, number - (len(values_b) - 1) / 2)
        )
        rows += [
            [name, _said(value), unit.within(found.mean, *_ends(found)), f"{found.n}"]
            for value, found in known
        ]
    columns = (
        doc.Column("", look=BOLD),
        *doc.numbers(a),
        f"{'success, %' if unit.factor == 100 else 'return'} [95 %]",
        *doc.numbers("seeds"),
    )
    plot = Plot(
        f"along {a}, one line for each {b}",
        tuple(traces),
        x_label=a,
        log_x=plot_x["log"],
        ticks=plot_x["ticks"],
    )
    return shown(
        doc.ViewDocument(
            (
                curves_picture(
                    [plot], table["title"], "; ".join(" ".join(row[:3]) for row in rows)
                ),
                doc.Note(f"{table['title']}. {contrast_words(table, a, b)}"),
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


def contrast_words(table: Facts, a: str, b: str) -> str:
    """The difference of differences, in a sentence."""
    unit, places = unit_of(table), places_in(table["arms"])
    (a0, *_, a1), (b0, *_, b1) = values_along(places, a), values_along(places, b)
    what = f"From {a} = {_said(a0)} to {_said(a1)}: how much more at {b} = {_said(b1)} than at {_said(b0)}"
    declared = next(
        (one for one in table.get("interactions", ()) if {*one["axes"]} == {a, b}), None
    )
    if declared is not None and declared["sampled"] is not None:
        found = declared["sampled"]
        verdict = verdict_words(found, unit.factor) if "verdict" in found else "not judged"
        return f"{what}: {unit.difference(found)}, {verdict}"
    try:
        weights = interaction_weights(places, a, b)
    except ConfigError as error:
        return f"{error}"
    found = _cell(table, [*weights], weights)
    return (
        f"{what}: not known, no seed has all of these arms"
        if found is None
        else (
            f"{what}: {unit.difference({'mean': found.mean, 'low': _ends(found)[0], 'high': _ends(found)[1]})}; exploratory, it was "
            "not declared (interactions of the plan)"
        )
    )


def _cell(
    table: Facts, arms: list[str], weights: Mapping[str, float] | None = None
) -> Estimate | None:
    """The (weighted) mean of some arms, seed by seed and task by task; None where no seed has all of them."""
    runs = [table["arms"][name]["seeds"] for name in arms]
    both = [seed for seed in runs[0] if all(seed in each for each in runs)]
    if not both:
        return None
    share = [1 / len(arms)] * len(arms) if weights is None else [weights[name] for name in arms]
    return crossed_mean(
        sum(
            weight * np.array([each[seed]["sampled"] for seed in both])
            for weight, each in zip(share, runs)
        )
    )


def _ends(found: Estimate) -> tuple[float | None, float | None]:
    return (found.low, found.high) if np.isfinite(found.low) else (None, None)


def _places_of(values: list[Any]) -> dict[str, Any]:
    """Where values stand along x: numbers where they are, others side by side with their names."""
    if all(type(value) in (int, float) for value in values):
        log = is_geometric(sorted(values))
        return {
            "at": {value: float(value) for value in values},
            "log": log,
            "ticks": (),
            "wide": (np.log(max(values) / min(values)) if log else max(values) - min(values)),
        }
    return {
        "at": {_said(value): float(place) for place, value in enumerate(values)},
        "log": False,
        "ticks": tuple((float(place), _said(value)) for place, value in enumerate(values)),
        "wide": len(values),
    }


def _trace(
    name: str,
    where: Mapping[str, Any],
    cells: list[tuple[Any, Estimate]],
    factor: float,
    colour: str,
    dash: str,
    aside: float,
) -> Trace:
    x = np.array(
        [where["at"].get(value, where["at"].get(_said(value))) for value, _ in cells], dtype=float
    )
    step = aside * ASIDE * where["wide"]
    mean, low, high = (
        np.array([[found.mean, found.low, found.high] for _, found in cells], dtype=float).reshape(
            -1, 3
        )
        * factor
    ).T
    low, high = (np.where(np.isfinite(end), end, np.nan) for end in (low, high))
    return Trace(
        name,
        x * np.exp(step) if where["log"] else x + step,
        mean,
        colour,
        dash,
        1.8,
        marker="o",
        low=low,
        high=high,
        bars=True,
    )


def _said(value: Any) -> str:
    return (
        f"{value:g}"
        if type(value) in (int, float)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
    )
