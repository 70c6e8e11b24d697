"""Open a config file as it stands, in this process or in each of several, and say what came of it.

    opened(FILE)
    torchrun --nproc_per_node 4 tests/open_recipe.py FILE.toml        a line of JSON by the first process

Everything that training opens is opened: policy, chat format, engine, environment, learner (which holds the processes against those
that the file names), one task is drawn and begun, and the weights are handed to the engine once. Nothing is overridden. Where vLLM
is not installed, `by_a_stand_in` takes its place: in this process, or as a server that speaks the same routes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from workbench.training.config import load_config_with_warnings
from workbench.training.session import open_session
from workbench.training.starting import refuse_unstartable
from workbench.values.errors import WorkbenchError

STARTED: list[dict[str, Any]] = []  # what a stand-in for a server was started with


class StandInProcess:
    """In the place of `ServerProcess`: a server of the tests in a thread, with the policy's own architecture."""

    lives = True
    last_words = ""
    key = ""

    def __init__(self, write, arguments, *, devices="", port=0, weights="", renewed=dict):
        from server_kit import StandInServer
        from transformers import AutoConfig, AutoModelForCausalLM

        with tempfile.TemporaryDirectory() as folder:
            write(folder)
            config = AutoConfig.from_pretrained(folder)
        dtype = str(arguments["dtype"]).removeprefix("torch.")
        self.server = StandInServer(AutoModelForCausalLM.from_config(config).float().eval())
        self.server.core.dtype = getattr(torch, dtype)
        self.url = self.server.url
        STARTED.append(
            {"devices": devices, "data_parallel": arguments.get("data_parallel_size", 1)}
        )

    def start(self):
        pass

    def wait(self, answers, seconds):
        assert answers()

    def close(self):
        self.server.close()


def by_a_stand_in() -> None:
    """From here on, what would open vLLM opens a stand-in of the tests."""
    sys.path.insert(0, str(Path(__file__).resolve().parent / "engines"))
    from vllm_kit import StandIn

    from workbench.engines import vllm_engine
    from workbench.extensions.vllm_server import opening

    opening.check_vllm = lambda: None
    opening.ServerProcess = StandInProcess
    vllm_engine.open_core = lambda model, config, context: StandIn(model, dtype=config.dtype)


def opened(file: str) -> dict:
    config, warnings = load_config_with_warnings(file)
    refuse_unstartable(config)
    session = open_session(config, quiet=True)
    learner, (rank, world) = session.learner, session.place
    [task] = session.train_tasks(1, 1)
    first = session.family.make().reset(task, 0)
    session.engine.sync(learner.weights(), 1)  # every process calls it
    held = sum(
        p.to_local().numel() if hasattr(p, "to_local") else p.numel() for p in _parameters(learner)
    )
    session.close()
    return {
        "file": file,
        "rank": rank,
        "world": world,
        "engine": type(session.engine).__name__,
        "main": learner.is_main,
        "context": session.engine.context_length,
        "said": len(first.messages),
        "held": held / sum(p.numel() for p in _parameters(learner)),
        "adapters": config.learner.lora_rank,
        "started": STARTED,
        "warnings": warnings,
    }


def _parameters(learner) -> list:
    return list(learner.models.policy.module.parameters())


if __name__ == "__main__":
    if importlib.util.find_spec("vllm") is None or os.environ.get("STAND_IN"):
        by_a_stand_in()
    for path in sys.argv[1:]:
        try:
            found = opened(path)
        except WorkbenchError as error:
            found = {"file": path, "main": True, "error": f"{type(error).__name__}: {error}"}
        if found["main"]:
            print(f"\nRECIPE {json.dumps(found)}\n", end="", flush=True)
