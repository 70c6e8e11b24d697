"""What an environment costs and leaves behind: time, memory, threads, processes, files; and whether workers can run it
(E16 to E18)."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workbench.envs.checks.given import SLOW_S, CheckInput
from workbench.envs.checks.playing import same
from workbench.envs.checks.scripts import Script, parting, played_alone, played_at_once, unplayable
from workbench.envs.workers import ProcessRunner
from workbench.envs.workers.env_wire import reset_call
from workbench.types import Message, Observation, Task
from workbench.types.errors import WorkbenchError
from workbench.types.findings import NOTE, Checked, Finding, NotChecked, RuleResult, shortened
from workbench.types.plugins import name_of, not_importable

SLOW_STEP_S, SLOW_RESET_S = 0.5, 5.0
KEPT_BYTES = 100_000  # of an attempt that is over and closed
ROUNDS = 3  # of the same attempts
PATIENCE_S = 5.0
WORKER_S = 20.0
UNLIKE = "Python's hash() of a text, the order of a set and what a module was told before differ from process to process"


@dataclass(frozen=True)
class StepCost:
    """Of all attempts that were played: seconds of a reset and of a step (mean and longest), bytes that an attempt needs at
    most while it lasts (None: not measured)."""

    reset_s: float
    step_s: float
    longest_s: float
    peak_bytes: int | None


def cost_of(given: CheckInput) -> StepCost:
    """Memory is measured in one attempt that is played again: noting it makes everything slower."""
    resets = [each.seconds[0] for each in given.attempts if each.seconds]
    steps = [second for each in given.attempts for second in each.seconds[1:]]
    return StepCost(
        float(np.mean(resets)) if resets else 0.0,
        float(np.mean(steps)) if steps else 0.0,
        max(steps, default=0.0),
        _peak(given),
    )


def _peak(given: CheckInput) -> int | None:
    if not given.scripts or tracemalloc.is_tracing() or given.step_s > SLOW_S:
        return None
    tracemalloc.start()
    try:
        played_alone(given.family, given.scripts[0])
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def check_cost(given: CheckInput) -> Iterator[RuleResult]:
    """Steps are quick, and an attempt that is over keeps nothing."""
    cost = cost_of(given)
    yield Checked(len(given.attempts))
    if cost.step_s > SLOW_STEP_S or cost.reset_s > SLOW_RESET_S:
        yield Finding(
            f"a step takes {cost.step_s:.2f} s on average ({cost.longest_s:.2f} s at most), a reset {cost.reset_s:.2f} s: "
            "set collect.env_runner = 'processes' (or 'threads'), so that no other attempt waits for it",
            severity=NOTE,
        )
    if (
        given.step_s * max((len(s.texts) for s in given.scripts), default=0) * ROUNDS * 4
        > PATIENCE_S
    ):
        yield NotChecked("steps quick enough to play attempts again and see what memory they keep")
        return
    kept = _kept(given)
    if kept is not None and kept > KEPT_BYTES:
        yield Finding(
            f"each attempt that is over keeps {kept / 1000:.0f} kB that was not there before it, though the same ones "
            "were played before",
            severity="error" if kept > 10 * KEPT_BYTES else NOTE,
        )


def _kept(given: CheckInput) -> float | None:
    """Bytes that each attempt adds for good, when the same attempts are played for the third time."""
    if tracemalloc.is_tracing():
        return None
    tracemalloc.start()
    try:
        sizes = []
        for _ in range(ROUNDS):
            for script in given.scripts:
                played_alone(given.family, script)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    return (sizes[-1] - sizes[-2]) / max(len(given.scripts), 1)


# ------------------------------------------------------------------------------------------------ left behind


def check_left_behind(given: CheckInput) -> Iterator[RuleResult]:
    """Threads, processes and open files that are there after attempts were closed, and more with every attempt."""
    scripts = [
        Script(task, 0, texts)
        for task in given.tasks[:2]
        for texts in ((), *(s.texts for s in given.scripts[:1]))
    ]
    if given.scripts and given.step_s * len(given.scripts[0].texts) * 8 > PATIENCE_S:
        scripts = [Script(task, 0, ()) for task in given.tasks[:4]]
    held = []
    for _ in range(2):
        for script in scripts:
            played_alone(given.family, script)
        gc.collect()
        held.append(_settled(held[-1] if held else None))
    before, after = held
    yield Checked(2 * len(scripts))
    for what, mend in (
        ("threads", "end it in close()"),
        ("processes", "end it in close()"),
        ("open files", "close it in close()"),
    ):
        more = len(after[what]) - len(before[what])
        if more >= len(scripts) / 2:
            new = [each for each in after[what] if each not in before[what]]
            named = f", such as {new[0][1]}" if new else ""
            daemon = what == "threads" and all(each[2] for each in new)
            yield Finding(
                f"{len(scripts)} attempts that were closed leave {more} {what} behind{named}: {mend}",
                severity=NOTE if daemon else "error",
            )


def _settled(before: dict[str, list[Any]] | None) -> dict[str, list[Any]]:
    """What there is, once threads that are about to end have ended."""
    until = time.monotonic() + 1.0
    while True:
        now = {
            "threads": [
                (each.ident, f"{each.name!r}", each.daemon) for each in threading.enumerate()
            ],
            "processes": _children(),
            "open files": _open_files(),
        }
        if (
            before is None
            or time.monotonic() > until
            or all(len(now[what]) <= len(before[what]) for what in now)
        ):
            return now
        time.sleep(0.05)


def _children() -> list[tuple[int, str]]:
    """Of this process, where the system lists them."""
    found = []
    for listed in Path("/proc/self/task").glob("*/children"):
        try:
            found += [(int(pid), f"process {pid}") for pid in listed.read_text().split()]
        except OSError:  # the thread has ended
            continue
    return sorted(set(found))


def _open_files() -> list[tuple[int, str]]:
    found = []
    for each in Path("/proc/self/fd").glob("*"):
        try:
            target = os.readlink(each)
        except OSError:
            continue
        if not target.startswith("/proc/"):
            found.append((int(each.name), repr(target)))
    return found


# ------------------------------------------------------------------------------------------------ workers


def check_workers(given: CheckInput) -> Iterator[RuleResult]:
    """A worker process makes the family anew from its class and fields, and its attempts go as they go here."""
    family = given.family
    try:
        reset_call(family, given.tasks[0], 0)
    except WorkbenchError as error:
        yield Finding(f"worker processes cannot be handed the family: {error}")
        return
    if why := not_importable(name_of(type(family))):
        yield Finding(f"worker processes cannot run it: {why}", severity=NOTE)
        return
    if (why := unplayable(family)) is not None:
        yield NotChecked(why)
        return
    yield from _in_a_worker(given)


@dataclass(frozen=True)
class TaskFamily:
    """A family made of another: its `reset` shows the tasks of these seeds, as they are where it runs."""

    family: Any
    seeds: tuple[int, ...]
    name: str = "tasks"
    max_turns: int = 1

    def make(self) -> TaskFamily:
        return self

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        made = [[each.id, dict(each.payload)] for each in map(self.family.task, self.seeds)]
        return Observation((Message("user", json.dumps(made, sort_keys=True, default=repr)),))


def _in_a_worker(given: CheckInput) -> Iterator[RuleResult]:
    scripts = given.scripts[:2]
    alone = [played_alone(given.family, script) for script in scripts]
    runner = ProcessRunner(deadline_s=WORKER_S, workers=1)
    keys = [str(number) for number in range(len(scripts))]
    tasks = TaskFamily(family := given.family, tuple(given.seeds[:4]))
    asked = {"tasks": Script(given.tasks[0], 0, ())}
    try:
        drawn = played_at_once(runner, tasks, asked, patience=int(2 * WORKER_S / 0.2))["tasks"][0]
        there = played_at_once(
            runner, family, dict(zip(keys, scripts)), patience=int(2 * WORKER_S / 0.2)
        )
    except WorkbenchError as error:
        yield Finding(f"a worker process cannot run it: {error}")
        return
    finally:
        runner.shutdown()
    yield Checked(len(scripts))
    if not same(drawn, here := played_alone(tasks, asked["tasks"])[0]) and same(
        here, played_alone(tasks, asked["tasks"])[0]
    ):
        yield Finding(
            f"task(task_seed) makes other tasks in a worker process than here: {_first_difference(here, drawn)}. "
            f"{UNLIKE}"
        )
        return
    for key, script, expected in zip(keys, scripts, alone):
        if not same(expected, there[key]) and same(expected, played_alone(given.family, script)):
            yield Finding(
                f"an attempt at task {script.task.id!r} goes another way in a worker process than here: "
                f"{parting(expected, there[key])}. {UNLIKE}"
            )
            return


def _first_difference(here: Any, there: Any) -> str:
    """The first task that is another one, here and there."""
    if not isinstance(there, tuple):
        return str(there)
    for one, other in zip(*(json.loads(answer.messages[0].text) for answer, _ in (here, there))):
        if one != other:
            return f"{shortened(one)} here, {shortened(other)} there"
    return "their number"
