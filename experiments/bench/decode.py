"""The ways of `engine.decode` side by side: `python -m experiments.bench.decode [--json FILE]`.

    decoding   every row already has its prompt in the cache and gets one token a tick: no environments, no prompts, no
               training. The ways take turns, a few ticks each, on engines that hold the same weights and were asked the same
               requests. Weights are random: only shapes matter here
    rollouts   whole rollouts of a preset with its shipped policy, prompts, chat and environments included, in turns

What each way sampled is compared token by token. The unit is the CPU second of one thread, so a busy machine stretches both.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import workbench as wb
from experiments.bench import machine
from experiments.bench.policy import SHAPES, new_model
from experiments.bench.ratios import paired_ratio
from workbench.engines import TransformersEngineConfig, open_engine
from workbench.engines.base import Engine, Request
from workbench.values import Group, trajectories_of


@dataclass(frozen=True)
class Load:
    """rows      sequences that are decoded at once
    context   tokens of each one's prompt
    ticks     of one turn of one way
    turns     of each way, after one that is not counted
    """

    rows: int = 32
    context: int = 400
    ticks: int = 12
    turns: int = 8


WAYS = ("plain", "fused")
# By shape; the context of the larger one is shorter, for its prompts take a minute.
LOADS = {"3m": Load(), "135m": Load(context=256, ticks=3, turns=6)}


def decoding(shape: str, load: Load) -> dict[str, Any]:
    """Tokens per CPU second of each turn of each way, their ratios in pairs, and how alike what they sampled is."""
    nothing = SimpleNamespace(eos_token_id=None, pad_token_id=None)
    model = new_model(SHAPES[shape], nothing).eval()
    engines = {way: open_engine(TransformersEngineConfig(decode=way), model) for way in WAYS}
    for engine in engines.values():
        begin(engine, load, SHAPES[shape].embeddings)
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(load.turns + 1):
        for way in WAYS if turn % 2 == 0 else WAYS[::-1]:
            rate = rate_of_turn(engines[way], load)
            if turn:  # the first one is a warm-up
                rates[way].append(rate)
    sampled = {way: finish(engine, load.rows) for way, engine in engines.items()}
    notes = [note for engine in engines.values() for note in engine.notes]
    return asdict(load) | {"notes": notes} | _facts(rates, sampled)


def _facts(rates: Mapping[str, list[float]], sampled: Mapping[str, list]) -> dict[str, Any]:
    plain, fused = WAYS
    return {
        "rates": dict(rates),
        "ratio": asdict(paired_ratio(rates[fused], rates[plain])),
        **compared(sampled[fused], sampled[plain]),
    }


def rollouts(preset: str, tasks: int, turns: int) -> dict[str, Any]:
    """The same of whole rollouts: sampled tokens per CPU second of each turn, which is a step of its own."""
    sessions = {
        way: wb.open_session(wb.load_config(preset, {"engine.decode": way}), quiet=True)
        for way in WAYS
    }
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    sampled: dict[str, list] = {way: [] for way in WAYS}
    for turn in range(turns + 1):
        for way in WAYS if turn % 2 == 0 else WAYS[::-1]:
            began = time.process_time()
            groups = wb.rollout(sessions[way], tasks, step=turn)
            spent = time.process_time() - began
            spans = sampled_spans(groups)
            if turn:  # the first one is a warm-up
                sampled[way] += spans
                rates[way].append(sum(len(ids) for ids, _ in spans) / spent)
    notes = [note for session in sessions.values() for note in session.engine.notes]
    return {"tasks": tasks, "notes": notes} | _facts(rates, sampled)


def sampled_spans(groups: Sequence[Group]) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ids, logprobs) of every span that the policy sampled."""
    return [
        (span.token_ids, span.logprobs)
        for trajectory in trajectories_of(groups)
        for segment in trajectory.segments
        for span in segment.spans
        if span.logprobs is not None
    ]


def begin(engine: Engine, load: Load, vocabulary: int) -> None:
    """Every row asked for, its prompt passed, its first token sampled."""
    rng = np.random.default_rng(0)
    for row in range(load.rows):
        prompt = rng.integers(0, vocabulary, load.context)
        engine.submit(
            Request(
                id=row,
                session=str(row),
                prompt_ids=prompt,
                seed=row,
                max_new_tokens=(load.turns + 1) * load.ticks + 64,
                stop_ids=frozenset(),
            )
        )
    while not all(engine.partial(row) for row in range(load.rows)):
        engine.poll()


def rate_of_turn(engine: Engine, load: Load) -> float:
    """Tokens per CPU second over some ticks."""
    began = time.process_time()
    for _ in range(load.ticks):
        engine.poll()
    return load.rows * load.ticks / (time.process_time() - began)


def finish(engine: Engine, rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ids, logprobs) of each row, to its end, in the order of the rows."""
    done = []
    while len(done) < rows:
        done += engine.poll()
    done.sort(key=lambda completion: completion.request_id)
    return [(completion.token_ids, completion.logprobs) for completion in done]


def compared(own: list, other: list) -> dict[str, float]:
    """Share of the rows (turns) that are the same tokens in both, and the largest difference of a logprob among them."""
    same = [np.array_equal(a[0], b[0]) for a, b in zip(own, other)]
    gaps = [float(np.abs(a[1] - b[1]).max()) for a, b, alike in zip(own, other, same) if alike]
    count = max(len(own), len(other))
    return {"compared": count, "same": sum(same) / count, "gap": max(gaps, default=float("nan"))}


def in_words(facts: Mapping[str, Any]) -> list[str]:
    lines = []
    for part in ("decoding", "rollouts"):
        for name, measured in facts[part].items():
            lines.append(f"{part}, {name}")
            for way, rates in measured["rates"].items():
                spread = f"[{min(rates):.0f}, {max(rates):.0f}]"
                lines.append(f"  {way:6s} {np.mean(rates):7.0f} tokens per CPU second {spread}")
            ratio = measured["ratio"]
            lines.append(
                f"  fused over plain: {ratio['mean']:.2f} times [{ratio['low']:.2f}, {ratio['high']:.2f}]; "
                f"{measured['same']:.2%} of {measured['compared']} turns the same, logprobs within {measured['gap']:.1e}"
            )
            lines += [f"  note: {note}" for note in measured["notes"]]
    return lines


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench.decode", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--shapes", nargs="*", choices=sorted(LOADS), default=sorted(LOADS))
    parser.add_argument("--presets", nargs="*", default=["frozenlake", "search", "sokoban"])
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    facts = {
        "machine": machine.facts(),
        "decoding": {shape: decoding(shape, LOADS[shape]) for shape in options.shapes},
        "rollouts": {preset: rollouts(preset, tasks=4, turns=6) for preset in options.presets},
    }
    print(*in_words(facts), sep="\n")
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
