"""The demo: train the embedded agent, say whether it really learned, and exit with that answer."""
from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.config import Config
from workbench.store import Run
from workbench.writer import write_file

MIN_RISE = 0.08  # of sampled success, in shares: eight points


def verdict(report: dict[str, Any]) -> dict[str, Any]:
    """Did this run learn? Four conditions on the last evaluation of a run, each with its figures.

    Sampled success rises by at least eight points over the untrained policy on the same tasks, the paired 95 % interval is
    clear of zero, it ends above random play, and greedy success does not fall by more than a half-width of its interval.
    """
    rows = {(row["policy"], row["mode"]): row for row in report["rows"]}
    pairs = {(pair["a"], pair["b"]): pair for pair in report["paired"]}
    rise = pairs["untrained sampled", "trained sampled"]
    above = pairs["random sampled", "trained sampled"]
    greedy = rows["trained", "greedy"]["success"] - rows["untrained", "greedy"]["success"]
    half = (rows["untrained", "greedy"]["success_high"] - rows["untrained", "greedy"]["success_low"]) / 2
    checks = {
        f"sampled success rises by at least {MIN_RISE * 100:.0f} points": rise["difference"] >= MIN_RISE,
        "the paired interval of the rise is clear of zero": rise["low"] > 0,
        "it ends above random play": above["low"] > 0,
        "greedy success does not fall by more than a half-width": greedy >= -half,
    }
    return {"learned": all(checks.values()), "checks": checks, "rise": rise, "above_random": above,
            "greedy_change": greedy, "greedy_half_width": half}


def demo(config: Config, seeds: Sequence[int], out: Path, train: Callable[[Config, Path], Run],
         say: Callable[[str], None] = print) -> dict[str, Any]:
    """Train once per seed with `train(config, path)`, judge each, write `table.json` into `out`; returns the table.

    The table holds every row of the last evaluation of every seed, its verdict, and CPU and wall seconds.
    """
    results = []
    for seed in seeds:
        run = train(replace(config, seed=seed), out / f"seed-{seed}")
        last = list(run.evaluations().values())[-1]
        clock = run.clock()
        seconds = {unit: float(clock[[c for c in clock if c.endswith(f"_{unit}") and
                                      c.endswith("_cpu_s") == (unit == "cpu_s")]].to_numpy().sum()) for unit in ("s", "cpu_s")}
        judged = verdict(last)
        results.append({"seed": seed, **judged, "rows": [{k: v for k, v in row.items() if k != "by_task"} for row in last["rows"]],
                        "paired": last["paired"], "steps": len(run.steps()),
                        "training_cpu_seconds": seconds["cpu_s"], "training_wall_seconds": seconds["s"], "run": run.path.name})
        for check, held in judged["checks"].items():
            say(f"  {'ok  ' if held else 'FAIL'} {check}")
    table = {"learned": all(r["learned"] for r in results), "machine": platform.platform(), "seeds": results}
    write_file(out / "table.json", (json.dumps(table, indent=1) + "\n").encode())
    return table
