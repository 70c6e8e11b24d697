"""Options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

# Adds a command to the command line, of a name, a function from its arguments to the exit status, and what --help says of
# it (left out by an extension, whose face says it). Returns the parser that takes the arguments.
AddCommand = Callable[..., argparse.ArgumentParser]


def add_set(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one setting, such as algorithm.estimator.normalize_std=false; may be repeated",
    )


def add_trust(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--trust",
        action="store_true",
        help="import the code that a run names (my_env:Guess) although it was "
        "not made on this machine",
    )


def add_html(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--html", type=Path, help="write the picture to this HTML file instead")


def add_track(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--track",
        metavar="TRACKER",
        help="send the run to trackio, wandb, mlflow or tensorboard, from a process of its own (workbench track)",
    )
