"""The command `track`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from workbench.cli.numbers import decimal_above_zero, whole_number
from workbench.cli.options import AddCommand
from workbench.run.processes import identity

# Spelled out, because the table itself (trackers.py) imports what draws the pictures.
NAMES = ("trackio", "wandb", "mlflow", "tensorboard")
# Niceness of a process that was started beside training, so that it takes no time from that.
NICE = 10


def add_track(command: AddCommand) -> None:
    sub = command("track", track_command)
    sub.add_argument("run_path", type=Path, metavar="RUN")
    sub.add_argument("--to", required=True, choices=NAMES)
    sub.add_argument(
        "--project",
        default="workbench",
        help="project or experiment that the tracker keeps the run in (default: workbench)",
    )
    sub.add_argument(
        "--dest",
        help="folder of trackio's database, of wandb's files or of TensorBoard's logs; MLflow's address or folder "
        "(default: what the tracker takes by itself; of TensorBoard: ./tensorboard)",
    )
    sub.add_argument(
        "--every",
        type=whole_number,
        default=10,
        help="steps between two tables of trajectories and two pictures of the curves (default: 10)",
    )
    sub.add_argument(
        "--timeout",
        type=decimal_above_zero,
        default=300.0,
        metavar="SECONDS",
        help="that the tracker may take for one batch before sending ends (default: 300)",
    )
    sub.add_argument("--while-process", type=whole_number, metavar="PID", help=argparse.SUPPRESS)


def track_command(args: argparse.Namespace) -> int:
    from workbench.extensions.track.sending import send_run

    writer = None
    if args.while_process is not None:
        os.nice(NICE)
        writer = identity(args.while_process)

    def is_alive() -> bool:
        return writer is not None and identity(writer.pid) == writer

    sent = send_run(
        args.run_path,
        args.to,
        project=args.project,
        dest=args.dest,
        every=args.every,
        timeout_s=args.timeout,
        is_alive=is_alive,
        say=lambda words: print(words, flush=True),
    )
    print(f"{args.run_path}: {sent:,} items sent to {args.to}; all of the run is there now")
    return 0
