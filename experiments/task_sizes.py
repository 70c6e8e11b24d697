"""How hard the held-out tasks of a preset are, and how success depends on it.

    python -m experiments.task_sizes search --table RESULTS/search.json --json FILE     documents that an answer takes
    python -m experiments.task_sizes sokoban --json FILE                                moves of a shortest solution

`--table`: the JSON of an ablation on the same tasks (`python -m experiments.agent_tables experiments/ablations/search.toml`),
whose successes task by task, before training and after it, are then counted for each size.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.training.config import PRESETS
from workbench.values import Task
from workbench.values.errors import DataError
from workbench.worlds import tasks


def size_of(task: Task) -> int:
    """Documents that the answer takes, or moves of a shortest solution. DataError where a task says neither."""
    for told, name in ((task.payload, "hops"), (task.metadata, "solution")):
        if name in told:
            return int(told[name])
    raise DataError(f"task {task.id} says neither hops nor a solution's length, so it has no size")


def measure(preset: str, table: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The preset's held-out tasks by size: how many, and the share that succeeds, untrained and by arm and seed."""
    config = PRESETS[preset]
    sizes_N = np.array(
        [size_of(task) for task in tasks(config.env, "held-out", config.evaluation.num_tasks)]
    )
    shares = {}
    for name, arm in (table["arms"] if table else {}).items():
        for seed, facts in arm["seeds"].items():
            before = next(
                row
                for row in facts["rows"]
                if (row["policy"], row["mode"]) == ("untrained", "sampled")
            )
            shares[f"{name}, seed {seed}"] = _shares(sizes_N, facts["sampled"])
            shares.setdefault("untrained", _shares(sizes_N, before["by_task"]))
    counts = {str(size): int((sizes_N == size).sum()) for size in np.unique(sizes_N)}
    return {
        "preset": preset,
        "tasks": len(sizes_N),
        "mean": float(sizes_N.mean()),
        "counts": counts,
        "sampled": shares,
    }


def _shares(sizes_N: np.ndarray, success_N: Sequence[float]) -> dict[str, float]:
    if len(sizes_N) != len(success_N):
        raise DataError(
            f"the table was measured on {len(success_N)} tasks, the preset has {len(sizes_N)}: they differ"
        )
    return {
        str(size): float(np.asarray(success_N)[sizes_N == size].mean())
        for size in np.unique(sizes_N)
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the figures and print them."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.task_sizes", description=__doc__.split("\n")[0]
    )
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("--table", type=Path, help="JSON of an ablation on the same tasks")
    parser.add_argument(
        "--json", type=Path, required=True, metavar="FILE", help="where the figures are written"
    )
    options = parser.parse_args(arguments)
    found = measure(
        options.preset,
        json.loads(options.table.read_text(encoding="utf-8")) if options.table else None,
    )
    options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
