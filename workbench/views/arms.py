"""An ablation as a table and as curves: what each arm reached, which differences are more than noise, how it got there.

    show_arms(table)          the table of `ablation.table.tabled`, its comparisons and checks
    show_arm_curves(table)    learning curves, one line an arm
    arms_markdown(table)      the same table for a page of text

In the order of the plan, not by success: a ranking would say more than the intervals do. What failed, was not run or
is inert stands in the table as that.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.types import View
from workbench.views import markup as m
from workbench.views import words
from workbench.views.escape import visible

Facts = Mapping[str, Any]
MARKS = {True: "ok", False: "FAIL", None: "not judged"}
HEAD = ("", "sampled % [95 %]", "lowest to highest", "over its start, points", "greedy %", "CPU s a run")
NEIGHBOURS = {"random": "random play", "solver": "solver"}


def show_arms(table: Facts) -> View:
    """You will see the baselines before training, then one line per arm (mean over the training seeds with its 95 %
    interval, lowest and highest seed, the paired difference over its own start, greedy play), the comparisons with
    their verdicts, and the checks that the plan asks for.
    """
    head, *lines = arm_lines(table)
    compared = comparison_lines(table)
    parts = [m.heading(table["title"]), m.note(about(table)), m.table([_row(line) for line in lines],
                                                                      m.head_cells(head, right=head[1:]))]
    if compared:
        parts += [m.note(comparison_words(table)), m.table([_row(line) for line in compared[1:]],
                                                           m.head_cells(compared[0]))]
    parts += [m.note(line) if check["held"] else m.warning(line)
              for check, line in zip(table["checks"], check_lines(table))]
    parts += [m.note(remark) for remark in table["remarks"]]
    return m.finished(m.card(*parts), "\n".join(_pages(table, words.aligned)))


def arms_markdown(table: Facts) -> str:
    """The table as Markdown."""
    return "\n".join(_pages(table, lambda lines: "\n".join(words.markdown(lines)))) + "\n"


def _pages(table: Facts, laid_out: Any) -> list[str]:
    lines = [visible(table["title"]), "", visible(about(table)), "", laid_out(_spelled(arm_lines(table)))]
    if compared := comparison_lines(table):
        lines += ["", comparison_words(table), "", laid_out(_spelled(compared))]
    lines += ["", *map(visible, check_lines(table))]
    return [*lines, *(["", *map(visible, table["remarks"])] if table["remarks"] else [])]


def _spelled(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[visible(cell, newline="⏎").replace("|", "/") for cell in line] for line in lines]


def _row(line: Sequence[str]) -> list[m.Html]:
    return [m.cell(line[0], style="font-weight:600"), *map(m.cell, line[1:])]


def about(table: Facts) -> str:
    """What all numbers have in common, in a line."""
    seeds = ", ".join(map(str, table["seeds"]))
    ran = sum(len(arm["seeds"]) for arm in table["arms"].values())
    said = f"training seeds {seeds}; {words.count(ran, 'run')}"
    if ran:
        said += (f", {words.count(table['steps'], 'step')} each; {table['tasks']} held-out tasks; "
                 f"{table['cpu_seconds'] / 60:.0f} CPU-minutes")
    if table["all"]:
        said += "; for all " + ", ".join(f"{key} = {value}" for key, value in table["all"].items())
    codes = table["code"]
    return said + (f"; code {codes[0]}" if len(codes) == 1 else f"; made by different code: {', '.join(codes)}"
                   if codes else "")


# ------------------------------------------------------------------------------------------------ lines


def arm_lines(table: Facts) -> list[list[str]]:
    """Head, baselines, arms."""
    return [list(HEAD), *_start_lines(table), *(_arm_line(arm) for arm in table["arms"].values())]


def _start_lines(table: Facts) -> list[list[str]]:
    """What was measured before training. Random play and the solver stand once where they are the same everywhere."""
    untrained, others = [], {}
    for label, start in table["starts"].items():
        by_policy: dict[str, dict[str, Facts]] = {}
        for row in start["rows"]:
            by_policy.setdefault(row["policy"], {})[row["mode"]] = row
        for policy, modes in by_policy.items():
            cells = (_share(modes.get("sampled")), "", "", _share(modes.get("greedy")), "")
            if policy == "untrained":
                untrained.append([label, *cells])
            else:
                others.setdefault(policy, {}).setdefault(cells, label)
    return [*([NEIGHBOURS.get(policy, policy) + (f", where it begins {label}" if len(found) > 1 else ""), *cells]
              for policy, found in others.items() for cells, label in found.items()), *untrained]


def _share(row: Facts | None) -> str:
    return "" if row is None else (f"{100 * row['success']:.1f} [{100 * row['success_low']:.1f}, "
                                   f"{100 * row['success_high']:.1f}]")


def _arm_line(arm: Facts) -> list[str]:
    label = arm["label"]
    if arm["inert"]:
        return [label, "inert, not run", "", "", "", ""]
    gaps = [*(f"seed {seed} failed" for seed in arm["failed"]), *(f"seed {seed} not run" for seed in arm["absent"])]
    found = arm["sampled"]
    if found is None:
        return [label, "; ".join(gaps) or "not run", "", "", "", ""]
    label += f" ({'; '.join(gaps)})" if gaps else ""
    greedy, over = arm["greedy"], arm["over_start"]["sampled"]
    cpu = sum(facts["cpu_seconds"] for facts in arm["seeds"].values()) / len(arm["seeds"])
    return [label, f"{100 * found['mean']:.1f} [{100 * found['low']:.1f}, {100 * found['high']:.1f}]",
            f"{100 * found['lowest']:.1f} to {100 * found['highest']:.1f}", words.points(over),
            f"{100 * greedy['mean']:.1f}, {100 * greedy['lowest']:.1f} to {100 * greedy['highest']:.1f}", f"{cpu:.0f}"]


def comparison_words(table: Facts) -> str:
    return ("Differences, the first minus the second, sampled, seed by seed on the same tasks; [95 %]: the wider of "
            "the interval over tasks and the one over seeds")


def comparison_lines(table: Facts) -> list[list[str]]:
    """Head and one line per comparison; nothing where nothing is compared."""
    if not table["compared"]:
        return []
    seeds, label = list(map(str, table["seeds"])), {name: arm["label"] for name, arm in table["arms"].items()}
    lines = [["", "points [95 %]", *(f"seed {seed}" for seed in seeds), "so it is", "greedy, points [95 %]"]]
    for pair in table["compared"]:
        name = f"{label[pair['first']]} - {label[pair['second']]}"
        sampled, greedy = pair["sampled"], pair["greedy"]
        if sampled is None:
            lines.append([name, "—", *("—" for _ in seeds), "not judged: no seed has both", ""])
            continue
        each = [f"{100 * sampled['each'][seed]['mean']:+.1f}" if seed in sampled["each"] else "—" for seed in seeds]
        lines.append([name, words.points(sampled), *each, sampled["verdict"], words.points(greedy)])
    return lines


def check_lines(table: Facts) -> list[str]:
    """The checks, then why inert arms were not run and failed ones failed."""
    lines = [f"{MARKS[check['held']]}: {check['words']}" + (f" ({check['why']})" if check["why"] else "")
             for check in table["checks"]]
    return lines + [f"inert: {arm['label']}: {arm['inert']}" for arm in table["arms"].values() if arm["inert"]]


# ------------------------------------------------------------------------------------------------ curves


def show_arm_curves(table: Facts) -> View:
    """One line per arm: the mean of its seeds' runs, step by step, on a band from the lowest to the highest seed. On
    success also what was measured on held-out tasks (dots). Text: first and last values.
    """
    from workbench.views.arm_pictures import PANELS, arms_png, courses_of

    panels = [(title, courses) for key, title, _ in PANELS if (courses := courses_of(table, key))]
    if not panels:
        return m.finished(m.card(m.note("no run has come to its end yet")), "no run has come to its end yet")
    lines = [["", "first", "last", "course"]]
    for title, courses in panels:
        lines.append([title, "", "", ""])
        lines += [[f"  {course.label}", words.number(float(course.mean[0]), 3), words.number(float(course.mean[-1]), 3),
                   words.sparkline(course.mean)] for course in courses]
    text = words.aligned(_spelled(lines), right=(1, 2))
    png = arms_png(table)
    alternative = "; ".join(f"{title}: " + ", ".join(f"{c.label} {words.number(float(c.mean[-1]), 3)}" for c in courses)
                            for title, courses in panels)
    return m.finished(m.card(m.picture(png, alternative), m.folded("The numbers", m.block(text))), text, png)
