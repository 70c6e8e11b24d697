"""The demo: train the embedded agent, say whether it really learned, and exit with that answer."""
from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.config import Config
from workbench.errors import ConfigError, LearnerError, StoreError
from workbench.store import Run, open_run
from workbench.writer import write_file

MIN_RISE = 0.08  # of sampled success, in shares: eight points


def verdict(report: dict[str, Any]) -> dict[str, Any]:
    """Did this run learn? Four conditions on the last evaluation of a run, each with its figures.

    Sampled success rises by at least eight points over the untrained policy on the same tasks, the paired 95 % interval
    is clear of zero, it ends above random play, and greedy success does not fall by more than a half-width of its
    interval.
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

    The table holds every row of the last evaluation of every seed, its verdict, and the CPU and wall seconds of its
    steps (evaluations apart). A run that ends because nothing could be learned has failed like any other. Raises
    ConfigError for a seed that stands twice, StoreError where a table lies in `out` already.
    """
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"every seed is a run of its own, but one stands twice in {list(seeds)}")
    if (out / "table.json").exists():
        raise StoreError(f"{out / 'table.json'} is there already; choose another folder")
    results = []
    for seed in seeds:
        result = _judged(replace(config, seed=seed), out / f"seed-{seed}", train)
        results.append(result)
        say(f"seed {seed}: {'learned' if result['learned'] else 'NOT learned'}")
        for check, held in result["checks"].items():
            say(f"  {'ok  ' if held else 'FAIL'} {check}")
    table = {"learned": all(r["learned"] for r in results), "machine": platform.platform(), "seeds": results}
    write_file(out / "table.json", (json.dumps(table, indent=1) + "\n").encode())
    return table


def _judged(config: Config, path: Path, train: Callable[[Config, Path], Run]) -> dict[str, Any]:
    try:
        run, ended = train(config, path), None
    except LearnerError as error:  # a run in which nothing could be learned is an answer, not an accident
        if not path.is_dir():
            raise
        run, ended = open_run(path), str(error)
    last = list(run.evaluations().values())[-1]
    judged = verdict(last) if ended is None else {
        "learned": False, "checks": {f"the run comes to its end, which it did not: {ended}": False}, "rise": None,
        "above_random": None, "greedy_change": None, "greedy_half_width": None}
    clock = run.clock()
    cpu = [name for name in clock if name.endswith("_cpu_s")]
    wall = [name for name in clock if name.endswith("_s") and name not in cpu]
    return {"seed": config.seed, **judged,
            "rows": [{key: value for key, value in row.items() if key != "by_task"} for row in last["rows"]],
            "paired": last["paired"], "steps": len(run.steps()), "run": run.name,
            "training_cpu_seconds": float(clock[cpu].to_numpy().sum()),
            "training_wall_seconds": float(clock[wall].to_numpy().sum())}
