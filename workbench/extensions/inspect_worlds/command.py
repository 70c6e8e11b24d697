"""`workbench check-env`: play an environment and say what is wrong with it."""

from __future__ import annotations

import argparse
import json

from workbench.cli.numbers import decimal_above_zero, whole_number
from workbench.cli.opening import overrides, print_or_save
from workbench.cli.options import AddCommand, add_html, add_set


def add_check_env(command: AddCommand) -> None:
    sub = command("check-env", check_env_command)
    sub.add_argument(
        "env",
        metavar="NAME",
        help="a preset or kind of environment, my_env:Guess of your own, or a .toml file",
    )
    sub.add_argument(
        "--policy",
        help="whose tokenizer says whether prompts fit (default: that of the .toml file)",
    )
    sub.add_argument("--tasks", type=whole_number, default=12, help="that are played (default: 12)")
    sub.add_argument(
        "--seconds",
        type=decimal_above_zero,
        default=3.0,
        help="of playing, for each way to play (default: 3)",
    )
    sub.add_argument("--json", action="store_true", help="print the report as JSON")
    add_html(sub)
    add_set(sub)


def check_env_command(args: argparse.Namespace) -> int:
    from workbench.extensions.inspect_worlds.check_env import check_env

    checked = check_env(
        args.env,
        overrides(args.settings),
        policy=args.policy,
        tasks=args.tasks,
        budget_s=args.seconds,
    )
    if args.json:
        print(json.dumps(checked.as_dict(), indent=1))
    else:
        print_or_save(checked.view, args.html)
    return 0 if checked.ok else 1
