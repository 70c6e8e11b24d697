"""The command `conversations`: the calls of a run's programs, step by step, printed or saved."""

from __future__ import annotations

import argparse
from pathlib import Path

from workbench.cli.opening import print_or_save
from workbench.cli.options import AddCommand, add_html


def add_conversations(command: AddCommand) -> None:
    sub = command("conversations", conversations_command)
    sub.add_argument("run_path", type=Path, metavar="RUN")
    sub.add_argument("--csv", action="store_true", help="every number as lines of CSV")
    add_html(sub)


def conversations_command(args: argparse.Namespace) -> int:
    from workbench.extensions.agents.call_table import conversations

    calls = conversations(args.run_path)
    if args.csv:
        print(calls.to_frame().to_csv(index=False), end="")
    else:
        print_or_save(calls.view(), args.html)
    return 0
