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

from workbench.basics.findings import NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.basics.plugins import name_of, not_importable
from workbench.extensions.scripted_play.given import SLOW_S, CheckInput
from workbench.extensions.scripted_play.playing import (
    Script,
    before_a_deadline,
    parting,
    played_at_once,
    replay,
    same,
    unplayable,
)
from workbench.values import Message, Observation, Task
from workbench.values.errors import WorkbenchError, shortened
from workbench.worlds.workers.env_runner import ProcessRunner
from workbench.worlds.workers.env_wire import reset_call

SLOW_STEP_S = 0.5
SLOW_RESET_S = 5.0
KEPT_BYTES = 100_000  # of a trajectory that is over and closed
ROUNDS = 3  # of the same trajectories
PATIENCE_S = 5.0
WORKER_S = 20.0
WORKER_POLLS = int(2 * WORKER_S / 0.2)  # for an answer that does not come
UNLIKE = "Python's hash() of a text, the order of a set and what a module was told before differ from process to process"


@dataclass(frozen=True)
class StepCost:
    """The costs of all trajectories that were played."""

    reset_s: float  # seconds of a reset, on average
    step_s: float  # seconds of a step, on average
    longest_s: float  # ... at most
    peak_bytes: int | None  # that a trajectory needs while it lasts; None: not measured


def cost_of(given: CheckInput) -> StepCost:
    """Memory is measured in one trajectory that is played again: noting it makes everything slower."""
    resets = [played.seconds[0] for played in given.played if played.seconds]
    return StepCost(
        float(np.mean(resets)) if resets else 0.0,
        given.step_s,
        max(given.step_seconds, default=0.0),
        _peak(given),
    )


def _peak(given: CheckInput) -> int | None:
    if not given.scripts or tracemalloc.is_tracing() or given.step_s > SLOW_S:
        return None
    tracemalloc.start()
    try:
        replay(given.family, given.scripts[0])
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def check_cost(given: CheckInput) -> Iterator[RuleResult]:
    """Steps are quick, and a trajectory that is over keeps nothing."""
    cost = cost_of(given)
    yield Checked(len(given.played))
    if cost.step_s > SLOW_STEP_S or cost.reset_s > SLOW_RESET_S:
        yield Finding(
            f"a step takes {cost.step_s:.2f} s on average ({cost.longest_s:.2f} s at most), a reset {cost.reset_s:.2f} s: "
            "set collect.env_runner = 'processes' (or 'threads'), so that no other trajectory waits for it",
            severity=NOTE,
        )
    if (
        given.step_s * max((len(s.texts) for s in given.scripts), default=0) * ROUNDS * 4
        > PATIENCE_S
    ):
        yield NotChecked(
            "steps quick enough to play trajectories again and see what memory they keep"
        )
        return
    kept = _bytes_kept(given)
    if kept is not None and kept > KEPT_BYTES:
        yield Finding(
            f"each trajectory that is over keeps {kept / 1000:.0f} kB that was not there before it, though the same ones "
            "were played before",
            severity="error" if kept > 10 * KEPT_BYTES else NOTE,
        )


def _bytes_kept(given: CheckInput) -> float | None:
    """Bytes that each trajectory adds for good, when the same trajectories are played for the third time."""
    if tracemalloc.is_tracing():
        return None
    tracemalloc.start()
    try:
        sizes = []
        for _ in range(ROUNDS):
            for script in given.scripts:
                replay(given.family, script)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    return (sizes[-1] - sizes[-2]) / max(len(given.scripts), 1)


# ------------------------------------------------------------------------------------------------ left behind


def check_left_behind(given: CheckInput) -> Iterator[RuleResult]:
    """Threads, processes and open files that are there after trajectories were closed, and more with every trajectory."""
    actions = [(), *(script.texts for script in given.scripts[:1])]
    scripts: list[Script] = []
    for task in given.tasks[:2]:
        scripts += [Script(task, 0, texts) for texts in actions]
    if given.scripts and given.step_s * len(given.scripts[0].texts) * 8 > PATIENCE_S:
        scripts = [Script(task, 0, ()) for task in given.tasks[:4]]
    held = []
    for _ in range(2):
        for script in scripts:
            replay(given.family, script)
        gc.collect()
        held.append(_resources(held[-1] if held else None))
    before, after = held
    yield Checked(2 * len(scripts))
    for what, mend in (
        ("threads", "end it in close()"),
        ("processes", "end it in close()"),
        ("open files", "close it in close()"),
    ):
        more = len(after[what]) - len(before[what])
        if more >= len(scripts) / 2:
            new = [item for item in after[what] if item not in before[what]]
            named = f", such as {new[0][1]}" if new else ""
            daemon = what == "threads" and all(item[2] for item in new)
            yield Finding(
                f"{len(scripts)} trajectories that were closed leave {more} {what} behind{named}: {mend}",
                severity=NOTE if daemon else "error",
            )


def _resources(before: dict[str, list[Any]] | None) -> dict[str, list[Any]]:
    """Threads, processes and open files, once threads that are about to end have ended."""
    until = time.monotonic() + 1.0
    while True:
        now = {
            "threads": [
                (thread.ident, f"{thread.name!r}", thread.daemon)
                for thread in threading.enumerate()
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
    """The children of this process, where the system lists them."""
    children = []
    for listed in Path("/proc/self/task").glob("*/children"):
        try:
            children += [(int(pid), f"process {pid}") for pid in listed.read_text().split()]
        except OSError:  # the thread has ended
            continue
    return sorted(set(children))


def _open_files() -> list[tuple[int, str]]:
    files = []
    for link in Path("/proc/self/fd").glob("*"):
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if not target.startswith("/proc/"):
            files.append((int(link.name), repr(target)))
    return files


# ------------------------------------------------------------------------------------------------ workers


def check_workers(given: CheckInput) -> Iterator[RuleResult]:
    """A worker process makes the family anew from its class and fields, and its trajectories go as they go here."""
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
        made = [
            [drawn_task.id, dict(drawn_task.payload)]
            for drawn_task in map(self.family.task, self.seeds)
        ]
        return Observation((Message("user", json.dumps(made, sort_keys=True, default=repr)),))


def _in_a_worker(given: CheckInput) -> Iterator[RuleResult]:
    scripts = given.scripts[:2]
    alone = [replay(given.family, script).answers for script in scripts]
    runner = ProcessRunner(deadline_s=WORKER_S, workers=1)
    keys = [str(number) for number in range(len(scripts))]
    tasks = TaskFamily(family := given.family, tuple(given.seeds[:4]))
    asked = {"tasks": Script(given.tasks[0], 0, ())}
    try:
        drawn = played_at_once(runner, tasks, asked, patience=WORKER_POLLS)["tasks"][0]
        there = played_at_once(runner, family, dict(zip(keys, scripts)), patience=WORKER_POLLS)
    except WorkbenchError as error:
        yield Finding(f"a worker process cannot run it: {error}")
        return
    finally:
        runner.shutdown()
    yield Checked(len(scripts))
    if not same(drawn, here := replay(tasks, asked["tasks"]).answers[0]) and same(
        here, replay(tasks, asked["tasks"]).answers[0]
    ):
        yield Finding(
            f"task(task_seed) makes other tasks in a worker process than here: {_first_difference(here, drawn)}. "
            f"{UNLIKE}"
        )
        return
    for script, whole, answers in zip(scripts, alone, there.values()):
        expected, answered = before_a_deadline(whole, answers)
        if not same(expected, answered) and same(whole, replay(family, script).answers):
            yield Finding(
                f"a trajectory of task {script.task.id!r} goes another way in a worker process than here: "
                f"{parting(expected, answered)}. {UNLIKE}"
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
