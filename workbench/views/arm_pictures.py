"""Learning curves of several arms as one picture: lines that differ by dash as well as by colour, bands over seeds."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.views.curve_pictures import figure, plain, png_of, tidy

# (metric, title, whether on a logarithmic scale)
PANELS = (("success", "success of the step's own attempts; dots: held out", False),
          ("turns", "turns of an attempt", False), ("entropy", "entropy, nats per token", False),
          ("grad_norm", "gradient norm", True))
LOOKS = (("#0072b2", "-"), ("#d55e00", "--"), ("#00734f", "-."), ("#8a5fa8", (0, (1, 1.2))), ("#7a6a00", (0, (6, 2))),
         ("#06283f", (0, (3, 1, 1, 1))), ("#b84a00", (0, (2, 2))), ("#5a6775", (0, (8, 2, 1, 2))))


@dataclass(frozen=True, eq=False)
class Course:
    """One arm in one panel: `step` [steps] and the mean, lowest and highest of its seeds at each."""

    label: str
    look: int
    step: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    evaluated: tuple[tuple[float, float], ...]  # (step, mean of the seeds) on held-out tasks, sampled


def courses_of(table: Mapping[str, Any], metric: str) -> list[Course]:
    """The arms that have this metric. A step that a seed does not have is left out of its mean, never zero."""
    courses = []
    for look, arm in enumerate(table["arms"].values()):
        rows = [facts["curves"][metric] for facts in arm["seeds"].values() if metric in facts["curves"]]
        if not rows:
            continue
        value_RS = np.full((len(rows), max(map(len, rows))), np.nan)
        for row, values in zip(value_RS, rows):
            row[:len(values)] = [np.nan if value is None else value for value in values]
        known = np.isfinite(value_RS).any(axis=0)
        step, value_RS = np.arange(1, value_RS.shape[1] + 1)[known], value_RS[:, known]
        if len(step):
            courses.append(Course(arm["label"], look % len(LOOKS), step, np.nanmean(value_RS, axis=0),
                                  np.nanmin(value_RS, axis=0), np.nanmax(value_RS, axis=0),
                                  _evaluated(arm) if metric == "success" else ()))
    return courses


def _evaluated(arm: Mapping[str, Any]) -> tuple[tuple[float, float], ...]:
    at: dict[float, list[float]] = {}
    for facts in arm["seeds"].values():
        for step, modes in facts["evaluated"].items():
            at.setdefault(float(step), []).append(modes["sampled"])
    return tuple((step, float(np.mean(at[step]))) for step in sorted(at))


def arms_png(table: Mapping[str, Any]) -> bytes:
    panels = [(title, log, courses) for key, title, log in PANELS if (courses := courses_of(table, key))]
    drawing = figure(10.5, 3.1 * -(-len(panels) // 2) + 0.9)
    handles: dict[str, Any] = {}
    for index, (title, log, courses) in enumerate(panels):
        axes = drawing.add_subplot(-(-len(panels) // 2), 2, index + 1)
        tidy(axes)
        for course in courses:
            handles[course.label] = _draw(axes, course)
        if log and all((course.low > 0).all() for course in courses):
            axes.set_yscale("log")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_title(plain(title), fontsize=10, loc="left", color="#1b2733")
        axes.set_xlabel("step", fontsize=8, color="#525f6b")
    drawing.suptitle(plain(table["title"]), fontsize=11, x=0.01, ha="left", fontweight="bold", color="#1b2733")
    drawing.legend(handles.values(), [plain(label) for label in handles], loc="outside lower center", ncols=3,
                   fontsize=8, frameon=False)
    return png_of(drawing)


def _draw(axes: Any, course: Course) -> Any:
    colour, dash = LOOKS[course.look]
    axes.fill_between(course.step, course.low, course.high, color=colour, alpha=0.08, linewidth=0)
    marker = "." if len(course.step) == 1 else None
    line = axes.plot(course.step, course.mean, color=colour, linestyle=dash, linewidth=1.8, marker=marker)[0]
    if course.evaluated:
        steps, values = zip(*course.evaluated)
        axes.plot(steps, values, color=colour, linestyle="none", marker="o", markersize=4, alpha=0.9)
    return line
