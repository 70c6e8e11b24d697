"""Random play and the best-known solver in every preset: what any result there has to be read beside (invariant 12).

    python -m experiments.baselines [preset ...] --json FILE [--tasks 512] [--seed 0] [--attempts 1 16]

Held-out tasks, by the function that evaluations use (`evaluate_baselines`), with its seeds. With one trajectory a task,
random play is the row that an evaluation of as many tasks prints; with more its interval is narrower, and clustered by
task. Where the exact success of either can be computed (on a frozen lake), averaged over the same tasks, that stands beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.exact_values import random_value, solver_value
from workbench.rollouts.evaluate import Score, evaluate_baselines
from workbench.values import Task
from workbench.worlds import PRESETS, tasks
from workbench.worlds.frozen_lake import FrozenLake


def measure(preset: str, num_tasks: int, seed: int, attempts: Sequence[int]) -> dict[str, Any]:
    """The rows of a preset: random play once for each number of trajectories, the solver once."""
    family = PRESETS[preset]
    chosen = tasks(family, "held-out", num_tasks)
    rows = []
    for number in attempts:
        random, solver = evaluate_baselines(chosen, family=family, seed=seed, attempts=number)
        rows.append(_row(random, family, chosen))
    return {
        "preset": preset,
        "label": family.label,
        "solver": getattr(family, "solver_name", "best known"),
        "rows": [*rows, _row(solver, family, chosen)],
    }


def _row(score: Score, family: Any, chosen: Sequence[Task]) -> dict[str, Any]:
    row = {
        "policy": score.policy,
        "mode": score.mode,
        "tasks": score.n,
        "attempts": score.attempts,
        "success": score.success,
        "success_low": score.success_low,
        "success_high": score.success_high,
        "reward": score.reward,
        "turns": score.turns,
        "faults": score.faults,
    }
    if isinstance(family, FrozenLake):
        exact = {"random": random_value, "solver": solver_value}[score.policy]
        row["exact_success"] = float(np.mean([exact(family, task) for task in chosen]))
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each row, and write all of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "presets",
        nargs="*",
        choices=[*PRESETS, []],
        metavar="preset",
        help="all of them, if none is named",
    )
    parser.add_argument(
        "--json", type=Path, required=True, metavar="FILE", help="where the figures are written"
    )
    parser.add_argument("--tasks", type=int, default=512)
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the dynamics and of random play; the tasks are fixed",
    )
    parser.add_argument(
        "--attempts", type=int, nargs="+", default=[1, 16], help="of random play at each task"
    )
    options = parser.parse_args(arguments)
    found = []
    began = time.process_time()
    for preset in options.presets or PRESETS:
        found.append(measure(preset, options.tasks, options.seed, options.attempts))
        for row in found[-1]["rows"]:
            exact = (
                f"   exactly {100 * row['exact_success']:.1f} %" if "exact_success" in row else ""
            )
            print(
                f"{preset:24} {row['policy']:7} {row['tasks']} x {row['attempts']:<3} {100 * row['success']:5.1f} % "
                f"[{100 * row['success_low']:.1f}, {100 * row['success_high']:.1f}]{exact}",
                flush=True,
            )
    result = {
        "version": 1,
        "split": "held-out",
        "seed": options.seed,
        "presets": found,
        "cpu_seconds": round(time.process_time() - began, 1),
    }
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
