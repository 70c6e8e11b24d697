"""The table of how the turns of a pretrained model were read, by environment and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from docs.make.evidence import Table

Result = Mapping[str, Any]


def real_worlds_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.real_worlds`: valid turns of all turns, strict and lenient on the same turns."""
    head = [
        "environment",
        "short prompt, strict",
        "full prompt, strict",
        "full prompt, lenient",
        "full, lenient, no thought asked",
        "CPU-s",
    ]
    rows = []
    for world in result["worlds"]:
        short, full, *others = world["rows"]
        rows.append(
            [
                world["world"],
                _of(short["strict"], short["turns"]),
                _of(full["strict"], full["turns"]),
                _of(full["valid"], full["turns"]),
                _of(others[0]["valid"], others[0]["turns"]) if others else "—",
                f"{world['cpu_seconds']:.0f}",
            ]
        )
    return {"valid": Table(head, [*rows, _total(result["worlds"])]), "forgiven": _forgiven(result)}


def _of(count: int, turns: int) -> str:
    return f"{count} of {turns}"


def _total(worlds: Sequence[Result]) -> list[str]:
    shorts = [world["rows"][0] for world in worlds]
    fulls = [world["rows"][1] for world in worlds]
    others = [row for world in worlds for row in world["rows"][2:]]
    turns = sum(row["turns"] for row in fulls)
    return [
        "**all**",
        _of(sum(row["strict"] for row in shorts), sum(row["turns"] for row in shorts)),
        _of(sum(row["strict"] for row in fulls), turns),
        _of(sum(row["valid"] for row in fulls), turns),
        _of(sum(row["valid"] for row in others), sum(row["turns"] for row in others)),
        f"{sum(world['cpu_seconds'] for world in worlds):.0f}",
    ]


def _forgiven(result: Result) -> Table:
    """What was forgiven, in how many turns, over all environments and settings."""
    counts: dict[str, int] = {}
    for world in result["worlds"]:
        for row in world["rows"]:
            for what, turns in row["forgiven"].items():
                counts[what] = counts.get(what, 0) + turns
    rows = sorted(counts.items(), key=lambda pair: -pair[1])
    return Table(["forgiven", "turns"], [[what, str(turns)] for what, turns in rows])
