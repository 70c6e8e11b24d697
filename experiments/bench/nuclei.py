"""Sampling at large vocabularies, with the kernel and without, beside a softmax: `python -m experiments.bench.nuclei [FOLDER] [--json FILE]`.

Each turn draws a token for every row in both ways and makes a softmax of the same logits, one after the other; CPU time. Logits: of a
pretrained model, at the places of a text (repeated up to a vocabulary of 151,936, with noise); and normal numbers, which have
no likely tokens and are the worst case of top-p. What both ways drew is compared to the bit, with top-p also to what sorting
all tokens gives.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from experiments.bench import machine
from experiments.bench.ratios import paired_ratio
from workbench.engines import sampling
from workbench.extensions.nuclei import chosen, search

TEXT = (
    "The old house by the lake was built in 1893, when a group of fishermen needed a place to keep their nets. "
    "Question: Anna has 12 apples and gives 5 of them to Ben. How many are left? Answer: 12 - 5 = 7, so she has 7."
)
SIZES = ((8, 49_152), (32, 49_152), (8, 151_936), (32, 151_936))
TOP_P = (1.0, 0.9, 0.99)
SETTLED = 0.01  # CPU seconds of a turn of one way, at least


def loads(folder: Path | None) -> Iterator[tuple[str, torch.Tensor]]:
    """(name, logits [rows, vocabulary])"""
    generator = torch.Generator().manual_seed(0)
    real_TV = None if folder is None else _of_model(folder)
    for rows, vocabulary in SIZES:
        noise = torch.randn(rows, vocabulary, generator=generator)
        if real_TV is not None:
            repeats = -(-vocabulary // real_TV.shape[1])
            real = real_TV[-rows:].repeat(1, repeats)[:, :vocabulary]
            yield f"{folder.name}, {rows} x {vocabulary:,}", real + (repeats > 1) * noise
        yield f"normal numbers, {rows} x {vocabulary:,}", noise


def _of_model(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt").input_ids
    with torch.inference_mode():
        return model(ids).logits[0].contiguous()


def measured(logits_RV: torch.Tensor, top_p: float, turns: int) -> dict[str, Any]:
    rows = len(logits_RV)
    arguments = (np.ones(rows), np.full(rows, top_p), np.random.default_rng(0).random(rows))

    def kernel() -> sampling.Sampled:
        return sampling.sample_rows(logits_RV, *arguments)

    def without() -> sampling.Sampled:
        with mock.patch.object(chosen, "kernel", lambda: None):
            return kernel()

    def sorted_all() -> sampling.Sampled:
        with mock.patch.object(sampling, "has_service", lambda name: False):
            return kernel()

    ways = {
        "kernel": kernel,
        "without": without,
        "softmax": lambda: torch.softmax(logits_RV, -1),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(turns + 1):
        for name, way in ways.items():
            took = _seconds(way)
            if turn:  # the first one is a warm-up
                taken[name].append(took)
    kept = [logits_RV.shape[1]]
    if top_p < 1:
        kept = [len(search._nucleus(row, top_p)) for row in logits_RV.log_softmax(-1).numpy()]
    own, *others = kernel(), without(), sorted_all()
    alike = all(
        np.array_equal(getattr(own, name), getattr(other, name))
        for other in others
        for name in vars(own)
    )
    return {
        "ms": {name: 1e3 * float(np.mean(seconds)) for name, seconds in taken.items()},
        "faster": asdict(paired_ratio(taken["without"], taken["kernel"])),
        "softmaxes": asdict(paired_ratio(taken["kernel"], taken["softmax"])),
        "kept": float(np.mean(kept)),
        "same_bits": alike,
    }


def _seconds(way: Callable[[], Any]) -> float:
    """CPU seconds of one call."""
    began = time.process_time()
    calls = 0
    while time.process_time() - began < SETTLED:
        way()
        calls += 1
    return (time.process_time() - began) / calls


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench.nuclei", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.kernel() is None:
        raise SystemExit("there is no C++ compiler here, so there is nothing to compare")
    facts: dict[str, Any] = {"machine": machine.facts(), "loads": {}}
    for name, logits_RV in loads(options.folder):
        for top_p in TOP_P:
            row = measured(logits_RV, top_p, options.turns)
            facts["loads"][f"{name}, top-p {top_p}"] = row
            print(name, top_p, row, flush=True)
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
