"""The words of the command line: what each command takes. What it does is its function in `commands.py`, or, if it
trains, in `training.py`.

A new command: one function there, one paragraph here; or an extension, whose face names the function that adds it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

from workbench.basics.extensions import provided
from workbench.basics.plugins import load_named
from workbench.cli import commands, training
from workbench.cli.numbers import number_from_zero, whole_number
from workbench.cli.options import AddCommand, add_html, add_set, add_track, add_trust
from workbench.values.errors import ConfigError


class CommandParser(argparse.ArgumentParser):
    """The parser of one command.

    Options may stand anywhere: `export RUN --to trl-sft DEST`, whose DEST a plain parser no longer takes behind an
    option. The arguments of an extension's command are added when the command is parsed, so that other
    extensions are not imported and cannot fail.
    """

    add_later: Callable[[], None] | None = None  # adds the arguments that are not there yet
    _mixing = False

    def complete(self) -> None:
        """Add the arguments that were left for later."""
        if self.add_later is not None:
            self.add_later()
            self.add_later = None

    def parse_known_args(self, args=None, namespace=None):
        if self._mixing:
            return super().parse_known_args(args, namespace)
        self.complete()
        self._mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False


def make_parser() -> argparse.ArgumentParser:
    """The parser of `workbench`. Raises ConfigError for a face of an extension that cannot be read."""
    parser = argparse.ArgumentParser(
        prog="workbench",
        description="Train LLM agents with reinforcement learning, and see what the training does.",
    )
    subparsers = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=CommandParser
    )

    def command(
        name: str, run: Callable[[argparse.Namespace], int], words: str = ""
    ) -> argparse.ArgumentParser:
        sub = subparsers.add_parser(name, help=words, description=words)
        sub.set_defaults(run=run)
        return sub

    _add_training(command)
    _add_questions_about_runs(command)
    _add_looking(command)
    _add_machine(command)
    help_lines = provided("help")
    for name, place in provided("commands").items():
        words = help_lines.get(name, "")
        sub = subparsers.add_parser(name, help=words, description=words)
        sub.add_later = partial(_add_from_extension, sub, name, place)
    return parser


def _add_from_extension(sub: CommandParser, name: str, place: str) -> None:
    """Add the arguments of an extension's command to its parser: the function at `place` knows them."""

    def command(
        added: str, run: Callable[[argparse.Namespace], int], words: str = ""
    ) -> argparse.ArgumentParser:
        if added != name:
            raise ConfigError(f"{place} adds a command {added!r}; its face.toml names it {name!r}")
        sub.set_defaults(run=run)
        sub.description = words or sub.description
        return sub

    load_named(place, f"the command {name}")(command)


def _add_training(command: AddCommand) -> None:
    sub = command(
        "train",
        training.train_command,
        "train in this process; under torchrun, one rank per process",
    )
    sub.add_argument(
        "config", help="a preset (frozenlake, bandit), a .toml file, or the config.json of a run"
    )
    sub.add_argument(
        "--out", type=Path, help="run folder to make (default: runs/<config>-<seed>-<time>)"
    )
    sub.add_argument("--profile", action="store_true", help="print where the time of steps went")
    add_track(sub)
    add_set(sub)
    add_trust(sub)

    sub = command(
        "resume",
        training.resume_command,
        "continue a run that was killed or stopped; a complete one is left as it is",
    )
    sub.add_argument("run_path", type=Path, metavar="RUN")
    sub.add_argument(
        "--accept-changed-code",
        action="store_true",
        help="continue although code of your own is not what the "
        "run was made with; the run says so from there on",
    )
    add_track(sub)
    add_set(sub)
    add_trust(sub)

    sub = command(
        "evaluate",
        commands.evaluate_command,
        "success of a run's or preset's policy on the held-out tasks, with its baselines",
    )
    sub.add_argument("source", help="a run folder, or a preset (its untrained policy)")
    sub.add_argument(
        "--tasks", type=whole_number, help="number of held-out tasks (default: the config's)"
    )
    sub.add_argument(
        "--attempts",
        type=whole_number,
        help="sampled trajectories of each task; several give pass@k (default: the config's)",
    )
    sub.add_argument(
        "--step", type=whole_number, help="checkpoint of the run to load (default: the newest)"
    )
    sub.add_argument("--json", action="store_true", help="print the table as JSON")
    add_set(sub)
    add_trust(sub)

    sub = command(
        "rollout",
        commands.rollout_command,
        "sample trajectories of a few tasks and show them turn by turn",
    )
    sub.add_argument("source", help="a run folder, or a preset")
    sub.add_argument("--tasks", type=whole_number, default=1, help="how many (default: 1)")
    sub.add_argument("--group", type=whole_number, default=2, help="trajectories of each task")
    sub.add_argument("--tokens", action="store_true", help="show tokens by author instead of turns")
    add_set(sub)
    add_trust(sub)


def _add_questions_about_runs(command: AddCommand) -> None:
    sub = command(
        "replay",
        commands.replay_command,
        "recompute a step's credit from its stored ids and rewards; exit 1 if a number differs",
    )
    sub.add_argument("run_path", type=Path, metavar="RUN")
    sub.add_argument("step", type=number_from_zero, metavar="STEP")
    add_trust(sub)

    sub = command(
        "lint",
        commands.lint_command,
        "is what is trained what it is taken for? Rules over a run's steps, over rollouts that "
        "another framework wrote, or over a few freshly sampled ones of a preset; exit 1 on errors",
    )
    sub.add_argument(
        "source",
        metavar="PATH",
        help="a run folder, a file or folder of rollouts, a preset or .toml file",
    )
    sub.add_argument("--step", type=number_from_zero, help="only this step of the run")
    sub.add_argument(
        "--start",
        action="store_true",
        help="of a run: also ask anew what is asked once, at its start: settings, the direction of the "
        "loss, environments",
    )
    sub.add_argument("--json", action="store_true", help="print the report as JSON")
    add_html(sub)
    add_set(sub)
    add_trust(sub)

    sub = command(
        "diff",
        commands.diff_command,
        "where two runs diverge: the first setting, step, file, column, token; exit 1 if they do",
    )
    sub.add_argument("run_path", type=Path, metavar="RUN")
    sub.add_argument("other_path", type=Path, metavar="RUN")
    sub.add_argument(
        "--exact",
        action="store_true",
        help="read every byte, checkpoints too: equal is then to the last bit (default: by checksums)",
    )
    add_html(sub)


def _add_looking(command: AddCommand) -> None:
    sub = command(
        "show",
        commands.show_command,
        "a run, or one step of it: curves, trajectories, tokens, credit; or rollouts that another "
        "framework wrote",
    )
    sub.add_argument("run_path", type=Path, metavar="RUN")
    sub.add_argument("step", type=number_from_zero, nargs="?", metavar="STEP")
    sub.add_argument(
        "--task", type=number_from_zero, help="which group of the step (default: the first)"
    )
    sub.add_argument(
        "--attempt",
        type=number_from_zero,
        help="which trajectory of the group (default: the whole group)",
    )
    sub.add_argument("--tokens", action="store_true", help="tokens coloured by author and credit")
    sub.add_argument(
        "--at",
        default="",
        metavar="PLACE",
        help="a place in words: 'step 3 / task 2 / attempt 5 / token 812'",
    )
    sub.add_argument(
        "--signals", action="store_true", help="signals that may warn of a collapse, step by step"
    )
    sub.add_argument(
        "--tokenizer",
        help="of rollouts of another framework: the policy whose tokens they are (else ids)",
    )
    add_html(sub)


def _add_machine(command: AddCommand) -> None:
    sub = command(
        "settings", commands.settings_command, "all settings: key, default, type, range and meaning"
    )
    sub.add_argument(
        "key",
        nargs="?",
        default="",
        metavar="KEY",
        help="only these: a part (train), a key (train.steps) or its last word (steps); or my_env:Guess, of "
        "your own",
    )
