"""Train every algorithm on the embedded policies, and say of each whether it learned: `make algorithms` runs it.

    python -m experiments.algorithms                                        all of them, three seeds, two workers
    python -m experiments.algorithms --algorithms grpo rloo --seeds 0       some of them
    python -m experiments.algorithms --out FOLDER                           where it is kept; what is done stays done

FrozenLake and the Bandit (names that the policy knows, in new draws), one thread a worker. Writes `table.json` beside
the runs. Exit status 0: every condition holds; 1: one does not, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.algorithms import judge, words
from experiments.algorithms.plan import ENVIRONMENTS, SETTINGS, Job, Terms, config_of, jobs
from experiments.ending import says_how_it_ended
from workbench.extensions.ablation.schedulers import each_in_processes
from workbench.learn.algorithms import ALGORITHMS
from workbench.look.words import count
from workbench.run.writer import make_folder, write_file
from workbench.values.errors import WorkbenchError

RESULTS = Path(__file__).with_name("results")


def run(
    todo: Sequence[Job], terms: Terms, out: Path, workers: int, say: Callable[[str], None] = print
) -> dict[Job, dict[str, Any]]:
    """Results of all jobs; those that were finished before are read, the others made by `workers` processes."""
    from experiments.algorithms.work import do, finished

    results: dict[Job, dict[str, Any]] = {}
    for job in todo:
        if (found := finished(job, terms, out)) is not None:
            results[job] = found
            say(words.progress(len(results), len(todo), job, found, reused=True))
    for job, result in each_in_processes(
        [job for job in todo if job not in results], do, (terms, out), workers
    ):
        results[job] = result
        say(words.progress(len(results), len(todo), job, result))
    return {job: results[job] for job in todo}


def tabled(results: Mapping[Job, Mapping[str, Any]], terms: Terms) -> dict[str, Any]:
    """The table of all results, with the verdict; JSON values (version 1)."""
    from workbench.basics.fingerprint import code_fingerprint

    environments = {}
    for before, start in (
        (job, result) for job, result in results.items() if job.algorithm is None
    ):
        if "failed" in start:
            raise WorkbenchError(f"{before}: {start['failed']}. Nothing can be compared with it")
        runs = [
            job
            for job in results
            if job.environment == before.environment and job.algorithm is not None
        ]
        environments[before.environment] = {
            "label": start["label"],
            "tasks": terms.tasks,
            "clusters": len({*start["clusters"]}),
            "start": {
                "rows": [
                    {k: value for k, value in row.items() if k != "by_task"}
                    for row in start["rows"]
                ]
            },
            "algorithms": {
                name: judge.entry(
                    start, {job.seed: results[job] for job in runs if job.algorithm == name}
                )
                for name in dict.fromkeys(job.algorithm for job in runs)
            },
        }
    checks = judge.judge(
        {name: found["algorithms"] for name, found in environments.items()}, tuple(ALGORITHMS)
    )
    spent = sum(
        sum(result["cpu_seconds"].values()) for result in results.values() if "failed" not in result
    )
    return {
        "version": 1,
        "held": all(check.held is not False for check in checks),
        "checks": [asdict(check) for check in checks],
        "terms": {"tasks": terms.tasks, "first": terms.first, "seed": terms.seed},
        "seeds": sorted({job.seed for job in results if job.algorithm is not None}),
        "environments": environments,
        "cpu_seconds": spent,
        "code": code_fingerprint(),
    }


@says_how_it_ended
def main(
    arguments: Sequence[str], say: Callable[[str], None] = lambda line: print(line, flush=True)
) -> int:
    options = _options(arguments)
    terms = Terms(options.tasks, options.first_task, settings=options.settings)
    todo = jobs(options.environments, options.algorithms, options.seeds)
    for job in todo:
        config_of(
            job, terms.settings
        )  # what is wrong with any of them is said before the first is trained
    say(
        f"{len(todo)} jobs, {count(options.workers, 'worker process', 'worker processes')}, one thread each; kept "
        f"in {options.out}"
    )
    make_folder(options.out)
    table = tabled(run(todo, terms, options.out, options.workers, say), terms)
    write_file(
        options.out / "table.json", (json.dumps(table, indent=1) + "\n").encode(), replace=True
    )
    for line in words.in_words(table):
        say(line)
    say(f"every seed is in {os.path.relpath(options.out / 'table.json')}")
    return 0 if table["held"] else 1


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.algorithms", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--algorithms",
        nargs="+",
        choices=tuple(ALGORITHMS),
        default=list(ALGORITHMS),
        metavar="NAME",
        help=f"default: all of {', '.join(ALGORITHMS)}",
    )
    parser.add_argument(
        "--environments",
        nargs="+",
        choices=ENVIRONMENTS,
        default=list(ENVIRONMENTS),
        metavar="NAME",
        help=f"default: {' and '.join(ENVIRONMENTS)}",
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0, 1, 2], help="of training (default: 0 1 2)"
    )
    parser.add_argument(
        "--tasks", type=int, default=Terms.tasks, help="held-out tasks to measure on (default: 512)"
    )
    parser.add_argument(
        "--first-task",
        type=int,
        default=0,
        help="leave out so many held-out tasks before them: "
        "settings are chosen on others than the table's",
    )
    parser.add_argument(
        "--settings", type=Path, default=SETTINGS, help="other settings than settings.toml's"
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="processes of one thread each; 0: do it in this one"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="folder of runs, results and table.json"
    )
    options = parser.parse_args(arguments)
    for name, least in (("tasks", 2), ("first_task", 0), ("workers", 0)):
        if getattr(options, name) < least:
            parser.error(
                f"--{name.replace('_', '-')} is at least {least}, got {getattr(options, name)}"
            )
    if len({*options.seeds}) != len(options.seeds):
        parser.error(f"every seed is a run of its own, but one stands twice in {options.seeds}")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
