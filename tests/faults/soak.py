"""The long version: kill training hundreds of times, damage thousands of checkpoints.

    python -m tests.faults.soak --kills 500 --damaged 5000 [--case grpo ...] [--seed 0] [--folder DIR] [--json FILE]

Every killed run is resumed until it is finished and must then be, to the last byte, the run that nobody interrupted:
settings, events, metrics, trajectories, credit tables, evaluations, weights and optimizer (where environments answer by
the wall clock: a finished run that kept every line it had committed). After every kill what was committed must be a
beginning of what the uninterrupted run committed, and no shorter than before. Every damaged checkpoint must be refused.
Exit status: 0 all held, 1 something did not.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults import killing
from tests.faults.damage import accepted_although_damaged
from workbench.look.run_diff import compare_runs
from workbench.run.store import open_run


@dataclass
class Tally:
    """What was done, and what came of it. `resumed`: finished runs that were killed at least once. `there`: committed
    steps that lay in a killed run, summed over the kills; `lost`: those of them, or of the steps that the killed
    process had been told are committed, that were not there afterwards."""

    hit: Counter = field(default_factory=Counter)
    resumed: int = 0
    identical: int = 0
    by_the_clock: int = (
        0  # resumed runs that need not be identical, and were held to their committed steps only
    )
    there: int = 0
    lost: int = 0

    @property
    def kills(self) -> int:
        return sum(self.hit.values())

    def add(self, other: Tally) -> None:
        self.hit += other.hit
        for name in ("resumed", "identical", "by_the_clock", "there", "lost"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __str__(self) -> str:
        clock = (
            f" (and {self.by_the_clock} by the wall clock, with every committed step)"
            if self.by_the_clock
            else ""
        )
        return (
            f"{self.kills} kills, {self.there} committed steps on disk at them, {self.lost} lost; {self.resumed} "
            f"runs killed and resumed to their end, {self.identical} bit-identical{clock}"
        )


def kill_case(
    case: str, kills: int, rng: random.Random, folder: Path, say=print
) -> tuple[list[str], Tally]:
    """Kill and resume until `kills` children were killed; the last run is finished. Faults in words, and the tally."""
    whole, seconds = killing.reference(case, folder)
    expected, faults, tally = killing.lines_of(whole), [], Tally()
    number, exact = 0, case not in killing.BY_THE_CLOCK
    while tally.kills < kills:
        path, number, before, attempts = folder / f"{case}-{number}", number + 1, b"", 0
        longest = seconds * rng.choice(
            (0.25, 0.75, 1.5)
        )  # some runs are killed over and over, others less
        while True:
            after = (
                rng.uniform(0, longest * (1 + attempts / 8))
                if tally.kills < kills and attempts < 60
                else None
            )
            ending = killing.in_child(
                lambda: killing.start_or_resume(case, path), kill_after_s=after
            )  # noqa: B023
            attempts += 1
            now = killing.lines_of(path)
            gone = max(len(lines_gone(before, now)), ending.told - now.count(b"\n"))
            tally.lost += max(0, gone)
            if gone > 0 or not now.startswith(before) or exact and not expected.startswith(now):
                faults.append(
                    f"{case} run {number}: committed steps were lost or are others ({len(before)} bytes of "
                    f"metrics, now {len(now)}; told of step {ending.told})"
                )
            before = now
            if ending.status == 0:
                break
            if ending.status != -9:
                faults.append(
                    f"{case} run {number}: status {ending.status}: {ending.words[-2000:]}"
                )
                break
            tally.hit[killing.where(path)] += 1
            tally.there += now.count(b"\n")
        if ending.status == 0:
            difference = compare_runs(open_run(whole), open_run(path), exact=True)
            if exact and not difference.equal or open_run(path).steps() != open_run(whole).steps():
                faults.append(
                    f"{case} run {number}, killed {attempts - 1} times: {difference.first}"
                )
            tally.resumed += attempts > 1
            tally.identical += exact and attempts > 1 and difference.equal
            tally.by_the_clock += not exact and attempts > 1
            shutil.rmtree(path)
        say(
            f"{case}: {tally.kills}/{kills} kills, {number} runs finished, {len(faults)} faults",
            flush=True,
        )
    return faults, tally


def lines_gone(before: bytes, now: bytes) -> list[bytes]:
    """Lines that were there and are there no more."""
    there = set(now.splitlines())
    return [line for line in before.splitlines() if line not in there]


def shares(cases: list[str], kills: int) -> dict[str, int]:
    """How many kills each case gets: those that must come out bit-identical share all of them."""
    exact = [case for case in cases if case not in killing.BY_THE_CLOCK] or cases
    most = {
        case: kills // len(exact) + (index < kills % len(exact)) for index, case in enumerate(exact)
    }
    return {case: most.get(case, kills // 10) for case in cases if kills}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.soak", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--kills",
        type=int,
        default=500,
        help="in all, shared out over the cases; those whose "
        "environments answer by the wall clock come on top, with a tenth of it each",
    )
    parser.add_argument("--damaged", type=int, default=5000)
    parser.add_argument(
        "--case", nargs="+", choices=list(killing.CASES), default=list(killing.CASES)
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--folder", type=Path, help="where the runs lie (default: a temporary folder)"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="the tally; one more piece where the file has some",
    )
    options = parser.parse_args(arguments)
    began, faults, tally, refused = time.monotonic(), [], Tally(), 0
    with tempfile.TemporaryDirectory(prefix="soak-", dir=options.folder) as name:
        folder = Path(name)
        for case, share in shares(options.case, options.kills).items():
            found, counted = kill_case(case, share, random.Random(f"{options.seed}/{case}"), folder)
            faults += found
            tally.add(counted)
        if options.damaged:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found, refused = accepted_although_damaged(
                    folder, options.damaged, random.Random(options.seed)
                )
            print(
                f"{options.damaged} damaged checkpoints, {refused} refused by name and the one before used"
            )
            faults += found
    print(f"kills by what they hit: {dict(tally.hit.most_common())}")
    for fault in faults:
        print(f"FAULT {fault}")
    print(
        f"{'FAILED' if faults else 'passed'}: seed {options.seed}, {', '.join(options.case)}: {tally}; "
        f"{options.damaged} damaged checkpoints, {options.damaged - refused} not refused; {len(faults)} faults; "
        f"{time.monotonic() - began:.0f} s"
    )
    if options.json:
        add_piece(
            options.json,
            {
                "seed": options.seed,
                "cases": options.case,
                "kills": tally.kills,
                "hit": dict(tally.hit),
                "there": tally.there,
                "lost": tally.lost,
                "resumed": tally.resumed,
                "identical": tally.identical,
                "by_the_clock": tally.by_the_clock,
                "damaged": options.damaged,
                "refused": refused,
                "faults": faults,
                "seconds": round(time.monotonic() - began),
            },
        )
    return 1 if faults else 0


def add_piece(file: Path, piece: dict) -> None:
    """One invocation's tally behind those that the file holds: a long soak is done in pieces, each with its seed."""
    pieces = json.loads(file.read_text(encoding="utf-8"))["pieces"] if file.exists() else []
    file.write_text(json.dumps({"pieces": [*pieces, piece]}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
