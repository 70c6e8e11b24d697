"""A group's prompt kept once, beside each sequence keeping its own copy.

    python -m experiments.bench.groups [FOLDER] [--json FILE]

decoding   tokens per CPU second in turns, as in `decode`, of groups of eight whose first tokens are the same
rollouts   whole rollouts of presets with their shipped policies, prompts, chat and environments included, in turns

Both are the fused way with the same weights and requests. What they sampled is compared to the bit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import workbench as wb
from experiments.bench import machine
from experiments.bench.decode import Load, finish, rate_of_turn, sampled_spans
from experiments.bench.policy import SHAPES, new_model
from experiments.bench.ratios import paired_ratio
from workbench.engines import TransformersEngineConfig, open_engine
from workbench.engines.base import Completion, Engine, Request
from workbench.engines.slot_table import SlotTable
from workbench.extensions.native import fused
from workbench.extensions.native.prompts import SharedSlotTable

TABLES = {"own": SlotTable, "once": SharedSlotTable}
WAYS = tuple(TABLES)
GROUP = 8  # sequences
PRESETS = ("frozenlake", "search", "sokoban")
OWN = (Load(turns=8), Load(turns=8, context=100))
PRETRAINED = (Load(context=256, ticks=2, turns=3),)
MORE = 300  # tokens that a sequence has of its own, where it has some before it is decoded


def keeping(way: str) -> AbstractContextManager:
    """Engines that are opened inside keep prompts so."""
    return mock.patch.object(fused.FusedForward, "table_kind", TABLES[way])


def decoding(model: torch.nn.Module, load: Load, more: int) -> dict[str, Any]:
    """Rates of both ways and their ratio in pairs. `more`: tokens of an observation of each sequence's own."""
    engines = {}
    for way in WAYS:
        with keeping(way):
            engines[way] = open_engine(TransformersEngineConfig(decode="fused"), model)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    for engine in engines.values():
        _begin(engine, load, vocabulary, more)
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(load.turns + 1):
        for way in WAYS if turn % 2 == 0 else WAYS[::-1]:
            rate = rate_of_turn(engines[way], load)
            if turn:  # the first one is a warm-up
                rates[way].append(rate)
    positions = {way: engine.stats()["cached_tokens"] for way, engine in engines.items()}
    sampled = {way: finish(engine, load.rows) for way, engine in engines.items()}
    notes = [note for engine in engines.values() for note in engine.notes]
    facts = {"more": more, "notes": notes, "positions": positions}
    return asdict(load) | facts | _facts(rates, sampled)


def _begin(engine: Engine, load: Load, vocabulary: int, more: int) -> None:
    """Every group's prompt passed, then what each sequence has of its own, and its first token sampled."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, vocabulary, load.context) for _ in range(load.rows // GROUP)]
    for row in range(load.rows):
        ids = prompts[row // GROUP]
        engine.submit(Request(row, str(row), ids, row, 1, stop_ids=frozenset()))
    ids_R = [ids for ids, _ in finish(engine, load.rows)]
    for row, ids in enumerate(ids_R):
        ids = np.concatenate([prompts[row // GROUP], ids, rng.integers(0, vocabulary, more)])
        limit = (load.turns + 1) * load.ticks + 16
        engine.submit(Request(row, str(row), ids, row + 1000, limit, stop_ids=frozenset()))
    while not all(engine.partial(row) for row in range(load.rows)):
        engine.poll()


def rollouts(preset: str, tasks: int, turns: int) -> dict[str, Any]:
    sessions = {}
    for way in WAYS:
        with keeping(way):
            config = wb.load_config(preset, {"engine.decode": "fused"})
            sessions[way] = wb.open_session(config, quiet=True)
    most = {way: _MostPositions(session.engine) for way, session in sessions.items()}
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    sampled: dict[str, list] = {way: [] for way in WAYS}
    for turn in range(turns + 1):
        for way in WAYS if turn % 2 == 0 else WAYS[::-1]:
            began = time.process_time()
            spans = sampled_spans(wb.rollout(sessions[way], tasks, step=turn))
            spent = time.process_time() - began
            if turn:
                sampled[way] += spans
                rates[way].append(sum(len(ids) for ids, _ in spans) / spent)
    notes = [note for session in sessions.values() for note in session.engine.notes]
    positions = {way: watched.positions for way, watched in most.items()}
    return {"tasks": tasks, "notes": notes, "positions": positions} | _facts(rates, sampled)


class _MostPositions:
    """The most positions that an engine had room for after any tick."""

    def __init__(self, engine: Engine) -> None:
        self.positions = 0
        self._engine = engine
        self._poll = engine.poll
        engine.poll = self.poll

    def poll(self) -> list[Completion]:
        completions = self._poll()
        self.positions = max(self.positions, self._engine.stats()["cached_tokens"])
        return completions


def _facts(rates: dict[str, list[float]], sampled: dict[str, list]) -> dict[str, Any]:
    pairs = list(zip(sampled["own"], sampled["once"], strict=True))
    same = [np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1]) for a, b in pairs]
    return {
        "rates": rates,
        "ratio": asdict(paired_ratio(rates["once"], rates["own"])),
        "turns_sampled": len(pairs),
        "same_bits": all(same),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench.groups", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    nothing = SimpleNamespace(eos_token_id=None, pad_token_id=None)
    facts: dict[str, Any] = {"machine": machine.facts(), "decoding": {}, "rollouts": {}}
    loads = [("3m", load, more) for load, more in zip(OWN, (0, MORE))]
    models = {"3m": new_model(SHAPES["3m"], nothing).eval()}
    if options.folder is not None:
        name = options.folder.name
        models[name] = AutoModelForCausalLM.from_pretrained(options.folder).float().eval()
        loads += [(name, load, 0) for load in PRETRAINED]
    for name, load, more in loads:
        key = f"{name}, {load.rows} rows, {load.context} shared and {more} other tokens"
        facts["decoding"][key] = decoding(models[name], load, more)
        row = facts["decoding"][key]
        print(key, row["ratio"], row["positions"], row["same_bits"], flush=True)
    for preset in PRESETS:
        facts["rollouts"][preset] = rollouts(preset, options.tasks, turns=6)
        row = facts["rollouts"][preset]
        print(preset, row["ratio"], row["positions"], row["same_bits"], flush=True)
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
