"""Does reward teach a tiny policy to call the tool? Programs from vague words, and replies by chance.

    python -m experiments.code_tool --out runs/code-tool --json FILE [--seeds 0 1 2] [--tasks 512]

One run of the preset `code-vague` a seed, and beside it the control: the same start, tasks, trajectories and updates with a
tool that replies `True` or `False` by chance, whatever the program does (`DrawnReplies`). All are judged on the same
held-out wordings, which no evaluation of these runs asks with these examples, before and after, sampled and greedy:
success, the share of trajectories that called the tool, success of those that did and of those that did not, sampled tokens.
Beside them: random play, a program that the words could mean, drawn, and the solver. A run that lies in `--out` whole is
taken as it is, so what is cut off goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from experiments.discovery import Rows, compared, cpu_seconds, exported, scored, trained
from workbench.extensions.sandbox.code import tasks as code_tasks
from workbench.extensions.sandbox.code.judging import judge
from workbench.extensions.sandbox.code.tasks import Code, CodeEnv
from workbench.extensions.sandbox.python_tool import PythonTool
from workbench.look.cells.lint import lint
from workbench.rollouts.evaluate import Score, evaluate_baselines
from workbench.tools.base import ToolResult
from workbench.training.config import load_config
from workbench.values import Observation, Task, trajectories_of
from workbench.values.seeds import rng_at
from workbench.values.stats import wilson_interval
from workbench.worlds import tasks

PRESET = "code-vague"
ARMS: Mapping[str, dict[str, Any]] = {
    "the tool": {},
    "replies by chance": {
        "env.kind": "experiments.code_tool:DrawnReplies",
        "env.words": "vague",
        "env.calls.show_schemas": False,
    },
}
TEST_SEED = 1  # of the tasks; evaluations ask those of seed 0
VERDICTS = cache(judge)
TEST_NOISE = 30_000  # seed of dynamics and sampling in the test, the same for every policy


@dataclass(frozen=True)
class DrawnReply(PythonTool):
    """`python` that runs nothing and says `True` or `False` by chance, by the trajectory and the program."""

    seed: int = 0

    def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        drawn = rng_at("code-tool.reply", self.seed, arguments["code"]).integers(2)
        return ToolResult(f"{bool(drawn)}\n")


class UninformedEnv(CodeEnv):
    """A trajectory whose tool knows nothing. Its answer is judged as ever."""

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        self.tools = (DrawnReply(self.family.sandbox, seed=dynamics_seed),)
        return super().reset(task, dynamics_seed)


@dataclass(frozen=True)
class DrawnReplies(Code):
    """The control: all as in `Code`, but what the tool replies says nothing of the program."""

    def make(self) -> CodeEnv:
        return UninformedEnv(self)


def test_tasks(family: Code, count: int) -> list[Task]:
    """Held-out wordings, with examples of their own."""
    return tasks(family, "held-out", count, seed=TEST_SEED)


@contextmanager
def judged_once() -> Iterator[None]:
    """Within it the hidden tests are run once for each program and task: in deterministic sandboxes they say the same again.
    Of tests alone, never of training, whose replay is to run them anew."""
    code_tasks.judge = VERDICTS
    try:
        yield
    finally:
        code_tasks.judge = judge


def judged(policy: str, settings: Mapping[str, Any], chosen: Sequence[Task]) -> Rows:
    """A policy on these tasks: mode -> what an evaluation says of it, and what it called."""
    with judged_once():
        scores = scored(policy, chosen, preset=PRESET, settings=settings, noise=TEST_NOISE)
    return {score.mode: Score.row(score) | called(score) for score in scores}


def called(score: Score) -> dict[str, Any]:
    """The share of trajectories that called the tool in order, and success of those that did and of those that did not."""
    played = trajectories_of(score.played)
    tried = [
        any(
            call["error"] != "bad_call" for turn in one.turns for call in turn.info.get("calls", ())
        )
        for one in played
    ]
    won = {
        kind: [bool(one.success) for one, each in zip(played, tried, strict=True) if each is kind]
        for kind in (True, False)
    }
    return {
        **shared("called", tried),
        **shared("if_called", won[True]),
        **shared("if_not", won[False]),
    }


def shared(name: str, values: Sequence[bool]) -> dict[str, Any]:
    """A share with its 95 % interval, and of how many; None where there is none."""
    if not values:
        return {name: None, f"{name}_low": None, f"{name}_high": None, f"{name}_of": 0}
    low, high = wilson_interval(sum(values), len(values))
    return {
        name: sum(values) / len(values),
        f"{name}_low": low,
        f"{name}_high": high,
        f"{name}_of": len(values),
    }


def by_chance(family: Code, chosen: Sequence[Task]) -> dict[str, float]:
    """A program that the words could mean, drawn for each task; and what an answer and a call cost, in seconds."""
    env, won, clocks = family.make(), 0, {"call": [], "answer": []}
    for task in chosen:
        rivals = task.payload["rivals"]
        program = rivals[int(rng_at("code-tool.chance", task.id).integers(len(rivals)))]
        env.reset(task, 0)
        for what, turn in (
            ("call", env.format.write_call("python", {"code": f"{program}solve([1, 2])"})),
            ("answer", env.format.write_answer(program)),
        ):
            began = time.monotonic()
            result = env.step(turn)
            clocks[what].append(time.monotonic() - began)
        won += result.info["success"]
    env.close()
    low, high = wilson_interval(won, len(chosen))
    return {
        "success": won / len(chosen),
        "low": low,
        "high": high,
        **{f"{what}_s": statistics.median(seconds) for what, seconds in clocks.items()},
    }


def measure(out: Path, arm: str, seed: int, chosen: Sequence[Task], before: Rows) -> dict[str, Any]:
    """One run and what it came to. `lint`: errors it found; `replay`: how its trajectories came out when they were played again
    (R20)."""
    run = trained(out / f"{arm.replace(' ', '-')}-seed-{seed}", {**ARMS[arm], "seed": seed}, PRESET)
    with exported(run) as policy:
        after = judged(policy, ARMS[arm], chosen)
    report, told = lint(run).report, compared(before, after)
    return {
        "arm": arm,
        "seed": seed,
        "cpu_seconds": cpu_seconds(run),
        "lint": report.counts()["errors"],
        "replay": report["R20"].status,
        **{mode: kept(after[mode]) | told[mode] for mode in told},
    }


def kept(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is written of an evaluation."""
    return {
        key: value for key, value in row.items() if key not in ("by_task", "policy", "checkpoint")
    }


def said_of(row: Mapping[str, Any]) -> str:
    """A line for a run."""
    modes = (
        f"{mode} {100 * row[mode]['success']:.1f} % ({100 * row[mode]['difference'][0]:+.1f}), called in "
        f"{100 * row[mode]['called']:.0f} %"
        for mode in ("sampled", "greedy")
    )
    return f"{row['arm']}, seed {row['seed']}: {'; '.join(modes)}; {row['cpu_seconds']:.0f} CPU-seconds"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each run, and write all of them."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.code_tool", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument(
        "--json", type=Path, required=True, metavar="FILE", help="where the figures are written"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tasks", type=int, default=512)
    options = parser.parse_args(arguments)
    config = load_config(PRESET)
    chosen = test_tasks(config.env, options.tasks)
    before = {arm: judged(config.policy.name, settings, chosen) for arm, settings in ARMS.items()}
    result = {
        "version": 1,
        "tasks": len(chosen),
        "runs": [],
        "chance": by_chance(config.env, chosen),
        "baselines": [
            Score.row(score)
            for score in evaluate_baselines(chosen, family=config.env, seed=TEST_NOISE)
        ],
        "starts": {
            arm: {mode: kept(row) for mode, row in rows.items()} for arm, rows in before.items()
        },
    }
    for seed in options.seeds:
        for arm in ARMS:
            result["runs"].append(measure(options.out, arm, seed, chosen, before[arm]))
            options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
            print(said_of(result["runs"][-1]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
