"""What the sandboxes hold and cost on this machine: for docs/evidence/sandbox.md.

    python -m tests.sandbox.measure --json FILE [--calls 2000]      FILE holds {"runs": [...]}: one is added

Escapes, each in a sandbox of its own, by user and tier, and how many of them get out where there is no sandbox; warm calls, begun
sandboxes and forks of a state of ten megabytes in milliseconds of the wall clock; programs run twice, byte by byte; what many
mixed calls leave behind. Seconds are those of the wall clock, so a busy machine shows; the load is written down.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.envs.code.test_judging import ATTACKS, TESTS
from tests.sandbox.escapes import ESCAPES, ROOT
from tests.sandbox.grounds import CANARY, USERS, grounds, inside, outside, why_not
from tests.sandbox.test_sandboxes import children_of, mixed_calls
from workbench.extensions.sandbox.code.judging import judge
from workbench.extensions.sandbox.limits import BY_COMMAND, TIERS
from workbench.extensions.sandbox.pool import SandboxPool, shared_pool
from workbench.extensions.sandbox.sandboxes import SandboxSettings, open_sandbox

CALL = "x = sorted(str(n) for n in range(1000)); len(x)"
SAME = (
    "import time, datetime, random, uuid, secrets, os\n"
    "print(time.time(), datetime.datetime.now(), random.random(), uuid.uuid4(), secrets.token_hex(), os.urandom(8))\n"
    "print(hash('x'), {'a', 'b', 'c'}, os.getpid())\n"
)


def escapes(tiers: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for user in USERS:
        for tier in tiers:
            if reason := why_not(user, tier):
                rows.append({"user": user, "tier": tier, "not": reason})
                continue
            with grounds(user) as values:
                out = [
                    name
                    for name in ESCAPES
                    if "ESCAPED" in inside(user, tier, name, values).splitlines()
                ]
            rows.append({"user": user, "tier": tier, "tried": len(ESCAPES), "out": out})
    return rows


def without_a_sandbox() -> list[dict[str, Any]]:
    rows = []
    for user in USERS:
        if not all(why_not(user, tier) for tier in TIERS):
            wanted = [name for name in ESCAPES if user == "root" or name not in ROOT]
            with grounds(user) as values:
                rows.append(
                    {
                        "user": user,
                        "tried": len(wanted),
                        "out": sum(outside(user, name, values) for name in wanted),
                    }
                )
    return rows


def costs(tier: str, calls: int) -> dict[str, Any]:
    """Milliseconds."""
    settings = SandboxSettings(tier=tier, warm=0)
    with open_sandbox(settings) as sandbox:
        sandbox.run(CALL)
        warm = [1e3 * sandbox.run(CALL).seconds for _ in range(calls)]
    begun = []
    for _ in range(30):
        began = time.monotonic()
        host = shared_pool().take(tier, asdict(settings))
        begun.append(1e3 * (time.monotonic() - began))
        host.close()
    return {
        "tier": tier,
        "calls": calls,
        "warm": _spread(warm),
        "begun": _spread(begun),
        "forks": _forks(tier),
        "same": _same(tier),
    }


def _forks(tier: str) -> dict[str, float] | None:
    if tier != "namespaces":
        return None
    found = []
    for _ in range(20):
        with open_sandbox(SandboxSettings(tier=tier)) as sandbox:
            sandbox.run("held = bytearray(range(256)) * 40_960")
            began = time.monotonic()
            sandbox.fork()
            found.append(1e3 * (time.monotonic() - began))
    return _spread(found)


def _same(tier: str) -> dict[str, int]:
    said = []
    for _ in range(20):
        with open_sandbox(SandboxSettings(tier=tier)) as sandbox:
            said.append(sandbox.run(SAME).text)
    return {"runs": len(said), "different": len(set(said)) - 1}


def _spread(milliseconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(milliseconds)
    return {
        "p50": round(statistics.median(ordered), 2),
        "p99": round(ordered[int(0.99 * (len(ordered) - 1))], 2),
    }


def left_behind(tier: str, calls: int) -> dict[str, Any]:
    pool, before = SandboxPool(), len(os.listdir("/proc/self/fd"))
    texts = mixed_calls(tier, calls, pool)
    pool.drop_ready()
    until = time.monotonic() + 10
    while children_of(pool.process_id) and time.monotonic() < until:
        time.sleep(0.05)
    left = len(children_of(pool.process_id))
    pool.shutdown()
    return {
        "tier": tier,
        "calls": len(texts),
        "processes": left,
        "descriptors": max(0, len(os.listdir("/proc/self/fd")) - before),
        "secrets": sum(CANARY in text for text in texts),
    }


def attacks(tier: str) -> dict[str, Any]:
    settings = SandboxSettings(tier=tier, seconds=1.0)
    verdicts = {
        name: judge(program, ["double"], TESTS[:1] + TESTS[2:], settings=settings)
        for name, (program, _) in ATTACKS.items()
    }
    return {
        "tier": tier,
        "tried": len(verdicts),
        "paid": [name for name, verdict in verdicts.items() if verdict.passed],
        "named": sum(ATTACKS[name][1] in verdict.why for name, verdict in verdicts.items()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument(
        "--tiers", nargs="+", default=[*TIERS, *BY_COMMAND], choices=[*TIERS, *BY_COMMAND]
    )
    arguments = parser.parse_args()
    tiers = [tier for tier in arguments.tiers if not shared_pool().why_not(tier)]
    load = [round(os.getloadavg()[0], 1)]
    result = {
        "costs": [costs(tier, 1000) for tier in tiers],
        "escapes": escapes(arguments.tiers),
        "without": without_a_sandbox(),
        "left": [left_behind(tier, arguments.calls) for tier in tiers],
        "attacks": [attacks(tier) for tier in tiers],
    }
    runs = json.loads(arguments.json.read_text())["runs"] if arguments.json.exists() else []
    runs.append({**result, "load": [*load, round(os.getloadavg()[0], 1)]})
    arguments.json.write_text(json.dumps({"runs": runs}, indent=1))


if __name__ == "__main__":
    main()
