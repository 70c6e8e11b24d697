"""The command `export`: a policy folder, trajectories in a form that others read, or the numbers for a tracker."""

from __future__ import annotations

import argparse
from pathlib import Path

from workbench.cli.numbers import decimal, is_digits, whole_number
from workbench.cli.options import AddCommand
from workbench.values.errors import ConfigError

MOST_STEPS = 1_000_000  # of one list

# What `export --to` takes: spelled out, because the tables themselves (export.py) import what writes the files.
EXPORTS = (
    "trl-sft",
    "trl-sft-tokens",
    "trl-dpo",
    "trl-grpo",
    "openai",
    "dataset",
    "verifiers",
    "inspect",
    "tensorboard",
)


def add_export(command: AddCommand) -> None:
    sub = command("export", export_command)
    sub.add_argument("run_path", type=Path, metavar="RUN")
    sub.add_argument(
        "folder",
        type=Path,
        nargs="?",
        metavar="DEST",
        help="what to make: the policy's folder; with --to "
        "the file or folder of trajectories (docs/guides/export.md), or the folder of TensorBoard's logs",
    )
    sub.add_argument(
        "--step", type=whole_number, help="of the policy: checkpoint to write (default: the newest)"
    )
    sub.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="of the policy: of the weights (default: as trained)",
    )
    sub.add_argument(
        "--adapter",
        action="store_true",
        help="of the policy: the trained adapter alone, as peft and vLLM read it",
    )
    sub.add_argument("--to", choices=EXPORTS)
    sub.add_argument(
        "--steps",
        type=step_numbers,
        metavar="A-B,C",
        help="of trajectories: these steps (default: all)",
    )
    sub.add_argument(
        "--min-reward",
        type=decimal,
        help="of trajectories to learn from (trl-sft, trl-sft-tokens, openai): those "
        "that earned as much (default: that succeeded)",
    )
    sub.add_argument(
        "--out",
        type=Path,
        help="of tensorboard: the same as DEST (default: beside the run)",
    )


def export_command(args: argparse.Namespace) -> int:
    from workbench.extensions.interop.export import TENSORBOARD, export_run

    if args.to is None and args.folder is None:
        raise ConfigError(
            "export makes one thing: a folder of the policy (workbench export RUN DIR), a file of trajectories "
            "(... RUN --to trl-sft FILE.jsonl), or its numbers for TensorBoard (... --to tensorboard)"
        )
    if args.to is not None:
        if args.step is not None or args.dtype is not None or args.adapter:
            raise ConfigError(
                "--step, --dtype and --adapter are for the policy's folder; trajectories are chosen by --steps, and "
                "TensorBoard gets the numbers of all steps"
            )
        if args.out is not None and (args.to != TENSORBOARD or args.folder is not None):
            raise ConfigError(
                f"name what is made behind the run, once: workbench export RUN --to {args.to} DEST"
            )
        print(
            export_run(
                args.run_path,
                args.out or args.folder,
                to=args.to,
                steps=args.steps,
                min_reward=args.min_reward,
            ).text
        )
        return 0
    if args.out is not None or args.steps is not None or args.min_reward is not None:
        raise ConfigError(
            "--out, --steps, --min-reward go with --to; the policy's folder is named behind the run"
        )
    from workbench.look.cells.export_policy import export_policy

    print(
        export_policy(
            args.run_path, args.folder, step=args.step, dtype=args.dtype, merge=not args.adapter
        ).text
    )
    return 0


def step_numbers(text: str) -> list[int]:
    """Steps as people write them: 1-10,15."""
    steps: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not is_digits(first) or not is_digits(last or first):
            raise argparse.ArgumentTypeError(
                f"steps such as 1-10,15 are expected; got {text!r:.60}"
            )
        span = range(int(first), int(last or first) + 1)
        if len(steps) + len(span) > MOST_STEPS:
            raise argparse.ArgumentTypeError(
                f"at most {MOST_STEPS:,} steps are taken; got {text!r:.60}"
            )
        steps += span
    return steps
