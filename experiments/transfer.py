"""What training in one world does in the others: every world that was trained in beside every world that is played.

    python -m experiments.transfer --out runs/transfer --json FILE [--train "6x6" "4x4"] [--seeds 0 1] [--tasks 256]
       [--set train.steps=10] [--worlds search] [--start FOLDER]

For every world of the table (`WORLDS`: a preset and the settings that differ) and seed one run of the preset, all from
its shipped policy or from `--start`. Each is judged in all worlds of the table, sampled and greedy, paired with the start
task by task, beside random play and the solver. Tasks are held-out ones that no evaluation of a run of the preset asks. A
run that lies in `--out` whole is taken as it is, so what is cut off goes on where it was.

The table `grids` (a lake in several sets of symbols, and Sokoban) has no shipped policy: `python -m data.make.pretrain
grid-games` makes one in some minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from data.make.grid_games import HELD_BACK, SHOWN
from experiments.discovery import (
    TEST_NOISE,
    TEST_SEED,
    Rows,
    compared,
    cpu_seconds,
    exported,
    read_settings,
    scored,
    trained,
)
from workbench.basics.canonical_json import json_bytes
from workbench.rollouts.evaluate import Score, evaluate_baselines
from workbench.rollouts.metrics import rollout_metrics
from workbench.training.config import Config, load_config
from workbench.values import Task
from workbench.worlds import tasks
from workbench.worlds.grid_game import GridFamily

Settings = Mapping[str, Any]


def settings_of(family: GridFamily) -> Settings:
    """What makes this family of the one of any preset."""
    differing = [each.name for each in fields(family) if getattr(family, each.name) != each.default]
    return {"env.kind": family.name, **{f"env.{name}": getattr(family, name) for name in differing}}


# Table -> world -> the settings that differ. Larger lakes have more moves, so that their solver has the time it needs.
WORLDS: Mapping[str, Mapping[str, Settings]] = MappingProxyType(
    {
        "frozenlake": {
            "4x4": {},
            "holes .35": {"env.hole_density": 0.35},
            "slip .2": {"env.slip": 0.2},
            "5x5": {"env.size": 5, "env.max_moves": 12},
            "6x6": {"env.size": 6, "env.max_moves": 14},
        },
        "search": {
            "one document": {},
            "two": {"env.documents": 2},
            "three": {"env.documents": 3},
            "hard, one": {"env.world": "hard"},
            "hard, four": {"env.world": "hard", "env.documents": 4},
        },
        # A room of 5 by 5 has some 250 held-out levels: the evaluations of a preset would ask nearly all of them.
        "grids": {
            world: {"evaluation.num_tasks": 2, **settings_of(family)}
            for world, family in {**SHOWN, **HELD_BACK}.items()
        },
    }
)
HABITS = (
    "valid_format",
    "reasoning_stated",
    "reasoning_agrees",
)  # shares of turns, as `rollout_metrics` has them
PRESETS: Mapping[str, str] = MappingProxyType(
    {"grids": "frozenlake"}
)  # of tables that are named otherwise


def config_of(table: str, world: str) -> Config:
    """The preset of a table with the settings of one of its worlds."""
    return load_config(preset_of(table), WORLDS[table][world])


def preset_of(table: str) -> str:
    return PRESETS.get(table, table)


@cache
def test_tasks(table: str, world: str, count: int) -> tuple[Task, ...]:
    """Held-out tasks of a world that no evaluation of a run there asks, each once."""
    config = config_of(table, world)
    seen = {content_of(task) for task in tasks(config.env, "held-out", config.evaluation.num_tasks)}
    chosen: list[Task] = []
    for task in tasks(config.env, "held-out", 4 * count, seed=TEST_SEED):
        if content_of(task) not in seen and len(chosen) < count:
            seen.add(content_of(task))
            chosen.append(task)
    return tuple(chosen)


def content_of(task: Task) -> bytes:
    """What makes two tasks the same."""
    return json_bytes(task.payload, "a task")


def played(policy: str, table: str, count: int) -> dict[str, Rows]:
    """World -> what a policy does in it."""
    return {
        world: {
            score.mode: Score.row(score) | rollout_metrics(score.played)
            for score in scored(
                policy, test_tasks(table, world, count), preset=preset_of(table), settings=settings
            )
        }
        for world, settings in WORLDS[table].items()
    }


def told(before: Rows, after: Rows) -> dict[str, Any]:
    """What `compared` says of one world, and how the policy went about it there."""
    return {
        mode: row | {"habits": {key: after[mode][key] for key in HABITS if key in after[mode]}}
        for mode, row in compared(before, after).items()
    }


def bounds(table: str, count: int) -> dict[str, Any]:
    """World -> its settings, and random play and the solver in it."""
    found = {}
    for world, settings in WORLDS[table].items():
        chosen = test_tasks(table, world, count)
        scores = evaluate_baselines(chosen, family=config_of(table, world).env, seed=TEST_NOISE)
        found[world] = {
            "settings": dict(settings),
            "tasks": len(chosen),
            **{
                score.policy: {
                    "success": score.success,
                    "low": score.success_low,
                    "high": score.success_high,
                }
                for score in scores
            },
        }
    return found


def measure(
    out: Path,
    table: str,
    world: str,
    seed: int,
    given: Settings,
    before: Mapping[str, Rows],
    count: int,
) -> dict[str, Any]:
    """One run, with these settings besides its world's, and what it does in every world."""
    run = trained(
        out / f"{world.replace(' ', '-').replace(',', '')}-seed-{seed}",
        {
            "train.evaluate_every": 0,
            "evaluation.num_tasks": 2,
            **given,
            **WORLDS[table][world],
            "seed": seed,
        },
        preset_of(table),
    )
    with exported(run) as policy:
        after = played(policy, table, count)
    return {
        "trained": world,
        "seed": seed,
        "cpu_seconds": cpu_seconds(run),
        "tested": {name: told(before[name], rows) for name, rows in after.items()},
    }


def said_of(row: Mapping[str, Any]) -> str:
    """A line for a run."""
    tested = (
        f"{name} {100 * each['sampled']['success']:.0f} ({100 * each['sampled']['difference'][0]:+.0f}) / "
        f"{100 * each['greedy']['success']:.0f} ({100 * each['greedy']['difference'][0]:+.0f})"
        for name, each in row["tested"].items()
    )
    return f"{row['trained']}, seed {row['seed']}, {row['cpu_seconds']:.0f} CPU-seconds: {'; '.join(tested)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each run, and write all of them."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.transfer", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument(
        "--json", type=Path, required=True, metavar="FILE", help="where the figures are written"
    )
    parser.add_argument(
        "--worlds",
        choices=list(WORLDS),
        default="frozenlake",
        help="which table; default: frozenlake",
    )
    parser.add_argument("--start", metavar="POLICY", help="default: the one of the table's preset")
    parser.add_argument(
        "--train", nargs="*", metavar="WORLD", help="worlds to train in; default: all of the table"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--tasks", type=int, default=256)
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="settings of every run, values as JSON",
    )
    options = parser.parse_args(arguments)
    table, count = options.worlds, options.tasks
    given = read_settings(options.set)
    start = options.start or load_config(preset_of(table)).policy.name
    before = played(start, table, count)
    none = {name: told(rows, rows) for name, rows in before.items()}
    result: dict[str, Any] = {
        "version": 1,
        "preset": table,
        "given": given,
        "worlds": bounds(table, count),
        "runs": [],
        "start": {"name": Path(start).name, "tested": none},
    }
    print(
        said_of({"trained": Path(start).name, "seed": 0, "cpu_seconds": 0, "tested": none}),
        flush=True,
    )
    for seed in options.seeds:
        for world in WORLDS[table] if options.train is None else options.train:
            ran = measure(
                options.out, table, world, seed, {**given, "policy.name": start}, before, count
            )
            result["runs"].append(ran)
            options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            print(said_of(ran), flush=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
