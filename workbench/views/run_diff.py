"""Two runs side by side: do they agree to the last bit, and if not, where do they part first?

show_diff(diff, rows_a, rows_b, evaluations_a)      `diff`: what `run_diff.compare_runs` gave
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.types import View
from workbench.views import doc, words
from workbench.views.curves import curves_of
from workbench.views.escape import capped
from workbench.views.figures import LevelLine, Plot, Trace
from workbench.views.html import shown
from workbench.views.live import LIVE_PANELS
from workbench.views.looks import BLUE, CARD, GREEN, GREY, INK, MUTED, ORANGE, Look
from workbench.views.png import curves_picture

LONGEST = 160  # characters of a setting's value
WIDEST = 60  # steps in the table; more are put together, several steps a column
MARKS = {
    "=": ("#d9efe3", "equal"),
    "≠": (ORANGE, "different"),
    "a": (GREY, "only in a"),
    "b": (GREY, "only in b"),
    "": (CARD, "in neither"),
}
WORST = ("≠", "a", "b", "=", "")  # of several steps in one column, the first of these is shown
LOOKS = ((BLUE, 2.4, "solid"), ("#d55e00", 1.4, "dash"))  # of a, of b
MONO = Look(mono=True)
CREDIT_HEADER = ("credit column", "tokens that differ", "largest difference", "first")
LEGEND = "= equal, ≠ different, a or b: only there"


def show_diff(
    diff: Any,
    rows_a: Sequence[Mapping[str, Any]] = (),
    rows_b: Sequence[Mapping[str, Any]] = (),
    evaluations: Mapping[str, Any] = {},
) -> View:
    """What two runs have in common and where they part.

    You will see the verdict; the settings that differ; a table with one column per step, in the order in which a step
    is made, so that the leftmost and topmost difference is the cause and the rest its wake; the first difference of
    every part, to the token; how far the columns of the first differing credit table are apart; and both runs' curves,
    one over the other, with the baselines of `evaluations` (law 12).
    """
    word, reason = _verdict(diff)
    columns, marks = _table(diff)
    firsts = [f"  {difference}" for difference in diff.differences]
    settings = [(name, _short(left), _short(right)) for name, left, right in diff.settings]
    credit = [(c.column, f"{c.tokens:,}", words.number(c.largest, 3), c.first) for c in diff.credit]
    parts: list[doc.Part | None] = [
        doc.Heading((doc.Badge(word, GREEN if diff.equal else ORANGE, plain=f"{word}: "), reason)),
        doc.Note(f"a: {diff.a}"),
        doc.Note(f"b: {diff.b}"),
    ]
    if settings:
        header = ("setting", doc.Column("a", look=MONO), doc.Column("b", look=MONO))
        parts += [doc.BlankLine(), doc.Table(header, settings)]
    if columns:
        binned = f", {_per_column(diff)} steps a column" if _per_column(diff) > 1 else ""
        parts += [
            doc.BlankLine(),
            doc.Note(f"step {columns[0]} to {columns[-1]}{binned} ({LEGEND})"),
            doc.Table(
                ("", ""),
                [[part, _boxes(columns, each)] for part, each in marks.items()],
                header=False,
            ),
        ]
    if firsts:
        parts += [
            doc.BlankLine(),
            doc.Note("the first difference of each part, the cause first:"),
            *map(doc.Block, firsts),
        ]
    if credit:
        header = (CREDIT_HEADER[0], *doc.numbers(*CREDIT_HEADER[1:3]), CREDIT_HEADER[3])
        parts += [
            doc.BlankLine(),
            doc.Fold("How far the credit tables are apart", (doc.Table(header, credit),)),
        ]
    parts.append(_overlay(diff, rows_a, rows_b, evaluations))
    return shown(doc.ViewDocument((*parts, *map(doc.WarningLine, diff.notes))))


def _verdict(diff: Any) -> tuple[str, str]:
    if not diff.equal:
        return "different", str(diff.first)
    if diff.exact:
        return (
            "equal",
            f"to the last bit; every hashed byte was read and compared (digest {diff.digests[0][:16]}…)",
        )
    return (
        "equal",
        "same settings, same seals on every file, same metrics and evaluations (--exact reads every byte)",
    )


def _short(value: Any) -> str:
    return capped(str(value).replace("\n", "⏎"), LONGEST)


def _per_column(diff: Any) -> int:
    return -(-len(diff.steps) // WIDEST) if diff.steps else 1


def _table(diff: Any) -> tuple[list[str], dict[str, list[str]]]:
    """The steps that head the columns, and part -> marks; of several steps in a column the worst is shown."""
    size = _per_column(diff)
    starts = range(0, len(diff.steps), size)
    worst = {
        part: [min(marks[at : at + size], key=WORST.index) for at in starts]
        for part, marks in diff.table.items()
    }
    return [str(diff.steps[at]) for at in starts], worst


def _boxes(steps: Sequence[str], marks: Sequence[str]) -> doc.Cell:
    """A small box per step, a mark in each: colour is not needed to read it."""
    inks = {"=": INK, "": MUTED}
    boxes = tuple(
        doc.Styled(
            f"\u00a0{mark or '·'}\u00a0",
            Look(MARKS[mark][0], inks.get(mark, CARD), mono=True, right=f"1px solid {CARD}"),
            title=f"step {step}: {MARKS[mark][1]}",
        )
        for step, mark in zip(steps, marks)
    )
    return doc.Cell("".join(mark or "·" for mark in marks), Look(nowrap=True), parts=boxes)


def _overlay(
    diff: Any, rows_a: Sequence, rows_b: Sequence, evaluations: Mapping[str, Any]
) -> doc.Picture | None:
    """Small multiples of every metric that either run has: a is blue and whole, b is orange and dashed. Where the
    curves lie on each other, the blue one looks out between the orange dashes."""
    names = (f"a  {diff.a.name}", f"b  {diff.b.name}")
    drawn = [
        {
            curve.panel.title: curve
            for curve in curves_of(rows, evaluations, None, LIVE_PANELS)
            if np.nan_to_num(curve.value).any()
        }
        for rows in (rows_a, rows_b)
    ]
    traces: dict[str, list[Trace]] = {}
    levels: dict[str, tuple[LevelLine, ...]] = {}
    for curves, name, (colour, width, dash) in zip(drawn, names, LOOKS):
        for title, curve in curves.items():
            traces.setdefault(title, []).append(
                Trace(name, curve.step, curve.value, colour, dash, width)
            )
            levels[title] = curve.lines
    plots = [Plot(title, tuple(found), levels[title]) for title, found in traces.items()]
    return (
        curves_picture(plots, "a and b", "metrics of both runs over the steps") if plots else None
    )
