"""What guards against bad input cost in a run: `python -m experiments.bench.guards [--presets NAME ...] [--json FILE]`.

One process trains, with the guards in every other step of a random order, so that a busy machine is as slow for both. CPU
seconds of a step are those of the process: rollout, batch, update, record and all that happens between two commits.

Left out in the other steps: looks at the arguments of methods of what public functions return, looks at the parts of values, at
links and at the folder before a commit, at a learner's state, and the chat template's own process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

import workbench as wb
from experiments.bench import machine
from experiments.bench.ratios import paired_ratio
from workbench.extensions.bounds import states, templates
from workbench.run import writer
from workbench.run.writer import FolderLock
from workbench.values import parts

PRESETS = ("bandit", "frozenlake")
WARM = 4  # steps before the measured ones


def _nothing(*arguments: Any, **settings: Any) -> None:
    """In place of a guard that only looks."""


def _as_they_are(values: Any, kind: type, what: str) -> tuple[Any, ...]:
    return tuple(values)


def _frozen(values: Any, dtype: Any, what: str) -> np.ndarray:
    array = np.array(values, dtype=dtype)
    array.flags.writeable = False
    return array


def _rendered_here(tokenizer_call: Any, *arguments: Any, **settings: Any) -> Any:
    """What `apply_chat_template` gives where nothing bounds it."""
    tokenizer = tokenizer_call._tokenizer
    return type(tokenizer).apply_chat_template(tokenizer, *arguments, **settings)


class Guards:
    """Every guard of the modules that are loaded, with a switch."""

    def __init__(self) -> None:
        self.on = True
        self.names: list[str] = []
        self._switch(parts, "as_parts", _as_they_are)
        self._switch(parts, "expect", _nothing)
        self._switch(parts, "frozen_array", _frozen)
        self._switch(writer, "refuse_links", _nothing)
        self._switch(states, "check_state", _nothing)
        self._replace(FolderLock, "gone", _nothing)
        self._replace(templates.BoundedTemplate, "__call__", _rendered_here)
        for cls in _own_classes():
            for name, member in list(vars(cls).items()):
                code = getattr(
                    member, "__code__", None
                )  # of the wrapper; its name is what it wraps
                if code is not None and code.co_qualname.startswith("checked."):
                    self._replace(cls, name, member.__wrapped__)

    def _switch(self, module: ModuleType, name: str, without: Callable) -> None:
        """A function, wherever it was imported to."""
        guard = getattr(module, name)
        switched = self._either(guard, without)
        for other in _own_modules():
            if vars(other).get(name) is guard:
                setattr(other, name, switched)
        self.names.append(name)

    def _replace(self, cls: type, name: str, without: Callable) -> None:
        setattr(cls, name, self._either(getattr(cls, name), without))
        self.names.append(f"{cls.__name__}.{name}")

    def _either(self, guard: Callable, without: Callable) -> Callable:
        def call(*arguments: Any, **settings: Any) -> Any:
            return (guard if self.on else without)(*arguments, **settings)

        return call


def _own_modules() -> list[ModuleType]:
    return [module for name, module in list(sys.modules.items()) if name.startswith("workbench")]


def _own_classes() -> Iterator[type]:
    seen = set()
    for module in _own_modules():
        for member in vars(module).values():
            if isinstance(member, type) and member not in seen:
                if member.__module__.startswith("workbench"):
                    seen.add(member)
                    yield member


class Steps:
    """CPU seconds of each step with guards and without; told of every step, it sets the switch for the next one."""

    def __init__(self, guards: Guards, order: list[bool]) -> None:
        self._guards = guards
        self._order = order
        self._began: float | None = None
        self.seconds: list[float] = []

    def __call__(self, outcome: Any) -> None:
        now = time.process_time()
        if self._began is not None:
            self.seconds.append(now - self._began)
        if len(self.seconds) < len(self._order):
            self._guards.on = self._order[len(self.seconds)]
        self._began = time.process_time()


def cost(guards: Guards, preset: str, steps: int, seed: int) -> dict[str, Any]:
    """CPU seconds of steps in pairs, one with guards and one without, and their ratio."""
    rng = random.Random(seed)
    order = [True] * WARM
    for _ in range(steps // 2):
        order += rng.sample([True, False], 2)
    told = Steps(guards, order)
    _train(preset, len(order) + 1, seed, told)
    guards.on = True
    timed = list(zip(order, told.seconds, strict=True))[WARM:]
    with_guards = [seconds for on, seconds in timed if on]
    without = [seconds for on, seconds in timed if not on]
    return {
        "seconds": {"with": with_guards, "without": without},
        "ratio": asdict(paired_ratio(with_guards, without)),
    }


def _train(preset: str, steps: int, seed: int, on_step: Callable[[Any], None] | None) -> None:
    """Nothing but steps: what is evaluated and kept is the same before the first and after the last one."""
    settings = {
        "seed": seed,
        "train.steps": steps,
        "train.evaluate_every": steps,
        "train.checkpoint_every": steps,
        "train.max_empty_steps": steps,
        "evaluation.num_tasks": 8,
    }
    config = wb.load_config(preset, settings)
    with tempfile.TemporaryDirectory() as folder:
        wb.train_here(config, Path(folder) / "run", on_step=on_step, on_note=None)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench.guards", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--presets", nargs="+", default=PRESETS, metavar="NAME")
    parser.add_argument("--steps", type=int, default=120, help="measured ones, of each preset")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    os.environ["WORKBENCH_PROGRESS"] = "quiet"
    torch.set_num_threads(1)
    _train(options.presets[0], 1, options.seed, None)  # so that all modules are loaded
    guards = Guards()
    facts: dict[str, Any] = {"machine": machine.facts(), "guards": guards.names, "presets": {}}
    for preset in options.presets:
        facts["presets"][preset] = cost(guards, preset, options.steps, options.seed)
        print(preset, facts["presets"][preset]["ratio"], flush=True)
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
