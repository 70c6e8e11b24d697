"""The spread of every group over a run, as one picture: a dot a group, and below it what share was flat on which side."""

from __future__ import annotations


import numpy as np

from workbench.types import View
from workbench.types.spreads import SIDES, RunSpread
from workbench.views import doc, words
from workbench.views.figures import Plot, Trace
from workbench.views.html import shown
from workbench.views.looks import BLUE, GREEN, GREY
from workbench.views.png import curves_picture

LOOKS = {
    "": (BLUE, "solid"),
    "all won": (GREEN, "dash"),
    "all lost": ("#d55e00", "dot"),
    "all the same": (GREY, "dashdot"),
}


def show_spread(spread: RunSpread) -> View:
    """You will see two panels: the standard deviation of the rewards in every group of every step, with its mean over the
    step; and the share of groups that differ, or are flat, by side."""
    title, steps = f"{spread.name}: spread of every group", np.array(spread.read, float)
    if not len(steps):
        return shown(doc.ViewDocument((doc.Heading(title), doc.Note("no committed step yet"))))
    plots = (
        Plot("std of the rewards in each group", (_dots(spread), _mean(spread, steps))),
        Plot(
            "share of groups",
            tuple(_share(spread, side, steps) for side in ("", *SIDES) if any(spread.shares(side))),
        ),
    )
    said = _words(spread)
    picture = curves_picture(plots, title, f"{title}. {said}")
    return shown(
        doc.ViewDocument(
            (
                doc.TextPart(title),
                picture,
                doc.Fold("The numbers", (_table(spread),)),
                doc.Note(said),
                doc.first_shown(len(spread.read), spread.steps, "steps"),
            )
        )
    )


def _dots(spread: RunSpread) -> Trace:
    known = [group for group in spread.groups if np.isfinite(group.std)]
    return Trace(
        "a group",
        np.array([group.step for group in known], float),
        np.array([group.std for group in known]),
        "#9ccbe8",
        width=0.0,
        marker=".",
    )


def _mean(spread: RunSpread, steps: np.ndarray) -> Trace:
    means = [
        np.nanmean(stds)
        if np.isfinite(stds := np.array([group.std for group in spread.at(int(step))])).any()
        else np.nan
        for step in steps
    ]
    return Trace("mean of the step", steps, np.array(means, float), BLUE)


def _share(spread: RunSpread, side: str, steps: np.ndarray) -> Trace:
    colour, dash = LOOKS[side]
    return Trace(
        f"flat: {side}" if side else "attempts differ",
        steps,
        np.array(spread.shares(side)),
        colour,
        dash,
    )


def _words(spread: RunSpread) -> str:
    first, every = spread.first_flat, spread.all_flat
    if first is None:
        return f"no group of {words.count(len(spread.groups), 'group')} was flat"
    sides = [group.side for group in spread.at(first.step) if group.side]
    said = ", ".join(f"{sides.count(side)} {side}" for side in SIDES if side in sides)
    return f"first flat groups at step {first.step} ({said}); " + (
        f"all were flat at step {every}"
        if every is not None
        else "at no step were all of them flat"
    )


def _table(spread: RunSpread) -> doc.Table:
    rows = []
    for step in spread.read:
        groups = spread.at(step)
        stds = np.array([group.std for group in groups])
        known = stds[np.isfinite(stds)]
        rows.append(
            [
                str(step),
                str(len(groups)),
                words.fixed(float(known.mean()) if len(known) else None, 3),
                *(str(sum(group.side == side for group in groups)) for side in SIDES),
            ]
        )
    return doc.Table([*doc.numbers("step", "groups", "mean std", *SIDES)], rows)
