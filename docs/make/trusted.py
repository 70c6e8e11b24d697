"""Tables of what strangers' folders, servers and words did: docs/evidence/trust.md."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from docs.make.evidence import Table

Result = Mapping[str, Any]


def misbehaving_tables(result: Result) -> dict[str, Table]:
    """`python -m tests.hostile.test_misbehaving_servers FILE`: each client with each server."""
    clients = sorted({name.partition(": ")[0] for name in result["cases"]})
    rows = []
    for client in clients:
        cases = [case for name, case in result["cases"].items() if name.startswith(f"{client}: ")]
        late = max(case["seconds"] for case in cases) - result["deadline_s"]
        rows.append([CLIENTS[client], str(len(cases)), f"{late:+.2f} s", f"{max(case['megabytes'] for case in cases):.0f} MB",
                     str(sum(name.startswith(f"{client}: ") for name in result["wrong"]))])
    return {"main": Table(["client", "servers", "the latest, after its deadline", "most memory on top",
                           "later than 0.5 s, or above 64 MB"], rows,
                          f"The deadline is {result['deadline_s']:g} s; the best of at most three tries "
                          f"({result['second_tries']} of {result['calls']} needed a second one).")}


def retriever_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.bench.retriever --json FILE`."""
    words = {"kept_alive": "one client that keeps its connection", "clients": "64 clients at once, each keeps its connection",
             "beside_slow": f"a client that connects anew for each question, beside {result['slow']:,} slow connections"}
    goals = {"kept_alive": "p50 at most 3 ms", "clients": "p99 at most 100 ms", "beside_slow": "50 ms"}
    rows = [[words[name], f"{result[name]['n']:,}", *(f"{result[name][part]:g} ms" for part in ("p50", "p99", "most")), goals[name]]
            for name in words]
    busy = " to ".join(f"{each:g}" for each in result["load"])
    return {"main": Table(["who asks", "questions", "p50", "p99", "longest", "goal"], rows,
                          f"The best of {result['times']} times each, with {busy} busy threads on two cores; the server took "
                          f"{result['server']['rss_mb']:.0f} MB at most.")}


CLIENTS = {"endpoint": "a chat endpoint", "retriever": "a retriever", "turn": "a turn of a vLLM server",
           "control": "a control call of a vLLM server", "mcp": "an MCP server at a URL"}
KINDS = {"misbehaving": misbehaving_tables, "retriever": retriever_tables}
