"""The commands `new-env`, `new-tool` and `new-algorithm`."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from workbench.cli.options import AddCommand
from workbench.extensions.skeletons.skeletons import write_skeleton


def add_new(kind: str, command: AddCommand) -> None:
    sub = command(f"new-{kind}", new_command)
    sub.add_argument("name", metavar="NAME", help=f"of the module, such as my_{kind}")
    sub.add_argument(
        "--in",
        dest="folder",
        type=Path,
        default=Path("."),
        metavar="DIR",
        help="where to write (default: here)",
    )


add_new_env = partial(add_new, "env")
add_new_tool = partial(add_new, "tool")
add_new_algorithm = partial(add_new, "algorithm")


def new_command(args: argparse.Namespace) -> int:
    print(write_skeleton(args.command.removeprefix("new-"), args.name, args.folder).text)
    return 0
