"""The ways of `learner.attention` and `learner.layers` side by side: `python -m experiments.bench.attention [--json FILE]`.

One update over the trajectories of a preset, as its shipped policy plays them, again and again, in turns: by the shipped
policy, and by larger models with random weights (only shapes matter here). Attention's share of an update is measured around
the attention itself, forward and backward; the ratio is of torch's way over the last. The unit is the CPU second of one thread, so a busy machine stretches both.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

import workbench as wb
from experiments.bench import machine
from experiments.bench.policy import SHAPES, new_model
from experiments.bench.ratios import paired_ratio
from workbench.extensions.native import packed
from workbench.learn import packing
from workbench.learn.batch import Batch
from workbench.learn.learner import Learner

NATIVE = {"attention": "native"}
WAYS = {"torch": {}, "native attention": NATIVE, "and native layers": NATIVE | {"layers": "native"}}
LAST = "and native layers"
# What computes attention, with a step forward and a step back.
FUNCTIONS = {"torch": packing._PackedAttention, "native": packed._NativeAttention}
PRESETS = ("frozenlake", "search", "sokoban")
# Of frozenlake's trajectories, so many groups pass through a model of each shape in an update.
GROUPS = {"3m": 4, "32m": 2, "135m": 1}


class Timer:
    """CPU seconds that were spent in something."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function):
        def timed(*args, **kwargs):
            began = time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.process_time() - began

        return timed


@contextmanager
def attention_timed(way: str) -> Iterator[Timer]:
    """Within this block, the seconds that attention of this way takes."""
    timer = Timer()
    owner = FUNCTIONS[WAYS[way].get("attention", "torch")]
    straight = {name: owner.__dict__[name] for name in ("forward", "backward")}
    for name in straight:
        setattr(owner, name, staticmethod(timer.around(getattr(owner, name))))
    try:
        yield timer
    finally:
        for name, function in straight.items():
            setattr(owner, name, function)


def updates(config: wb.Config, model: nn.Module, groups: wb.Groups, turns: int) -> dict[str, Any]:
    """Seconds of each update by each way and attention's share of them, their ratios in pairs, and how far apart the weights
    of both are in the end."""
    batch = Batch.from_groups(groups)
    learners = {
        way: Learner(model, config.algorithm, replace(config.learner, **asked))
        for way, asked in WAYS.items()
    }
    start = copy.deepcopy(model.state_dict())
    batch = learners["torch"].facts(batch)
    credit = config.algorithm.credit(batch)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    shares: dict[str, list[float]] = {way: [] for way in WAYS}
    norms: dict[str, float] = {}
    for turn in range(turns + 1):
        for way in WAYS if turn % 2 == 0 else reversed(WAYS):
            with attention_timed(way) as timer:
                began = time.process_time()
                reports = learners[way].update(batch, credit, step=turn + 1)
                spent = time.process_time() - began
            if turn:  # the first one is a warm-up
                seconds[way].append(spent)
                shares[way].append(timer.seconds / spent)
            else:
                norms[way] = reports[0].metrics["grad_norm"]
    ends = [learners[way].weights() for way in ("torch", LAST)]
    moved = max(float((ends[0][name] - start[name]).abs().max()) for name in start)
    apart = max(float((ends[0][name] - ends[1][name]).abs().max()) for name in start)
    return {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "tokens": batch.num_tokens,
        "seconds": seconds,
        "shares": shares,
        "ratio": asdict(paired_ratio(seconds["torch"], seconds[LAST])),
        "norm_gap": abs(norms[LAST] / norms["torch"] - 1),
        "moved": moved,
        "apart": apart,
    }


def of_preset(preset: str, turns: int, groups: int) -> dict[str, Any]:
    config = wb.load_config(preset)
    session = wb.open_session(config, quiet=True)
    played = wb.rollout(session, session.train_tasks(1)[:groups], step=1)
    return updates(config, session.policy.model, played, turns)


def of_shape(shape: str, turns: int) -> dict[str, Any]:
    config = wb.load_config("frozenlake")
    session = wb.open_session(config, quiet=True)
    played = wb.rollout(session, session.train_tasks(1)[: GROUPS[shape]], step=1)
    nothing = SimpleNamespace(eos_token_id=None, pad_token_id=None)
    return updates(config, new_model(SHAPES[shape], nothing).eval(), played, turns)


def in_words(name: str, update: Mapping[str, Any]) -> list[str]:
    lines = [f"{name}: {update['parameters']:,} parameters, {update['tokens']:,} tokens"]
    for way in WAYS:
        lines.append(
            f"  {way:17s} {np.mean(update['seconds'][way]):7.2f} CPU seconds an update, of it "
            f"{np.mean(update['shares'][way]):.1%} attention"
        )
    ratio = update["ratio"]
    lines.append(
        f"  with both {ratio['mean']:.2f} times as fast [{ratio['low']:.2f}, {ratio['high']:.2f}]; gradient norms within "
        f"{update['norm_gap']:.0e}, weights moved by {update['moved']:.1e} and are {update['apart']:.1e} apart"
    )
    return lines


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench.attention", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--shapes", nargs="*", choices=sorted(GROUPS), default=sorted(GROUPS))
    parser.add_argument("--presets", nargs="*", default=list(PRESETS))
    parser.add_argument("--turns", type=int, default=8, help="of a preset; half as many of a shape")
    parser.add_argument("--groups", type=int, default=4, help="of a preset in an update")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    facts: dict[str, Any] = {}
    for name in [*options.presets, *options.shapes]:
        if name in GROUPS:
            facts[name] = of_shape(name, max(3, options.turns // 2))
        else:
            facts[name] = of_preset(name, options.turns, options.groups)
        print(*in_words(name, facts[name]), sep="\n", flush=True)
    if options.json:
        whole = {"machine": machine.facts(), "updates": facts}
        options.json.write_text(json.dumps(whole, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
