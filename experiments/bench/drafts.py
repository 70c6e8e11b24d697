"""Drafts on and off: `python -m experiments.bench.drafts [--json FILE]`.

    rollouts   whole rollouts of a preset with its shipped policy, prompts, chat and environments included, by the fused way of
               decoding without drafts and with them, in turns. Every id and logprob that both sampled is compared, bit by bit
    passes     what a pass costs: every row is decoded alone, then with four proposed tokens that are all wrong

The unit is the CPU second of one thread, so a busy machine stretches both sides.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import workbench as wb
from experiments.bench import machine
from experiments.bench.decode import sampled_spans
from experiments.bench.policy import SHAPES, new_model
from experiments.bench.ratios import paired_ratio
from workbench.engines import TransformersEngineConfig, open_engine
from workbench.engines.base import Request
from workbench.engines.policy import load_policy

DRAFTS = 8
WRONG = 4  # tokens that are proposed in vain
PRESETS = ("frozenlake", "search", "sokoban")
GROUPS = (1, 8)  # of eight attempts
TICKS = 24  # of one measurement of a pass


def rollouts(preset: str, groups: int, turns: int) -> dict[str, Any]:
    """Sampled tokens per CPU second of each turn of both ways, a step of its own; what was drafted; what differed."""
    sessions = {}
    for drafts in (0, DRAFTS):
        settings = {"engine.decode": "fused", "engine.drafts": drafts}
        sessions[drafts] = wb.open_session(wb.load_config(preset, settings), quiet=True)
    rates: dict[int, list[float]] = {drafts: [] for drafts in sessions}
    engine_rates: dict[int, list[float]] = {drafts: [] for drafts in sessions}
    tokens = 0
    unequal = 0
    for turn in range(turns + 1):
        spans = {}
        for drafts in (0, DRAFTS) if turn % 2 == 0 else (DRAFTS, 0):
            session = sessions[drafts]
            before = session.engine.stats()
            began = time.process_time()
            spans[drafts] = sampled_spans(wb.rollout(session, groups, step=turn))
            spent = time.process_time() - began
            after = session.engine.stats()
            count = sum(len(ids) for ids, _ in spans[drafts])
            if turn:  # the first one is a warm-up
                rates[drafts].append(count / spent)
                engine_rates[drafts].append(count / (after["cpu_seconds"] - before["cpu_seconds"]))
        tokens += sum(len(ids) for ids, _ in spans[0])
        unequal += _unequal_tokens(spans[0], spans[DRAFTS])
    counts = sessions[DRAFTS].engine.stats()
    return {
        "groups": groups,
        "rates": {str(drafts): numbers for drafts, numbers in rates.items()},
        "ratio": asdict(paired_ratio(rates[DRAFTS], rates[0])),
        "engine_ratio": asdict(paired_ratio(engine_rates[DRAFTS], engine_rates[0])),
        "tokens": tokens,
        "unequal": unequal,
        "drafted": counts["drafted_tokens"],
        "accepted": counts["drafts_accepted"],
        "tokens_per_pass": counts["row_tokens"] / counts["row_passes"],
        "passes": {str(d): s.engine.stats()["decode_steps"] for d, s in sessions.items()},
    }


def _unequal_tokens(own: list, other: list) -> int:
    """Tokens whose id or logprob differs in any bit; all of a turn that is not as long."""
    count = 0
    for (ids, logps), (other_ids, other_logps) in zip(own, other, strict=True):
        if len(ids) != len(other_ids):
            count += len(ids)
        else:
            differs = (ids != other_ids) | (logps.view(np.int32) != other_logps.view(np.int32))
            count += int(differs.sum())
    return count


def passes(name: str, rows: int, context: int, turns: int) -> dict[str, float]:
    """Milliseconds of CPU of a tick over this many rows: alone, and with WRONG more positions for each row."""
    if name in SHAPES:
        model = new_model(SHAPES[name], SimpleNamespace(eos_token_id=None, pad_token_id=None))
    else:
        model = load_policy(name).model
    engine = open_engine(TransformersEngineConfig(decode="fused", drafts=DRAFTS), model.eval())
    vocabulary = model.get_input_embeddings().weight.shape[0]
    spent: dict[int, list[float]] = {0: [], WRONG: []}
    for turn in range(turns):
        for drafts in (0, WRONG) if turn % 2 == 0 else (WRONG, 0):
            engine.ngrams.propose = lambda before, most, share, drafts=drafts: (
                [(before[-1] + 1) % vocabulary] * min(drafts, most)
            )
            spent[drafts].append(_tick_ms(engine, rows, context, vocabulary))
    alone, wider = (float(np.median(numbers)) for numbers in spent.values())
    return {"rows": rows, "alone": alone, "wider": wider}


def _tick_ms(engine, rows: int, context: int, vocabulary: int) -> float:
    rng = np.random.default_rng(0)
    for row in range(rows):
        prompt = rng.integers(0, vocabulary, context)
        engine.submit(Request(row, str(row), prompt, row, TICKS * (WRONG + 1) + 64, frozenset()))
    while not all(engine.partial(row) for row in range(rows)):
        engine.poll()
    began = time.process_time()
    for _ in range(TICKS):
        engine.poll()
    spent = time.process_time() - began
    for row in range(rows):
        engine.release(str(row))
    return 1000 * spent / TICKS


def in_words(facts: Mapping[str, Any]) -> list[str]:
    lines = []
    for preset, loads in facts["rollouts"].items():
        for load in loads:
            ratio = load["ratio"]
            lines.append(
                f"{preset}, {load['groups']} groups: {load['tokens_per_pass']:.2f} tokens a pass, "
                f"{load['accepted']} of {load['drafted']} drafts accepted; {ratio['mean']:.2f} times the tokens per CPU "
                f"second [{ratio['low']:.2f}, {ratio['high']:.2f}], of the engine alone "
                f"{load['engine_ratio']['mean']:.2f}; {load['unequal']} of {load['tokens']} tokens differ in a bit"
            )
    for name, loads in facts["passes"].items():
        for load in loads:
            lines.append(
                f"{name}, {load['rows']} rows: {load['alone']:.2f} ms a tick, {load['wider']:.2f} with {WRONG} more positions"
            )
    return lines


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench.drafts", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--presets", nargs="*", default=PRESETS)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    facts: dict[str, Any] = {"machine": machine.facts(), "rollouts": {}, "passes": {}}
    for preset in options.presets:
        facts["rollouts"][preset] = [rollouts(preset, groups, options.turns) for groups in GROUPS]
    for name, context in (("frozenlake-tiny", 150), ("3m", 300)):
        facts["passes"][name] = [passes(name, rows, context, turns=6) for rows in (1, 8, 32)]
    print(*in_words(facts), sep="\n")
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
