"""The fused way of decoding with weights in bfloat16, beside float32: `python -m experiments.bench.half [FOLDER ...] [--json FILE]`.

decoding   tokens per CPU second in turns, as in `decode`: of the 3.3M shape with random weights, and of each folder's
           pretrained model; what the engine's copy of the weights takes
gaps       |logprob of the engine - logprob of a plain forward pass in float32|, in nats, over what was sampled in whole
           rollouts of presets with their shipped policies: what the lint's R23 sees
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

import workbench as wb
from experiments.bench import machine
from experiments.bench.decode import Load, begin, finish, rate_of_turn
from experiments.bench.policy import SHAPES, new_model
from experiments.bench.ratios import paired_ratio
from workbench.engines import TransformersEngineConfig, open_engine
from workbench.engines.gap import TRAINING_LIMITS, Gap
from workbench.values import trajectories_of

DTYPES = ("float32", "bfloat16")
PRESETS = ("frozenlake", "search", "sokoban")
OWN = (Load(turns=6),)
PRETRAINED = (Load(rows=8, context=256, ticks=6, turns=5), Load(context=256, ticks=2, turns=4))


def decoding(model: torch.nn.Module, load: Load) -> dict[str, Any]:
    """Rates of each dtype, their ratio in pairs, bytes of the engine's weights, and the gap of the sampled tokens."""
    engines = {
        dtype: open_engine(TransformersEngineConfig(decode="fused", dtype=dtype), model)
        for dtype in DTYPES
    }
    notes = [note for engine in engines.values() for note in engine.notes]
    for engine in engines.values():
        begin(engine, load, model.get_input_embeddings().weight.shape[0])
    rates: dict[str, list[float]] = {dtype: [] for dtype in DTYPES}
    for turn in range(load.turns + 1):
        for dtype in DTYPES if turn % 2 == 0 else DTYPES[::-1]:
            rate = rate_of_turn(engines[dtype], load)
            if turn:  # the first one is a warm-up
                rates[dtype].append(rate)
    taken = {dtype: _bytes(engine._model) for dtype, engine in engines.items()}
    for engine in engines.values():
        finish(engine, load.rows)
    ratio = asdict(paired_ratio(rates["bfloat16"], rates["float32"]))
    return asdict(load) | {"notes": notes, "rates": rates, "ratio": ratio, "bytes": taken}


def _bytes(model: torch.nn.Module) -> int:
    """Of the weights; tied ones once."""
    return sum(parameter.nbytes for parameter in model.parameters())


def gaps(preset: str, tasks: int) -> dict[str, Any]:
    """Of each way to sample in bfloat16, and of float32: mean, largest and number of tokens."""
    return {
        f"{decode}, {dtype}": asdict(_gap_of(preset, tasks, decode, dtype))
        for decode, dtype in (("fused", "float32"), ("fused", "bfloat16"), ("plain", "bfloat16"))
    }


def _gap_of(preset: str, tasks: int, decode: str, dtype: str) -> Gap:
    settings = {"engine.decode": decode, "engine.dtype": dtype}
    session = wb.open_session(wb.load_config(preset, settings), quiet=True)
    own: list[np.ndarray] = []
    plain: list[np.ndarray] = []
    for trajectory in trajectories_of(wb.rollout(session, tasks)):
        for segment in trajectory.segments:
            ids = np.concatenate([span.token_ids for span in segment.spans]).astype(np.int64)
            with torch.inference_mode():
                logits_TV = session.policy.model(torch.from_numpy(ids)[None]).logits[0]
            logp_TV = logits_TV.float().log_softmax(-1)
            start = 0
            for span in segment.spans:
                end = start + len(span.token_ids)
                if span.logprobs is not None:
                    own.append(span.logprobs)
                    plain.append(logp_TV[range(start - 1, end - 1), ids[start:end]].numpy())
                start = end
    return Gap.between(np.concatenate(own), np.concatenate(plain))


def in_words(facts: dict[str, Any]) -> list[str]:
    lines = []
    for name, measured in facts["decoding"].items():
        rates = {dtype: f"{np.mean(rates):.0f}" for dtype, rates in measured["rates"].items()}
        ratio = measured["ratio"]
        lines.append(
            f"{name}: {rates} tokens per CPU second, {ratio['mean']:.2f} times "
            f"[{ratio['low']:.2f}, {ratio['high']:.2f}], bytes {measured['bytes']} {measured['notes']}"
        )
    for preset, ways in facts["gaps"].items():
        lines += [f"{preset}, {way}: {Gap(**gap)}" for way, gap in ways.items()]
    return lines


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench.half", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    nothing = SimpleNamespace(eos_token_id=None, pad_token_id=None)
    model = new_model(SHAPES["3m"], nothing).eval()
    measured = {f"3m, {load.rows} rows": decoding(model, load) for load in OWN}
    for folder in options.folders:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for load in PRETRAINED:
            measured[f"{folder.name}, {load.rows} rows"] = decoding(model, load)
    facts = {
        "machine": machine.facts(),
        "limits": TRAINING_LIMITS[torch.bfloat16],
        "decoding": measured,
        "gaps": {preset: gaps(preset, options.tasks) for preset in PRESETS},
    }
    print(*in_words(facts), sep="\n")
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
