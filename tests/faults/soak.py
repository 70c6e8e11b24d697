"""The long version: kill training hundreds of times, damage thousands of checkpoints.

    python -m tests.faults.soak --kills 500 --damaged 5000 [--case grpo ...] [--seed 0] [--folder DIR]

Every killed run is resumed until it is finished and must then be, to the last byte, the run that nobody interrupted:
settings, events, metrics, trajectories, credit tables, evaluations, weights and optimizer (where environments answer by
the wall clock: a finished run that kept every line it had committed). After every kill what was committed must be a
beginning of what the uninterrupted run committed, and no shorter than before. Every damaged checkpoint must be refused.
Exit status: 0 all held, 1 something did not.
"""
from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

from tests.faults import killing
from tests.faults.damage import accepted_although_damaged
from workbench.run_diff import compare_runs
from workbench.store import open_run


def kill_case(case: str, kills: int, rng: random.Random, folder: Path, say=print) -> tuple[list[str], Counter]:
    """Kill and resume until `kills` children were killed; the last run is finished. Faults in words, and what was hit.
    """
    whole, seconds = killing.reference(case, folder)
    expected, faults, hit = killing.lines_of(whole), [], Counter()
    number, exact = 0, case not in killing.BY_THE_CLOCK
    while sum(hit.values()) < kills:
        path, number, before, attempts = folder / f"{case}-{number}", number + 1, b"", 0
        while True:
            left = kills - sum(hit.values())
            after = rng.uniform(0, seconds / 2) if left > 0 and attempts < 60 else None
            ending = killing.in_child(lambda: killing.start_or_resume(case, path), kill_after_s=after)  # noqa: B023
            attempts += 1
            now = killing.lines_of(path)
            if not now.startswith(before) or exact and not expected.startswith(now):
                faults.append(f"{case} run {number}: committed steps were lost or are others ({len(before)} bytes of "
                              f"metrics, now {len(now)})")
            before = now
            if ending.status == 0:
                break
            if ending.status != -9:
                faults.append(f"{case} run {number}: status {ending.status}: {ending.words[-2000:]}")
                break
            hit[killing.where(path)] += 1
        if ending.status == 0:
            difference = compare_runs(open_run(whole), open_run(path), exact=True)
            if exact and not difference.equal or open_run(path).steps() != open_run(whole).steps():
                faults.append(f"{case} run {number}, killed {attempts - 1} times: {difference.first}")
            shutil.rmtree(path)
        say(f"{case}: {sum(hit.values())}/{kills} kills, {number} runs finished, {len(faults)} faults")
    return faults, hit


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=500, help="in all, shared out over the cases")
    parser.add_argument("--damaged", type=int, default=5000)
    parser.add_argument("--case", nargs="+", choices=list(killing.CASES), default=list(killing.CASES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the runs lie (default: a temporary folder)")
    options = parser.parse_args(arguments)
    began, faults, hit = time.monotonic(), [], Counter()
    with tempfile.TemporaryDirectory(prefix="soak-", dir=options.folder) as name:
        folder = Path(name)
        for index, case in enumerate(options.case if options.kills else ()):
            share = options.kills // len(options.case) + (index < options.kills % len(options.case))
            found, where = kill_case(case, share, random.Random(f"{options.seed}/{case}"), folder)
            faults, hit = faults + found, hit + where
        if options.damaged:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                accepted, tried = accepted_although_damaged(folder, options.damaged, random.Random(options.seed))
            print(f"{tried} damaged checkpoints, {len(accepted)} accepted", flush=True)
            faults += accepted
    print(f"kills by what they hit: {dict(hit.most_common())}")
    for fault in faults:
        print(f"FAULT {fault}")
    print(f"{'FAILED' if faults else 'passed'}: seed {options.seed}, {sum(hit.values())} kills in "
          f"{', '.join(options.case)}; {options.damaged} damaged checkpoints; {len(faults)} faults; "
          f"{time.monotonic() - began:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
