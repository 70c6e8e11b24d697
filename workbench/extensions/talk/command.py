"""The commands `chat`, `play` and `serve`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from workbench.cli.numbers import whole_number
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
    add_set(sub)
    add_trust(sub)


def add_serve(command: AddCommand) -> None:
    sub = command("serve", serve_command)
    sub.add_argument("run_path", type=Path, metavar="RUN")
    sub.add_argument("--step", type=whole_number, help="checkpoint to serve (default: the newest)")
    sub.add_argument(
        "--port", type=whole_number, default=8000, help="of this machine (default: 8000)"
    )


def add_play(command: AddCommand) -> None:
    sub = command("play", play_command)
    sub.add_argument("env", help="an environment preset, such as frozenlake-4x4 or bandit-code")
    sub.add_argument("--seed", type=int, default=0, help="task seed")
    sub.add_argument(
        "--tokenizer", default="frozenlake-tiny", help="policy whose tokens you type in"
    )


def chat_command(args: argparse.Namespace) -> int:
    from workbench.extensions.talk.terminal import chat

    return chat(args)


def serve_command(args: argparse.Namespace) -> int:
    from workbench.extensions.talk.serve import serve

    print(f"exporting {args.run_path} and starting vLLM ...", flush=True)
    with serve(args.run_path, step=args.step, port=args.port) as served:
        print(
            f"serving {served.name} at {served.url}; Ctrl-C ends it. Talk to it:\n  workbench chat {args.run_path} --endpoint "
            f"{served.url} --model {served.name} --calls text",
            flush=True,
        )
        try:
            while served.process.lives:
                time.sleep(0.5)
        except KeyboardInterrupt:
            return 0
        print(f"vLLM's server ended: {served.process.last_words}", file=sys.stderr)
        return 2


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
