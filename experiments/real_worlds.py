"""How many turns of a pretrained model each shipped environment reads: with the small policies' settings, and with those for
pretrained models.

    python -m experiments.real_worlds FOLDER --out docs/evidence/data/real-worlds.json

FOLDER: of a Hugging Face model. Training tasks only; the same tasks, seeds and noise for every setting. Written after every
environment, so that the same command goes on with what is missing.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.extensions.tune_in.trial import tune_in
from workbench.training.config import load_config
from workbench.training.session import open_session

WORLDS = ("bandit", "frozenlake", "countdown", "search", "shop", "sokoban", "code", "code-vague")
REAL = {
    "interface.prompt": "full",
    "interface.format": "lenient",
    "collect.max_turn_tokens": 96,
    "collect.temperature": 0.7,
}
FULL = "full prompt, lenient, 96 tokens, temperature 0.7"
NO_THOUGHT = "the same, without thoughts"


def measured(session: Any, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The trial of one environment, as JSON values."""
    config = load_config(name, {"policy.name": session.config.policy.name})
    trials: dict[str, Mapping[str, Any]] = {FULL: REAL}
    if args.no_thought and getattr(config.env, "think", False):
        trials[NO_THOUGHT] = {**REAL, "env.think": False}
    began = time.process_time()
    tuned = tune_in(
        replace(session, config=config),
        name,
        tasks=args.tasks,
        attempts=1,
        turns=args.turns,
        trials=trials,
    )
    return {"world": name, "cpu_seconds": round(time.process_time() - began, 1), **tuned.as_dict()}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--no-thought", action="store_true", help="a third row without thoughts")
    parser.add_argument("--worlds", nargs="*", default=WORLDS)
    args = parser.parse_args(arguments)
    session = open_session(load_config("frozenlake", {"policy.name": args.folder}), quiet=True)
    parameters = sum(p.numel() for p in session.policy.model.parameters())
    worlds: list[dict[str, Any]] = []
    if args.out.is_file():
        worlds = json.loads(args.out.read_text(encoding="utf-8"))["worlds"]
    done = {world["world"] for world in worlds}
    for name in [name for name in args.worlds if name not in done]:
        worlds.append({**measured(session, name, args), "policy": Path(args.folder).name})
        report = {
            "policy": Path(args.folder).name,
            "parameters": parameters,
            "tasks": args.tasks,
            "turns": args.turns,
            "machine": platform.machine(),
            "worlds": worlds,
        }
        args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        rows = [f"{row['strict']}/{row['valid']}/{row['turns']}" for row in worlds[-1]["rows"]]
        print(name, *rows, f"{worlds[-1]['cpu_seconds']} CPU-s", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
