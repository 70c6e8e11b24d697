"""Tables of `workbench demo-model`: success, skill, paired differences and cost, a column for each seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from docs.make.evidence import Table

Result = Mapping[str, Any]
SKILLS = {
    "valid": "turns that hold a number, %",
    "tokens": "tokens a turn",
    "inside": "guesses among the numbers left, %",
    "waste": "waste (0 halving, 1 nothing ruled out)",
}


def real_demo_tables(result: Result) -> dict[str, Table]:
    """`table.json` of the demo with a pretrained model."""
    seeds = result["seeds"]
    columns = [f"seed {seed['seed']}" for seed in seeds]
    success: dict[str, list[str]] = {}
    skill: dict[str, list[str]] = {}
    differences: dict[str, list[str]] = {}
    cost: dict[str, list[str]] = {}
    for seed in seeds:
        for row in seed["rows"]:
            success.setdefault(f"{row['policy']}, {row['mode']}", []).append(_percent(row))
            if row["mode"] == "greedy" and "skill" in row:
                for key, words in SKILLS.items():
                    label = f"{row['policy']}: {words}"
                    skill.setdefault(label, []).append(_figure(key, row["skill"][key]))
        for pair in seed["paired"]:
            differences.setdefault(f"over {pair['a']}", []).append(_points(pair))
        for name, spent in seed["cpu_seconds"].items():
            cost.setdefault(f"CPU-seconds of {name}", []).append(f"{spent:.0f}")
        if "wall_seconds" in seed:
            cost.setdefault("wall seconds of everything", []).append(f"{seed['wall_seconds']:.0f}")
    made = {
        "main": ("success %", success),
        "skill": ("greedy", skill),
        "paired": ("trained, greedy, in points of success", differences),
        "cost": ("what", cost),
    }
    return {
        name: Table([head, *columns], [[label, *cells] for label, cells in rows.items()])
        for name, (head, rows) in made.items()
    }


def _percent(row: Result) -> str:
    figures = [100 * row[name] for name in ("success", "success_low", "success_high")]
    return "{:.1f} [{:.1f}, {:.1f}]".format(*figures)


def _points(pair: Result) -> str:
    figures = [100 * pair[name] for name in ("difference", "low", "high")]
    return "{:+.1f} [{:+.1f}, {:+.1f}]".format(*figures)


def _figure(key: str, value: float | None) -> str:
    if value is None:
        return "no guess"
    return f"{100 * value:.1f}" if key in ("valid", "inside") else f"{value:.2f}"


KINDS: Mapping[str, Callable[[Result], dict[str, Table]]] = {"real-demo": real_demo_tables}
