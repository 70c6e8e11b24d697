"""`workbench tune-in POLICY ENV`: how a policy's turns are read in an environment, and what to change."""

from __future__ import annotations

import argparse
import json
import sys

from workbench.cli.numbers import whole_number
from workbench.cli.opening import overrides, print_or_save
from workbench.cli.options import AddCommand, add_html, add_set


def add_tune_in(command: AddCommand) -> None:
    sub = command("tune-in", tune_in_command)
    sub.add_argument(
        "policy", metavar="POLICY", help="a shipped policy, or a Hugging Face folder or name"
    )
    sub.add_argument(
        "env", metavar="ENV", help="a preset, my_env:Guess of your own, or a .toml file"
    )
    sub.add_argument("--tasks", type=whole_number, default=4, help="training tasks (default: 4)")
    sub.add_argument(
        "--attempts", type=whole_number, default=2, help="trajectories of each (default: 2)"
    )
    sub.add_argument(
        "--turns", type=whole_number, default=4, help="at most, of a trajectory (default: 4)"
    )
    sub.add_argument("--json", action="store_true", help="print the figures as JSON")
    add_html(sub)
    add_set(sub)


def tune_in_command(args: argparse.Namespace) -> int:
    from workbench.extensions.tune_in.trial import tune_in

    tuned = tune_in(
        args.policy,
        args.env,
        overrides(args.settings),
        tasks=args.tasks,
        attempts=args.attempts,
        turns=args.turns,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if args.json:
        print(json.dumps(tuned.as_dict(), indent=1))
    else:
        print_or_save(tuned.view, args.html)
    return 0
