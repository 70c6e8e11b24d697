"""The command `bias`: the bench is run and its table printed or saved."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from workbench.cli.opening import print_or_save
from workbench.cli.options import AddCommand, add_html


def add_bias(command: AddCommand) -> None:
    sub = command("bias", bias_command)
    sub.add_argument(
        "--algorithm",
        action="append",
        default=[],
        metavar="NAME",
        help="only this algorithm, or my_module:MINE of your own; may be repeated",
    )
    sub.add_argument(
        "--json", type=Path, metavar="FILE", help="also write every number to this file"
    )
    add_html(sub)


def bias_command(args: argparse.Namespace) -> int:
    from workbench.extensions.bias.cell import bias_bench

    report = bias_bench(args.algorithm or None)
    if args.json is not None:
        from workbench.run.writer import make_folder, write_file

        make_folder(args.json.absolute().parent)
        write_file(args.json, replace=True, content=json.dumps(report.as_dict(), indent=1).encode())
    print_or_save(report.view, args.html)
    return 0 if report.passed else 1
