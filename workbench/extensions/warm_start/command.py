"""`workbench warm-start POLICY ENV --out FOLDER`: a policy trained on what a player does in training tasks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from workbench.cli.numbers import decimal_above_zero, whole_number
from workbench.cli.opening import overrides
from workbench.cli.options import AddCommand, add_set


def add_warm_start(command: AddCommand) -> None:
    sub = command("warm-start", warm_start_command)
    sub.add_argument(
        "policy", metavar="POLICY", help="a shipped policy, or a Hugging Face folder or name"
    )
    sub.add_argument(
        "env", metavar="ENV", help="a preset, my_env:Guess of your own, or a .toml file"
    )
    sub.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="to be made")
    sub.add_argument(
        "--tasks", type=whole_number, default=128, help="training tasks (default: 128)"
    )
    sub.add_argument(
        "--batch", type=whole_number, default=8, help="of them in an update (default: 8)"
    )
    sub.add_argument(
        "--player",
        default="solver",
        metavar="NAME",
        help="whose turns are shown: solver (the default), or another that the environment has, "
        "such as careful for its careful_action",
    )
    sub.add_argument("--epochs", type=whole_number, default=1, help="passes (default: 1)")
    sub.add_argument(
        "--lr",
        type=decimal_above_zero,
        help="largest learning rate (default: by the policy's size)",
    )
    add_set(sub)


def warm_start_command(args: argparse.Namespace) -> int:
    from workbench.extensions.warm_start.train import warm_start

    made = warm_start(
        args.policy,
        args.env,
        args.out,
        overrides(args.settings),
        tasks=args.tasks,
        player=args.player,
        batch=args.batch,
        epochs=args.epochs,
        lr=args.lr,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(made.words)
    return 0
