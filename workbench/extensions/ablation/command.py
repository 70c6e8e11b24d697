"""The command `ablate`: a plan is printed, its jobs are done, its report is made."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.cli.numbers import decimal_above_zero, number_from_zero, whole_number
from workbench.cli.options import AddCommand, add_set
from workbench.values.errors import ConfigError

if TYPE_CHECKING:
    from workbench.extensions.ablation.cells import ArmTable
    from workbench.extensions.ablation.door import PlanPart

LAUNCHERS = ("local", "slurm", "ray")


def add_ablate(command: AddCommand) -> None:
    sub = command("ablate", ablate_command)
    sub.add_argument("plan", type=Path, metavar="PLAN.toml")
    sub.add_argument(
        "--out", type=Path, help="folder of notebooks, runs and tables (default: runs/<plan>)"
    )
    sub.add_argument(
        "--plan",
        "--dry-run",
        dest="dry_run",
        action="store_true",
        help="print jobs, cost and what could be detected, and run nothing",
    )
    sub.add_argument(
        "--pilot",
        action="store_true",
        help="do the first job only, so that the cost is known; it counts",
    )
    sub.add_argument(
        "--workers",
        type=whole_number,
        help="processes of one thread each (default: 2); elsewhere: jobs at once (default: 64)",
    )
    sub.add_argument(
        "--seeds", type=number_from_zero, nargs="+", help="of training (default: the plan's)"
    )
    sub.add_argument("--arms", nargs="+", metavar="NAME", help="some of its arms (default: all)")
    sub.add_argument("--retry", action="store_true", help="do again what failed before")
    sub.add_argument(
        "--stop-at-first-failure", action="store_true", help="begin no other job once one failed"
    )
    sub.add_argument(
        "--timeout",
        type=decimal_above_zero,
        metavar="SECONDS",
        help="that a cell may take, by the clock (default: any)",
    )
    sub.add_argument(
        "--on",
        default="local",
        choices=LAUNCHERS,
        help="what runs the jobs: processes of this machine or SLURM "
        "(both through submitit), or a Ray cluster; the folder is one that all its machines see",
    )
    sub.add_argument(
        "--gpus-per-job",
        type=whole_number,
        default=0,
        metavar="N",
        help="that no other job has (default: 0, a job sees none)",
    )
    sub.add_argument(
        "--launch",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of submitit "
        "(slurm_partition=gpu, timeout_min=600) or of Ray (address=HOST:PORT); may be repeated",
    )
    add_set(sub)


def ablate_command(args: argparse.Namespace) -> int:
    """0: every check of the table holds; 1: one does not, or could not be judged, or a job is left."""
    from workbench.extensions.ablation.door import ask, carry_out, way_of
    from workbench.extensions.ablation.drive import DONE, tally
    from workbench.extensions.ablation.forecast import forecast
    from workbench.extensions.ablation.plan import read_settings
    from workbench.extensions.ablation.table import held
    from workbench.extensions.ablation.tuning import all_states
    from workbench.extensions.ablation.views.plans import show_forecast

    asked = ask(
        args.plan,
        args.out,
        seeds=args.seeds or (),
        arms=args.arms or (),
        settings=read_settings(" ".join(args.settings)),
    )
    way = way_of(
        args.workers,
        args.retry,
        args.stop_at_first_failure,
        args.timeout,
        on=args.on,
        gpus_per_job=args.gpus_per_job,
        options=_options(args.launch),
    )
    if args.pilot:
        workers = min(way.workers, 1)
        pilot = replace(way, workers=workers, retry=False, stop_at_first_failure=False, most=1)
        carry_out(asked, pilot, _say)
    _say(show_forecast(forecast(asked.plan, asked.seeds, asked.out)).text)
    if args.dry_run or args.pilot:
        return 0
    carry_out(asked, way, _say)
    states = all_states(asked.plan, asked.seeds, asked.out)
    are_done = [job.state == DONE for job in states]
    if not any(are_done):
        _say(f"{tally(states)}; nothing to report")
        return 1
    table = told(asked, _say)
    return 0 if held(table.values) and all(are_done) else 1


def _options(given: list[str]) -> dict[str, Any]:
    """KEY=VALUE as it was meant: 60 and true are values, all else is text."""
    options: dict[str, Any] = {}
    for option in given:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise ConfigError(f"--launch: expected KEY=VALUE, got {option!r}")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


def told(asked: PlanPart, say: Callable[[str], None]) -> ArmTable:
    """Make the report, and print its table."""
    from workbench.extensions.ablation.door import report

    table = report(asked)
    name = asked.plan.name
    say((asked.out / f"{name}.md").read_text(encoding="utf-8"))
    say(f"{name}.ipynb, .html, .md, .png, .json and results.tsv are in {asked.out}")
    return table


def _say(line: str) -> None:
    print(line, flush=True)
