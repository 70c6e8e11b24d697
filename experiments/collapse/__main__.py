"""Runs that collapse and runs that only look ill; then, for every alarm, how early, how often missed, how often false.

    python -m experiments.collapse                     the whole bench, two workers: 51 runs
    python -m experiments.collapse --kinds echo --seeds 3
    python -m experiments.collapse --runs 0            judge the runs that are there, train none
    python -m experiments.collapse --information --seeds 4       and what replies say of their prompts, and signal over noise
    python -m experiments.collapse --quick             a few tiny runs: does it work?

`make collapse` runs the first. What is done stays done; a run that was cut off goes on. Writes `table.json` beside the runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from experiments.collapse.judge import CAUGHT, FALSE, Course, meets_goal, table
from experiments.collapse.plan import (
    HEALTHY,
    ILL,
    INFORMATION,
    QUICK,
    QUICK_SEEDS,
    SEEDS,
    Job,
    jobs,
)
from experiments.collapse.work import cost, do, finished
from experiments.ending import says_how_it_ended
from workbench.extensions.ablation.schedulers import each_in_processes
from workbench.extensions.collapse.signals import RunSignals
from workbench.run.writer import make_folder, write_file
from workbench.values.errors import WorkbenchError

RESULTS = Path(__file__).with_name("results")
Say = Callable[[str], None]


def run(
    todo: Sequence[Job],
    out: Path,
    *,
    changes: Mapping[str, Any],
    workers: int,
    most: int | None,
    say: Say,
) -> dict[Job, RunSignals]:
    """The signals of every run that is there in the end. `most`: so many are trained now."""
    found = {job: there for job in todo if (there := finished(job, out, changes)) is not None}
    missing = [job for job in todo if job not in found][:most]
    say(f"{len(todo)} runs, {len(found)} of them there; {len(missing)} are trained now, in {out}")
    for job, said in each_in_processes(missing, do, (out, changes), workers):
        if "failed" in said:
            raise WorkbenchError(f"{job.name}: {said['failed']}")
        found[job] = finished(job, out, changes)
        course = Course.of(job, found[job])
        say(f"{job.name}: {course.label}" + (f" at step {course.event}" if course.event else ""))
    return {job: found[job] for job in todo if job in found}


def tabled(
    found: Mapping[Job, RunSignals], planned: Sequence[Job], costs: Mapping[Job, float]
) -> dict[str, Any]:
    """Everything that the page shows; JSON values."""
    courses = [Course.of(job, signals) for job, signals in found.items()]
    kinds = {
        kind: _kind(
            kind,
            [course for course in courses if course.job.kind == kind],
            sum(job.kind == kind for job in planned),
            costs,
        )
        for kind in (*ILL, *HEALTHY)
    }
    return {
        "version": 1,
        "kinds": {kind: row for kind, row in kinds.items() if row["planned"]},
        "rules": table(courses),
        "runs": [_run(course) for course in courses],
    }


def _kind(
    kind: str, own: Sequence[Course], planned: int, costs: Mapping[Job, float]
) -> dict[str, Any]:
    events = sorted(course.event for course in own if course.event is not None)
    spent = [costs[course.job] for course in own if course.job in costs]
    return {
        "planned": planned,
        "made": len(own),
        "steps": len(own[0].found.steps) if own else None,
        **{
            label: sum(course.label == label for course in own)
            for label in ("collapsed", "healthy", "neither")
        },
        "events": events,
        "cpu_seconds": median(spent) if spent else None,
        "most_cpu_seconds": max(spent, default=None),
    }


def _run(course: Course) -> dict[str, Any]:
    last = max((probe.step for probe in course.found.probes), default=0)
    ends = {
        probe.mode: [round(probe.success - probe.change, 4), round(probe.success, 4)]
        for probe in course.found.probes
        if probe.step == last
    }
    return {
        "kind": course.job.kind,
        "seed": course.job.seed,
        "label": course.label,
        "event": course.event,
        "ends": ends,
    }


def in_words(made: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{kind}: {row['made']} of {row['planned']} runs; {row['collapsed']} collapsed, {row['healthy']} healthy, "
        f"{row['neither']} neither"
        for kind, row in made["kinds"].items()
    ]
    lines += [
        "",
        f"{'caught a step ahead':<22} {'lead':>4}  {'false alarms':<20} {'ROC':>4}  alarm (judged half; ROC: area under it)",
    ]
    for row in made["rules"]:
        own = row["judged"]
        lead, area = (
            ("-" if own["lead"] is None else f"{own['lead']:g}"),
            ("-" if row["area"] is None else f"{row['area']:.2f}"),
        )
        lines.append(
            f"{_share(own, 'caught', 'collapses'):<22} {lead:>4}  {_share(own, 'false', 'healthy'):<20} {area:>4}  {row['rule']}"
        )
    meet = [row["rule"] for row in made["rules"] if meets_goal(row)]
    return [
        *lines,
        "",
        f"A step ahead in {CAUGHT:.0%} of the collapses, with at most one false alarm in {1 / FALSE:.0f} healthy runs: "
        + ("; ".join(meet) or "no alarm"),
    ]


def _share(half: Mapping[str, Any], what: str, of: str) -> str:
    low, high = (100 * bound for bound in half[f"{what}_interval"])
    return f"{half[what]} of {half[of]} [{low:.0f}, {high:.0f} %]" if half[of] else "no run"


@says_how_it_ended
def main(arguments: Sequence[str], say: Say = lambda line: print(line, flush=True)) -> int:
    options = _options(arguments)
    out = options.out / "quick" if options.quick else options.out
    changes = {**(QUICK if options.quick else {}), **(INFORMATION if options.information else {})}
    todo = jobs(
        options.kinds, QUICK_SEEDS if options.quick and options.seeds is None else options.seeds
    )
    make_folder(out)
    found = run(todo, out, changes=changes, workers=options.workers, most=options.runs, say=say)
    made = tabled(
        found, todo, {job: spent for job in found if (spent := cost(job, out, changes)) is not None}
    )
    write_file(out / "table.json", (json.dumps(made, indent=1) + "\n").encode(), replace=True)
    for line in [*in_words(made), f"everything is in {out / 'table.json'}"]:
        say(line)
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.collapse", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=tuple(SEEDS),
        default=list(SEEDS),
        metavar="NAME",
        help=f"default: all of {', '.join(SEEDS)}",
    )
    parser.add_argument(
        "--seeds", type=int, help="so many of each kind (default: 10 collapses, 7 healthy ones)"
    )
    parser.add_argument(
        "--runs", type=int, help="train at most so many now; 0: judge what is there"
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="processes of one thread each; 0: this one"
    )
    parser.add_argument(
        "--information",
        action="store_true",
        help="measure mutual information and signal over noise in every step",
    )
    parser.add_argument("--quick", action="store_true", help="tiny runs that measure nothing")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of runs and table.json")
    options = parser.parse_args(arguments)
    for name, least in (("seeds", 1), ("runs", 0), ("workers", 0)):
        if getattr(options, name) is not None and getattr(options, name) < least:
            parser.error(f"--{name} is at least {least}, got {getattr(options, name)}")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
