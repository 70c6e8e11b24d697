"""The commands `chat` and `play`."""

from __future__ import annotations

import argparse
import sys

from workbench.cli.numbers import decimal_from_zero, number_from_zero, whole_number
from workbench.cli.options import AddCommand, add_set, add_trust
from workbench.values.errors import ConfigError


def add_chat(command: AddCommand) -> None:
    sub = command("chat", chat_command)
    sub.add_argument(
        "source", metavar="RUN", help="a run folder, or a preset (its untrained policy)"
    )
    sub.add_argument("--ask", metavar="QUESTION", help="one question, then end")
    sub.add_argument(
        "--step", type=whole_number, help="checkpoint of the run to load (default: the newest)"
    )
    sub.add_argument(
        "--temperature", type=decimal_from_zero, help="0 is greedy (default: training's)"
    )
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
    add_set(sub)
    add_trust(sub)


def add_play(command: AddCommand) -> None:
    sub = command("play", play_command)
    sub.add_argument("env", help="an environment preset, such as frozenlake-4x4 or bandit-code")
    sub.add_argument("--seed", type=number_from_zero, default=0, help="task seed")
    sub.add_argument(
        "--tokenizer", default="frozenlake-tiny", help="policy whose tokens you type in"
    )


def chat_command(args: argparse.Namespace) -> int:
    from workbench.extensions.talk.terminal import chat

    return chat(args)


def play_command(args: argparse.Namespace) -> int:
    from workbench.engines.policy import load_tokenizer
    from workbench.extensions.talk.play import play
    from workbench.look import trajectory_view
    from workbench.values.errors import nearest
    from workbench.worlds import PRESETS

    if args.env not in PRESETS:
        raise ConfigError(f"no environment {args.env!r}; {nearest(args.env, PRESETS)}")

    def echoing(question: str) -> str:  # what is piped in is not seen otherwise
        typed = input(question)
        print(typed)
        return typed

    print(
        "You are the policy and see what it sees. Type the answer (Right || Down), or the whole text with its tags; "
        "Ctrl-D ends.\n"
    )
    trajectory = play(
        PRESETS[args.env],
        load_tokenizer(args.tokenizer),
        task_seed=args.seed,
        ask=input if sys.stdin.isatty() else echoing,
    )
    print(f"\n{trajectory_view(trajectory).text}")
    return 0
