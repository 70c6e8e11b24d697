"""What it takes in the harder search world, where the shipped policy is never paid: demonstrations first, and how many.

    python -m experiments.harder_search --out runs/harder --json FILE [--batches 0 40 160 640] [--seeds 0] [--tasks 256]
       [--set env.rewards.process=0.2]

For every number of batches (16 demonstrations each, in worlds of their own, from the weights of `search-tiny`) and seed a
start, and from it one run of the preset `search-hard`. Both are judged on the same questions about held-out worlds, which no
evaluation of a run asks, sampled and greedy, paired with `search-tiny` question by question; the starts also by pass@k. What
lies in `--out` whole is taken as it is, so what is cut off goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from data.make.pretrain import pretrain
from data.make.shipped import PROVENANCE
from experiments.discovery import (
    Rows,
    compared,
    cpu_seconds,
    exported,
    judged,
    read_settings,
    trained,
)
from experiments.transfer import test_tasks
from workbench.rollouts.evaluate import Score, evaluate_baselines
from workbench.training.config import load_config
from workbench.values import Task

PRESET, ENV, START = "search-hard", "world-qa-hard", "search-tiny"


def shown(out: Path, batches: int, seed: int) -> str:
    """The start after so many batches of demonstrations of the harder world: a folder, or the shipped policy itself."""
    folder = out / f"shown-{batches}-seed-{seed}"
    if not batches:
        return START
    if not (folder / PROVENANCE).is_file():
        pretrain(
            START,
            folder,
            seed=seed,
            num_tasks=0,
            more=batches,
            begun=START,
            env=ENV,
            say=lambda line: None,
        )
    return str(folder)


def measure(
    out: Path,
    batches: int,
    seed: int,
    given: Mapping[str, Any],
    chosen: Sequence[Task],
    first: Rows,
    attempts: int,
) -> dict[str, Any]:
    """A start, one run from it with these settings besides the preset's, and what both come to."""
    start = shown(out, batches, seed)
    name = "-".join(
        [
            "run",
            str(batches),
            "seed",
            str(seed),
            *(f"{key}-{value}" for key, value in given.items()),
        ]
    )
    run = trained(
        out / name,
        {
            **given,
            "seed": seed,
            "policy.name": start,
            "evaluation.num_tasks": 2,  # the run's own evaluations judge nothing here
            "train.max_empty_steps": 10_000,
        },
        PRESET,
    )  # a policy that never succeeds learns nothing, and that is its result
    before = judged(start, chosen, attempts, PRESET)
    with exported(run) as policy:
        after = judged(policy, chosen, 1, PRESET)
    one = first if start == START else judged(start, chosen, 1, PRESET)
    told = (
        {} if start == START else json.loads((Path(start) / PROVENANCE).read_text(encoding="utf-8"))
    )
    return {
        "batches": batches,
        "seed": seed,
        "given": dict(given),
        "turns": float(run.metrics()["turns"].iloc[-1]),
        "shown_cpu_seconds": told.get("cpu_seconds", 0.0),
        "cpu_seconds": cpu_seconds(run),
        "start": compared(first, one),
        "trained": compared(one, after),
        "several": {
            key: value for key, value in before["sampled"].items() if key.startswith("pass_at")
        },
    }


def said_of(row: dict[str, Any]) -> str:
    """A line for a run."""
    modes = (
        f"{mode} {100 * row['start'][mode]['success']:.1f} -> {100 * row['trained'][mode]['success']:.1f} %"
        for mode in ("sampled", "greedy")
    )
    return f"{row['batches']} batches, seed {row['seed']}: {', '.join(modes)}; {row['cpu_seconds']:.0f} CPU-seconds"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each run, and write all of them."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.harder_search", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the starts and runs")
    parser.add_argument(
        "--json", type=Path, required=True, metavar="FILE", help="where the figures are written"
    )
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[0, 40, 160, 640], help="of 16 demonstrations"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--tasks", type=int, default=256)
    parser.add_argument(
        "--attempts", type=int, default=16, help="of each start at each question, for pass@k"
    )
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="settings of every run, values as JSON",
    )
    options = parser.parse_args(arguments)
    given = read_settings(options.set)
    chosen = test_tasks("search", "hard, four", options.tasks)
    first = judged(START, chosen, 1, PRESET)
    bounds = evaluate_baselines(chosen, family=load_config(PRESET).env, seed=0)
    result: dict[str, Any] = {
        "version": 1,
        "tasks": len(chosen),
        "runs": [],
        "baselines": [
            {key: value for key, value in Score.row(score).items() if key != "by_task"}
            for score in bounds
        ],
    }
    for seed in options.seeds:
        for batches in options.batches:
            result["runs"].append(
                measure(options.out, batches, seed, given, chosen, first, options.attempts)
            )
            options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            print(said_of(result["runs"][-1]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
