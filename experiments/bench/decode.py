"""Decoding alone: `python -m experiments.bench.decode [--shapes 3m 135m] [--ways plain fused] [--json FILE]`.

Every row already has its prompt in the cache and gets one token a tick: no environments, no prompts, no training. The ways
of `engine.decode` take turns, a few ticks each, on engines that hold the same weights and were asked the same requests;
what each sampled is compared token by token. The unit is the CPU second of one thread, so a busy machine stretches both.
Weights are random: only shapes matter here.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from experiments.bench import machine
from experiments.bench.policy import SHAPES, new_model
from experiments.bench.ratios import paired_ratio
from workbench.engines import TransformersEngineConfig, open_engine
from workbench.engines.base import Engine, Request


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


# By shape; the context of the larger one is shorter, for its prompts take a minute.
LOADS = {"3m": Load(), "135m": Load(context=256, ticks=3, turns=6)}


def decoding(shape: str, load: Load, ways: Sequence[str]) -> dict[str, Any]:
    """By way: tokens per CPU second of each turn; the ratios to the first way; tokens that are the same, and the largest
    difference of a logprob among them."""
    nothing = SimpleNamespace(eos_token_id=None, pad_token_id=None)
    model = new_model(SHAPES[shape], nothing).eval()
    engines = {way: open_engine(TransformersEngineConfig(decode=way), model) for way in ways}
    for engine in engines.values():
        _begin(engine, load, SHAPES[shape].embeddings)
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(load.turns + 1):
        order = list(ways) if turn % 2 == 0 else list(ways)[::-1]
        for way in order:
            rate = _turn(engines[way], load)
            if turn:  # the first one is a warm-up
                rates[way].append(rate)
    sampled = {way: _finish(engine) for way, engine in engines.items()}
    first = ways[0]
    return {
        "load": asdict(load),
        "notes": [note for engine in engines.values() for note in engine.notes],
        "rates": rates,
        "ratios": {way: asdict(paired_ratio(rates[way], rates[first])) for way in ways[1:]},
        "against_first": {way: _compared(sampled[way], sampled[first]) for way in ways[1:]},
    }


def _begin(engine: Engine, load: Load, vocabulary: int) -> None:
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


def _turn(engine: Engine, load: Load) -> float:
    """Tokens per CPU second over some ticks."""
    began = time.process_time()
    for _ in range(load.ticks):
        engine.poll()
    return load.rows * load.ticks / (time.process_time() - began)


def _finish(engine: Engine) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ids, logprobs) of each row, to its end."""
    done = []
    while not done:
        done = engine.poll()
    return [(completion.token_ids, completion.logprobs) for completion in done]


def _compared(own: list, other: list) -> dict[str, float]:
    """Share of the tokens that are the same in both, and the largest difference of a logprob where whole rows are."""
    pairs = list(zip(own, other, strict=True))
    same = float(np.mean([np.mean(a[0] == b[0]) for a, b in pairs]))
    whole = [float(np.abs(a[1] - b[1]).max()) for a, b in pairs if np.array_equal(a[0], b[0])]
    return {"same_tokens": same, "largest_logprob_difference": max(whole, default=float("nan"))}


def in_words(measured: dict[str, Any]) -> list[str]:
    lines = []
    for shape, facts in measured.items():
        load = facts["load"]
        lines.append(
            f"{shape}: {load['rows']} rows, {load['context']} tokens each before the first"
        )
        for way, rates in facts["rates"].items():
            low = min(rates)
            high = max(rates)
            lines.append(
                f"  {way:8s} {np.mean(rates):7.0f} tokens per CPU second [{low:.0f}, {high:.0f}]"
            )
        for way, ratio in facts["ratios"].items():
            same = facts["against_first"][way]
            lines.append(
                f"  {way} over the first: {ratio['mean']:.2f} times [{ratio['low']:.2f}, {ratio['high']:.2f}]; "
                f"{same['same_tokens']:.2%} of the tokens the same, logprobs within "
                f"{same['largest_logprob_difference']:.1e}"
            )
        lines += [f"  note: {note}" for note in facts["notes"]]
    return lines


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench.decode", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--shapes", nargs="+", choices=sorted(LOADS), default=sorted(LOADS))
    parser.add_argument("--ways", nargs="+", default=["plain", "fused"], help="of engine.decode")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    measured = {shape: decoding(shape, LOADS[shape], options.ways) for shape in options.shapes}
    print(*in_words(measured), sep="\n")
    if options.json:
        facts = {"machine": machine.facts(), "measured": measured}
        options.json.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
