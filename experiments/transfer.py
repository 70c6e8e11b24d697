"""What training in one world does in the others: every world that was trained in beside every world that is played.

    python -m experiments.transfer --out runs/transfer --json FILE [--train "6x6" "4x4"] [--seeds 0 1] [--tasks 256]
       [--set train.steps=10] [--worlds search]

For every world of the table (`WORLDS`: a preset and the settings that differ) and seed one run of the preset, all from
its shipped policy. Each is judged in all worlds of the table, sampled and greedy, paired with the start task by task,
beside random play and the solver. Tasks are held-out ones that no evaluation of a run of the preset asks. A run that lies
in `--out` whole is taken as it is, so what is cut off goes on where it was.
"""
from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from experiments.discovery import TEST_NOISE, TEST_SEED, Rows, compared, cpu_seconds, judged, trained
from workbench.envs import tasks
from workbench.notebook.export_policy import export_policy
from workbench.rollouts.evaluate import evaluate_baselines
from workbench.training.config import load_config
from workbench.types import Task
from workbench.types.canonical_json import json_bytes

Settings = Mapping[str, Any]

# Preset -> world -> the settings that differ. Larger lakes have more moves, so that their solver has the time it needs.
WORLDS: Mapping[str, Mapping[str, Settings]] = MappingProxyType({
    "frozenlake": {"4x4": {}, "holes .35": {"env.hole_density": 0.35}, "slip .2": {"env.slip": 0.2},
                   "5x5": {"env.size": 5, "env.max_moves": 12}, "6x6": {"env.size": 6, "env.max_moves": 14}},
    "search": {"one document": {}, "two": {"env.documents": 2}, "three": {"env.documents": 3},
               "hard, one": {"env.world": "hard"}, "hard, four": {"env.world": "hard", "env.documents": 4}},
})


@cache
def test_tasks(preset: str, world: str, count: int) -> tuple[Task, ...]:
    """Held-out tasks of a world that no evaluation of a run there asks, each once."""
    config = load_config(preset, WORLDS[preset][world])
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


def played(policy: str, preset: str, count: int) -> dict[str, Rows]:
    """World -> what a policy does in it."""
    return {world: judged(policy, test_tasks(preset, world, count), preset=preset, settings=settings)
            for world, settings in WORLDS[preset].items()}


def bounds(preset: str, count: int) -> dict[str, Any]:
    """World -> its settings, and random play and the solver in it."""
    found = {}
    for world, settings in WORLDS[preset].items():
        chosen = test_tasks(preset, world, count)
        scores = evaluate_baselines(chosen, family=load_config(preset, settings).env, seed=TEST_NOISE)
        found[world] = {"settings": dict(settings), "tasks": len(chosen), **{
            score.policy: {"success": score.success, "low": score.success_low, "high": score.success_high}
            for score in scores}}
    return found


def measure(out: Path, preset: str, world: str, seed: int, given: Settings, before: Mapping[str, Rows], count: int
            ) -> dict[str, Any]:
    """One run, with these settings besides its world's, and what it does in every world."""
    run = trained(out / f"{world.replace(' ', '-').replace(',', '')}-seed-{seed}",
                  {"train.evaluate_every": 0, "evaluation.num_tasks": 2, **given, **WORLDS[preset][world], "seed": seed}, preset)
    with TemporaryDirectory() as scratch:
        export_policy(run, Path(scratch) / "policy")
        after = played(str(Path(scratch) / "policy"), preset, count)
    return {"trained": world, "seed": seed, "cpu_seconds": cpu_seconds(run),
            "tested": {name: compared(before[name], rows) for name, rows in after.items()}}


def said_of(row: Mapping[str, Any]) -> str:
    """A line for a run."""
    tested = (f"{name} {100 * each['sampled']['success']:.0f} ({100 * each['sampled']['difference'][0]:+.0f}) / "
              f"{100 * each['greedy']['success']:.0f} ({100 * each['greedy']['difference'][0]:+.0f})"
              for name, each in row["tested"].items())
    return f"{row['trained']}, seed {row['seed']}, {row['cpu_seconds']:.0f} CPU-seconds: {'; '.join(tested)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each run, and write all of them."""
    parser = argparse.ArgumentParser(prog="python -m experiments.transfer", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the figures are written")
    parser.add_argument("--worlds", choices=list(WORLDS), default="frozenlake", help="which table; default: frozenlake")
    parser.add_argument("--train", nargs="*", metavar="WORLD", help="worlds to train in; default: all of the table")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--tasks", type=int, default=256)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every run, values as JSON")
    options = parser.parse_args(arguments)
    preset, count = options.worlds, options.tasks
    given = {key: json.loads(value) for key, value in (each.split("=", 1) for each in options.set)}
    start = load_config(preset).policy.name
    before = played(start, preset, count)
    none = {name: compared(rows, rows) for name, rows in before.items()}
    result: dict[str, Any] = {"version": 1, "preset": preset, "given": given, "worlds": bounds(preset, count), "runs": [],
                              "start": {"name": start, "tested": none}}
    print(said_of({"trained": start, "seed": 0, "cpu_seconds": 0, "tested": none}), flush=True)
    for seed in options.seeds:
        for world in WORLDS[preset] if options.train is None else options.train:
            result["runs"].append(measure(options.out, preset, world, seed, given, before, count))
            options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            print(said_of(result["runs"][-1]), flush=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
