"""What each estimator's gradient is worth on exactly solvable tasks, beside the true one.

show_bias(report)      `report`: what `wb.bias_bench()` gave
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from workbench.basics.plugins import is_named
from workbench.extensions.bias.lag_view import lag_parts
from workbench.look import doc, words
from workbench.look.figures import Trace
from workbench.look.html import shown
from workbench.look.looks import BLUE, BOLD, GREEN, GREY, INK, MUTED, ORANGE, Look
from workbench.look.png import RowMark, draw_rows, draw_trace, figure, tidy
from workbench.values import View

HEADER = (
    "estimator",
    "documented as",
    "task",
    "credit over",
    "units enumerated",
    "true",
    "estimate",
    "size",
    "direction",
    "bias",
    "noise",
    "drawn",
    "std. error",
    "z",
    "verdict",
)
RIGHT = (4, *range(7, 14))
LEGEND = (
    "size: projection of the mean estimate on the true gradient (1: right; below 0: the wrong way)",
    "direction: cosine of the angle between them; bias: distance from the true gradient, relative to its length",
    "units enumerated: how many there are, where all were (the estimate is then exact); noise: standard deviation "
    "of the estimate from 64 trajectories, relative to the true gradient",
    "drawn: units that were sampled instead, or to check an enumerated claim of no bias, with the standard error of "
    "their mean (relative) and its distance z from the true gradient in standard errors",
)
COLOURS = {
    "good": ("#d9efe3", INK),
    "scaled": ("#d1e5f0", INK),
    "biased": ("#fddbc7", INK),
    "wrong": ("#b2182b", "#ffffff"),
}
MARKERS = {
    "unbiased": (GREEN, "o"),
    "scaled": (BLUE, "D"),
    "biased": (ORANGE, "s"),
    "nothing": (GREY, "v"),
    "right": (GREY, "o"),
    "wrong": ("#b2182b", "X"),
}
SIZES = {
    2: ("#9ccbe8", "solid"),
    4: ("#56a0d3", "dash"),
    8: (BLUE, "solid"),
    16: (ORANGE, "dashdot"),
}
FAR = 0.5  # bias, relative to the true gradient
ALONG = 0.7  # cosine of the angle to it
NOT_BIASED = "not biased here"  # the bench's verdict on one that is documented as biased


def show_bias(report: Any) -> View:
    """Estimators against the true gradient.

    You will see the traps and what they rest on, a picture of the mean estimates and of the bandit's sign, a table of
    estimators and tasks (the size of the mean estimate in units of the true gradient, and its direction where that is
    off), and, folded, every measurement with its standard error and z-score; below, off-policy corrections by lag and KL terms.
    """
    if report.passed and (far := far_without_claim(report.rows)):
        title = f"! bias bench: no claim fails, but {far}"
    elif report.passed:
        title = "✓ bias bench: every claim holds and every trap is shown"
    else:
        title = f"✗ bias bench: {words.count(len(report.faults), 'fault')}"
    parts: list[doc.Part] = [doc.Heading(title), *map(doc.Note, _summary(report.rows))]
    if report.rows or report.curves:
        caption = "mean estimates vs. the true gradient, and the sign of the bandit's update"
        parts.append(doc.Picture(partial(bias_drawing, report.rows, report.curves), caption))
    if report.rows:
        parts += [doc.PagePart(_matrix(report.rows)), doc.BlankLine(), _measurements(report.rows)]
    for trap in report.traps:
        mark = doc.Badge(_mark(trap), GREEN if trap.shown else ORANGE, plain=f"{_mark(trap)}: ")
        lines = "\n".join(f"  {line}" for line in trap.lines)
        parts += [doc.BlankLine(), doc.Note((mark, trap.title)), doc.Block(lines)]
    parts += lag_parts(report.lagged)
    parts += [doc.Note(f"note: {what}") for what in report.notes]
    return shown(doc.ViewDocument((*parts, *map(doc.WarningLine, report.faults))))


def _measurements(rows: Sequence[Any]) -> doc.Fold:
    columns = [
        doc.Column(name, number in RIGHT, look=Look(nowrap=True))
        for number, name in enumerate(HEADER)
    ]
    table = doc.Table(columns, list(map(_cells, rows)), dense=True)
    legend = [doc.Note(f"  {line}") for line in LEGEND]
    return doc.Fold("Every measurement", (table, *legend))


def far_without_claim(rows: Sequence[Any]) -> str:
    """Of algorithms of one's own that claim nothing: where the mean estimate has not the direction of the true gradient, in
    words; "" where there are none."""
    places: dict[str, list[str]] = {}
    for row in rows:
        if not is_named(row.label) or row.says != "nothing" or row.bias < FAR:
            continue
        if row.cosine is None:
            places.setdefault(row.label, []).append(f"{row.task} (no gradient)")
        elif row.cosine < ALONG:
            places.setdefault(row.label, []).append(f"{row.task} (direction {row.cosine:+.2f})")
    return "; ".join(
        f"{label}, which claims nothing, is far from the true gradient at {', '.join(where)}"
        for label, where in places.items()
    )


def _summary(rows: Sequence[Any]) -> list[str]:
    """What was claimed without bias, and how close it came; what points the wrong way."""
    honest = [row for row in rows if row.says == "unbiased"]
    exact = [row for row in honest if row.exact]
    drawn = [row for row in honest if row.drawn]
    lines = []
    if honest:
        total = words.count(len(rows), "measurement")
        clauses = [f"no bias is claimed in {len(honest)} of {total}"]
        if exact:
            bias = max(row.bias for row in exact)
            clauses.append(
                f"{len(exact)} are exact: off by at most {bias:.1g} of the true gradient"
            )
        if drawn:
            error = max(row.error for row in drawn)
            distance = max(row.z for row in drawn)
            clauses.append(
                f"{len(drawn)} were sampled: standard error at most {100 * error:.1f} %, "
                f"distance at most {distance:.1f} standard errors"
            )
        lines.append("; ".join(clauses))
    wrong = list(dict.fromkeys(row.label for row in rows if row.scale < 0))
    if wrong:
        lines.append(f"pointing the wrong way somewhere: {'; '.join(wrong)}")
    return lines


def _mark(trap: Any) -> str:
    return "shown" if trap.shown else "NOT SHOWN"


def _vector(values: Sequence[float]) -> str:
    return " ".join(f"{value:+.4f}" for value in values)


def _cells(row: Any) -> tuple[str, ...]:
    return (
        row.label,
        row.says,
        row.task,
        row.unit,
        f"{row.units:,}" if row.exact else "—",
        _vector(row.true),
        _vector(row.estimate),
        f"{row.scale:+.3f}",
        words.signed(row.cosine, 3),
        words.percent(row.bias),
        f"{row.noise:.2f}",
        f"{row.drawn:,}" if row.drawn else "—",
        words.percent(row.error),
        words.fixed(row.z, 1),
        row.verdict,
    )


# ------------------------------------------------------------------------------------------------ on a page


def _matrix(rows: Sequence[Any]) -> tuple[doc.Part, ...]:
    """One line per estimator, one column per task."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    by_label: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        by_label.setdefault((row.algorithm, row.label), {})[row.task] = row
    body = []
    for (algorithm, label), by_task in by_label.items():
        first = next(iter(by_task.values()))
        claim = doc.Note(f"{algorithm}; says {first.says}: {first.why}")
        name = doc.Cell(label, parts=(doc.Styled(label, BOLD), claim))
        body.append([name, *(_matrix_cell(by_task.get(task)) for task in tasks)])
    return (
        doc.Note(
            "mean estimate in units of the true gradient; in brackets the cosine where the direction is off; "
            "✓ as it says, ✗ not"
        ),
        doc.Table(["estimator", *doc.numbers(*tasks)], body),
    )


def _matrix_cell(row: Any) -> str | doc.Cell:
    if row is None:
        return ""
    direction = ""
    if row.cosine is not None and row.cosine <= 0.9995:
        direction = f" ({row.cosine:+.2f})"
    text = f"{row.scale:+.3f}{direction} {'✓' if row.holds else '✗'}"
    return doc.Cell(text, Look(*COLOURS[_kind(row)]), title=f"{row.verdict}; {row.unit}")


def _kind(row: Any) -> str:
    if row.scale < 0 or not row.holds:
        return "wrong"
    if row.bias < 1e-6 or row.says == "unbiased":
        return "good"
    return "scaled" if row.says == "scaled" else "biased"


def bias_drawing(rows: Sequence[Any], curves: Sequence[Any], width: float = 10.5) -> Any:
    """Above: one panel per task, one line per estimator: the mean estimate in units of the true gradient (the line at
    1), and as a pale bar what 64 trajectories spread around it. Below: one panel per payout of the safe arm."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    labels = list(dict.fromkeys(row.label for row in rows))
    payouts = list(dict.fromkeys(curve.safe_payout for curve in curves))
    above = max(1.7, 0.8 + 0.19 * len(labels)) if labels else 0.0
    below = 2.2 if payouts else 0.0
    drawing = figure(width, above + below)
    parts = [drawing, drawing]
    if above and below:
        parts = drawing.subfigures(2, 1, height_ratios=[above, below])
    if labels:
        _estimates(parts[0], rows, tasks, labels)
    if payouts:
        _signs(parts[1], curves, payouts)
    return drawing


def _estimates(part: Any, rows: Sequence[Any], tasks: Sequence[str], labels: Sequence[str]) -> None:
    panels = part.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for axes, task in zip(panels, tasks):
        tidy(axes, task, "estimate / true gradient")
        axes.axvline(1, color=INK, linewidth=1.2)
        axes.axvline(0, color=MUTED, linewidth=0.8, linestyle=":")
        marks = [_row_mark(row, labels) for row in rows if row.task == task]
        draw_rows(axes, labels, marks)
    part.suptitle(
        "Mean estimate, and pale the spread of 64 trajectories.  Green ● claims no bias · ◆ a known factor · "
        "■ biased\n✖ points the wrong way · grey ● is documented as biased, and is not biased here",
        fontsize=9.5,
        x=0.01,
        ha="left",
        color=INK,
    )


def _row_mark(row: Any, labels: Sequence[str]) -> RowMark:
    low = row.scale - row.noise
    high = row.scale + row.noise
    marker = MARKERS["wrong" if row.scale < 0 else marker_of(row)]
    return RowMark(labels.index(row.label), row.scale, low, high, *marker)


def marker_of(row: Any) -> str:
    """By what was found, not by what is claimed: an estimator may be documented as biased and have no bias here."""
    return "right" if row.verdict == NOT_BIASED else row.says


def _signs(part: Any, curves: Sequence[Any], payouts: Sequence[float]) -> None:
    panels = part.subplots(1, len(payouts), sharey=True, squeeze=False)[0]
    for axes, payout in zip(panels, payouts):
        tidy(
            axes,
            f"bandit, safe arm pays {payout:g}, divided by the deviation",
            "probability of the (better) risky arm; shaded: training makes it rarer",
        )
        axes.axhspan(-10, 0, color="#b2182b", alpha=0.06, linewidth=0)
        axes.axhline(0, color=INK, linewidth=1)
        drawn = {}
        for curve in curves:
            if curve.safe_payout == payout:
                x = np.asarray(curve.risky_P)
                y = np.asarray(curve.difference_P)
                colour, dash = SIZES.get(curve.attempts, (MUTED, "dot"))
                trace = Trace("", x, y, colour, dash, width=1.8)
                drawn[f"G = {curve.attempts}"] = draw_trace(axes, trace)
        axes.set_ylim(-1.2, 0.4)
        if axes is panels[0]:
            axes.set_ylabel("risky minus safe advantage", fontsize=8, color=MUTED)
        axes.legend(drawn.values(), drawn, fontsize=7.5, frameon=False, loc="lower right")
