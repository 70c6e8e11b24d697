"""Kill drivers, workers and kernels of a grid that really runs notebooks, again and again; nothing may be lost.

    python -m tests.ablation.soak --kills 200 --jobs 60 --on local --json FILE

Held after every kill: each notebook on the disk can be read. Held at the end of a grid: every job is done, none was done
twice, results are those of an undisturbed grid, no process is left. A grid that is done before enough were killed is
followed by another one.
"""
from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np

from tests.ablation import quick
from tests.ablation.clusters import ray_cluster, slurm
from workbench.ablation import work
from workbench.ablation.drive import DONE, JobSettings, drive, states
from workbench.ablation.leases import has_ended, held_in, holder_of
from workbench.ablation.plan import Plan
from workbench.ablation.reading import read_plan
from workbench.run.writer import append_line

PLAN = """
title = "Soak"
notebook = "quick.ipynb"
seeds = {seeds}
[grid]
lr = [0.1, 0.2]
"""
CELLS = ("import time\ntime.sleep(0.5)", "import workbench as wb\nwb.result(success=0.5 + lr / 10 + seed / 1000)")
KINDS = ("driver", "worker", "kernel")


def do(job, plan, out, cwd, cell_limit_s=None, leased=False):
    """As `work.do`; every end is written down."""
    facts = work.do(job, plan, out, cwd, cell_limit_s, leased)
    if "result" in facts:
        append_line(out / "ended.jsonl", {"job": work.name_of(plan, job)})
    return facts


def driver(path: str, out: str, on: str) -> None:
    os.setpgid(0, 0)
    plan = read_plan(Path(path))
    drive(plan, plan.seeds, Path(out), Path(path).parent, JobSettings(workers=2, do=do, retry=True, on=on), lambda line: None)


def found_results(plan: Plan, out: Path) -> dict[str, object]:
    return {one.name: one.facts["result"] for one in states(plan, plan.seeds, out) if one.state == DONE}


def unreadable(out: Path) -> list[str]:
    wrong = []
    for path in (out / "notebooks").glob("*.ipynb"):
        try:
            json.loads(path.read_bytes())["cells"]
        except (ValueError, KeyError):
            wrong.append(path.name)
    return wrong


# ------------------------------------------------------------------------------------------------ who may be killed


def processes() -> dict[int, tuple[int, str]]:
    """Process -> (parent, command) of all that live."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            found[int(folder.name)] = parent, (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, ValueError, IndexError):
            continue
    return found


def below(pids: set[int], living: dict[int, tuple[int, str]]) -> set[int]:
    found, size = set(pids), -1
    while len(found) != size:
        size = len(found)
        found |= {pid for pid, (parent, _) in living.items() if parent in found}
    return found


def victims(drivers: list[multiprocessing.Process], out: Path) -> dict[str, list[int]]:
    """By kind. Those who do sent jobs hold the leases themselves."""
    living, own = processes(), {one.pid for one in drivers}
    holders = [holder for path in held_in(out / "jobs").values() if (holder := holder_of(path)) and not has_ended(holder)]
    elsewhere = {int(holder["process"]) for holder in holders} - own
    ours = below(own | elsewhere, living)
    kernels = [pid for pid in ours if "ipykernel_launcher" in living.get(pid, (0, ""))[1]]
    workers = [pid for pid in ours - own if "spawn_main" in living.get(pid, (0, ""))[1] and pid not in kernels]
    return {"driver": sorted(own), "worker": sorted({*workers} | elsewhere), "kernel": sorted(kernels)}


def killed(kind: str, drivers: list[multiprocessing.Process], out: Path, random: np.random.Generator) -> bool:
    there = victims(drivers, out)[kind]
    if not there:
        return False
    try:
        os.kill(int(random.choice(there)), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


# ------------------------------------------------------------------------------------------------ a grid


def soaked(plan_path: Path, out: Path, kills: int, on: str, random: np.random.Generator, until: float) -> Counter:
    """Two drivers do a grid while something is killed every few seconds, `kills` times at most; then they end it."""
    plan, spawn = read_plan(plan_path), multiprocessing.get_context("spawn")
    drivers, count, pause = [], Counter(), 0.0
    while True:
        drivers = [one for one in drivers if one.is_alive()]
        left = any(one.state != DONE for one in states(plan, plan.seeds, out))
        if not left and not drivers:
            return count
        while left and len(drivers) < 2:
            drivers.append(spawn.Process(target=driver, args=(str(plan_path), str(out), on)))
            drivers[-1].start()
            count["drivers started"] += 1
        time.sleep(0.25)
        if sum(count[kind] for kind in KINDS) < kills and time.monotonic() > pause and time.monotonic() < until:
            kind = str(random.choice(KINDS, p=(0.2, 0.35, 0.45)))
            if killed(kind, drivers, out, random):
                count[kind] += 1
                count["unreadable"] += len(unreadable(out))
                pause = time.monotonic() + float(random.uniform(0.5, 3))


@contextmanager
def cluster(on: str, folder: Path) -> Iterator[object]:
    with slurm(folder) if on == "slurm" else ray_cluster() if on == "ray" else nullcontext() as made:
        yield made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--on", default="local", choices=("local", "slurm", "ray"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600, help="after which nothing else is killed")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    total, begun, random = Counter(), time.monotonic(), np.random.default_rng([args.seed, 16])
    with tempfile.TemporaryDirectory(prefix="soak-") as name, cluster(args.on, Path(name) / "cluster"):
        path = quick.plan_at(Path(name), PLAN.format(seeds=args.jobs // 2))
        quick.notebook_at(path.parent / "quick.ipynb", *CELLS)
        plan = read_plan(path)
        calm = {name: {"per_task": result["per_task"]} for name, result in _calm(plan, path).items()}
        while sum(total[kind] for kind in KINDS) < args.kills and time.monotonic() - begun < 60 * args.minutes:
            out = path.parent / f"out-{total['grids']}"
            total += soaked(path, out, args.kills - sum(total[kind] for kind in KINDS), args.on, random, begun + 60 * args.minutes)
            ends = [json.loads(line)["job"] for line in (out / "ended.jsonl").read_text().splitlines()]
            now = {name: {"per_task": result["per_task"]} for name, result in found_results(plan, out).items()}
            total += Counter({"grids": 1, "jobs": len(calm), "lost": len({*calm} - {*now}), "done twice": len(ends) - len({*ends}),
                              "unreadable": len(unreadable(out)), "other results": sum(now.get(name) != calm[name] for name in calm)})
            print(json.dumps(dict(total)), flush=True)
    wrong = sum(total[what] for what in ("lost", "done twice", "unreadable", "other results"))
    figures = {"on": args.on, "kills": {kind: total[kind] for kind in KINDS}, "all kills": sum(total[kind] for kind in KINDS),
               **{what: total[what] for what in ("grids", "jobs", "drivers started", "lost", "done twice", "unreadable", "other results")},
               "minutes": round((time.monotonic() - begun) / 60, 1)}
    print(json.dumps(figures, indent=1))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if wrong else 0


def _calm(plan: Plan, path: Path) -> dict[str, dict]:
    """What an undisturbed grid finds: the same jobs, each by a call of the same function."""
    out = path.parent / "calm"
    drive(plan, plan.seeds, out, path.parent, JobSettings(workers=2, do=do), lambda line: None)
    return found_results(plan, out)


if __name__ == "__main__":
    sys.exit(main())
