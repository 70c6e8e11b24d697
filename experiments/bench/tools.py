"""How soon the slot of a tool that misbehaves is free again, 20 times each, and what a call costs otherwise.

    python -m experiments.bench.tools [--times 20] [--deadline 0.5] [--json FILE]

A call is timed from when it begins in a warm worker until its result is there, and its slot with it. Tools that hang
have missed their deadline by then: what is printed is the time beyond it. For the others it is all of their time. The
goal is half a second, for the slowest of 20. Seconds are those of the wall clock, so a busy machine shows.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from workbench.tools import tool
from workbench.tools.executor import ToolExecutor, ToolLimits
from workbench.tools.shared_workers import shared_workers
from workbench.values import ToolCall

GOAL_S = 0.5
COSTS = 500  # calls whose cost is measured


def _without_end() -> Iterator[str]:
    while True:
        yield "output "


def _raise() -> None:
    raise RuntimeError("said so")


WAYS: dict[str, tuple[str, Callable[[], object]]] = {
    "hangs (sleeps)": ("timeout", lambda: time.sleep(1e6)),
    "hangs (busy in C: 10**10**8)": ("timeout", lambda: 10**10**8),
    "floods (output without end)": ("", _without_end),
    "floods (100 MB at once)": ("", lambda: "x" * 100_000_000),
    "raises": ("raised", _raise),
    "raises SystemExit": ("raised", sys.exit),
    "dies (os._exit)": ("died", lambda: os._exit(1)),
    "dies (SIGSEGV)": ("died", lambda: ctypes.string_at(0)),
    "dies (SIGKILL)": ("died", lambda: os.kill(os.getpid(), signal.SIGKILL)),
}


@tool
def misbehave(how: str) -> str:
    """Does what it is told."""
    return WAYS[how][1]()


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def beyond(executor: ToolExecutor, how: str) -> float:
    """Seconds from the deadline (of a tool that hangs) or from the call's begin until its slot was free."""
    kind = WAYS[how][0]
    executor.run(
        [ToolCall("add", {"a": 1, "b": 1}), ToolCall("misbehave", {"how": "raises"})]
    )  # a warm worker
    began = time.monotonic()
    [result] = executor.run([ToolCall("misbehave", {"how": how})])
    took = time.monotonic() - began
    if result.error != kind:
        raise SystemExit(f"a tool that {how}: expected the error {kind!r}, got {result}")
    return took - executor.limits.deadline_s if kind == "timeout" else took


def cost(executor: ToolExecutor) -> list[float]:
    """Seconds of each call of a tool that does next to nothing."""
    found = []
    for index in range(COSTS):
        began = time.monotonic()
        executor.run([ToolCall("add", {"a": index, "b": 1})])
        found.append(time.monotonic() - began)
    return found


def measure(times: int, deadline_s: float) -> dict[str, Any]:
    """The seconds of every way to misbehave, `times` each, and of a call that does next to nothing; prints each row."""
    # A flood is bounded, not late: where the machine is busy it may take what it takes.
    patient = ToolExecutor([misbehave, add], ToolLimits(deadline_s=60.0, workers=1))
    strict = ToolExecutor([misbehave, add], ToolLimits(deadline_s=deadline_s, workers=1))
    rows = []
    print(f"{'a tool that':32} {'free within 0.5 s':>18} {'median':>9} {'slowest':>9}")
    for how, (kind, _) in WAYS.items():
        took = [beyond(strict if kind == "timeout" else patient, how) for _ in range(times)]
        soon = sum(each <= GOAL_S for each in took)
        rows.append({"how": how, "error": kind, "times": times, "soon": soon, "seconds": took})
        print(
            f"{how:32} {f'{soon} of {times}':>18} {statistics.median(took):7.3f} s {max(took):7.3f} s",
            flush=True,
        )
    costs = sorted(cost(patient))
    found = {
        "calls": COSTS,
        "median_ms": 1000 * costs[COSTS // 2],
        "p99_ms": 1000 * costs[COSTS * 99 // 100],
    }
    print(
        f"a call of a warm tool: median {found['median_ms']:.2f} ms, 99 of 100 within {found['p99_ms']:.2f} ms "
        f"({COSTS} calls)"
    )
    patient.close(), strict.close()
    shared_workers().shutdown()
    return {
        "version": 1,
        "deadline_s": deadline_s,
        "goal_s": GOAL_S,
        "rows": rows,
        "warm_call": found,
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the table; exit code 1 where a slot was not free within the goal."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--deadline", type=float, default=0.5, help="seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures are written")
    options = parser.parse_args(arguments)
    result = measure(options.times, options.deadline)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(any(row["soon"] < row["times"] for row in result["rows"]))


if __name__ == "__main__":
    from experiments.bench import tools  # by its name, under which workers can import it

    sys.exit(tools.main())
