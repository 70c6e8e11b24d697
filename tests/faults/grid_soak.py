"""The long version for grids: a worker, driver or kernel is killed, at random, while a driver has 60 jobs done.

    python -m tests.faults.grid_soak --on local|slurm|ray [--kills 80] [--seed 0] [--json FILE]

`--on slurm` and `--on ray` start a real scheduler on this machine (tests/ablation/clusters.py). A driver that is gone is
begun anew, with `--retry`: a job whose kernel was killed ends as a `dead kernel`, as the guide says, and waits for that.
Where a grid is done before all kills are, another one begins. Held against every grid at its end: each job done once, by a
ledger that every try writes before and after; every notebook readable, whole and the one of its record; results.tsv
equal to that of a run that nobody disturbed; no process left. Notebooks and records are read after every kill, too. A grid
without a word, or of jobs that fail without end, is given up, which is a fault. Exit status: 0 all held, 1 something did not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd

from tests.ablation.clusters import ROOT, ray_cluster, slurm
from tests.faults.grid_driver import AT_ONCE, drive_here, plan_at
from tests.faults.server_soak import processes
from tests.faults.soak import add_piece
from workbench.basics import canonical_json
from workbench.extensions.ablation import work
from workbench.extensions.ablation.cell import result_in
from workbench.extensions.ablation.door import ask
from workbench.extensions.ablation.drive import DONE, JobState, states, tally

PARTS = {
    "tests.faults.grid_driver": "driver",
    "ipykernel_launcher": "kernel",
    "submitit.local._local": "worker",  # starts the next one, and waits for it
    "submitit.core._submit": "worker",
}  # in a command line -> what it is
KINDS = ("driver", "kernel", "worker")
MARK = "WORKBENCH_GRID_SOAK"  # in the environment of all that a soak starts
PAUSE_S = (2.0, 6.0, 20.0)  # the longest wait before the next kill: some come close upon another
LONGEST_S = 400.0  # without a word in the ledger
MOST_TRIES = (
    8  # of one job, and one more for every kill: jobs that fail by themselves fail for ever
)
GONE_S = 15.0  # within which everything that a grid had started is gone
NOTHING_TO_KILL_S = 30.0


# ------------------------------------------------------------------------------------------------ one grid


@dataclass
class Grid:
    """A grid and its driver. `hit`: kills by what they hit; `mark`: by which its processes are told; `locks`: ignored by
    two drivers, or kept by one."""

    plan: Path
    out: Path
    on: str
    mark: str
    locks: str = "kept"
    hit: Counter = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    drivers: list[subprocess.Popen] = field(default_factory=list)

    def states(self) -> list[JobState]:
        asked = ask(self.plan, self.out)
        return states(asked.plan, asked.seeds, self.out)

    def begin_drivers(self) -> None:
        """So that there is one, or two that ignore locks. One that ended by itself has to have ended well."""
        for one in [one for one in self.drivers if one.poll() is not None]:
            self.drivers.remove(one)
            if one.returncode not in (0, -signal.SIGKILL):
                self.faults.append(f"a driver ended with {one.returncode}: {tail(self.log)}")
        command = [
            sys.executable,
            "-m",
            "tests.faults.grid_driver",
            str(self.plan),
            str(self.out),
            self.on,
            self.locks,
        ]
        while len(self.drivers) < (2 if self.locks == "ignored" else 1):
            with self.log.open("ab") as log:
                self.drivers.append(
                    subprocess.Popen(
                        command,
                        cwd=ROOT,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                        env=os.environ | {MARK: self.mark},
                    )
                )

    @property
    def log(self) -> Path:
        return self.out.with_suffix(".log")

    def victims(self, kind: str) -> list[int]:
        return [pid for pid, _, words in processes() if self.kind(pid, words) == kind]

    def kind(self, pid: int, words: str) -> str:
        """What a process is, "" where it is none of this grid's."""
        if words.startswith(
            "ray::do_assigned"
        ):  # a worker of Ray writes its title over its environment
            return "worker" if is_below(pid, os.getpid()) else ""
        found = next((PARTS[part] for part in PARTS if part in words), "")
        return found if found and is_marked(pid, self.mark) and "python" in words.split()[0] else ""

    def disturb(self, rng: random.Random) -> bool:
        """One kill at a random instant; False: there was nothing of that kind to kill."""
        kind = rng.choice(KINDS)
        time.sleep(rng.uniform(0, rng.choice(PAUSE_S)))
        until = time.monotonic() + NOTHING_TO_KILL_S
        while not (found := self.victims(kind)):
            if time.monotonic() > until or all(one.poll() is not None for one in self.drivers):
                return False
            time.sleep(rng.uniform(0, 1))
        try:
            os.kill(rng.choice(found), signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.hit[kind] += 1
        self.faults += unreadable(self.out)
        return True

    def run(self, rng: random.Random, kills: int) -> None:
        """To its end, with at most so many kills on the way."""
        words, since = 0, time.monotonic()
        while True:
            over = all(one.state == DONE for one in self.states())
            ended = [one.poll() for one in self.drivers]
            if over and ended and all(code is not None for code in ended) and ended[-1] == 0:
                return
            if not over or all(code is not None for code in ended):
                self.begin_drivers()
            if sum(self.hit.values()) < kills and not over:
                self.disturb(rng)
            time.sleep(0.5)
            if (now := len(ledger_of(self.out))) != words:
                words, since = now, time.monotonic()
            found = self.states()
            most = max((one.tries for one in found), default=0)
            silent_s = time.monotonic() - since
            if silent_s > LONGEST_S or most > MOST_TRIES + kills or len(self.faults) > 20:
                self.faults.append(
                    f"given up, with no word for {silent_s:.0f} s and a job tried {most} times: "
                    f"{tally(found)}; {tail(self.log)}"
                )
                return


def tail(log: Path) -> str:
    return log.read_text(errors="replace")[-1500:]


def is_marked(pid: int, mark: str) -> bool:
    try:
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def is_below(pid: int, ancestor: int) -> bool:
    parents = {pid: parent for pid, parent, _ in processes()}
    while pid in parents:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


# ------------------------------------------------------------------------------------------------ what must hold


def ledger_of(out: Path) -> list[dict[str, Any]]:
    path = out / "ledger.jsonl"
    return list(canonical_json.read_lines(path).records) if path.is_file() else []


def unreadable(out: Path) -> list[str]:
    """Notebooks and records that are there and not whole."""
    found = []
    for path in [*out.glob("notebooks/*.ipynb"), *out.glob("jobs/*.json")]:
        try:
            if path.suffix == ".ipynb":
                nbformat.validate(nbformat.read(path, as_version=4))
            else:
                canonical_json.read_sealed_json(path, kind=work.KIND, version=work.VERSION)
        except Exception as error:  # whatever it is, a reader would meet it
            found.append(f"{path.name} cannot be read: {type(error).__name__}: {error}"[:300])
    return found


def done_twice(ledger: Iterable[Mapping[str, Any]], tries: Mapping[str, int]) -> list[str]:
    """Jobs that were done although they were done, or more often than their failures explain. `tries`: by the records at
    the end, one for each time that a record was written. A killed try may lack its second line, and wrote no record
    then, or the next one's first line tells of it."""
    found, done, failures = [], Counter(), {name: set() for name in tries}
    for line in ledger:
        stands = line.get("begun", line.get("ended"))
        if line.get("begun") == DONE:
            found.append(f"{line['job']} was begun although it was done")
        if line.get("ended") == DONE:
            done[line["job"]] += 1
        if stands not in ("", DONE):
            failures.setdefault(line["job"], set()).add(line["tries"])
    found += [f"{name} was done {count} times" for name, count in done.items() if count > 1]
    return found + [
        f"{name}: {count} records were written, and {len(failures[name])} failures are known"
        for name, count in tries.items()
        if count != 1 + len(failures[name])
    ]


def wrong_at_the_end(grid: Grid, calm: Path) -> list[str]:
    """What is wrong with a grid that came to its end."""
    found = grid.states()
    faults = [f"lost: {one.name} is {one.state}: {one.why}" for one in found if one.state != DONE]
    faults += done_twice(ledger_of(grid.out), {one.name: one.tries for one in found}) + unreadable(
        grid.out
    )
    for one in found:
        notebook = grid.out / "notebooks" / f"{one.name}.ipynb"
        if one.state == DONE and not (
            notebook.is_file() and result_in(notebook) == one.facts["result"]
        ):
            faults.append(f"the notebook of {one.name} is not the one of its record")
    if len(list(grid.out.glob("notebooks/*.ipynb"))) != len(found):
        faults.append(
            f"{len(list(grid.out.glob('notebooks/*.ipynb')))} notebooks of {len(found)} jobs"
        )
    expected, results = numbers_in(calm), numbers_in(grid.out)
    if results.shape != expected.shape:
        return [*faults, f"results.tsv has the shape {results.shape}, not {expected.shape}"]
    return (
        faults
        if results.equals(expected)
        else [*faults, f"results.tsv differs:\n{results.compare(expected)}"]
    )


def numbers_in(out: Path) -> pd.DataFrame:
    """results.tsv without what a job cost."""
    return pd.read_csv(out / "results.tsv", sep="\t").drop(columns="cpu_seconds")


def left_over(grid: Grid) -> list[str]:
    """Drivers, workers and kernels that are there after a while."""
    until = time.monotonic() + GONE_S
    while alive := [words for pid, _, words in processes() if grid.kind(pid, words)]:
        if time.monotonic() > until:
            return [f"{len(alive)} processes were left: {alive[0][:200]}"]
        time.sleep(0.5)
    return []


# ------------------------------------------------------------------------------------------------ all of it


@contextmanager
def scheduler(on: str, folder: Path) -> Iterator[Any]:
    with (
        slurm(folder / "slurm")
        if on == "slurm"
        else ray_cluster()
        if on == "ray"
        else nullcontext() as found
    ):
        yield found


def soak(
    on: str,
    kills: int,
    rng: random.Random,
    folder: Path,
    *,
    seeds: int = 10,
    locks: str = "kept",
    calm: Path | None = None,
) -> dict[str, Any]:
    """The tally of one soak, with its faults in words. `calm`: of a grid that nobody disturbed; None: one is made."""
    plan, mark = plan_at(folder, seeds), f"{os.getpid()}-{time.time_ns()}"
    os.environ |= {MARK: mark, "PYTHONPATH": str(ROOT)}  # of what a scheduler starts, too
    if calm is None:
        calm = folder / "calm"
        drive_here(str(plan), str(calm))
    hit, faults, number, ledger = Counter(), unreadable(calm), 0, []
    with scheduler(on, folder):
        while sum(hit.values()) < kills or not number:
            grid = Grid(plan, folder / f"grid-{number}", on, mark, locks)
            try:
                grid.run(rng, kills - sum(hit.values()))
            finally:
                for one in grid.drivers:
                    one.poll() is None and os.killpg(one.pid, signal.SIGKILL)
                    one.wait()
            hit, number, lines = hit + grid.hit, number + 1, ledger_of(grid.out)
            ledger += lines
            found = *grid.faults, *wrong_at_the_end(grid, calm), *left_over(grid)
            faults += [f"grid {number}: {fault}" for fault in found]
            print(
                f"{sum(hit.values())}/{kills} kills, {number} grids, {len(faults)} faults",
                flush=True,
            )
    return {
        "on": on,
        "hit": dict(hit),
        "grids": number,
        "jobs": number * seeds * 6,
        "faults": faults,
        "begun": sum("begun" in line for line in ledger),
        "ended": dict(Counter(line["ended"] for line in ledger if "ended" in line)),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.grid_soak", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--on", choices=list(AT_ONCE), default="local", help="what runs the jobs")
    parser.add_argument("--kills", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10, help="of the grid: six jobs each")
    parser.add_argument(
        "--locks",
        choices=("kept", "ignored"),
        default="kept",
        help="ignored: must be found (local)",
    )
    parser.add_argument(
        "--folder", type=Path, help="a new one, in which the grids stay (default: a temporary one)"
    )
    parser.add_argument(
        "--calm",
        type=Path,
        metavar="FOLDER",
        help="of the same grid undisturbed, left by an earlier one",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="the tally; one more piece where the file has some",
    )
    options = parser.parse_args(arguments)
    began = time.monotonic()
    if options.folder:
        options.folder.mkdir()
    with (
        nullcontext(options.folder)
        if options.folder
        else tempfile.TemporaryDirectory(prefix="grid-soak-") as name
    ):
        piece = {"seed": options.seed} | soak(
            options.on,
            options.kills,
            random.Random(options.seed),
            Path(name),
            seeds=options.seeds,
            locks=options.locks,
            calm=options.calm,
        )
    piece["seconds"] = round(time.monotonic() - began)
    for fault in piece["faults"]:
        print(f"FAULT {fault}")
    told = {key: value for key, value in piece.items() if key != "faults"}
    print(f"{'FAILED' if piece['faults'] else 'passed'}: {json.dumps(told)}")
    if options.json:
        add_piece(options.json, piece)
    return 1 if piece["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
