"""The table in words: one line per algorithm, as Markdown that a terminal can show too."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.algorithms.judge import by_policy, points
from workbench.views import words

MARKS = {True: "ok  ", False: "FAIL", None: "not judged"}


def in_words(table: Mapping[str, Any]) -> list[str]:
    """Every environment with its neighbours first, then the conditions, then what it cost."""
    lines: list[str] = []
    for name, found in table["environments"].items():
        lines += ["", f"{name}: {found['label']}; {found['tasks']} held-out tasks"
                      + (f" in {found['clusters']} clusters" if found["clusters"] != found["tasks"] else "")
                      + f", seeds {', '.join(map(str, table['seeds']))}", ""]
        lines += markdown(_lines(found))
    lines += ["", *(f"{MARKS[check['held']]} {check['words']}" + (f" ({check['why']})" if check["why"] else "")
                    for check in table["checks"]), ""]
    return [*lines, f"{table['cpu_seconds'] / 60:.0f} CPU-minutes, training and measuring; code {table['code']}"]


def _lines(found: Mapping[str, Any]) -> list[list[str]]:
    rows = by_policy(found["start"])
    lines = [["", "sampled %", "lowest to highest", "over untrained", "over random", "greedy %", "updates", "CPU s"]]
    for name, mode in (("random", "sampled"), ("untrained", "sampled"), ("solver", "greedy")):
        row = rows[name, mode]
        share = f"{100 * row['success']:.1f} [{100 * row['success_low']:.1f}, {100 * row['success_high']:.1f}]"
        greedy = rows.get((name, "greedy"))
        lines.append([name, share if mode == "sampled" else "", "", "", "",
                      f"{100 * greedy['success']:.1f}" if greedy else "", "", ""])
    order = sorted(found["algorithms"].items(), key=lambda kv: -(kv[1]["sampled"] or {"success": -1})["success"])
    return lines + [_line(name, entry) for name, entry in order]


def _line(name: str, entry: Mapping[str, Any]) -> list[str]:
    sampled, greedy = entry["sampled"], entry["greedy"]
    if sampled is None:
        return [name, "failed", *[""] * 6]
    runs = len(sampled["seeds"])
    low, high = min(entry["updates"].values()), max(entry["updates"].values())
    return [name, f"{100 * sampled['success']:.1f}", f"{100 * sampled['lowest']:.1f} to {100 * sampled['highest']:.1f}",
            points(sampled["over"]["untrained"]), points(sampled["over"]["random"]), f"{100 * greedy['success']:.1f}",
            f"{low}" if low == high else f"{low} to {high}", f"{entry['cpu_seconds'] / runs:.0f}"]


def markdown(lines: Sequence[Sequence[str]]) -> list[str]:
    """A pipe table; the first line is its head."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    rows = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in lines]
    return [rows[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *rows[1:]]


def progress(number: int, count: int, job: Any, result: Mapping[str, Any], *, reused: bool = False) -> str:
    """One line when a job has ended."""
    if "failed" in result:
        return f"[{number}/{count}] {job}: FAILED: {result['failed']}"
    rates = ", ".join(f"{row['policy']} {row['mode']} {words.percent(row['success'])}" for row in result["rows"])
    cost = "done before" if reused else f"{sum(result['cpu_seconds'].values()):.0f} CPU s"
    return f"[{number}/{count}] {job}: {rates} ({cost})"
