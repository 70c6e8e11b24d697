"""What each estimator's gradient is worth on exactly solvable tasks, beside the true one.

    show_bias(report)      `report`: what `wb.bias_bench()` gave
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.types import View
from workbench.views import markup as m
from workbench.views import words
from workbench.views.escape import visible
from workbench.views.markup import Html, tag

HEADER = ("estimator", "it says", "task", "credit over", "all units", "true", "estimate", "size", "direction", "bias",
          "noise", "drawn", "std. error", "z", "verdict")
RIGHT = (4, *range(7, 14))
LEGEND = (
    "size: projection of the mean estimate on the true gradient (1: right; below 0: the wrong way)",
    "direction: cosine of the angle between them; bias: distance from the true gradient, relative to its length",
    "all units: how many there are, where all were enumerated (the estimate is then exact); noise: standard deviation "
    "of the estimate from 64 attempts, relative to the true gradient",
    "drawn: units that were sampled instead, or to check an enumerated claim of no bias, with the standard error of "
    "their mean (relative) and its distance z from the true gradient in standard errors",
)
COLOURS = {"good": ("#d9efe3", m.INK), "scaled": ("#d1e5f0", m.INK), "biased": ("#fddbc7", m.INK),
           "wrong": ("#b2182b", "#ffffff")}


def show_bias(report: Any) -> View:
    """Estimators against the true gradient.

    You will see the traps and what they rest on, a picture of the mean estimates and of the bandit's sign, a table of
    estimators and tasks (the size of the mean estimate in units of the true gradient, and its direction where that is
    off), and, folded, every measurement with its standard error and z-score.
    """
    passed = "every claim holds and every trap is shown" if report.passed else \
        f"{words.count(len(report.faults), 'fault')}"
    title = f"{'✓' if report.passed else '✗'} bias bench: {passed}"
    png = _png(report)
    lines = [_cells(row) for row in report.rows]
    table = words.aligned([[visible(c) for c in line] for line in (HEADER, *lines)], right=RIGHT)
    summary = _summary(report.rows)
    text = [visible(title), *map(visible, summary)]
    if lines:
        text += ["", table, *(f"  {line}" for line in LEGEND)]
    for trap in report.traps:
        text += ["", visible(f"{_mark(trap)}: {trap.title}"), *(f"  {visible(line)}" for line in trap.lines)]
    text += [f"! {visible(fault)}" for fault in report.faults]
    html = m.card(
        m.heading(title),
        *map(m.note, summary),
        *map(m.warning, report.faults),
        *(_trap(trap) for trap in report.traps),
        m.picture(png, "mean estimates beside the true gradient, and the sign of the bandit's update") if png else None,
        _matrix(report.rows) if lines else None,
        m.folded("Every measurement", m.block(table, style="white-space:pre;overflow-x:auto"),
                 *map(m.note, LEGEND)) if lines else None)
    return m.finished(html, "\n".join(text), png)


def _summary(rows: Sequence[Any]) -> list[str]:
    """What was claimed without bias, and how close it came; what points the wrong way."""
    honest = [row for row in rows if row.says == "unbiased"]
    drawn = [row for row in honest if row.drawn]
    lines = []
    if honest:
        exact = [row.bias for row in honest if row.exact]
        said = [f"no bias is claimed in {len(honest)} of {words.count(len(rows), 'measurement')}"]
        if exact:
            said.append(f"{len(exact)} are exact: off by at most {max(exact):.1g} of the true gradient")
        if drawn:
            said.append(f"{len(drawn)} were sampled: standard error at most {100 * max(r.error for r in drawn):.1f} %, "
                        f"distance at most {max(r.z for r in drawn):.1f} standard errors")
        lines.append("; ".join(said))
    wrong = list(dict.fromkeys(row.label for row in rows if row.scale < 0))
    if wrong:
        lines.append(f"pointing the wrong way somewhere: {'; '.join(wrong)}")
    return lines


def _mark(trap: Any) -> str:
    return "shown" if trap.shown else "NOT SHOWN"


def _vector(values: Sequence[float]) -> str:
    return " ".join(f"{value:+.4f}" for value in values)


def _cells(row: Any) -> tuple[str, ...]:
    direction = "—" if row.cosine is None else f"{row.cosine:+.3f}"
    error = "—" if row.error is None else f"{100 * row.error:.1f} %"
    z = "—" if row.z is None else f"{row.z:.1f}"
    return (row.label, row.says, row.task, row.unit, f"{row.units:,}" if row.exact else "—", _vector(row.true),
            _vector(row.estimate), f"{row.scale:+.3f}", direction, f"{100 * row.bias:.1f} %", f"{row.noise:.2f}",
            f"{row.drawn:,}" if row.drawn else "—", error, z, row.verdict)


# ------------------------------------------------------------------------------------------------ html


def _matrix(rows: Sequence[Any]) -> Html:
    """One line per estimator, one column per task."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    by_label: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        by_label.setdefault((row.algorithm, row.label), {})[row.task] = row
    body = []
    for (algorithm, label), found in by_label.items():
        first = next(iter(found.values()))
        name = m.cell(tag("span", label, style=f"font-weight:600;background-color:{m.CARD};color:{m.INK}"),
                      tag("div", f"{algorithm}; says {first.says}: {first.why}", style=(
                          f"color:{m.MUTED};background-color:{m.CARD};font-size:11px;max-width:460px")))
        body.append([name, *(_matrix_cell(found.get(task)) for task in tasks)])
    header = m.head_cells(["estimator", *tasks], right=tasks)
    return tag("div", m.note("mean estimate in units of the true gradient; in brackets the cosine where the direction "
                             "is off; ✓ as it says, ✗ not"), m.table(body, header))


def _matrix_cell(row: Any) -> Html:
    if row is None:
        return m.number_cell("")
    off = "" if row.cosine is None or row.cosine > 0.9995 else f" ({row.cosine:+.2f})"
    background, foreground = COLOURS[_kind(row)]
    return m.number_cell(f"{row.scale:+.3f}{off} {'✓' if row.holds else '✗'}", background=background,
                         foreground=foreground, title=f"{row.verdict}; {row.unit}")


def _kind(row: Any) -> str:
    if row.scale < 0 or not row.holds:
        return "wrong"
    if row.bias < 1e-6 or row.says == "unbiased":
        return "good"
    return "scaled" if row.says == "scaled" else "biased"


def _trap(trap: Any) -> Html:
    badge = m.badge(_mark(trap), m.GREEN if trap.shown else m.ORANGE)
    return tag("div", m.note(badge, trap.title), m.block("\n".join(trap.lines)))


def _png(report: Any) -> bytes | None:
    if not report.rows and not report.curves:
        return None
    from workbench.views.bias_picture import bias_png

    return bias_png(report.rows, report.curves)
