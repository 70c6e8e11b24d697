"""An ablation as a table and as curves: what each arm reached, which differences are more than noise, how it got there.

    show_arms(table)          the table of `ablation.table.tabled`, its comparisons and checks
    show_arm_curves(table)    learning curves, one line an arm
    arms_markdown(table)      the same table for a page of text

In the order of the plan, not by success: a ranking would say more than the intervals do. What failed, was not run or
is inert stands in the table as that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.types import View
from workbench.views import doc, words
from workbench.views.figures import Plot, Trace
from workbench.views.html import shown
from workbench.views.looks import BLUE, BOLD, GREEN, GREY, ORANGE, PURPLE
from workbench.views.png import curves_picture
from workbench.views.text import markdown_of

ArmFacts = Mapping[str, Any]
MARKS = {True: "ok", False: "FAIL", None: "not judged"}
HEAD = (
    "",
    "sampled % [95 %]",
    "lowest to highest",
    "over its start, points",
    "greedy %",
    "CPU s a run",
)
# (metric, title, whether on a logarithmic scale)
PANELS = (
    ("success", "success of the step's own attempts; dots: held out", False),
    ("turns", "turns of an attempt", False),
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
NEIGHBOURS = {"random": "random play", "solver": "solver"}
# What a table of returns has instead: no per cent and no points, three digits.
HEAD_OF_RETURNS = (
    "",
    "sampled return [95 %]",
    "lowest to highest",
    "over its start",
    "greedy return",
    "CPU s a run",
)
COMPARISON = (
    "Differences, the first minus the second, sampled, seed by seed on the same tasks; [95 %]: over seeds and "
    "tasks, for all declared differences together"
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
    compared = comparison_lines(table)
    checks = [
        doc.Note(line) if check["held"] else doc.WarningLine(line, mark="")
        for check, line in zip(table["checks"], check_lines(table))
    ]
    checks += map(doc.Note, check_lines(table)[len(checks) :])
    return doc.ViewDocument(
        (
            doc.Heading(table["title"]),
            doc.BlankLine(),
            doc.Note(about(table)),
            doc.BlankLine(),
            _table(arm_lines(table)),
            *(
                (doc.BlankLine(), doc.Note(COMPARISON), doc.BlankLine(), _table(compared))
                if compared
                else ()
            ),
            doc.BlankLine(),
            *checks,
            doc.BlankLine(),
            *map(doc.Note, filter(None, (*table["remarks"], table["tuning"], table.get("speaks")))),
        )
    )


def _table(lines: Sequence[Sequence[str]]) -> doc.Table:
    """The first line is the head."""
    (first, *others), *rows = [[cell.replace("|", "/") for cell in line] for line in lines]
    return doc.Table((doc.Column(first, look=BOLD), *others), rows)


def about(table: ArmFacts) -> str:
    """What all numbers have in common, in a line."""
    seeds = ", ".join(map(str, table["seeds"]))
    ran = sum(len(arm["seeds"]) for arm in table["arms"].values())
    said = (
        f"starts {', '.join(table['row_names'])}"
        if "row_names" in table
        else f"training seeds {seeds}; {words.count(ran, 'run')}"
    )
    if ran:
        steps = "" if table["steps"] is None else f", {words.count(table['steps'], 'step')} each"
        said += f"{steps}; {words.count(table['tasks'], 'held-out task')}; {table['cpu_seconds'] / 60:.0f} CPU-minutes"
    if table["all"]:
        said += "; for all " + ", ".join(f"{key} = {value}" for key, value in table["all"].items())
    codes = table["code"]
    return said + (
        f"; code {codes[0]}"
        if len(codes) == 1
        else f"; made by different code: {', '.join(codes)}"
        if codes
        else ""
    )


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

    def within(self, value: float, low: float | None, high: float | None) -> str:
        """A figure and its interval; a dash where that is not known."""
        known = not (words.missing(low) or words.missing(high))
        return (
            f"{self.figure(value)} [{f'{self.figure(low)}, {self.figure(high)}' if known else '—'}]"
        )

    def difference(self, found: ArmFacts) -> str:
        return (
            words.points(found)
            if self is SHARES
            else f"{found['mean']:+.3f} ["
            + (
                "—]"
                if words.missing(found["low"])
                else f"{found['low']:+.3f}, {found['high']:+.3f}]"
            )
        )

    def signed(self, value: float) -> str:
        return f"{self.factor * value:+.{self.digits}f}"


SHARES, RETURNS = _Unit(100, 1, "success"), _Unit(1, 3, "reward")


def unit_of(table: ArmFacts) -> _Unit:
    """How this table's figures are written."""
    return RETURNS if table.get("measure") == "return" else SHARES


def _start_lines(table: ArmFacts, unit: _Unit) -> list[list[str]]:
    """What was measured before training. Random play and the solver stand once where they are the same everywhere."""
    untrained, others = [], {}
    for label, start in table["starts"].items():
        by_policy: dict[str, dict[str, ArmFacts]] = {}
        for row in start["rows"]:
            by_policy.setdefault(row["policy"], {})[row["mode"]] = row
        for policy, modes in by_policy.items():
            cells = (
                _share(modes.get("sampled"), unit),
                "",
                "",
                _share(modes.get("greedy"), unit),
                "",
            )
            if policy == "untrained":
                untrained.append([label, *cells])
            else:
                others.setdefault(policy, {}).setdefault(cells, label)
        for policy, why in start.get("absent", {}).items():
            others.setdefault(policy, {}).setdefault((why, "", "", "", ""), label)
    return [
        *(
            [
                NEIGHBOURS.get(policy, policy)
                + (f", where it begins {label}" if len(found) > 1 else ""),
                *cells,
            ]
            for policy, found in others.items()
            for cells, label in found.items()
        ),
        *untrained,
    ]


def _share(row: ArmFacts | None, unit: _Unit) -> str:
    return (
        ""
        if row is None
        else unit.within(*(row[f"{unit.key}{end}"] for end in ("", "_low", "_high")))
    )


def _arm_line(arm: ArmFacts, unit: _Unit) -> list[str]:
    label = arm["label"]
    if arm["inert"]:
        return [label, "inert, not run", "", "", "", ""]
    gaps = [
        *(f"seed {seed} failed" for seed in arm["failed"]),
        *(f"seed {seed} not run" for seed in arm["absent"]),
    ]
    found = arm["sampled"]
    if found is None:
        return [label, "; ".join(gaps) or "not run", "", "", "", ""]
    label += f" ({'; '.join(gaps)})" if gaps else ""
    greedy, over = arm["greedy"], arm["over_start"]
    cpu = sum(facts["cpu_seconds"] for facts in arm["seeds"].values()) / len(arm["seeds"])
    return [
        label,
        unit.within(found["mean"], found["low"], found["high"]),
        f"{unit.figure(found['lowest'])} to {unit.figure(found['highest'])}",
        unit.difference(over["sampled"]) if over else "",
        f"{unit.figure(greedy['mean'])}, {unit.figure(greedy['lowest'])} to {unit.figure(greedy['highest'])}"
        if greedy
        else "",
        f"{cpu:.0f}",
    ]


def comparison_lines(table: ArmFacts) -> list[list[str]]:
    """Head and one line per comparison; nothing where nothing is compared."""
    interactions = table.get("interactions", ())
    if not table["compared"] and not interactions:
        return []
    seeds, label = (
        list(map(str, table["seeds"])),
        {name: arm["label"] for name, arm in table["arms"].items()},
    )
    unit = unit_of(table)
    of = "points" if unit is SHARES else "return"
    names = table.get("row_names") or [f"seed {seed}" for seed in table["seeds"]]
    lines = [["", f"{of} [95 %]", *names, "so it is", f"greedy, {of} [95 %]"]]
    for pair in table["compared"]:
        name = f"{label[pair['first']]} - {label[pair['second']]}"
        sampled, greedy = pair["sampled"], pair["greedy"]
        if sampled is None:
            lines.append([name, "—", *("—" for _ in seeds), "not judged: no seed has both", ""])
            continue
        each = [
            unit.signed(sampled["each"][seed]["mean"]) if seed in sampled["each"] else "—"
            for seed in seeds
        ]
        lines.append(
            [
                name,
                unit.difference(sampled),
                *each,
                verdict_words(sampled, unit.factor),
                unit.difference(greedy) if greedy else "",
            ]
        )
    for pair in interactions:
        if (found := pair["sampled"]) is not None:
            each = [
                unit.signed(found["each"][seed]["mean"]) if seed in found["each"] else "—"
                for seed in seeds
            ]
            lines.append(
                [
                    interaction_label(pair),
                    unit.difference(found),
                    *each,
                    verdict_words(found, unit.factor),
                    "",
                ]
            )
    return lines


def interaction_label(pair: ArmFacts) -> str:
    return f"interaction of {' and '.join(pair['axes'])}"


def verdict_words(found: ArmFacts, factor: float = 100) -> str:
    """The verdict, and what an undecided one would take."""
    verdict = found["verdict"]
    if verdict == "equal within the margin":
        return f"{verdict} of {factor * found['margin']:g}"
    if verdict != "undecided":
        return verdict
    said = [f"undecided: {found['why']}" if found["why"] else "undecided"]
    if found["lacking"] is not None:
        said.append(f"{found.get('row', 'seed')} {found['lacking']} is not there for every arm")
    if not found["why"]:
        takes = [
            f"about {words.count(number, f'more {what}')}"
            for what, number in (
                (found.get("row", "seed"), found["more_seeds"]),
                ("task", found["more_tasks"]),
            )
            if number
        ]
        said.append(
            f"to find {factor * found['margin']:g} it takes "
            + (" or ".join(takes) or "more than seeds alone or tasks alone can give")
        )
    return "; ".join(said)


def check_lines(table: ArmFacts) -> list[str]:
    """The checks, then why inert arms were not run and failed ones failed."""
    lines = [
        f"{MARKS[check['held']]}: {check['words']}" + (f" ({check['why']})" if check["why"] else "")
        for check in table["checks"]
    ]
    return lines + [
        f"inert: {arm['label']}: {arm['inert']}" for arm in table["arms"].values() if arm["inert"]
    ]


# ------------------------------------------------------------------------------------------------ curves


def show_arm_curves(table: ArmFacts) -> View:
    """One line per arm: the mean of its seeds' runs, step by step, on a band from the lowest to the highest seed. On
    success also what was measured on held-out tasks (dots). Text: first and last values.
    """
    own = dict.fromkeys(
        name
        for arm in table["arms"].values()
        for facts in arm["seeds"].values()
        for name in facts["curves"]
    )
    panels = [
        (key, title.replace("success", "return") if table.get("measure") else title, log)
        for key, title, log in (
            *PANELS,
            *((name, name, False) for name in own if name not in {key for key, *_ in PANELS}),
        )
    ]
    plots = [
        Plot(title, traces, log=log)
        for key, title, log in panels
        if (traces := courses_of(table, key))
    ]
    if not plots:
        return shown(doc.ViewDocument((doc.Note("no run has come to its end yet"),)))
    rows, told = [], []
    for plot in plots:
        rows.append([plot.title, "", "", ""])
        courses = [trace for trace in plot.traces if trace.width]
        rows += [
            [
                f"  {course.name}",
                words.number(float(course.y[0]), 3),
                words.number(float(course.y[-1]), 3),
                words.sparkline(course.y),
            ]
            for course in courses
        ]
        told.append(
            f"{plot.title}: "
            + ", ".join(f"{c.name} {words.number(float(c.y[-1]), 3)}" for c in courses)
        )
    columns = ("", *doc.numbers("first", "last"), "course")
    picture = curves_picture(plots, table["title"], "; ".join(told), columns=2)
    rows = [[cell.replace("|", "/") for cell in row] for row in rows]
    return shown(doc.ViewDocument((picture, doc.Fold("The numbers", (doc.Table(columns, rows),)))))


def courses_of(table: ArmFacts, metric: str) -> tuple[Trace, ...]:
    """A line for each arm that has this metric: the mean of its seeds on a band from the lowest to the highest; of
    success also what was measured on held-out tasks. A step that a seed does not have is left out of its mean, never
    zero."""
    traces = []
    for (colour, dash), arm in zip(ARM_LOOKS * len(table["arms"]), table["arms"].values()):
        rows = [
            facts["curves"][metric] for facts in arm["seeds"].values() if metric in facts["curves"]
        ]
        value_RS = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
        for row, values in zip(value_RS, rows):
            row[: len(values)] = [np.nan if value is None else value for value in values]
        known = np.isfinite(value_RS).any(axis=0)
        step, value_RS = np.flatnonzero(known) + 1, value_RS[:, known]
        if not len(step):
            continue
        traces.append(
            Trace(
                arm["label"],
                step,
                np.nanmean(value_RS, axis=0),
                colour,
                dash,
                1.8,
                low=np.nanmin(value_RS, axis=0),
                high=np.nanmax(value_RS, axis=0),
            )
        )
        if metric == "success" and (evaluated := _evaluated(arm)):
            at, value = np.array(evaluated, float).T
            traces.append(Trace("", at, value, colour, width=0, marker="o"))
    return tuple(traces)


def _evaluated(arm: ArmFacts) -> list[tuple[float, float]]:
    """(step, mean of the seeds) on held-out tasks, sampled."""
    at: dict[float, list[float]] = {}
    for facts in arm["seeds"].values():
        for step, modes in facts["evaluated"].items():
            at.setdefault(float(step), []).append(modes["sampled"])
    return [(step, float(np.mean(at[step]))) for step in sorted(at)]
