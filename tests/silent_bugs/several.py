"""Trainings of several processes, for the battery: two that learn together, and one beside a real vLLM server.

    python -m torch.distributed.run --standalone --nproc_per_node 2 -m tests.silent_bugs.several FOLDER

Each of the five trainings of a place is short: whatever is wrong with how processes work together must be named within a step.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

SMALL = {
    "lint.mode": "warn",
    "train.tasks_per_step": 2,
    "train.group_size": 4,
    "learner.warmup_updates": 0,
}
LAKE = {"env.max_moves": 6, "env.max_moves_per_action": 2}
ADAPTED = {"learner.lora_rank": 4, "learner.lr": 1e-2}

# Preset and what is set beside SMALL. One step each.
RANKED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "grpo": ("bandit", {}),
    "grpo, pulled, several updates, in pieces": (
        "frozenlake",
        {
            **LAKE,
            "algorithm.reference.kl_coef": 0.05,
            "algorithm.epochs": 2,
            "learner.micro_batch_tokens": 500,
            "seed": 1,
        },
    ),
    "ppo, a critic": (
        "frozenlake",
        {**LAKE, "algorithm.kind": "ppo", "algorithm.minibatches": 2, "seed": 2},
    ),
    "reinforce_pp, fresh, padded": (
        "frozenlake",
        {
            **LAKE,
            "algorithm.kind": "reinforce_pp",
            "collect.history": "fresh",
            "learner.layout": "padded",
            "seed": 3,
        },
    ),
    "grpo, adapters": ("bandit", {**ADAPTED, "seed": 4}),
}
# Two steps each: what the first one learned reaches the server, and the second is sampled from it. `ahead`: three.
SERVED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "grpo": ("bandit", {}),
    "ppo, cut turns": (
        "frozenlake",
        {**LAKE, "algorithm.kind": "ppo", "collect.max_turn_tokens": 12, "seed": 1},
    ),
    "reinforce_pp, fresh": (
        "frozenlake",
        {**LAKE, "algorithm.kind": "reinforce_pp", "collect.history": "fresh", "seed": 2},
    ),
    "rloo, bent": (
        "bandit",
        {
            "algorithm.kind": "rloo",
            "collect.temperature": 0.8,
            "algorithm.sampler_cap": 2.0,
            "seed": 3,
        },
    ),
    "grpo, sampled ahead": (
        "bandit",
        {"train.staleness": 1, "algorithm.sampler_cap": 2.0, "train.steps": 3, "seed": 4},
    ),
}
SERVER = {
    "lint.start": False,
    "engine.kind": "vllm",
    "engine.cache_tokens": 16384,
    "engine.max_context": 1000,
    "layout.kind": "one_node",
    "train.steps": 2,
    "train.evaluate_every": 0,
    "evaluation.num_tasks": 2,
    **ADAPTED,
}


def ranks(notes: Any, name: str) -> None:
    """One training of two processes; what each of them found."""
    for said in _of_ranks()[name]:
        notes.add_dict(said)


@functools.cache
def _of_ranks() -> dict[str, list[Any]]:
    """{training: what each process found}: all in the same two processes, for most of the time is theirs to start."""
    with tempfile.TemporaryDirectory(prefix="battery-") as folder:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc_per_node",
                "2",
                "-m",
                "tests.silent_bugs.several",
                folder,
            ],
            capture_output=True,
            text=True,
            timeout=300,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-600:])
        found = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    return {name: [said[name] for said in found] for name in RANKED}


def server(notes: Any, name: str) -> None:
    """One training beside a server of its own, as a run."""
    from workbench.look.cells.train import train_here
    from workbench.training.config import load_config

    preset, settings = SERVED[name]
    with tempfile.TemporaryDirectory(prefix="battery-") as folder:
        run = train_here(
            load_config(preset, SMALL | SERVER | settings), Path(folder) / "run", on_note=None
        )
        for step in run.steps():
            if (said := run.lint(step)) is not None:
                notes.add(said)


def _rank(folder: str) -> None:
    from workbench.look.cells.train import train_step
    from workbench.training.config import load_config
    from workbench.training.session import open_session

    found = {}
    for name, (preset, settings) in RANKED.items():
        session = open_session(
            load_config(preset, SMALL | settings | {"learner.num_processes": 2}), quiet=True
        )
        found[name] = train_step(session, 1).lint.as_dict()
        session.close()
    Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    # Reducers that are still alive, or a peer that is still busy, make gloo abort at exit.
    del session
    gc.collect()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    _rank(*sys.argv[1:])
