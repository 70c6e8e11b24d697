"""An attempt turn by turn: what each was measured to be worth, beside what estimators credited, and where they contradict."""

from __future__ import annotations

import numpy as np

from workbench.types import View
from workbench.types.branches import Branch, BranchedAttempt
from workbench.types.stats import Difference, Estimate
from workbench.views import doc, words
from workbench.views.escape import capped
from workbench.views.html import shown
from workbench.views.looks import LILAC_INK, LILAC_PAPER, MUTED, ORANGE, PLAIN, Look

LANE = 60  # pixels of the largest disagreement


def show_branches(branched: BranchedAttempt, *, estimator: str = "") -> View:
    """You will see a row a turn: the value of the state before it and the measured advantage, with 95 % intervals, and the mean
    advantage that each estimator credited; ◆ where the sign of the credit contradicts an interval that excludes zero. The last
    column is a lane: how far `estimator` ("": the one that was trained) and the measurement are apart, each in its own spread."""
    names = branched.estimators
    chosen = estimator or (names[0] if names else "")
    apart = np.array(
        branched.disagreement(chosen) if chosen else [np.nan] * len(branched.turns), float
    )
    largest = np.nanmax(apart, initial=0.0) if np.isfinite(apart).any() else 0.0
    columns = [
        *doc.numbers("turn"),
        doc.Column("wrote"),
        *doc.numbers("earned", "value before it", "measured advantage", *names),
        doc.Column(f"{chosen} and measured apart" if chosen else ""),
    ]
    rows = [
        _row(branch, names, distance, largest) for branch, distance in zip(branched.turns, apart)
    ]
    wrong = {
        name: [branch.turn for branch in branched.turns if branch.contradicts(name)]
        for name in names
    }
    said = [
        f"{name} contradicts what was measured in turn {', '.join(map(str, turns))}"
        for name, turns in wrong.items()
        if turns
    ]
    worst = (
        f"farthest apart: turn {branched.turns[int(np.nanargmax(apart))].turn}" if largest else ""
    )
    return shown(
        doc.ViewDocument(
            (
                doc.Heading(f"branched at {branched.at}"),
                doc.Note(
                    f"{branched.k} continuations of each state; weights: {branched.weights}; reward of the attempt "
                    f"{words.reward_words(branched.attempt)}"
                ),
                doc.Table(columns, rows),
                doc.Note(
                    "; ".join(
                        filter(None, (worst, *(said or ["no credit contradicts a measured sign"])))
                    )
                ),
                doc.Note(
                    "estimators have scales of their own: compare signs and order. Intervals: 95 %, Student's for a value; an "
                    "advantage is a difference of two of them"
                ),
            )
        )
    )


def _row(branch: Branch, names: list[str], apart: float, largest: float) -> list[str | doc.Cell]:
    lane = (
        doc.Bar(
            (
                (
                    int(LANE * apart / largest),
                    ORANGE if any(map(branch.contradicts, names)) else MUTED,
                ),
            ),
            9,
        )
        if largest and np.isfinite(apart)
        else ""
    )
    return [
        str(branch.turn),
        capped(branch.text.replace("\n", " "), 60),
        words.signed(branch.earned),
        _interval(branch.value),
        _interval(branch.advantage),
        *(_credit(branch, name) for name in names),
        doc.Cell(
            words.fixed(apart, 1) if np.isfinite(apart) else "—",
            parts=(lane, f" {words.fixed(apart, 1)}") if lane else (),
        ),
    ]


def _credit(branch: Branch, name: str) -> str | doc.Cell:
    value = words.signed(branch.credited.get(name))
    wrong = branch.contradicts(name)
    return doc.Cell(
        f"{value} ◆" if wrong else value, Look(LILAC_PAPER, LILAC_INK) if wrong else PLAIN
    )


def _interval(found: Estimate | Difference | None) -> str:
    return (
        "—"
        if found is None
        else f"{words.signed(found.mean)} [{words.signed(found.low)}, {words.signed(found.high)}]"
    )
