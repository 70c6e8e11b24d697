"""The demo: train the embedded agent, say whether it really learned, and exit with that answer.

An agent that searches is worth what it does better than those that do not. So beside it three others are trained, each
for its own job and with as many trajectories: without the tool, with one search for the question's own words (naive RAG),
and handed the documents that the answer takes, which is what reading alone is worth.
"""

from __future__ import annotations

import json
import platform
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.look import trajectory_view
from workbench.look.cells.live_run import RunningRun
from workbench.look.cells.live_run import train as start
from workbench.look.task_types import ByKind, by_kind
from workbench.run.store import Run, open_run
from workbench.run.writer import write_file
from workbench.training.config import Config
from workbench.values import Trajectory, trajectories_of
from workbench.values.errors import ConfigError, LearnerError, StoreError
from workbench.worlds.world_qa import WorldQA

MIN_RISE = 0.08  # of sampled success, in shares: eight points
# Other ways to put the same questions: name -> `WorldQA.context`.
RIVALS = {"no tool": "closed", "naive RAG": "rag", "both documents given": "gold"}


@dataclass(frozen=True)
class Goal:
    """What is promised of a task beyond a rise: shares of success, at the end."""

    sampled: float
    greedy: float


@dataclass(frozen=True)
class Discovery:
    """A kind of task that the policy was never shown: greedy success at it rises by `rise`, clear of `clear` (shares)."""

    key: str
    kind: str
    rise: float = 0.30
    clear: float = 0.20


NEVER_SHOWN = {"search-two-hops": Discovery("hops", "3")}  # by the name of the policy


def goal_of(config: Config) -> Goal | None:
    """What docs/evidence/demo.md promises of `make demo`; None where it promises no more than a rise."""
    env = config.env
    searches = isinstance(env, WorldQA) and (env.world, env.context) == ("plain", "search")
    return Goal(0.80, 0.90) if searches and discovery_of(config) is None else None


def discovery_of(config: Config) -> Discovery | None:
    """What this policy was never shown and may find; None: nothing of that kind is known."""
    return NEVER_SHOWN.get(config.policy.name)


def discovered(found: ByKind, wanted: Discovery) -> dict[str, bool]:
    """The conditions on the kind that nobody showed, of the run's held-out tasks."""
    change = found.difference(wanted.kind, "greedy")
    what = f"greedy success at {wanted.key} {wanted.kind}, which was never shown"
    return {
        f"{what}, rises by at least {100 * wanted.rise:.0f} points": change.mean >= wanted.rise,
        f"the paired 95 % interval of that rise lies above {100 * wanted.clear:.0f} points": change.low
        > wanted.clear,
    }


def verdict(report: dict[str, Any], goal: Goal | None = None) -> dict[str, Any]:
    """Did this run learn? Four conditions on the last evaluation of a run, each with its figures, and those of a goal.

    Sampled success rises by at least eight points over the untrained policy on the same tasks, the paired 95 % interval
    has a 95 % interval that excludes 0, it ends above random play, and greedy success does not fall by more than a half-width of its
    interval.
    """
    rows = {(row["policy"], row["mode"]): row for row in report["rows"]}
    if rows["trained", "sampled"]["success"] is None or "absent" in report:
        raise ConfigError(
            "the demo judges by success against a random baseline; this environment does not say who "
            "succeeded, or has no random play. Train it with `workbench train` and read its evaluations"
        )
    pairs = {(pair["a"], pair["b"]): pair for pair in report["paired"]}
    rise = pairs["untrained sampled", "trained sampled"]
    above = pairs["random sampled", "trained sampled"]
    greedy = rows["trained", "greedy"]["success"] - rows["untrained", "greedy"]["success"]
    half = (
        rows["untrained", "greedy"]["success_high"] - rows["untrained", "greedy"]["success_low"]
    ) / 2
    checks = {
        f"sampled success rises by at least {MIN_RISE * 100:.0f} points": rise["difference"]
        >= MIN_RISE,
        "the paired 95 % interval of the rise excludes 0": rise["low"] > 0,
        "it ends above random play": above["low"] > 0,
        "greedy success does not fall by more than a half-width": greedy >= -half,
    }
    if goal is not None:
        checks |= {
            f"{mode} success is at least {share * 100:.0f} %": rows["trained", mode]["success"]
            >= share
            for mode, share in (("sampled", goal.sampled), ("greedy", goal.greedy))
        }
    return {
        "learned": all(checks.values()),
        "checks": checks,
        "rise": rise,
        "above_random": above,
        "greedy_change": greedy,
        "greedy_half_width": half,
    }


def demo(
    config: Config,
    seeds: Sequence[int],
    out: Path,
    train: Callable[[Config, Path], Run],
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Train once per seed with `train(config, path)`, judge each, write `table.json` into `out`; returns the table.

    The rivals of a seed train meanwhile, each in a process of its own; they are stopped where the agent's run breaks
    off.

    The table holds every row of the last evaluation of every seed, its verdict, and the CPU and wall seconds of its
    steps (evaluations apart); `wall_seconds` of a seed are all of it, rivals and evaluations included. A run that ends
    because nothing could be learned has failed like any other. Raises ConfigError for a seed that stands twice,
    StoreError where `out` is not empty.
    """
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"every seed is a run of its own, but one occurs twice in {list(seeds)}")
    if any(out.glob("*")):
        first = shlex.quote(f"{out}/seed-{seeds[0]}")
        raise StoreError(
            f"{out} is there already and not empty. What a demo that was broken off left in it goes on by `workbench "
            f"resume {first}`; for another demo choose another folder"
        )
    results = []
    for seed in seeds:
        began = time.monotonic()
        with _rivals(replace(config, seed=seed), out) as rivals:
            run, task_types, result = _judged(
                replace(config, seed=seed), out / f"seed-{seed}", train
            )
            result["rivals"] = [_rival(name, running.wait()) for name, running in rivals.items()]
        result["wall_seconds"] = time.monotonic() - began
        results.append(result)
        say(f"seed {seed}: {'learned' if result['learned'] else 'NOT learned'}")
        for check, held in result["checks"].items():
            say(f"  {'ok  ' if held else 'FAIL'} {check}")
        if task_types is not None:
            say(_words_of(run, task_types, discovery_of(config)))
        elif one := a_trajectory(run):
            say(trajectory_view(one).text)
    table = {
        "learned": all(r["learned"] for r in results),
        "machine": platform.platform(),
        "seeds": results,
    }
    write_file(out / "table.json", (json.dumps(table, indent=1) + "\n").encode())
    return table


def _words_of(run: Run, found: ByKind, wanted: Discovery) -> str:
    """Success by kind, and the first trajectory of the kind which nobody showed that was paid, turn by turn."""
    first = found.first.get(wanted.kind)
    if first is None:
        return found.view().text
    trajectory = run.groups(first.step)[first.task][first.attempt]
    return (
        f"{found.view().text}\n\nthe first of them, with its credit: workbench show {shlex.quote(str(run.path))} "
        f"--at {shlex.quote(str(first))}\n{trajectory_view(trajectory).text}"
    )


def a_trajectory(run: Run) -> Trajectory | None:
    """One trajectory of the run's last step to look at: of those that succeeded, one of the longest; None where there is
    none."""
    steps = run.steps()
    trajectories = trajectories_of(run.groups(steps[-1])) if steps else ()
    won = [trajectory for trajectory in trajectories if trajectory.success]
    return max(won, key=lambda trajectory: len(trajectory.turns), default=None)


def rivals_of(config: Config) -> tuple[str, ...]:
    """The names of those that are trained beside the agent: only an agent that searches has any, and not where the
    question is what it finds by itself."""
    searches = isinstance(config.env, WorldQA) and config.env.context == "search"
    return tuple(RIVALS) if searches and discovery_of(config) is None else ()


def rival_config(config: Config, name: str) -> Config:
    """The same questions, put otherwise, and as many trajectories to learn from. It may find nothing to learn in any of its
    steps: then it stays as it is, which is its answer, and no reason to end."""
    return replace(
        config,
        env=replace(config.env, context=RIVALS[name]),
        train=replace(config.train, max_empty_steps=config.train.steps + 1),
    )


@contextmanager
def _rivals(config: Config, out: Path) -> Iterator[dict[str, RunningRun]]:
    """The rivals at work, by name; whichever still is at the end of this block is stopped, or where this process is killed."""
    working: dict[str, RunningRun] = {}
    try:
        for name in rivals_of(config):
            path = out / f"seed-{config.seed}-{name.replace(' ', '-')}"
            working[name] = start(rival_config(config, name), path, outlives=False)
        yield working
    finally:
        for running in working.values():
            running.stop()


def _rival(name: str, run: Run) -> dict[str, Any]:
    """Before and after, on the same held-out questions as the agent's."""
    last = list(run.evaluations().values())[-1]
    rows = [
        {key: value for key, value in row.items() if key != "by_task"}
        for row in last["rows"]
        if row["policy"] in ("untrained", "trained")
    ]
    return {"name": name, "run": run.name, "rows": rows, "steps": len(run.steps())}


def _judged(
    config: Config, path: Path, train: Callable[[Config, Path], Run]
) -> tuple[Run, ByKind | None, dict[str, Any]]:
    try:
        run = train(config, path)
        ended = None
    except (
        LearnerError
    ) as error:  # a run in which nothing could be learned is an answer, not an accident
        if not path.is_dir():
            raise
        run = open_run(path)
        ended = str(error)
    last = list(run.evaluations().values())[-1]
    judged = (
        verdict(last, goal_of(config))
        if ended is None
        else {
            "learned": False,
            "checks": {f"the run comes to its end, which it did not: {ended}": False},
            "rise": None,
            "above_random": None,
            "greedy_change": None,
            "greedy_half_width": None,
        }
    )
    wanted = discovery_of(config)
    task_types = by_kind(run, wanted.key) if wanted else None
    if ended is None and task_types is not None:
        judged["checks"] |= discovered(task_types, wanted)
        judged["learned"] = all(judged["checks"].values())
    clock = run.clock()
    cpu = [name for name in clock if name.endswith("_cpu_s")]
    wall = [
        name for name in clock if name.endswith("_s") and name not in (*cpu, "sampling_s")
    ]  # that one is beside them
    return (
        run,
        task_types,
        {
            "seed": config.seed,
            **judged,
            "rows": [
                {key: value for key, value in row.items() if key != "by_task"}
                for row in last["rows"]
            ],
            "paired": last["paired"],
            "steps": len(run.steps()),
            "run": run.name,
            "training_cpu_seconds": float(clock[cpu].to_numpy().sum()),
            "training_wall_seconds": float(clock[wall].to_numpy().sum()),
        },
    )
