"""`demo` and `ablate` that are killed: nothing committed is lost, nothing is half written, the next start says what is there.

    python -m tests.faults.command_kills [--kills 20] [--seed 0] [--ways demo ablate demo-rivals ablate-kernels] [--json FILE]

demo            in a forked child, killed at a random instant, or before its n-th system call that writes: by turns
ablate          the same, with jobs whose notebook is not run (tests/ablation/quick.py)
demo-rivals     the command itself with the agent and its three rivals, each a process; killed at a random instant
ablate-kernels  the command itself with workers, kernels and the report; killed at a random instant, and begun anew

After a kill of a demo each of its runs is a beginning of the run that nobody interrupted, the same command into the same
folder is refused in words and changes nothing, and each run is resumed to the same end, bit for bit. After a kill of
ablate each record is whole and stays as it is; the next start does what is missing, and its table is that of the grid that
nobody interrupted. No process is left. Exit status: 0 all held, 1 something did not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from tests.ablation import quick
from tests.faults import killing
from tests.faults.grid_soak import ROOT, numbers_in, unreadable
from workbench.basics import canonical_json
from workbench.extensions.ablation import declared, door, drive, work
from workbench.extensions.demo import verdict as demo_cell
from workbench.look.run_diff import compare_runs
from workbench.run.store import Run, open_run
from workbench.training import train as train_module
from workbench.training.config import Config

CASE = "grpo"
SEEDS = (0, 1)
TINY = {
    "train__steps": 2,
    "train__evaluate_every": 2,
    "train__checkpoint_every": 1,
    "train__tasks_per_step": 1,
    "train__group_size": 2,
    "evaluation__num_tasks": 2,
}
MARK = "WORKBENCH_COMMAND_KILLS"  # in the environment of all that a command starts
GONE_S = 30.0  # within which what a killed command had started ends by itself
TIMES = ("wall_seconds", "training_cpu_seconds", "training_wall_seconds")
GRID = quick.PLAN.replace("seeds = 3", "seeds = 2")
RIVALS = [
    "train.steps=2",
    "train.tasks_per_step=1",
    "train.group_size=2",
    "algorithm.minibatches=1",
    "train.evaluate_every=0",
    "train.checkpoint_every=1",
    "evaluation.num_tasks=2",
    "lint.start=false",
]


@dataclass
class Kills:
    """What was killed and what came of it.

    committed: steps, or jobs, that were committed at the kills, summed.
    lost: those of them that were not there afterwards, or were others.
    refused: next starts that said what is there and changed nothing.
    finished: next starts, or resumed runs, that came to the end which they have uninterrupted.
    faults: in words.
    """

    tried: int = 0
    killed: int = 0
    committed: int = 0
    lost: int = 0
    refused: int = 0
    finished: int = 0
    faults: list[str] = field(default_factory=list)


def bytes_of(folder: Path) -> dict[str, str]:
    """Of every file below a folder, a hash."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# ------------------------------------------------------------------------------------------------ demo


def start_demo(out: Path) -> None:
    """What the child does: `workbench demo`, without its report."""
    anew, forked = train_module.open_session, killing.opened(CASE)

    def train(config: Config, path: Path) -> Run:
        # The engine that was opened before the fork serves one run.
        train_module.open_session = forked if config.seed == SEEDS[0] else anew
        return killing.calls.train_here(config, path, on_note=None)

    demo_cell.demo(killing.config_of(CASE, **TINY), SEEDS, out, train, lambda words: None)


def table_in(out: Path) -> Any:
    """A demo's table without what it took; None where there is none."""
    if not (out / "table.json").exists():
        return None
    table = json.loads((out / "table.json").read_text())
    for seed in table["seeds"]:
        for name in TIMES:
            del seed[name]
    return table


def after_demo(out: Path, whole: Path, tally: Kills, what: str) -> None:
    """Look at what a kill left of a demo, give the same command again, and resume its runs."""
    left = [path for path in (out / f"seed-{seed}" for seed in SEEDS) if path.exists()]
    before = {path: killing.lines_of(path) for path in left}
    for path, lines in before.items():
        tally.committed += lines.count(b"\n")
        if not killing.lines_of(whole / path.name).startswith(lines):
            tally.faults.append(f"{what}: {path.name} committed other steps than without a kill")
    if table_in(out) not in (None, table_in(whole)):
        tally.faults.append(f"{what}: another table than without a kill")
    stands = bytes_of(out)
    again = killing.in_child(lambda: start_demo(out))
    if stands:
        tally.refused += again.status == 2 and "is there already" in again.words
        if again.status != 2 or bytes_of(out) != stands:
            tally.faults.append(f"{what}: the next start was not refused: {again.words[-300:]}")
    elif again.status or table_in(out) != table_in(whole):
        tally.faults.append(f"{what}: the next start did not begin anew: {again.words[-300:]}")
    else:
        tally.finished += 1
    for path, lines in before.items():
        resume_to(whole / path.name, path, lines, tally, what)


def resume_to(whole: Path, path: Path, lines: bytes, tally: Kills, what: str) -> None:
    """Resume a run and hold it against the one that nobody interrupted."""

    def act() -> None:
        if path.name == f"seed-{SEEDS[0]}":  # as `start_demo` opens it
            killing.resume.open_session = killing.opened(CASE)
        killing.calls.resume_here(path, on_note=None)

    ending = killing.in_child(act)
    tally.lost += 0 if killing.lines_of(path).startswith(lines) else lines.count(b"\n")
    if ending.status:
        tally.faults.append(f"{what}: {path.name} is not resumed: {ending.words[-300:]}")
        return
    difference = compare_runs(open_run(whole), open_run(path), exact=True)
    if difference.equal:
        tally.finished += 1
    else:
        tally.faults.append(f"{what}: {path.name}: {difference.first}")


# ------------------------------------------------------------------------------------------------ ablate


def start_ablate(plan: Path, out: Path) -> None:
    """What the child does: `workbench ablate`, with jobs that take no time, without its report."""
    quick.time = SimpleNamespace(sleep=lambda seconds: None)
    work.AFTERLIFE_S = 0.0
    way = drive.JobSettings(workers=0, do=quick.do)
    door.carry_out(door.ask(plan, out), way, lambda line: None)


def jobs_of(plan: Path, out: Path) -> dict[str, bytes]:
    """The records of those jobs that are done."""
    if not (out / "jobs").is_dir():
        return {}
    asked = door.ask(plan, out)
    listed = drive.states(asked.plan, asked.seeds, out)
    done = [one.name for one in listed if one.state == drive.DONE]
    return {name: (out / "jobs" / f"{name}.json").read_bytes() for name in done}


def half_written(out: Path) -> list[str]:
    """Records, declarations and tables of a grid that are there and not whole. What a notebook of `quick` holds is no
    notebook: only real kernels write those."""
    faults = []
    sealed = [(path, work.KIND, work.VERSION) for path in out.glob("jobs/*.json")]
    sealed += [(path, declared.KIND, declared.VERSION) for path in out.glob("*.declared.json")]
    for path, kind, version in sealed:
        try:
            canonical_json.read_sealed_json(path, kind=kind, version=version)
        except Exception as error:  # whatever it is, a reader would meet it
            faults.append(f"{path.name}: {type(error).__name__}: {error}"[:300])
    table = out / "results.tsv"
    if table.exists() and not table.read_bytes().endswith(b"\n"):
        faults.append("results.tsv ends in the middle of a line")
    return faults


def after_ablate(plan: Path, out: Path, whole: Path, tally: Kills, what: str) -> None:
    """Look at what a kill left of a grid, and give the same command again."""
    tally.faults += [f"{what}: {fault}" for fault in half_written(out)]
    before = jobs_of(plan, out)
    tally.committed += len(before)
    again = killing.in_child(lambda: start_ablate(plan, out))
    after = jobs_of(plan, out)
    tally.lost += sum(after.get(name) != record for name, record in before.items())
    if again.status:
        tally.faults.append(f"{what}: the next start: {again.words[-300:]}")
    elif not numbers_in(out).equals(numbers_in(whole)) or half_written(out):
        tally.faults.append(f"{what}: another table than without a kill")
    else:
        tally.finished += 1


# ------------------------------------------------------------------------------------------------ in forked children


@dataclass(frozen=True)
class Ground:
    """A command, the folder in which nobody interrupted it, and how long it took."""

    folder: Path
    start: Callable[[Path], None]
    after: Callable[[Path, Path, Kills, str], None]
    seconds: float
    calls: int

    @property
    def whole(self) -> Path:
        return self.folder / "whole"

    @classmethod
    def of(cls, way: str, folder: Path) -> Ground:
        """Of `demo` or `ablate`. It is done once in this process's child, with its calls counted."""
        folder.mkdir()
        if way == "demo":
            start, after = start_demo, after_demo
            killing.opened(CASE)
        else:
            plan = quick.plan_at(folder, GRID)
            door.ask(plan, folder / "whole")  # what it imports, no child needs to

            def start(out: Path) -> None:
                start_ablate(plan, out)

            def after(out: Path, whole: Path, tally: Kills, what: str) -> None:
                after_ablate(plan, out, whole, tally, what)

        counted = folder / "calls"

        def act() -> None:
            count = killing.break_at(0)
            start(folder / "whole")
            counted.write_text(str(count()))

        ending = killing.in_child(act)
        if ending.status:
            raise RuntimeError(f"the command without any fault failed: {ending.words}")
        return cls(folder, start, after, ending.seconds, int(counted.read_text()))

    def kill(self, tally: Kills, *, after_s: float | None = None, call: int = 0) -> None:
        """Kill it once, after so many seconds or before its `call`-th system call that writes, and look."""
        out = self.folder / f"out-{tally.tried}"
        what = f"call {call}" if call else f"after {after_s:.3f} s"

        def act() -> None:
            killing.break_at(call)
            self.start(out)

        ending = killing.in_child(act, kill_after_s=after_s)
        tally.tried += 1
        tally.killed += ending.status in (killing.BROKEN, -signal.SIGKILL)
        if ending.status not in (0, killing.BROKEN, -signal.SIGKILL):
            tally.faults.append(f"{what}: {ending.words[-300:]}")
        self.after(out, self.whole, tally, what)
        shutil.rmtree(out, ignore_errors=True)


def kill_forked(way: str, folder: Path, kills: int, rng: random.Random) -> Kills:
    """Kill until so many were killed: at random instants and before system calls, by turns."""
    ground = Ground.of(way, folder / way)
    tally = Kills()
    while tally.killed < kills and tally.tried < 3 * kills:
        if tally.tried % 2:
            ground.kill(tally, call=rng.randrange(1, ground.calls + 1))
        else:
            ground.kill(tally, after_s=rng.uniform(0, ground.seconds))
    return tally


# ------------------------------------------------------------------------------------------------ the commands themselves


def living(mark: str) -> list[str]:
    """Command lines of the processes that carry a mark."""
    lines = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                lines.append(f"{process.pid}: {' '.join(process.cmdline())[:200]}")
        except psutil.Error:  # it has ended, or is another user's
            continue
    return lines


def wait_until_gone(mark: str, seconds: float = GONE_S) -> list[str]:
    """What lives after a while of those that a command had started."""
    until = time.monotonic() + seconds
    while (alive := living(mark)) and time.monotonic() < until:
        time.sleep(0.2)
    return alive


@dataclass(frozen=True)
class Command:
    """A command line in a process of its own. `words`: behind `workbench`."""

    words: Sequence[str]
    folder: Path
    mark: str

    def run(self, kill_after_s: float | None = None) -> tuple[int, str, float]:
        """Exit status, the end of what it said, and how long it took."""
        began = time.monotonic()
        log = self.folder / "said"
        with log.open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "workbench.cli", *self.words],
                cwd=self.folder,
                env=os.environ | {MARK: self.mark, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )
            try:
                process.wait(kill_after_s)
            except subprocess.TimeoutExpired:
                process.kill()  # this one alone: what it started is to end by itself
                process.wait()
        seconds = time.monotonic() - began
        return process.returncode, log.read_text(errors="replace")[-400:], seconds


def kill_demo_rivals(folder: Path, kills: int, rng: random.Random) -> Kills:
    """The agent and its rivals, each in a process of its own."""
    mark = f"{os.getpid()}-demo"
    settings = [word for setting in RIVALS for word in ("--set", setting)]
    tally = Kills()

    def demo(out: str) -> Command:
        words = ["demo", "--task", "search", "--seeds", "0", "--out", out, *settings]
        return Command(words, folder, mark)

    status, words, seconds = demo("whole").run()
    if status not in (0, 1) or not (folder / "whole/table.json").exists():
        raise RuntimeError(f"the demo without any fault failed: {words}")
    while tally.killed < kills and tally.tried < 3 * kills:
        out = f"out-{tally.tried}"
        after_s = rng.uniform(0.1 * seconds, seconds)
        status, words, _ = demo(out).run(after_s)
        tally.tried += 1
        tally.killed += status == -signal.SIGKILL
        what = f"{out}, after {after_s:.1f} s"
        if alive := wait_until_gone(mark):
            tally.faults.append(f"{what}: left: {alive[0]}")
        runs = [path.parent for path in sorted((folder / out).glob("*/run.json"))]
        for run in runs:
            lines = killing.lines_of(run)
            tally.committed += lines.count(b"\n")
            if not killing.lines_of(folder / "whole" / run.name).startswith(lines):
                tally.lost += lines.count(b"\n")
                tally.faults.append(f"{what}: {run.name} committed other steps")
        if (folder / out).exists():
            stands = bytes_of(folder / out)
            status, words, _ = demo(out).run()
            tally.refused += status == 2
            if status != 2 or "is there already" not in words or bytes_of(folder / out) != stands:
                tally.faults.append(f"{what}: the next start was not refused: {words}")
        if runs:
            run = rng.choice(runs)
            status, words, _ = Command(["resume", str(run)], folder, mark).run()
            difference = compare_runs(folder / "whole" / run.name, run, exact=True)
            tally.finished += status == 0 and difference.equal
            if status or not difference.equal:
                tally.faults.append(f"{what}: resume of {run.name}: {words} {difference.first}")
        shutil.rmtree(folder / out, ignore_errors=True)
    return tally


def kill_ablate_kernels(folder: Path, kills: int, rng: random.Random) -> Kills:
    """Workers, kernels and the report. One grid is killed over and over until it is done, then another."""
    mark = f"{os.getpid()}-ablate"
    plan = quick.plan_at(folder, GRID)
    tally = Kills()

    def ablate(out: str) -> Command:
        return Command(["ablate", str(plan), "--out", out, "--retry"], folder, mark)

    status, words, seconds = ablate("whole").run()
    if status not in (0, 1) or not (folder / "whole/quick.html").exists():
        raise RuntimeError(f"the grid without any fault failed: {words}")
    number = 0
    while tally.killed < kills and tally.tried < 3 * kills:
        out = folder / f"grid-{number}"
        while True:
            after_s = rng.uniform(0.1 * seconds, 0.7 * seconds) if tally.killed < kills else None
            before = jobs_of(plan, out)
            status, words, _ = ablate(out.name).run(after_s)
            tally.tried += 1
            tally.killed += status == -signal.SIGKILL
            if alive := wait_until_gone(mark):
                tally.faults.append(f"{out.name}: left: {alive[0]}")
            after = jobs_of(plan, out)
            tally.committed += len(before)
            tally.lost += sum(after.get(name) != record for name, record in before.items())
            tally.faults += [f"{out.name}: {fault}" for fault in unreadable(out)]
            tally.faults += [f"{out.name}: {fault}" for fault in half_written(out)]
            if status != -signal.SIGKILL:
                break
        if status not in (0, 1) or not numbers_in(out).equals(numbers_in(folder / "whole")):
            tally.faults.append(f"{out.name}: {words}")
        elif not (out / "quick.html").exists():
            tally.faults.append(f"{out.name} has no report")
        else:
            tally.finished += 1
        number += 1
    return tally


WAYS: dict[str, Callable[[Path, int, random.Random], Kills]] = {
    "demo": lambda folder, kills, rng: kill_forked("demo", folder, kills, rng),
    "ablate": lambda folder, kills, rng: kill_forked("ablate", folder, kills, rng),
    "demo-rivals": kill_demo_rivals,
    "ablate-kernels": kill_ablate_kernels,
}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.command_kills", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(words)
    tallies = {}
    for way in options.ways:
        with tempfile.TemporaryDirectory(prefix="command-kills-") as folder:
            rng = random.Random(f"{way} {options.seed}")
            tally = WAYS[way](Path(folder).resolve(), options.kills, rng)
        tallies[way] = asdict(tally)
        counts = {name: value for name, value in tallies[way].items() if name != "faults"}
        print(way, counts, *tally.faults, sep="\n  ", flush=True)
        if options.json:
            options.json.write_text(json.dumps(tallies, indent=1) + "\n")
    return int(any(tally["faults"] or tally["lost"] for tally in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
