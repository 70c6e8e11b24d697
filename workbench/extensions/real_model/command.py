"""The command `get-model`."""

from __future__ import annotations

import argparse
import sys

from workbench.cli.options import AddCommand


def add_get_model(command: AddCommand) -> None:
    sub = command("get-model", get_model_command)
    sub.add_argument("name", metavar="NAME", help="smollm2")


def get_model_command(args: argparse.Namespace) -> int:
    from workbench.extensions.real_model.maker import model_folder

    print(model_folder(args.name, say=lambda words: print(words, file=sys.stderr)))
    return 0
