"""An ablation as a table and as curves: what each arm reached, which differences are more than noise, how it got there.

    show_arms(table)          the table of `ablation.table.tabled`, its comparisons and checks
    show_arm_curves(table)    learning curves, one line an arm
    arms_markdown(table)      the same table for a page of text

In the order of the plan, not by success: a ranking would say more than the intervals do. What failed, was not run or
is inert is marked so in the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.extensions.ablation.views.parts import only_a_note, picture_with_numbers, safe_rows
from workbench.look import doc, words
from workbench.look.figures import Plot, Trace
from workbench.look.html import shown
from workbench.look.looks import BLUE, BOLD, GREEN, GREY, ORANGE, PURPLE
from workbench.look.png import curves_picture
from workbench.look.text import markdown_of
from workbench.values import View

ArmFacts = Mapping[str, Any]
MARKS = {True: "ok", False: "FAIL", None: "not judged"}
HEAD = (
    "",
    "sampled % [95 %]",
    "range over seeds",
    "gain over its start, points",
    "greedy %",
    "CPU s per run",
)
# (metric, title, whether on a logarithmic scale)
PANELS = (
    ("success", "success of the step's own trajectories; dots: held out", False),
    ("turns", "turns per trajectory", False),
    ("entropy", "entropy, nats per token", False),
    ("grad_norm", "gradient norm", True),
)
ARM_LOOKS = (
    (BLUE, "solid"),
    ("#d55e00", "dash"),
    (GREEN, "dashdot"),
    (PURPLE, "dot"),
    ("#7a6a00", "longdash"),
    ("#06283f", "longdashdot"),
    (ORANGE, "dot"),
    (GREY, "dash"),
)
BASELINES = {"random": "random play", "solver": "solver"}
# What a table of returns has instead: no per cent and no points, three digits.
HEAD_OF_RETURNS = (
    "",
    "sampled return [95 %]",
    "range over seeds",
    "gain over its start",
    "greedy return",
    "CPU s per run",
)
COMPARISON = (
    "Differences, the first minus the second, sampled, seed by seed on the same tasks; [95 %]: over seeds and "
    "tasks, simultaneous for all declared differences"
)


def show_arms(table: ArmFacts) -> View:
    """You will see the baselines before training, then one line per arm (mean over the training seeds with its 95 %
    interval, lowest and highest seed, the paired difference over its own start, greedy play), the comparisons with
    their verdicts, and the checks that the plan asks for.
    """
    return shown(_document(table))


def arms_markdown(table: ArmFacts) -> str:
    """The same as Markdown."""
    return markdown_of(_document(table)) + "\n"


def _document(table: ArmFacts) -> doc.ViewDocument:
    comparisons = comparison_lines(table)
    if comparisons:
        comparisons = [doc.BlankLine(), doc.Note(COMPARISON), doc.BlankLine(), _table(comparisons)]
    remarks = filter(None, (*table["remarks"], table["tuning"], table.get("speaks")))
    return doc.ViewDocument(
        (
            doc.Heading(table["title"]),
            doc.BlankLine(),
            doc.Note(about(table)),
            doc.BlankLine(),
            _table(arm_lines(table)),
            *comparisons,
            doc.BlankLine(),
            *_check_notes(table),
            doc.BlankLine(),
            *map(doc.Note, remarks),
        )
    )


def _check_notes(table: ArmFacts) -> Iterator[doc.Note | doc.WarningLine]:
    lines = check_lines(table)
    for check, line in zip(table["checks"], lines):
        yield doc.Note(line) if check["held"] else doc.WarningLine(line, mark="")
    yield from map(doc.Note, lines[len(table["checks"]) :])


def _table(lines: Sequence[Sequence[str]]) -> doc.Table:
    """A table whose first line is the head."""
    (first, *others), *rows = safe_rows(lines)
    return doc.Table((doc.Column(first, look=BOLD), *others), rows)


def about(table: ArmFacts) -> str:
    """What all numbers have in common, in a line."""
    ran = sum(len(arm["seeds"]) for arm in table["arms"].values())
    if "row_names" in table:
        text = f"starts {', '.join(table['row_names'])}"
    else:
        text = f"training seeds {_listed(table['seeds'])}; {words.count(ran, 'run')}"
    if ran:
        if table["steps"] is not None:
            text += f", {words.count(table['steps'], 'step')} each"
        text += f"; {words.count(table['tasks'], 'held-out task')}"
        text += f"; {table['cpu_seconds'] / 60:.0f} CPU-minutes"
    if table["all"]:
        text += f"; for all {_listed(f'{key} = {value}' for key, value in table['all'].items())}"
    codes = table["code"]
    if len(codes) == 1:
        return f"{text}; code {codes[0]}"
    return f"{text}; made by different code: {', '.join(codes)}" if codes else text


def _listed(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


# ------------------------------------------------------------------------------------------------ lines


def arm_lines(table: ArmFacts) -> list[list[str]]:
    """Head, baselines, arms."""
    unit = unit_of(table)
    head = HEAD if unit is SHARES else HEAD_OF_RETURNS
    return [
        list(head),
        *_start_lines(table, unit),
        *(_arm_line(arm, unit) for arm in table["arms"].values()),
    ]


@dataclass(frozen=True)
class _Unit:
    """How figures are written: shares in per cent with one digit, returns as they are with three."""

    factor: float
    digits: int
    key: str

    def figure(self, value: float) -> str:
        return f"{self.factor * value:.{self.digits}f}"

    def spread(self, summary: ArmFacts) -> str:
        return f"{self.figure(summary['lowest'])} to {self.figure(summary['highest'])}"

    def within(self, value: float, low: float | None, high: float | None) -> str:
        """A figure and its interval; a dash where that is not known."""
        if words.missing(low) or words.missing(high):
            return f"{self.figure(value)} [—]"
        return f"{self.figure(value)} [{self.figure(low)}, {self.figure(high)}]"

    def difference(self, interval: ArmFacts) -> str:
        """A difference and its interval, with their signs."""
        if self is SHARES:
            return words.points(interval)
        ends = "—"
        if not words.missing(interval["low"]):
            ends = f"{interval['low']:+.3f}, {interval['high']:+.3f}"
        return f"{interval['mean']:+.3f} [{ends}]"

    def signed(self, value: float) -> str:
        return f"{self.factor * value:+.{self.digits}f}"


SHARES = _Unit(100, 1, "success")
RETURNS = _Unit(1, 3, "reward")


def unit_of(table: ArmFacts) -> _Unit:
    """How this table's figures are written."""
    return RETURNS if table.get("measure") == "return" else SHARES


def _start_lines(table: ArmFacts, unit: _Unit) -> list[list[str]]:
    """What was measured before training. Random play and the solver stand once where they are the same everywhere."""
    untrained = []
    others: dict[str, dict[tuple[str, ...], str]] = {}  # policy -> cells of its line -> first label
    for label, start in table["starts"].items():
        by_policy: dict[str, dict[str, ArmFacts]] = {}
        for row in start["rows"]:
            by_policy.setdefault(row["policy"], {})[row["mode"]] = row
        for policy, modes in by_policy.items():
            sampled = _share(modes.get("sampled"), unit)
            greedy = _share(modes.get("greedy"), unit)
            cells = (sampled, "", "", greedy, "")
            if policy == "untrained":
                untrained.append([label, *cells])
            else:
                others.setdefault(policy, {}).setdefault(cells, label)
        for policy, why in start.get("absent", {}).items():
            others.setdefault(policy, {}).setdefault((why, "", "", "", ""), label)
    lines = []
    for policy, labels in others.items():
        name = BASELINES.get(policy, policy)
        for cells, label in labels.items():
            where = f", where it begins {label}" if len(labels) > 1 else ""
            lines.append([name + where, *cells])
    return lines + untrained


def _share(row: ArmFacts | None, unit: _Unit) -> str:
    if row is None:
        return ""
    return unit.within(row[unit.key], row[f"{unit.key}_low"], row[f"{unit.key}_high"])


def _arm_line(arm: ArmFacts, unit: _Unit) -> list[str]:
    label = arm["label"]
    if arm["inert"]:
        return [label, "inert, not run", "", "", "", ""]
    gaps = [f"seed {seed} failed" for seed in arm["failed"]]
    gaps += [f"seed {seed} not run" for seed in arm["absent"]]
    sampled = arm["sampled"]
    if sampled is None:
        return [label, "; ".join(gaps) or "not run", "", "", "", ""]
    if gaps:
        label += f" ({'; '.join(gaps)})"
    over_start = unit.difference(arm["over_start"]["sampled"]) if arm["over_start"] else ""
    greedy = ""
    if arm["greedy"]:
        greedy = f"{unit.figure(arm['greedy']['mean'])}, {unit.spread(arm['greedy'])}"
    cpu = sum(facts["cpu_seconds"] for facts in arm["seeds"].values()) / len(arm["seeds"])
    interval = unit.within(sampled["mean"], sampled["low"], sampled["high"])
    return [label, interval, unit.spread(sampled), over_start, greedy, f"{cpu:.0f}"]


def comparison_lines(table: ArmFacts) -> list[list[str]]:
    """Head and one line per comparison; nothing where nothing is compared."""
    interactions = table.get("interactions", ())
    if not table["compared"] and not interactions:
        return []
    unit = unit_of(table)
    measure = "points" if unit is SHARES else "return"
    names = table.get("row_names") or [f"seed {seed}" for seed in table["seeds"]]
    lines = [["", f"{measure} [95 %]", *names, "verdict", f"greedy, {measure} [95 %]"]]
    for pair in (*table["compared"], *interactions):
        if pair["sampled"] is not None:
            lines.append(_comparison_line(table, pair, unit))
        elif "axes" not in pair:
            dashes = ["—"] * (1 + len(table["seeds"]))
            lines.append([pair_label(table, pair), *dashes, "not judged: no seed has both", ""])
    return lines


def _comparison_line(table: ArmFacts, pair: ArmFacts, unit: _Unit) -> list[str]:
    sampled = pair["sampled"]
    seeds = sampled["each"]
    gaps = [
        unit.signed(seeds[seed]["mean"]) if seed in seeds else "—"
        for seed in map(str, table["seeds"])
    ]
    greedy = unit.difference(pair["greedy"]) if pair.get("greedy") else ""
    verdict = verdict_words(sampled, unit.factor)
    return [pair_label(table, pair), unit.difference(sampled), *gaps, verdict, greedy]


def pair_label(table: ArmFacts, pair: ArmFacts) -> str:
    """How a comparison of two arms is called, or an interaction of two axes."""
    if "axes" in pair:
        return f"interaction of {' and '.join(pair['axes'])}"
    arms = table["arms"]
    return f"{arms[pair['first']]['label']} - {arms[pair['second']]['label']}"


def verdict_words(judged: ArmFacts, factor: float = 100) -> str:
    """The verdict, and what an undecided one would take."""
    verdict = judged["verdict"]
    if verdict == "equal within the margin":
        return f"{verdict} of {factor * judged['margin']:g}"
    if verdict != "undecided":
        return verdict
    row = judged.get("row", "seed")
    reasons = [f"undecided: {judged['why']}" if judged["why"] else "undecided"]
    if judged["lacking"] is not None:
        reasons.append(f"{row} {judged['lacking']} is not there for every arm")
    if not judged["why"]:
        needed = {row: judged["more_seeds"], "task": judged["more_tasks"]}
        advice = [
            f"about {words.count(number, f'more {what}')}"
            for what, number in needed.items()
            if number
        ]
        takes = " or ".join(advice) or "more than seeds alone or tasks alone can give"
        reasons.append(f"to find {factor * judged['margin']:g} it takes {takes}")
    return "; ".join(reasons)


def check_lines(table: ArmFacts) -> list[str]:
    """The checks, then why inert arms were not run."""
    lines = []
    for check in table["checks"]:
        why = f" ({check['why']})" if check["why"] else ""
        lines.append(f"{MARKS[check['held']]}: {check['words']}{why}")
    for arm in table["arms"].values():
        if arm["inert"]:
            lines.append(f"inert: {arm['label']}: {arm['inert']}")
    return lines


# ------------------------------------------------------------------------------------------------ curves


def show_arm_curves(table: ArmFacts) -> View:
    """One line per arm: the mean of its seeds' runs, step by step, on a band from the lowest to the highest seed. On
    success also what was measured on held-out tasks (dots). Text: first and last values.
    """
    plots = []
    for metric, title, log in _panels(table):
        traces = courses_of(table, metric)
        if traces:
            plots.append(Plot(title, traces, log=log))
    if not plots:
        return only_a_note("no run has come to its end yet")
    rows = []
    captions = []
    for plot in plots:
        courses = [trace for trace in plot.traces if trace.width]
        rows += [[plot.title, "", "", ""], *map(_course_row, courses)]
        ends = [f"{course.name} {_value(course.y[-1])}" for course in courses]
        captions.append(f"{plot.title}: {', '.join(ends)}")
    picture = curves_picture(plots, table["title"], "; ".join(captions), columns=2)
    columns = ("", *doc.numbers("first", "last"), "course")
    return picture_with_numbers(picture, "", columns, rows)


def _panels(table: ArmFacts) -> list[tuple[str, str, bool]]:
    """(metric, title, whether on a logarithmic scale): those of every run, then those of a notebook of the user's own."""
    panels = {metric: (title, log) for metric, title, log in PANELS}
    for arm in table["arms"].values():
        for facts in arm["seeds"].values():
            for metric in facts["curves"]:
                panels.setdefault(metric, (metric, False))
    if table.get("measure"):
        panels = {
            metric: (title.replace("success", "return"), log)
            for metric, (title, log) in panels.items()
        }
    return [(metric, title, log) for metric, (title, log) in panels.items()]


def _course_row(course: Trace) -> list[str]:
    first = _value(course.y[0])
    last = _value(course.y[-1])
    return [f"  {course.name}", first, last, words.sparkline(course.y)]


def _value(value: float) -> str:
    return words.number(float(value), 3)


def courses_of(table: ArmFacts, metric: str) -> tuple[Trace, ...]:
    """A line for each arm that has this metric: the mean of its seeds on a band from the lowest to the highest; of
    success also what was measured on held-out tasks. A step that a seed does not have is left out of its mean, never
    zero."""
    traces = []
    for (colour, dash), arm in zip(ARM_LOOKS * len(table["arms"]), table["arms"].values()):
        value_RS = _by_step(arm, metric)
        known = np.isfinite(value_RS).any(axis=0)
        if not known.any():
            continue
        step = np.flatnonzero(known) + 1
        value_RS = value_RS[:, known]
        mean = np.nanmean(value_RS, axis=0)
        low = np.nanmin(value_RS, axis=0)
        high = np.nanmax(value_RS, axis=0)
        traces.append(Trace(arm["label"], step, mean, colour, dash, 1.8, low=low, high=high))
        evaluated = _evaluated(arm) if metric == "success" else []
        if evaluated:
            at, value = np.array(evaluated, float).T
            traces.append(Trace("", at, value, colour, width=0, marker="o"))
    return tuple(traces)


def _by_step(arm: ArmFacts, metric: str) -> np.ndarray:
    """Values of a metric [runs that have it, steps]; NaN where a run has no such step."""
    courses = [
        facts["curves"][metric] for facts in arm["seeds"].values() if metric in facts["curves"]
    ]
    value_RS = np.full((len(courses), max(map(len, courses), default=0)), np.nan)
    for row, course in zip(value_RS, courses):
        row[: len(course)] = [np.nan if value is None else value for value in course]
    return value_RS


def _evaluated(arm: ArmFacts) -> list[tuple[float, float]]:
    """(step, mean of the seeds) on held-out tasks, sampled."""
    at: dict[float, list[float]] = {}
    for facts in arm["seeds"].values():
        for step, modes in facts["evaluated"].items():
            at.setdefault(float(step), []).append(modes["sampled"])
    return [(step, float(np.mean(at[step]))) for step in sorted(at)]
