"""The table in words: one line per baseline and algorithm, as Markdown that a terminal can show too.

In the order in which the algorithms were asked for, not by success: a ranking would say more than the intervals do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.algorithms.judge import by_policy
from workbench.look import words
from workbench.look.words import markdown, points

MARKS = {True: "ok  ", False: "FAIL", None: "not judged"}
# What of an environment's `entry` stands in the table; the rest is in the JSON.
COLUMNS = {
    "frozenlake": ("sampled", "untrained", "greedy"),
    "bandit": ("sampled", "untrained", "random"),
}
HEADS = {
    "sampled": "sampled %, lowest to highest",
    "untrained": "over untrained",
    "random": "over random",
    "greedy": "greedy %",
}


def in_words(table: Mapping[str, Any]) -> list[str]:
    """What was measured, the table, the conditions, what it cost."""
    lines = [""]
    for name, found in table["environments"].items():
        count = found["clusters"]
        clusters = "" if count == found["tasks"] else f", intervals over {count} clusters of them"
        lines.append(f"{name}: {found['label']}; {found['tasks']} held-out tasks{clusters}")
    lines += [
        f"training seeds {', '.join(map(str, table['seeds']))}; [95 % intervals] of differences are paired, over "
        "all seeds together",
        "",
        *markdown(table_lines(table["environments"])),
        "",
    ]
    lines += [
        f"{MARKS[check['held']]} {check['words']}" + (f" ({check['why']})" if check["why"] else "")
        for check in table["checks"]
    ]
    return [
        *lines,
        "",
        f"{table['cpu_seconds'] / 60:.0f} CPU-minutes, training and measuring; code {table['code']}",
    ]


def table_lines(environments: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Head, baselines, then one line per algorithm."""
    lines = [
        [
            "",
            *(f"{name}: {HEADS[column]}" for name in environments for column in COLUMNS[name]),
            "updates",
        ]
    ]
    for policy in ("random", "untrained", "solver"):
        cells = [
            _baseline(by_policy(found["start"]), policy, column)
            for name, found in environments.items()
            for column in COLUMNS[name]
        ]
        lines.append([policy, *cells, ""])
    algorithms = dict.fromkeys(
        name for found in environments.values() for name in found["algorithms"]
    )
    for algorithm in algorithms:
        entries = [
            (found["algorithms"].get(algorithm), COLUMNS[name])
            for name, found in environments.items()
        ]
        cells = [_cell(entry, column) for entry, columns in entries for column in columns]
        lines.append([algorithm, *cells, ", ".join(_updates(entry) for entry, _ in entries)])
    return lines


def _baseline(rows: Mapping[tuple[str, str], Mapping[str, Any]], policy: str, column: str) -> str:
    """Shares before any training; the solver plays greedily."""
    row = rows.get((policy, column))
    if row is None:
        return ""
    interval = (
        f" [{100 * row['success_low']:.1f}, {100 * row['success_high']:.1f}]"
        if column == "sampled"
        else ""
    )
    return f"{100 * row['success']:.1f}{interval}"


def _cell(entry: Mapping[str, Any] | None, column: str) -> str:
    if entry is None:
        return ""
    compared = entry["greedy" if column == "greedy" else "sampled"]
    if compared is None:
        return "failed"
    if column in ("untrained", "random"):
        return points(compared["over"][column])
    spread = (
        f", {100 * compared['lowest']:.1f} to {100 * compared['highest']:.1f}"
        if column == "sampled"
        else ""
    )
    return f"{100 * compared['success']:.1f}{spread}"


def _updates(entry: Mapping[str, Any] | None) -> str:
    made = sorted({*entry["updates"].values()}) if entry else []
    return "-" if not made else str(made[0]) if len(made) == 1 else f"{made[0]} to {made[-1]}"


def progress(
    number: int, count: int, job: Any, result: Mapping[str, Any], *, reused: bool = False
) -> str:
    """One line when a job has ended."""
    if "failed" in result:
        return f"[{number}/{count}] {job}: FAILED: {result['failed']}"
    rates = ", ".join(
        f"{row['policy']} {row['mode']} {words.percent(row['success'])}" for row in result["rows"]
    )
    cost = "done before" if reused else f"{sum(result['cpu_seconds'].values()):.0f} CPU s"
    return f"[{number}/{count}] {job}: {rates} ({cost})"
