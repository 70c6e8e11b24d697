"""The command `pretrain`."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from workbench.cli.numbers import number_from_zero
from workbench.cli.options import AddCommand
from workbench.values.errors import ConfigError


def add_pretrain(command: AddCommand) -> None:
    sub = command("pretrain", pretrain_command)
    sub.add_argument("name")
    sub.add_argument("--out", type=Path, help="folder to write (default: runs/policies/NAME)")
    sub.add_argument("--seed", type=number_from_zero, default=None)
    sub.add_argument(
        "--check",
        action="store_true",
        help="reproduce the shipped policy's success within its interval; exit 1 if not",
    )
    sub.add_argument(
        "--quick",
        action="store_true",
        help="with --check: evaluate the shipped weights only, do not train anew",
    )


def pretrain_command(args: argparse.Namespace) -> int:
    pretrain = recipes()
    if args.check:
        report = pretrain.check(args.name, quick=args.quick)
        print(report.text)
        return 0 if report.passed else 1
    out = args.out or Path("runs/policies") / args.name
    pretrain.pretrain(args.name, out, seed=args.seed)
    print(out)
    return 0


def recipes() -> ModuleType:
    """`data/make/pretrain.py` of the checkout: how the shipped policies are made is not part of the package."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "data" / "make" / "pretrain.py").is_file():
        raise ConfigError(
            f"`workbench pretrain` runs the recipes in data/make, which are not in {root}: run it in a "
            "checkout of the repository, installed with `pip install -e .`"
        )
    import torch  # noqa: F401  the recipes import it, and are no part of the package that names extras

    sys.path.append(str(root))
    return import_module("data.make.pretrain")
