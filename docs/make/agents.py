"""Tables of programs that ask a model over HTTP: docs/evidence/agents.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from docs.make.evidence import Table

Result = Mapping[str, Any]

ROWS = {
    "script": "a script in place of the engine, by a program over HTTP",
    "script, own": "the same, the environment of the tasks itself",
    "embedded": "the embedded engine, by a program over HTTP",
    "embedded, own": "the same, the environment of the tasks itself",
}


def gateway_cost_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.bench.gateway --json FILE`."""
    rows = []
    for name, words in ROWS.items():
        row = result["rows"].get(name)
        if row is not None:
            rows.append(
                [
                    words,
                    f"{row['calls']:,}",
                    f"{row['tokens']:,.0f}",
                    f"{row['engine_ms']:.2f} ms",
                    f"{row['beside_ms']:.2f} ms",
                ]
            )
    head = ["engine, and who asks it", "calls", "tokens of a segment", "engine", "all else"]
    note = (
        f"CPU time of a call, {result['conversations']} conversations at once of {result['calls']} calls each, the best of "
        f"{result['times']} times. The goal is {result['goal_ms']:g} ms beside the engine."
    )
    return {"main": Table(head, rows, note)}


def agent_soak_tables(result: Result) -> dict[str, Table]:
    """`python -m tests.extensions.agents.agent_soak --json FILE`."""
    hit = result["hit"]
    rows = [
        ["agents that were killed", str(hit.get("agent", 0))],
        [
            "trainers that were killed, the gateway with them",
            str(result["kills"] - hit.get("agent", 0)),
        ],
        ["of these while an agent waited", str(hit.get("trainer while an agent waits", 0))],
        ["runs, each resumed to its end", str(result["runs"])],
        ["calls of committed steps that agents were answered", f"{result['answered']:,}"],
        ["of these by more than one trainer", f"{result['again']:,}"],
        ["calls that were stored", f"{result['stored']:,}"],
        [
            "of these beyond what the committed trajectory's agent came to ask before it was killed",
            str(result["beyond"]),
        ],
        ["calls that were lost", str(result["lost"])],
        ["calls that were doubled", str(result["doubled"])],
    ]
    return {"main": Table(["what", "count"], rows)}


KINDS = {"gateway-cost": gateway_cost_tables, "agent-soak": agent_soak_tables}
