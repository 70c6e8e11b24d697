"""Tables of the collapse bench: which runs there are, what each alarm was worth, and which curves lie behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from docs.make.evidence import Table

Result = Mapping[str, Any]
WORDS = {
    "echo": "echo",
    "retreat": "retreat",
    "risk-aversion": "risk aversion",
    "healthy-search": "healthy: search",
    "healthy-lake": "healthy: lake",
    "healthy-bandit": "healthy: bandit",
}
ILL = ("echo", "retreat", "risk-aversion")


def collapse_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.collapse`: its runs; every rule on the runs that it was not chosen on; areas under the curve."""
    rules = result["rules"]
    judged = [row for row in rules if row["judged"]["collapses"] or row["judged"]["healthy"]]
    return {
        "runs": _runs(result["kinds"]),
        "alarms": _alarms(judged),
        "kinds": _kinds(judged),
        "ends": _ends(result["runs"]),
        "named": _named(rules),
    }


def _runs(kinds: Result) -> Table:
    rows = []
    for kind, row in kinds.items():
        events = row["events"]
        rows.append(
            [
                WORDS[kind],
                f"{row['made']} of {row['planned']}",
                str(row["steps"] or ""),
                str(row["collapsed"]),
                str(row["healthy"]),
                str(row["neither"]),
                f"{events[0]} to {events[-1]}" if events else "",
                "" if row["cpu_seconds"] is None else f"{row['cpu_seconds']:.0f}",
            ]
        )
    return Table(
        [
            "settings",
            "runs made",
            "steps",
            "collapsed",
            "healthy",
            "neither",
            "collapsed by step",
            "CPU-seconds, median",
        ],
        rows,
    )


def _alarms(rules: list[Result]) -> Table:
    rows = []
    for row in rules:
        half, chosen = row["judged"], row["chosen"]
        rows.append(
            [
                row["rule"],
                _threshold(row),
                f"{chosen['caught']}/{chosen['collapses']}, {chosen['false']}/{chosen['healthy']}",
                _share(half["caught"], half["collapses"], half["caught_interval"]),
                _lead(half),
                _share(half["false"], half["healthy"], half["false_interval"]),
                "" if row["area"] is None else f"{row['area']:.2f}",
            ]
        )
    return Table(
        [
            "alarm",
            "threshold",
            "choosing half: caught, false",
            "caught a step ahead",
            "lead, steps",
            "false alarms",
            "area under ROC",
        ],
        rows,
    )


def _kinds(rules: list[Result]) -> Table:
    def cell(row: Result, kind: str) -> str:
        counts = row["judged"]["by_kind"].get(kind)
        return f"{counts[0]} of {counts[1]}" if counts else ""

    return Table(
        ["caught a step ahead, of the judged half", *(WORDS[kind] for kind in ILL)],
        [
            [row["rule"], *(cell(row, kind) for kind in ILL)]
            for row in rules
            if row["judged"]["caught"]
        ],
    )


def _ends(runs: list[Result]) -> Table:
    """Success on the probe set at the start and at the end, by kind of run: lowest to highest."""
    rows = []
    for kind in WORDS:
        own = [run["ends"] for run in runs if run["kind"] == kind and run["ends"]]
        if own:
            rows.append(
                [
                    WORDS[kind],
                    *(
                        _range([100 * run[mode][at] for run in own if mode in run])
                        for mode in ("sampled", "greedy")
                        for at in (0, 1)
                    ),
                ]
            )
    return Table(["probe set, success %", "sampled: start", "end", "greedy: start", "end"], rows)


def _named(rules: list[Result]) -> Table:
    found = [row["named"] for row in rules if "named" in row]
    return Table(
        ["the pairs together", "count"],
        [
            ["collapses caught in the judged half", str(found[0]["caught"])],
            ["of these called by their kind", str(found[0]["right"])],
        ]
        if found
        else [],
    )


def _threshold(row: Result) -> str:
    if row["threshold"] is None:
        return "none catches any"
    if row["rule"].startswith(("RAGEN", "rl")):
        return "as published"
    return (
        "of each"
        if "pair" in row["rule"]
        else ", ".join(f"{each:.2g}" for each in row.get("thresholds", [row["threshold"]]))
    )


def _share(count: int, of: int, interval: tuple[float, float]) -> str:
    return (
        f"{count} of {of} [{100 * interval[0]:.0f}, {100 * interval[1]:.0f} %]"
        if of
        else "none made"
    )


def _lead(half: Result) -> str:
    leads = half["leads"]
    return "" if not leads else f"{half['lead']:g} ({leads[0]} to {leads[-1]})"


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"


KINDS = {"collapse": collapse_tables}
