"""The command `audit`: sampler/trainer logprob mismatch, for a run or a configuration."""

from __future__ import annotations

import argparse
import json

from workbench.cli.numbers import whole_number
from workbench.cli.opening import print_or_save, source_of
from workbench.cli.options import AddCommand, add_html, add_set, add_trust


def add_audit(command: AddCommand) -> None:
    sub = command("audit", audit_command)
    sub.add_argument(
        "source", help="a run folder (its newest checkpoint), a preset or a .toml file"
    )
    sub.add_argument(
        "--step", type=whole_number, help="checkpoint of the run to load (default: the newest)"
    )
    sub.add_argument(
        "--tasks",
        type=whole_number,
        default=4,
        help="of training, to sample trajectories at (default: 4)",
    )
    sub.add_argument("--attempts", type=whole_number, default=4, help="sampled at each task")
    sub.add_argument(
        "--control",
        action="store_true",
        help="run the zero-learning-rate control for a large policy too, though engine and trainer agree",
    )
    sub.add_argument("--json", action="store_true", help="print every number as JSON")
    add_html(sub)
    add_set(sub)
    add_trust(sub)


def audit_command(args: argparse.Namespace) -> int:
    from workbench.extensions.engine_audit.audit import audit

    report = audit(
        source_of(args.source, args.settings, args.step, trust=args.trust),
        step=args.step,
        tasks=args.tasks,
        attempts=args.attempts,
        control=args.control or None,
    )
    if args.json:
        print(json.dumps(report.as_dict(), indent=1))
    else:
        print_or_save(report.view, args.html)
    return 0 if report.clean else 1
