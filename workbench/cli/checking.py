"""`workbench check-env`: play an environment and say what is wrong with it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from workbench.cli.numbers import whole_number
from workbench.cli.opening import overrides, put


def add_check_env(command: Callable[..., argparse.ArgumentParser]) -> argparse.ArgumentParser:
    sub = command(
        "check-env",
        check_env_command,
        "play an environment and say what is wrong with it: chance, limits, leaks, rewards that can be farmed ...; exit "
        "1 on errors",
    )
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
        "--seconds", type=float, default=3.0, help="of playing, for each way to play (default: 3)"
    )
    sub.add_argument("--json", action="store_true", help="print the report as JSON")
    sub.add_argument("--html", type=Path, help="write the picture to this HTML file instead")
    return sub


def check_env_command(args: argparse.Namespace) -> int:
    from workbench.notebook.check_env import check_env

    found = check_env(
        args.env,
        overrides(args.settings),
        policy=args.policy,
        tasks=args.tasks,
        budget_s=args.seconds,
    )
    if args.json:
        print(json.dumps(found.as_dict(), indent=1))
    else:
        put(found.view, args.html)
    return 0 if found.ok else 1
