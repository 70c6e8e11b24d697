"""Tables of `python -m experiments.agent_packages`: the same questions through other people's agents and through our own
environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from docs.make.evidence import Table

Result = Mapping[str, Any]


def agent_tables(result: Result) -> dict[str, Table]:
    """A row for each that answers; `trained` has those that were trained, each through what it is evaluated through."""
    return {policy: _table(result, policy) for policy in ("shipped", "trained")}


def _table(result: Result, policy: str) -> Table:
    rows = [row for row in result["rows"] if row["policy"] == policy]
    words = f"{policy}, {result['steps']} steps" if policy == "trained" else policy
    return Table(
        [
            f"{words}: success %, sampled, {result['tasks']} tasks",
            "success",
            "less our own environment, points",
            "calls",
            "forks",
            "faults",
        ],
        [
            [
                row["answers"],
                "{:.1f} [{:.1f}, {:.1f}]".format(
                    *(100 * row[name] for name in ("success", "low", "high"))
                ),
                _points(row.get("difference")),
                str(row["calls"]) if row["calls"] else "",
                str(row["forks"]),
                str(row["faults"]),
            ]
            for row in rows
        ],
    )


def _points(difference: Any) -> str:
    if difference is None:
        return ""
    return "{:+.1f} [{:+.1f}, {:+.1f}]".format(*(100 * value for value in difference))


KINDS: Mapping[str, Callable[[Result], dict[str, Table]]] = {"agent-packages": agent_tables}
