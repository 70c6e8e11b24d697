"""The words of the command line: what each command takes. What it does is its function in `commands.py`, or, if it
trains, in `training.py`.

A new command: one function there, one paragraph here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from workbench.cli import commands, training
from workbench.cli.ablating import add_ablate
from workbench.cli.auditing import add_audit_notebook
from workbench.cli.checking import add_check_env
from workbench.cli.numbers import step_numbers, whole_number
from workbench.cli.retriever import retriever_command

# What `export --to` takes: spelled out, because the tables themselves (notebook/export) import what writes the files.
EXPORTS = (
    "trl-sft",
    "trl-sft-tokens",
    "trl-dpo",
    "trl-grpo",
    "openai",
    "dataset",
    "verifiers",
    "verifiers-v0",
    "inspect",
    "tensorboard",
    "trackio",
    "wandb",
)

AddCommand = Callable[[str, Callable[[argparse.Namespace], int], str], argparse.ArgumentParser]


class _AnyOrder(argparse.ArgumentParser):
    """Options may stand anywhere: `export RUN --to trl-sft DEST`, whose DEST a plain parser no longer takes behind an
    option."""

    _mixing = False

    def parse_known_args(self, args=None, namespace=None):
        if self._mixing:
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="workbench",
        description="Train LLM agents with reinforcement learning, and see what the training does.",
    )
    subparsers = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_AnyOrder
    )

    def command(
        name: str, run: Callable[[argparse.Namespace], int], words: str
    ) -> argparse.ArgumentParser:
        sub = subparsers.add_parser(name, help=words, description=words)
        sub.set_defaults(run=run)
        return sub

    _add_training(command)
    _add_questions_about_runs(command)
    _add_making(command)
    _add_looking(command)
    _add_set(add_check_env(command))
    _add_machine(command)
    _add_measurements(command)
    _add_set(add_ablate(command))
    _add_html(add_audit_notebook(command))
    _add_services(command)
    return parser


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
    _add_set(sub)
    _add_trust(sub)

    sub = command(
        "resume",
        training.resume_command,
        "go on with a run that was killed or stopped; a complete one is left as it is",
    )
    sub.add_argument("run_path", type=Path, metavar="RUN")
    sub.add_argument(
        "--accept-changed-code",
        action="store_true",
        help="go on although code of your own is not what the "
        "run was made with; the run says so from there on",
    )
    _add_set(sub)
    _add_trust(sub)

    sub = command(
        "evaluate",
        commands.evaluate_command,
        "success of a run's or preset's policy on the held-out tasks, beside its baselines",
    )
    sub.add_argument("source", help="a run folder, or a preset (its untrained policy)")
    sub.add_argument(
        "--tasks", type=whole_number, help="number of held-out tasks (default: the config's)"
    )
    sub.add_argument(
        "--attempts",
        type=whole_number,
        help="sampled attempts at each task; several give pass@k (default: the config's)",
    )
    sub.add_argument(
        "--step", type=whole_number, help="checkpoint of the run to load (default: the newest)"
    )
    sub.add_argument("--json", action="store_true", help="print the table as JSON")
    _add_set(sub)
    _add_trust(sub)

    sub = command(
        "rollout",
        commands.rollout_command,
        "sample attempts at a few tasks and show them turn by turn",
    )
    sub.add_argument("source", help="a run folder, or a preset")
    sub.add_argument("--tasks", type=whole_number, default=1, help="how many (default: 1)")
    sub.add_argument("--group", type=whole_number, default=2, help="attempts at each task")
    sub.add_argument("--tokens", action="store_true", help="show tokens by author instead of turns")
    _add_set(sub)
    _add_trust(sub)


def _add_questions_about_runs(command: AddCommand) -> None:
    sub = command(
        "replay",
        commands.replay_command,
        "recompute a step's credit from its stored ids and rewards; exit 1 if a number differs",
    )
    sub.add_argument("run_path", type=Path, metavar="RUN")
    sub.add_argument("step", type=int, metavar="STEP")
    _add_trust(sub)

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
    sub.add_argument("--step", type=int, help="only this step of the run")
    sub.add_argument(
        "--start",
        action="store_true",
        help="of a run: also ask anew what is asked once, at its start: settings, the direction of the "
        "loss, environments",
    )
    sub.add_argument("--json", action="store_true", help="print the report as JSON")
    _add_html(sub)
    _add_set(sub)
    _add_trust(sub)

    sub = command(
        "diff",
        commands.diff_command,
        "where two runs part: the first setting, step, file, column, token; exit 1 if they do",
    )
    sub.add_argument("run_path", type=Path, metavar="RUN")
    sub.add_argument("other_path", type=Path, metavar="RUN")
    sub.add_argument(
        "--exact",
        action="store_true",
        help="read every byte, checkpoints too: equal is then to the last bit (default: by checksums)",
    )
    _add_html(sub)


def _add_making(command: AddCommand) -> None:
    sub = command(
        "export",
        commands.export_command,
        "a run's policy as a plain Hugging Face folder; or, with --to, its attempts as TRL, OpenAI, datasets, "
        "verifiers or Inspect read them, or its numbers for a tracker; nothing is sent anywhere",
    )
    sub.add_argument("run_path", type=Path, metavar="RUN")
    sub.add_argument(
        "folder",
        type=Path,
        nargs="?",
        metavar="DEST",
        help="what to make: the policy's folder; with --to "
        "the file or folder of attempts (docs/guides/export.md), or the folder a tracker writes in",
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
        help="of attempts: these steps (default: all)",
    )
    sub.add_argument(
        "--min-reward",
        type=float,
        help="of attempts to learn from (trl-sft, trl-sft-tokens, openai): those "
        "that earned as much (default: that succeeded)",
    )
    sub.add_argument(
        "--out",
        type=Path,
        help="of a tracker: the same as DEST (default: named after it, beside the run)",
    )

    sub = command(
        "serve",
        commands.serve_command,
        "the policy of a run behind an OpenAI-compatible server of vLLM's own, until Ctrl-C",
    )
    sub.add_argument("run_path", type=Path, metavar="RUN")
    sub.add_argument("--step", type=whole_number, help="checkpoint to serve (default: the newest)")
    sub.add_argument(
        "--port", type=whole_number, default=8000, help="of this machine (default: 8000)"
    )

    for kind in ("env", "tool", "algorithm"):
        sub = command(
            f"new-{kind}",
            commands.new_command,
            f"write a first {'environment' if kind == 'env' else kind} of your own: a module, its test and a file "
            "of settings that trains with it; nothing is written over",
        )
        sub.add_argument("name", metavar="NAME", help=f"of the module, such as my_{kind}")
        sub.add_argument(
            "--in",
            dest="folder",
            type=Path,
            default=Path("."),
            metavar="DIR",
            help="where to write (default: here)",
        )


def _add_looking(command: AddCommand) -> None:
    sub = command(
        "show",
        commands.show_command,
        "a run, or one step of it: curves, trajectories, tokens, credit; or rollouts that another "
        "framework wrote",
    )
    sub.add_argument("run_path", type=Path, metavar="RUN")
    sub.add_argument("step", type=int, nargs="?", metavar="STEP")
    sub.add_argument("--task", type=int, help="which group of the step (default: the first)")
    sub.add_argument(
        "--attempt", type=int, help="which attempt of the group (default: the whole group)"
    )
    sub.add_argument("--tokens", action="store_true", help="tokens coloured by author and credit")
    sub.add_argument(
        "--at",
        default="",
        metavar="PLACE",
        help="a place in words: 'step 3 / task 2 / attempt 5 / token 812'",
    )
    sub.add_argument(
        "--signals", action="store_true", help="what may warn of a collapse, step by step"
    )
    sub.add_argument(
        "--tokenizer",
        help="of rollouts of another framework: the policy whose tokens they are (else ids)",
    )
    _add_html(sub)

    sub = command(
        "chat",
        commands.chat_command,
        "ask a policy and watch it call its tools and answer; with --ask, exit 1 if it gives no answer",
    )
    sub.add_argument(
        "source", metavar="RUN", help="a run folder, or a preset (its untrained policy)"
    )
    sub.add_argument("--ask", metavar="QUESTION", help="one question, then end")
    sub.add_argument(
        "--step", type=whole_number, help="checkpoint of the run to load (default: the newest)"
    )
    sub.add_argument("--temperature", type=float, help="0 is greedy (default: training's)")
    sub.add_argument(
        "--max-turns", type=whole_number, help="for each question (default: the environment's)"
    )
    sub.add_argument(
        "--keep",
        action="store_true",
        help="go on in the same conversation (default: a new one each, as in training)",
    )
    sub.add_argument(
        "--endpoint",
        metavar="URL",
        help="ask an OpenAI-compatible server instead, such as "
        "http://127.0.0.1:8000/v1; environment, tools and limits are still RUN's",
    )
    sub.add_argument("--model", metavar="NAME", help="the model as that server knows it")
    sub.add_argument(
        "--key-env", metavar="VARIABLE", help="environment variable that holds the server's key"
    )
    sub.add_argument(
        "--calls",
        choices=("native", "text"),
        help="who reads tool calls: the server (default), or the environment, from the text",
    )
    _add_set(sub)
    _add_trust(sub)

    sub = command("play", commands.play_command, "play an environment yourself: you are the policy")
    sub.add_argument("env", help="an environment preset, such as frozenlake-4x4 or bandit-code")
    sub.add_argument("--seed", type=int, default=0, help="task seed")
    sub.add_argument(
        "--tokenizer", default="frozenlake-tiny", help="policy whose tokens you type in"
    )


def _add_machine(command: AddCommand) -> None:
    sub = command(
        "pretrain",
        commands.pretrain_command,
        "make a shipped tiny policy again, or check that the shipped one does what it says",
    )
    sub.add_argument("name")
    sub.add_argument("--out", type=Path, help="folder to write (default: runs/policies/NAME)")
    sub.add_argument("--seed", type=int, default=None)
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

    sub = command(
        "doctor",
        commands.doctor_command,
        "what is installed, what works here, and what to do about the rest",
    )
    sub.add_argument(
        "--policy",
        help="also try the embedded engine on this model (shipped name, folder, hub name)",
    )
    sub.add_argument(
        "--plan",
        metavar="CONFIG",
        help="instead, estimate the memory that a preset or .toml file needs; "
        "exit 1 if this machine has less",
    )
    sub.add_argument(
        "--layout",
        choices=("one_device", "one_node", "many_nodes"),
        help="of --plan: where sampling takes place; a server of vLLM's own for all but one_device",
    )
    sub.add_argument("--json", action="store_true")
    _add_set(sub)


def _add_measurements(command: AddCommand) -> None:
    sub = command(
        "bias",
        commands.bias_command,
        "every estimator against the true gradient, on exactly solvable tasks; exit 1 if one "
        "that claims no bias has some, or a known trap is not shown",
    )
    sub.add_argument(
        "--algorithm",
        action="append",
        default=[],
        metavar="NAME",
        help="only this algorithm; may be repeated",
    )
    sub.add_argument(
        "--json", type=Path, metavar="FILE", help="also write every number to this file"
    )
    _add_html(sub)

    sub = command(
        "audit",
        commands.audit_command,
        "engine against trainer on the same ids, why they differ, and whether syncs arrive; "
        "exit 1 if a fault is named",
    )
    sub.add_argument(
        "source", help="a run folder (its newest checkpoint), a preset or a .toml file"
    )
    sub.add_argument(
        "--step", type=whole_number, help="checkpoint of the run to load (default: the newest)"
    )
    sub.add_argument(
        "--tasks",
        type=whole_number,
        default=4,
        help="of training, to sample attempts at (default: 4)",
    )
    sub.add_argument("--attempts", type=whole_number, default=4, help="sampled at each task")
    sub.add_argument("--json", action="store_true", help="print every number as JSON")
    _add_html(sub)
    _add_set(sub)
    _add_trust(sub)


def _add_services(command: AddCommand) -> None:
    sub = command(
        "retriever",
        retriever_command,
        "serve search over a corpus on this machine (POST /search, GET /health), until it is ended",
    )
    sub.add_argument(
        "--corpus",
        type=Path,
        required=True,
        metavar="FILE",
        help="lines of JSON with _id, title and text, as BEIR's corpus.jsonl; .gz too",
    )
    sub.add_argument(
        "--host", default="127.0.0.1", help="any other than this machine's own needs --key"
    )
    sub.add_argument(
        "--port",
        type=int,
        default=0,
        help="0, the default: any free one; the first line printed names it",
    )
    sub.add_argument(
        "--k", type=int, default=5, help="documents to answer with where a request does not say"
    )
    sub.add_argument(
        "--key",
        help="every request must carry it (Authorization: Bearer KEY); better put it into the "
        "environment, WORKBENCH_RETRIEVER_KEY, where other users do not see it",
    )
    sub.add_argument("--searcher", choices=("bm25", "dense"), default="bm25")
    sub.add_argument(
        "--encoder",
        metavar="MODEL",
        help="of --searcher dense: a Hugging Face encoder, by name or folder",
    )
    sub.add_argument(
        "--index",
        type=Path,
        metavar="FILE",
        help="of --searcher dense: read from here, or made and written",
    )

    sub = command(
        "demo",
        training.demo_command,
        "train the embedded agent and say whether it learned; exit 1 if a seed did not",
    )
    sub.add_argument("--task", default="search-discovery", help="a preset, or a file of settings")
    sub.add_argument("--seeds", type=int, nargs="+", default=[0])
    sub.add_argument("--out", type=Path)
    _add_set(sub)


def _add_set(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one setting, such as algorithm.normalize_std=false; may be repeated",
    )


def _add_trust(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--trust",
        action="store_true",
        help="import the code that a run names (my_env:Guess) although it was "
        "not made on this machine",
    )


def _add_html(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--html", type=Path, help="write the picture to this HTML file instead")
