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
        rows.append(
            [
                CLIENTS[client],
                str(len(cases)),
                f"{late:+.2f} s",
                f"{max(case['megabytes'] for case in cases):.0f} MB",
                str(sum(name.startswith(f"{client}: ") for name in result["wrong"])),
            ]
        )
    return {
        "main": Table(
            [
                "client",
                "servers",
                "the latest, after its deadline",
                "most memory on top",
                "later than 0.5 s, or above 64 MB",
            ],
            rows,
            f"The deadline is {result['deadline_s']:g} s; the best of at most three tries "
            f"({result['second_tries']} of {result['calls']} needed a second one).",
        )
    }


def retriever_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.bench.retriever --json FILE`."""
    words = {
        "kept_alive": "one client that keeps its connection",
        "clients": "64 clients at once, each keeps its connection",
        "beside_slow": f"a client that connects anew for each question, beside {result['slow']:,} slow connections",
    }
    goals = {
        "kept_alive": "p50 at most 3 ms",
        "clients": "p99 at most 100 ms",
        "beside_slow": "50 ms",
    }
    rows = [
        [
            words[name],
            f"{result[name]['n']:,}",
            *(f"{result[name][part]:g} ms" for part in ("p50", "p99", "most")),
            goals[name],
        ]
        for name in words
    ]
    busy = " to ".join(f"{each:g}" for each in result["load"])
    return {
        "main": Table(
            ["who asks", "questions", "p50", "p99", "longest", "goal"],
            rows,
            f"The best of {result['times']} times each, with {busy} busy threads on two cores; the server took "
            f"{result['server']['rss_mb']:.0f} MB at most.",
        )
    }


CLIENTS = {
    "endpoint": "a chat endpoint",
    "retriever": "a retriever",
    "turn": "a turn of a vLLM server",
    "control": "a control call of a vLLM server",
    "mcp": "an MCP server at a URL",
}


def hostile_tables(result: Result) -> dict[str, Table]:
    """What `python -m tests.hostile.sweep --json` and `python -m tests.hostile.soak --json` wrote, put together: {"folders",
    "commands": name -> {"calls", "late", "unexpected"}, "again": the same after mending, "ran", "outside", "large", "mutations", "calls"},
    "further": commands that came later, with all that was wrong of each, {"commands", "again"}, and "later": a later day's
    {"commands", "mutations", "calls"}."""
    first, again, changed, bad = (
        result[name] for name in ("commands", "again", "mutations", "calls")
    )
    calls = sum(each["calls"] for each in first.values())
    further, mended = result["further"]["commands"], result["further"]["again"]
    whole = [name for name, each in further.items() if each["calls"] == result["folders"]]
    part = {name: each for name, each in further.items() if name not in whole}
    late = {name: each["late"] for name, each in first.items() if each["late"]}
    named = ", ".join(f"{count} of {name}" for name, count in late.items()) or "none"
    return {
        "main": Table(
            ["what", "tried", "found"],
            [
                [
                    f"{result['folders']} hostile folders under {len(first)} commands: commands that were run",
                    f"{calls:,} calls",
                    str(result["ran"]),
                ],
                ["... bytes written outside the run", "the same", str(result["outside"])],
                [
                    "... more memory than is planned for one file, on top of the sound run",
                    "the same",
                    str(result["large"]),
                ],
                [
                    "... two seconds later than the sound run",
                    "the same",
                    f"{sum(late.values())}: {named}",
                ],
                [
                    "... an error that nobody expected",
                    "the same",
                    str(sum(each["unexpected"] for each in first.values())),
                ],
                [
                    "those commands again, after mending",
                    f"{sum(each['calls'] for each in again.values()):,} calls",
                    str(sum(each["unexpected"] for each in again.values())),
                ],
                [
                    f"{len(whole)} further commands, on each folder: any of these",
                    f"{sum(further[name]['calls'] for name in whole):,} calls",
                    _wrong({name: further[name] for name in whole}),
                ],
                [
                    "those again, after mending",
                    f"{sum(each['calls'] for each in mended.values()):,} calls",
                    _wrong(mended),
                ],
                [
                    f"{len(part)} further commands, on folders whose settings, events or record were bent: any of these",
                    f"{sum(each['calls'] for each in part.values()):,} calls",
                    _wrong(part),
                ],
                [
                    "sound runs with one thing changed and resealed: an error that nobody expected",
                    f"{changed['tried']:,}, in {changed['calls']:,} calls",
                    f"{changed['unexpected']} calls",
                ],
                [
                    "those again, after mending",
                    f"{changed['again']} calls",
                    str(changed["again_unexpected"]),
                ],
                [
                    f"bad calls of {bad['commands']} commands: an error that nobody expected",
                    f"{bad['tried']:,}",
                    str(bad["unexpected"]),
                ],
                *_later(result["later"]),
            ],
        )
    }


def _later(result: Result) -> list[list[str]]:
    """Rows of what was tried once more."""
    commands, changed, bad = (result[name] for name in ("commands", "mutations", "calls"))
    return [
        [
            f"later: {', '.join(commands)}, on each folder: any of these",
            f"{sum(each['calls'] for each in commands.values()):,} calls",
            _wrong(commands),
        ],
        [
            "later: other runs with one thing changed and resealed: a traceback, a status that nobody expected, or a hang",
            f"{changed['tried']:,}, in {changed['calls']:,} calls",
            str(changed["wrong"]),
        ],
        ["later: other bad calls: any of these", f"{bad['tried']:,}", str(bad["wrong"])],
    ]


def _wrong(commands: Result) -> str:
    """How many folders something was wrong with, by command."""
    named = ", ".join(
        f"{each['wrong']} of {name}" for name, each in commands.items() if each["wrong"]
    )
    return f"{sum(each['wrong'] for each in commands.values())}" + (f": {named}" if named else "")


def interrupted_tables(result: Result) -> dict[str, Table]:
    """`python -m tests.faults.interrupted --json`."""
    words = {
        "disk": "a system call that writes finds no room, one of those of a run each time",
        "full": "a disk that is full from such a call on, until the process ends",
        "stopped": "SIGSTOP, and SIGCONT after a while",
        "memory": "no more memory at a random place",
        "killer": "the kernel's own killer of processes, at a random amount of memory",
        "clock": "a clock that goes back an hour at every look, and SIGKILL",
        "kernel": "a notebook's kernel is restarted",
    }
    return {
        "main": Table(
            [
                "interrupted by",
                "times",
                "committed steps on the disk",
                "of them lost",
                "runs that ended to the bit as the one that was not interrupted",
            ],
            [
                [
                    words[way],
                    str(each["tried"]),
                    str(each["committed"]),
                    str(each["lost"]),
                    f"{each['identical']} of {each['tried']}",
                ]
                for way, each in result.items()
            ],
        )
    }


KINDS = {
    "misbehaving": misbehaving_tables,
    "hostile": hostile_tables,
    "interrupted": interrupted_tables,
    "retriever": retriever_tables,
}
