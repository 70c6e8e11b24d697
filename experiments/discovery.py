"""Does training find what nobody showed? Three-hop questions from a policy that was shown two hops only.

    python -m experiments.discovery --out runs/discovery --json FILE [--starts search-two-hops FOLDER]
       [--seeds 0 1 2 3 4] [--shares 0.5 0.7] [--beside FOLDER] [--tasks 512] [--attempts 16]

For every start (a policy), seed and share of three-hop questions in training (`env.long_share`) one run of the preset
`search-discovery`; the share 0 is the control: reward on two hops alone. All are judged on the same three-hop questions
about held-out worlds, none of which an evaluation of these runs asks, before and after, sampled and greedy; the starts
also by pass@k. `--beside`: policies that are judged as well, without training: what as much fine-tuning makes of the
first start (`python -m data.make.pretrain search-two-hops --more 80`). A run that lies in `--out` whole is taken as it
is, so what is cut off goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from workbench.look.cells.export_policy import export_policy
from workbench.look.cells.train import resume_here, train_here
from workbench.look.task_types import by_kind
from workbench.rollouts.evaluate import Score, evaluate_policy
from workbench.run.store import Run, open_run
from workbench.training.config import Config, load_config
from workbench.training.session import open_session, rollout
from workbench.values import Task
from workbench.values.stats import paired_difference
from workbench.worlds import tasks

PRESET, KIND = "search-discovery", "3"
TEST_SEED = 1  # of the questions; evaluations ask those of seed 0
TAKE_OFF = 0.10  # the first step in which so many of the three-hop trajectories succeed
TEST_NOISE = 20_000  # seed of dynamics and sampling in the test, the same for every policy

Rows = dict[str, dict[str, Any]]  # mode ("sampled", "greedy") -> what an evaluation says of it


def test_tasks(config: Config, count: int) -> list[Task]:
    """Three-hop questions about held-out worlds that no evaluation of these runs asks."""
    asked = {
        content_of(task) for task in tasks(config.env, "held-out", config.evaluation.num_tasks)
    }
    drawn = tasks(replace(config.env, long_share=1.0), "held-out", 2 * count, seed=TEST_SEED)
    return [task for task in drawn if content_of(task) not in asked][:count]


def content_of(task: Task) -> tuple[int, str]:
    """What makes two tasks the same question."""
    return task.payload["world"], task.payload["question"]


def judged(
    policy: str,
    chosen: Sequence[Task],
    attempts: int = 1,
    preset: str = PRESET,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Rows:
    """A policy on these tasks, which are of the preset with these settings."""
    return {
        score.mode: Score.row(score) for score in scored(policy, chosen, attempts, preset, settings)
    }


def scored(
    policy: str,
    chosen: Sequence[Task],
    attempts: int = 1,
    preset: str = PRESET,
    settings: Mapping[str, Any] = MappingProxyType({}),
    noise: int = TEST_NOISE,
) -> list[Score]:
    """The same as scores, with what was played."""
    session = open_session(load_config(preset, {**settings, "policy.name": policy}), quiet=True)

    def play(tasks: Sequence[Task], count: int, config: Any, address: tuple[int | str, ...]) -> Any:
        return rollout(session, tasks, group_size=count, config=config, address=address)

    scores = evaluate_policy(
        policy, chosen, play, config=session.config.collect, seed=noise, attempts=attempts
    )
    session.close()
    return scores


def compared(before: Rows, after: Rows) -> dict[str, Any]:
    """Mode -> success with its interval, and the paired difference from before."""
    result = {}
    for mode, row in after.items():
        change = paired_difference(before[mode]["by_task"], row["by_task"])
        result[mode] = {
            "success": row["success"],
            "low": row["success_low"],
            "high": row["success_high"],
            "difference": [change.mean, change.low, change.high],
        }
    return result


@contextmanager
def exported(run: Run) -> Iterator[str]:
    """The policy of a run, as a folder that is there within."""
    with TemporaryDirectory() as scratch:
        export_policy(run, Path(scratch) / "policy")
        yield str(Path(scratch) / "policy")


def read_settings(words: Sequence[str]) -> dict[str, Any]:
    """`--set KEY=VALUE ...`, values as JSON."""
    return {key: json.loads(value) for key, value in (each.split("=", 1) for each in words)}


def trained(path: Path, settings: Mapping[str, Any], preset: str = PRESET) -> Run:
    """The run of these settings: as it lies there, gone on with, or new."""
    config = load_config(preset, settings)
    if not (path / "config.json").is_file():
        return train_here(config, path, on_note=None)
    run = open_run(path)
    return (
        run
        if run.steps() and run.steps()[-1] == config.train.steps
        else resume_here(path, on_note=None)
    )


def measure(
    out: Path, start: str, seed: int, share: float, chosen: Sequence[Task], before: Rows
) -> dict[str, Any]:
    """One run and what it came to."""
    name = Path(start).name
    run = trained(
        out / f"{name}-share-{share:g}-seed-{seed}",
        {"seed": seed, "env.long_share": share, "policy.name": start, "evaluation.num_tasks": 2},
    )  # the run's own evaluations judge nothing here
    with exported(run) as policy:
        after = judged(policy, chosen)
    found = by_kind(run, "hops")
    paid = [
        each.step
        for each in found.training
        if each.kind == KIND and each.won >= TAKE_OFF * each.attempts
    ]
    return {
        "start": name,
        "seed": seed,
        "share": share,
        "take_off": paid[0] if paid else None,
        "first": str(found.first[KIND]) if KIND in found.first else None,
        "turns": float(run.metrics()["turns"].iloc[-1]),
        "cpu_seconds": cpu_seconds(run),
        **compared(before, after),
    }


def cpu_seconds(run: Run) -> float:
    """Of all that its steps did."""
    clock = run.clock()
    return float(clock[[name for name in clock if name.endswith("_cpu_s")]].to_numpy().sum())


def said_of(row: dict[str, Any]) -> str:
    """A line for a run."""
    modes = (
        f"{mode} {100 * row[mode]['success']:.1f} % ({100 * row[mode]['difference'][0]:+.1f})"
        for mode in ("sampled", "greedy")
    )
    return (
        f"{row['start']} share {row['share']:g} seed {row['seed']}: {', '.join(modes)}; take-off at step "
        f"{row['take_off']}, {row['cpu_seconds']:.0f} CPU-seconds"
    )


def read(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.discovery", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument(
        "--json", type=Path, required=True, metavar="FILE", help="where the figures are written"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument(
        "--starts",
        nargs="+",
        default=["search-two-hops"],
        help="policies to begin with: shipped ones, or folders",
    )
    parser.add_argument(
        "--shares",
        type=float,
        nargs="+",
        default=[0.5, 0.0],
        help="of three-hop questions in training",
    )
    parser.add_argument(
        "--beside", nargs="+", default=[], metavar="FOLDER", help="policies to judge as they are"
    )
    parser.add_argument("--tasks", type=int, default=512)
    parser.add_argument(
        "--attempts", type=int, default=16, help="of each start at each question, for pass@k"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each run, and write all of them."""
    options = read(arguments)
    chosen = test_tasks(load_config(PRESET), options.tasks)
    several = {start: judged(start, chosen, options.attempts) for start in options.starts}
    before = {start: judged(start, chosen) for start in options.starts}
    result: dict[str, Any] = {
        "version": 1,
        "tasks": len(chosen),
        "runs": [],
        "starts": {
            Path(start).name: {
                mode: {key: value for key, value in row.items() if key not in ("by_task", "policy")}
                for mode, row in rows.items()
            }
            for start, rows in several.items()
        },
    }
    first = before[options.starts[0]]
    result["beside"] = [
        {"name": Path(folder).name, **compared(first, judged(folder, chosen))}
        for folder in options.beside
    ]
    for share in options.shares:
        for start in options.starts:
            for seed in options.seeds:
                result["runs"].append(
                    measure(options.out, start, seed, share, chosen, before[start])
                )
                options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
                print(said_of(result["runs"][-1]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
