"""Learning curves beside their baselines: what a run's numbers did from step to step.

    curves_view(run.metrics(), run.evaluations())      picture, table and sparklines
    curves_view(...).figure                            the same as a plotly figure, to change it

Baselines (random, untrained, solver) are read from the evaluations, or handed in (invariant 12).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.look import doc, words
from workbench.look.figures import LevelLine, Plot, Trace
from workbench.look.html import shown
from workbench.look.looks import BLUE, GREEN, GREY, PURPLE, Look
from workbench.look.png import curves_picture
from workbench.values import View
from workbench.values.errors import DataError

COURSE_PALE = "#9ccbe8"
MODES = {"sampled": ("#06283f", "o"), "greedy": ("#d55e00", "s")}
BASELINE_LOOKS = {
    "random": (GREY, "dash"),
    "untrained": (PURPLE, "dashdot"),
    "solver": (GREEN, "dot"),
}
OTHER_LOOK = ("#7a6a00", "longdash")
BASELINES = ("random", "untrained", "solver")
SMOOTH = 5  # steps in the running mean


@dataclass(frozen=True)
class Panel:
    """What one small picture is about: its title, the metric it draws (the first of `columns` there is), the key of its
    baselines. `unless`: a metric in whose presence it is not drawn."""

    title: str
    columns: tuple[str, ...]
    baseline: str | None = None
    log: bool = False
    unless: str = ""


PANELS = (
    Panel("success", ("success",), "success"),
    Panel("reward", ("reward_mean", "reward"), "reward"),
    Panel("reward std within a group (n - 1)", ("reward_std_in_group",)),
    Panel(  # of runs that an older version wrote
        "reward std within a group (n)", ("reward_std_within",), unless="reward_std_in_group"
    ),
    Panel("entropy, nats per token", ("entropy",)),
    Panel("gradient norm", ("grad_norm", "gradient_norm"), log=True),
    Panel("valid format", ("valid_format",), "valid_format"),
)


@dataclass(frozen=True)
class Point:
    """An evaluation on held-out tasks; low and high are its 95 % interval, NaN where there is none."""

    step: float
    mode: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Curve:
    """Everything that one panel draws. `value` [steps]: the metric as logged; `mean`: its mean over SMOOTH steps;
    `lines`: its baselines; `absent`: those that cannot be, and why ("none known")."""

    panel: Panel
    step: np.ndarray
    value: np.ndarray
    mean: np.ndarray
    points: tuple[Point, ...]
    lines: tuple[LevelLine, ...]
    absent: Mapping[str, str] = field(default_factory=dict)


def curves_view(
    metrics: Any,
    evaluations: Any = (),
    baselines: Mapping[str, Any] | None = None,
    *,
    title: str = "learning curves",
    panels: Sequence[Panel] = PANELS,
    remark: str = "",
) -> View:
    """Small multiples over training steps.

    You will see, for each metric, the logged value (thin) and its running mean (thick); on success and reward also the
    evaluations on held-out tasks (dots: sampled, squares: greedy, bars: 95 % interval) and the levels of random play,
    the untrained policy and the solver as horizontal lines with their intervals.

    `metrics`: a DataFrame indexed by step (`Run.metrics()`), or a sequence of mappings with "step". `evaluations`: what
    `Run.evaluations()` gives (by name or in a list: {"step", "rows"}). `baselines`: name -> success rate, or ->
    a mapping with success, success_low, success_high, reward ...; read from the evaluations where not given.
    `remark`: a line of words below the curves.
    """
    return shown(curves_document(curves_of(metrics, evaluations, baselines, panels), title, remark))


def curves_document(curves: Sequence[Curve], title: str, remark: str = "") -> doc.ViewDocument:
    """What `curves_view` shows, as parts for a larger view."""
    if not curves:
        return doc.ViewDocument((doc.Heading(title), doc.Note("no steps yet")))
    reasons = "; ".join(f"{name}: {why}" for name, why in curves[0].absent.items())
    drawn = set(curves[0].absent)
    for curve in curves:
        drawn |= {line.name for line in curve.lines}
    absent = ", ".join(name for name in BASELINES if name not in drawn)
    notice = f"no {absent} baseline: this curve alone does not say whether anything was learned"
    plots = [plot_of(curve) for curve in curves]
    picture = curves_picture(plots, title, _alternative(title, curves))
    return doc.ViewDocument(
        (
            doc.TextPart(title),
            picture,
            doc.Fold(f"The numbers, {_range(curves)}", (_table(curves),)),
            doc.Note(reasons) if reasons else None,
            doc.Note(remark) if remark else None,
            doc.WarningLine(notice) if absent else None,
        )
    )


def plot_of(curve: Curve) -> Plot:
    """What is drawn of a curve: the metric thin and pale, its running mean, what was measured on held-out tasks."""
    traces = []
    if np.isfinite(curve.value).any():
        traces = [
            Trace("training", curve.step, curve.value, COURSE_PALE, width=1.0),
            Trace(f"training, mean of {SMOOTH} steps", curve.step, curve.mean, BLUE),
        ]
    for mode, (colour, marker) in MODES.items():
        if own := [p for p in curve.points if p.mode == mode]:
            step, value, low, high = (
                np.array([getattr(p, name) for p in own], float)
                for name in ("step", "value", "low", "high")
            )
            traces.append(
                Trace(
                    f"held out, {mode}",
                    step,
                    value,
                    colour,
                    width=1.0,
                    marker=marker,
                    low=low,
                    high=high,
                    bars=True,
                )
            )
    return Plot(curve.panel.title, tuple(traces), curve.lines, curve.panel.log)


# ------------------------------------------------------------------------------------------------ facts


def curves_of(
    metrics: Any,
    evaluations: Any,
    baselines: Mapping[str, Any] | None,
    panels: Sequence[Panel] = PANELS,
) -> list[Curve]:
    """What there is to draw: panels without any number are left out."""
    steps, columns = _columns(metrics)
    reports = list(evaluations.values()) if isinstance(evaluations, Mapping) else list(evaluations)
    levels = _levels(reports) if baselines is None else baselines
    absent: dict[str, str] = {}
    for report in reports:
        absent |= report.get("absent", {})
    absent = {name: why for name, why in absent.items() if name not in levels}
    curves = []
    for panel in panels:
        if panel.unless in columns:
            continue
        name = next((column for column in panel.columns if column in columns), None)
        value = columns[name] if name else np.full(len(steps), np.nan)
        points = _points(reports, panel)
        if np.isfinite(value).any() or points:
            curves.append(
                Curve(
                    panel, steps, value, running_mean(value), points, _lines(levels, panel), absent
                )
            )
    return curves


def _columns(metrics: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Steps and columns of a DataFrame, or of a sequence of rows; what a step did not have is NaN, not zero."""
    if hasattr(metrics, "columns") and hasattr(metrics, "index"):
        steps = metrics["step"] if "step" in metrics.columns else metrics.index
        return np.asarray(steps, float), {
            str(c): _floats(metrics[c].tolist()) for c in metrics.columns
        }
    rows = list(metrics)
    if any("step" not in row for row in rows):
        raise DataError(
            "metrics are a DataFrame indexed by step, or mappings that each hold a 'step'; got a row with the "
            f"keys {sorted(next(row for row in rows if 'step' not in row))}"
        )
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    columns = {name: _floats([row.get(name) for row in rows]) for name in names}
    return _floats([row["step"] for row in rows]), columns


def _floats(values: Sequence[Any]) -> np.ndarray:
    return np.array(
        [float(v) if isinstance(v, (int, float, np.number)) else np.nan for v in values], float
    )


def running_mean(value: np.ndarray, width: int = SMOOTH) -> np.ndarray:
    """Mean of the last `width` logged values at each step; NaN values are left out, not counted as zero."""
    if not len(value):
        return value
    known = np.isfinite(value)
    sums = np.convolve(np.where(known, value, 0.0), np.ones(width))[: len(value)]
    counts = np.convolve(known.astype(float), np.ones(width))[: len(value)]
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _points(reports: Sequence[Mapping], panel: Panel) -> tuple[Point, ...]:
    """The evaluations of the policy itself: untrained is its step 0, whatever later reports repeat of it."""
    points = {}
    for report in reports:
        step = float(report.get("step", 0))
        for row in report.get("rows", ()):
            own = row["policy"] not in BASELINES or (row["policy"] == "untrained" and step == 0)
            value = row.get(panel.baseline) if panel.baseline else None
            if own and not words.missing(value):
                points[step, row["mode"]] = Point(
                    step, row["mode"], float(value), *_interval(row, panel.baseline)
                )
    return tuple(points[key] for key in sorted(points))


def _interval(row: Mapping, key: str | None) -> tuple[float, float]:
    low = row.get(f"{key}_low")
    high = row.get(f"{key}_high")
    if words.missing(low) or words.missing(high):
        return (float("nan"), float("nan"))
    return (float(low), float(high))


def _levels(reports: Sequence[Mapping]) -> dict[str, Mapping]:
    """Baselines from the newest report that has them; of two modes the sampled one."""
    levels: dict[str, Mapping] = {}
    for report in reports:
        for row in report.get("rows", ()):
            if row["policy"] in BASELINES and (
                row["mode"] == "sampled"
                or row["policy"] not in levels
                or levels[row["policy"]]["mode"] != "sampled"
            ):
                levels[row["policy"]] = row
    return levels


def _lines(levels: Mapping[str, Any], panel: Panel) -> tuple[LevelLine, ...]:
    lines = []
    order = [*BASELINES, *(name for name in levels if name not in BASELINES)]
    for name, level in ((name, levels[name]) for name in order if name in levels):
        row = level if isinstance(level, Mapping) else {"success": level}
        value = row.get(panel.baseline) if panel.baseline else None
        if not words.missing(value):
            lines.append(
                LevelLine(
                    str(name),
                    float(value),
                    *BASELINE_LOOKS.get(name, OTHER_LOOK),
                    *_interval(row, panel.baseline),
                )
            )
    return tuple(lines)


# ------------------------------------------------------------------------------------------------ words


HEADER = ("", "first", "last", "lowest", "highest", "trend (running mean)")


def _cells(curve: Curve) -> list[str]:
    known = curve.value[np.isfinite(curve.value)]
    ends = (known[0], known[-1], known.min(), known.max()) if len(known) else [None] * 4
    return [curve.panel.title, *words.alike(ends), words.sparkline(curve.mean)]


def _remarks(curve: Curve) -> list[str]:
    """Evaluations and baselines in words, one line each."""
    remarks = []
    for mode in ("sampled", "greedy"):
        own = [p for p in curve.points if p.mode == mode]
        if own:
            remarks.append(
                f"held out, {mode}: "
                + ", ".join(
                    f"step {p.step:g}: {_level(p)}"
                    for p in ([own[0], own[-1]] if len(own) > 1 else own)
                )
            )
    remarks += [f"{line.name}: {_level(line)}" for line in curve.lines]
    return remarks


def _level(item: Point | LevelLine) -> str:
    interval = "" if np.isnan(item.low) else f" [{item.low:.3f}, {item.high:.3f}]"
    return f"{item.value:.3f}{interval}"


def _range(curves: Sequence[Curve]) -> str:
    steps = curves[0].step
    return f"steps {steps[0]:g} to {steps[-1]:g} ({len(steps)})" if len(steps) else "no steps yet"


def _table(curves: Sequence[Curve]) -> doc.Table:
    columns = (
        _range(curves),
        *doc.numbers(*HEADER[1:5]),
        doc.Column(HEADER[5], look=Look(foreground=BLUE, mono=True)),
    )
    return doc.Table(columns, [doc.TableRow(_cells(curve), _remarks(curve)) for curve in curves])


def _alternative(title: str, curves: Sequence[Curve]) -> str:
    """The picture for whoever does not see it."""
    parts = [f"{c.panel.title} from {_cells(c)[1]} to {_cells(c)[2]}" for c in curves]
    return f"{title}, {_range(curves)}: {'; '.join(parts)}"
