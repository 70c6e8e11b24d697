"""The commands `get-model` and `demo-model`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from workbench.cli.numbers import number_from_zero
from workbench.cli.options import AddCommand, add_set


def add_get_model(command: AddCommand) -> None:
    sub = command("get-model", get_model_command)
    sub.add_argument("name", metavar="NAME", help="smollm2")


def add_demo_model(command: AddCommand) -> None:
    sub = command("demo-model", demo_model_command)
    sub.add_argument("name", metavar="NAME", help="smollm2")
    sub.add_argument("--seeds", type=number_from_zero, nargs="+", default=[0])
    sub.add_argument("--out", type=Path)
    add_set(sub)


def get_model_command(args: argparse.Namespace) -> int:
    from workbench.extensions.real_model.maker import model_folder

    print(model_folder(args.name, say=lambda words: print(words, file=sys.stderr)))
    return 0


def demo_model_command(args: argparse.Namespace) -> int:
    from workbench.cli.opening import overrides
    from workbench.cli.training import train_with_progress
    from workbench.extensions.real_model.demo import real_demo

    settings = overrides(args.settings)
    table = real_demo(args.name, args.seeds, args.out, settings, train_with_progress)
    return 0 if table["learned"] else 1
