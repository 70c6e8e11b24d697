"""`workbench serve`: a policy behind OpenAI's chat protocol, by the embedded engine or by vLLM."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from importlib.util import find_spec

from workbench.cli.numbers import number_from_zero, whole_number
from workbench.cli.options import AddCommand
from workbench.values.errors import ConfigError

KEY = "WORKBENCH_SERVE_KEY"  # the variable that clients are told to put the key into


def add_serve(command: AddCommand) -> None:
    sub = command("serve", serve_command)
    sub.add_argument(
        "source",
        metavar="RUN",
        help="a run's folder or that of one of its checkpoints; or a policy, by folder or name",
    )
    sub.add_argument(
        "--engine",
        choices=("auto", "embedded", "vllm"),
        default="auto",
        help="auto, the default: vLLM for a run where it is installed, else the embedded engine",
    )
    sub.add_argument("--step", type=whole_number, help="checkpoint to serve (default: the newest)")
    sub.add_argument(
        "--port",
        type=number_from_zero,
        default=8000,
        help="of this machine (default: 8000; 0: any free one)",
    )
    sub.add_argument(
        "--host",
        default="127.0.0.1",
        help="embedded: any other than this machine's own needs --key-env",
    )
    sub.add_argument(
        "--key-env",
        metavar="VARIABLE",
        help="embedded: environment variable with the key that every request must carry (default: a new one, which is "
        "shown)",
    )
    sub.add_argument("--name", help="embedded: of the model, for clients (default: the folder's)")
    sub.add_argument(
        "--calls",
        metavar="FORMAT",
        help="embedded: how the policy writes tool calls (default: as it was trained, else as its chat template asks)",
    )
    sub.add_argument("--device", help="embedded: cpu, cuda ... (default: the run's, else auto)")
    sub.add_argument(
        "--dtype",
        help="embedded: float32, bfloat16 ... (default: the run's engine's, else float32)",
    )
    sub.add_argument(
        "--seed",
        type=number_from_zero,
        default=0,
        help="embedded: of replies to requests without a seed",
    )
    sub.add_argument(
        "--any-template",
        action="store_true",
        help="vllm: the policy's chat template is one that you know; vLLM renders it without a limit of time or memory",
    )


def serve_command(args: argparse.Namespace) -> int:
    from workbench.extensions.servers.served_policy import is_run

    own = {
        "--host": args.host != "127.0.0.1",
        "--key-env": args.key_env,
        "--name": args.name,
        "--calls": args.calls,
        "--device": args.device,
        "--dtype": args.dtype,
        "--seed": args.seed,
    }
    asked = [name for name, value in own.items() if value]
    engine = args.engine
    if engine == "auto":
        by_vllm = is_run(args.source) and not asked and find_spec("vllm") is not None
        engine = "vllm" if by_vllm else "embedded"
    if engine == "embedded":
        return _serve_embedded(args)
    if asked:
        raise ConfigError(
            f"{asked[0]} is of the embedded engine: add --engine embedded, or leave it out"
        )
    return _serve_by_vllm(args)


def _serve_embedded(args: argparse.Namespace) -> int:
    from workbench.extensions.servers.chat_server import ChatServer
    from workbench.extensions.servers.served_policy import ServedSettings, open_served

    key = os.environ.get(args.key_env or "") or secrets.token_urlsafe(24)
    if args.key_env and key != os.environ.get(args.key_env):
        raise ConfigError(f"the environment variable {args.key_env} holds no key")
    settings = ServedSettings(args.step, args.name, args.calls, args.device, args.dtype)
    print(f"opening {args.source} ...", flush=True)
    with (
        open_served(args.source, settings) as policy,
        ChatServer(policy, args.host, args.port, key=key, seed=args.seed) as server,
    ):
        print(
            f"serving {policy.name} at {server.url}/v1 by the embedded engine; every request carries the key; Ctrl-C "
            "ends it",
            flush=True,
        )
        if not args.key_env:
            print(_of_clients(key), end="", flush=True)
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            return 0
    return 0


def _of_clients(key: str) -> str:
    """What a client needs: nobody else on this machine, and no page in its browser, has the key."""
    return f"  export {KEY}={key}\n"


def _serve_by_vllm(args: argparse.Namespace) -> int:
    from workbench.extensions.servers.vllm_serving import serve

    print(f"exporting {args.source} and starting vLLM ...", flush=True)
    asked = {"step": args.step, "port": args.port, "any_template": args.any_template}
    with serve(args.source, **asked) as served:
        print(
            f"serving {served.name} at {served.url}; every request carries the key; Ctrl-C ends it. Talk to it:\n"
            f"{_of_clients(served.key)}  workbench chat {args.source} --endpoint {served.url} --model {served.name} "
            f"--calls text --key-env {KEY}",
            flush=True,
        )
        try:
            while served.process.lives:
                time.sleep(0.5)
        except KeyboardInterrupt:
            return 0
        print(f"vLLM's server ended: {served.process.last_words}", file=sys.stderr)
        return 2
