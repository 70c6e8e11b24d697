"""Training that is interrupted otherwise than by a kill: what was committed stays, and the run ends as the one that was not.

    python -m tests.faults.interrupted [--times 20] [--seed 0] [--ways disk stopped ...] [--stride 1] [--json FILE]

disk      every system call that writes, one after the other, fails for want of room; then the run is resumed
full      the same, and from that call on all that need room fail, until the process ends
stopped   SIGSTOP at a random instant, for a while; meanwhile nobody else may write the run; SIGCONT
memory    no more memory than so much, which is too little at a random place; then the run is resumed
killer    the same by a control group: the kernel's own killer of processes ends it (root, Linux); then the run is resumed
clock     the machine's clock goes back an hour whenever it is read, in a run that is killed and one that resumes it
kernel    the kernel of a notebook that trains is restarted; the new one resumes
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.faults import killing
from workbench.look.run_diff import compare_runs
from workbench.run import recording, writer
from workbench.run.store import open_run
from workbench.values.errors import StoreError

CASE = "grpo"
TINY = {
    "train__steps": 2,
    "train__evaluate_every": 1,
    "train__checkpoint_every": 1,
    "train__tasks_per_step": 1,
    "train__group_size": 2,
    "evaluation__num_tasks": 2,
}
WAITS_S = 60.0
GROUPS = Path("/sys/fs/cgroup")
# Where groups that bound memory are made, and the files of a group that say how much it may have, and had at most: version
# 2, version 1.
MEMORY_GROUPS = (
    (GROUPS, "memory.max", "memory.peak"),
    (GROUPS / "memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
)
KERNEL = """
import workbench as wb
from workbench.look.cells.train import resume_here, train_here
from pathlib import Path
path = Path({path!r})
if path.exists():
    resume_here(path, on_note=None)
else:
    train_here(wb.load_config({preset!r}, {settings!r}), path, on_note=None)
"""


@dataclass
class Interrupted:
    """What was done, and what came of it. `committed`: steps on the disk when it was interrupted, summed; `lost`: of them."""

    tried: int = 0
    hit: int = 0
    committed: int = 0
    lost: int = 0
    identical: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Ground:
    """The run that nobody interrupted, and where others are made."""

    folder: Path
    whole: Path
    seconds: float
    config: Any

    @classmethod
    def of(cls, folder: Path) -> Ground:
        config = killing.config_of(CASE, **TINY)
        killing.opened(CASE)
        whole = folder / "whole"
        ending = killing.in_child(lambda: killing.start_or_resume(CASE, whole, config))
        assert ending.status == 0, ending.words
        return cls(folder, whole, ending.seconds, config)

    def child(
        self, path: Path, before: Callable[[], None] = lambda: None, **kill: Any
    ) -> killing.Ending:
        def act() -> None:
            before()
            killing.start_or_resume(CASE, path, self.config)

        return killing.in_child(act, **kill)

    def calls(self, lasting: bool) -> int:
        """How many calls a disk may fail at in this run: all that write, or (`lasting`) all that need room."""
        path, told = self.folder / "counted", self.folder / "calls"

        def act() -> None:
            count = killing.break_at(0, lasting=lasting)
            killing.start_or_resume(CASE, path, self.config)
            told.write_text(str(count()))

        ending = killing.in_child(act)
        assert ending.status == 0, ending.words
        shutil.rmtree(path)
        return int(told.read_text())

    def finish(self, path: Path, found: Interrupted, what: str) -> None:
        """Resume, and hold it against the run that nobody interrupted."""
        before = killing.lines_of(path)
        found.committed += before.count(b"\n")
        ending = self.child(path)
        found.lost += 0 if killing.lines_of(path).startswith(before) else before.count(b"\n")
        if ending.status:
            found.faults.append(f"{what}: not resumed: {ending.words[-300:]}")
        elif not (
            difference := compare_runs(open_run(self.whole), open_run(path), exact=True)
        ).equal:
            found.faults.append(f"{what}: {difference.first}")
        else:
            found.identical += 1
        shutil.rmtree(path, ignore_errors=True)


def disk(
    ground: Ground, times: int, rng: random.Random, stride: int = 1, lasting: bool = False
) -> Interrupted:
    """`times` is not asked: every `stride`-th of all calls that the run makes."""
    found = Interrupted()
    for number in range(1, ground.calls(lasting) + 1, stride):
        path = ground.folder / f"disk-{number}"
        ending = ground.child(
            path, lambda: killing.break_at(number, error=errno.ENOSPC, lasting=lasting)
        )  # noqa: B023
        found.tried += 1
        found.hit += ending.status == 2  # else it went on: nobody minds where that call fails
        if ending.status not in (0, 2):
            found.faults.append(f"call {number}: {ending.words[-300:]}")
        ground.finish(path, found, f"call {number}")
    return found


def full(ground: Ground, times: int, rng: random.Random, stride: int = 1) -> Interrupted:
    return disk(ground, times, rng, stride, lasting=True)


def stopped(ground: Ground, times: int, rng: random.Random) -> Interrupted:
    found = Interrupted()
    for number in range(times):
        path, hit = ground.folder / f"stopped-{number}", []

        def stop(pid: int, path: Path = path, hit: list[int] = hit) -> None:
            os.kill(pid, signal.SIGSTOP)
            hit.append(len(killing.lines_of(path)))
            if path.exists():  # it lives, so its run is its own
                with suppress(StoreError):
                    recording.reopen_run(path).close()
                    found.faults.append(f"stop {number}: another process could write its run")
            time.sleep(rng.uniform(0.05, 0.4))
            if len(killing.lines_of(path)) != hit[-1]:
                found.faults.append(f"stop {number}: it went on while it was stopped")
            os.kill(pid, signal.SIGCONT)

        ending = ground.child(path, kill_after_s=rng.uniform(0, ground.seconds), how=stop)
        found.tried, found.hit = found.tried + 1, found.hit + bool(hit)
        if ending.status:
            found.faults.append(f"stop {number}: {ending.words[-300:]}")
        ground.finish(path, found, f"stop {number}")
    return found


def memory(ground: Ground, times: int, rng: random.Random) -> Interrupted:
    found = Interrupted()

    for number in range(times):
        path, more = ground.folder / f"memory-{number}", int(rng.uniform(0.5, 40) * (1 << 20))

        def little(more: int = more) -> None:
            status = Path("/proc/self/status").read_text()
            most = (int(status.split("VmData:")[1].split()[0]) << 10) + more
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))

        ending = ground.child(path, little)
        found.tried, found.hit = found.tried + 1, found.hit + (ending.status != 0)
        ground.finish(path, found, f"memory {number}")
    return found


def why_no_killer() -> str:
    """Why no group can be made in which the kernel's own killer is called up; "" where one can."""
    try:
        with memory_group(64 << 20):
            return ""
    except OSError as error:
        return str(error)


@contextmanager
def memory_group(most: int) -> Iterator[Path]:
    """A control group of at most so many bytes: whoever writes its own number into its cgroup.procs is in it. Raises OSError."""
    where, limit, _ = next(
        names
        for names in MEMORY_GROUPS
        if names[0] != GROUPS or "memory" in _words_of(GROUPS / "cgroup.subtree_control")
    )
    made = where / f"workbench-test-{os.getpid()}"
    made.mkdir()
    try:
        (made / limit).write_text(str(most))
        yield made
    finally:
        until = time.monotonic() + 5
        while True:  # the killed may take a moment to leave it
            try:
                made.rmdir()
                break
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)


def _words_of(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def killer(ground: Ground, times: int, rng: random.Random) -> Interrupted:
    found = Interrupted()

    def in_group(group: Path, path: Path) -> killing.Ending:
        return ground.child(path, lambda: (group / "cgroup.procs").write_text(str(os.getpid())))

    with memory_group(8 << 30) as group:
        assert in_group(group, ground.folder / "killer").status == 0
        peak = max(
            int((group / name).read_text()) for *_, name in MEMORY_GROUPS if (group / name).exists()
        )
    for number in range(times):
        path = ground.folder / f"killer-{number}"
        with memory_group(int(rng.uniform(0.4, 1) * peak)) as group:
            ending = in_group(group, path)
        found.tried, found.hit = found.tried + 1, found.hit + (ending.status == -signal.SIGKILL)
        if ending.status not in (0, -signal.SIGKILL):
            found.faults.append(f"killer {number}: {ending.status} {ending.words[-300:]}")
        ground.finish(path, found, f"killer {number}")
    return found


def clock(ground: Ground, times: int, rng: random.Random) -> Interrupted:
    found = Interrupted()

    def backwards() -> None:
        began, read = time.time_ns(), [0]

        def now() -> int:
            read[0] += 1
            return began - read[0] * 3_600_000_000_000

        time.time_ns, time.time = now, lambda: now() / 1e9
        for module in (recording, writer):  # the clock that stamps what a run writes
            module.datetime = type(
                "Backwards",
                (datetime,),
                {
                    "now": classmethod(
                        lambda cls, zone=None: datetime.fromtimestamp(now() / 1e9, zone)
                    )
                },
            )

    for number in range(times):
        path = ground.folder / f"clock-{number}"
        ending = ground.child(path, backwards, kill_after_s=rng.uniform(0, ground.seconds))
        found.tried, found.hit = found.tried + 1, found.hit + (ending.status == -9)
        before = killing.lines_of(path)
        again = ground.child(path, backwards)
        if again.status or not killing.lines_of(path).startswith(before):
            found.faults.append(f"clock {number}: {again.words[-300:]}")
        ground.finish(path, found, f"clock {number}")
    return found


def kernel(ground: Ground, times: int, rng: random.Random) -> Interrupted:
    from jupyter_client.manager import start_new_kernel

    found = Interrupted()
    for number in range(times):
        path = ground.folder / f"kernel-{number}"
        preset, changes = killing.CASES[CASE]
        settings = (
            killing.SMALL | changes | {key.replace("__", "."): value for key, value in TINY.items()}
        )
        code = KERNEL.format(path=str(path), preset=preset, settings=settings)
        manager, client = start_new_kernel(startup_timeout=WAITS_S)
        try:
            client.execute(code)
            until = time.monotonic() + WAITS_S
            while not killing.lines_of(path) and time.monotonic() < until:
                time.sleep(0.002)
            time.sleep(rng.uniform(0, ground.seconds / 2))
            manager.restart_kernel(now=True)
            found.tried, found.hit = (
                found.tried + 1,
                found.hit + (killing.lines_of(path).count(b"\n") < TINY["train__steps"]),
            )
            client.wait_for_ready(timeout=WAITS_S)
            before = killing.lines_of(path)
            said = client.execute_interactive(code, timeout=WAITS_S, output_hook=lambda _: None)[
                "content"
            ]
            if said["status"] != "ok":
                found.faults.append(f"kernel {number}: {said.get('evalue', '')[-300:]}")
            found.lost += 0 if killing.lines_of(path).startswith(before) else before.count(b"\n")
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
        ground.finish(path, found, f"kernel {number}")
    return found


WAYS: dict[str, Callable[..., Interrupted]] = {
    "disk": disk,
    "full": full,
    "stopped": stopped,
    "memory": memory,
    "killer": killer,
    "clock": clock,
    "kernel": kernel,
}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument(
        "--stride",
        type=int,
        default=1,
        help="of disk and full: every so manieth call (default: all)",
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(words)
    found = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        ground = Ground.of(Path(folder))
        for way in options.ways:
            stride = {"stride": options.stride} if way in ("disk", "full") else {}
            found[way] = vars(
                WAYS[way](ground, options.times, random.Random(f"{way} {options.seed}"), **stride)
            )
            print(
                way,
                {name: value for name, value in found[way].items() if name != "faults"},
                *found[way]["faults"],
                sep="\n  ",
                flush=True,
            )
            if options.json:
                options.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(any(each["faults"] or each["lost"] for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
