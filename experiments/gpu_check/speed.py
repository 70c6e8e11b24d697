"""How fast and how large: decoding, updates, the loss over a large vocabulary, the lint's share of a step.

Shapes have random weights: nobody needs a model's knowledge to measure its speed. Every rate stands beside what this very
device does at best: its copy from memory to memory for decoding, its matrix product for training.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from experiments.bench.flops import Cost, forward_operations
from experiments.bench.gpu import Load, peak_of, prompts_of
from experiments.bench.gpu import decode as decoded
from experiments.bench.ours import OurStepper
from experiments.bench.parts import collected
from experiments.bench.policy import SHAPES
from experiments.bench.work import OurSide, Work
from experiments.gpu_check.device import (
    Figures,
    Keep,
    copy_bytes_per_s,
    peak_gb,
    random_policy,
    seconds_of,
    start_memory,
)
from experiments.gpu_check.plan import Setting
from workbench.engines import TransformersEngineConfig, open_engine
from workbench.learn.microbatch import MicroBatch, output_head, scored, trained_logits
from workbench.learn.pieces import scores_in_pieces
from workbench.look.cells.train import train_here
from workbench.training.config import load_config

# ------------------------------------------------------------------------------------------------ decoding


def decode(setting: Setting, keep: Keep) -> Figures:
    """Tokens per second of the embedded engine by shape and rows, beside plain `generate` of transformers on the same
    prompts, and beside what the copy bandwidth allows if every token reads all weights and its keys and values once."""
    found: Figures = {"copy_bytes_per_s": copy_bytes_per_s(setting), "rows": []}
    shapes, counts = (("tiny",), (2, 4)) if setting.tiny else (("0.5b", "1.5b"), (32, 128, 256))
    prompt, answer = (16, 8) if setting.tiny else (256, 128)
    for shape in shapes:
        policy = random_policy(setting, shape)
        for rows in counts:
            load = Load(rows, prompt, answer, Work())
            row = _decoded(setting, shape, policy, load, found["copy_bytes_per_s"])
            found["rows"].append({"shape": shape, "rows": rows, **row})
            keep(found)
    return found


def _decoded(setting: Setting, shape: str, policy: Any, load: Load, bandwidth: float) -> Figures:
    config = TransformersEngineConfig(
        dtype=setting.dtype,
        device=setting.device,
        max_rows=load.rows,
        max_context=load.prompt + load.answer + 1,
        cache_tokens=load.rows * (load.prompt + load.answer + 1),
    )
    prompts = prompts_of(load, SHAPES[shape].vocabulary // 2)
    start_memory(setting)
    seconds, prefill = _engine_seconds(setting, open_engine(config, policy.model), load, prompts)
    peak = peak_gb(setting)
    tokens = load.rows * load.answer
    generate = _generated(setting, policy.model, prompts, load)
    bound = load.rows * bandwidth / _bytes_a_step(setting, shape, policy.model, load)
    return {
        "tokens_per_s": tokens / seconds,
        "prefill_s": prefill,
        "generate_tokens_per_s": tokens / generate,
        "over_generate": generate / seconds,
        "bandwidth_tokens_per_s": bound,
        "of_bandwidth": tokens / seconds / bound,
        "peak_gb": peak,
    }


def _engine_seconds(
    setting: Setting, engine: Any, load: Load, prompts: Sequence[Sequence[int]]
) -> tuple[float, float]:
    """Wall seconds of answers to all prompts, and of one token each: what the prompts themselves cost. The engine is gone
    afterwards."""
    warm = [[token + 1 for token in prompt] for prompt in prompts]  # none of them is in a cache
    decoded(engine, warm, 4)
    seconds = seconds_of(setting, lambda: decoded(engine, prompts, load.answer))
    once = [[token + 2 for token in prompt] for prompt in prompts]
    return seconds, seconds_of(setting, lambda: decoded(engine, once, 1))


def _bytes_a_step(setting: Setting, shape: str, model: torch.nn.Module, load: Load) -> float:
    """Bytes that one decode step must read at least: all weights, and half-filled keys and values of every row."""
    size = 2 if setting.dtype == "bfloat16" else 4
    own = SHAPES[shape]
    weights = sum(parameter.numel() for parameter in model.parameters())
    cached = (
        load.rows * (load.prompt + load.answer / 2) * own.layers * 2 * own.kv_heads * own.head_dim
    )
    return size * (weights + cached)


def _generated(setting: Setting, model: Any, prompts: Sequence[Sequence[int]], load: Load) -> float:
    """Wall seconds of `generate` on the same prompts, sampling as many tokens."""
    ids = torch.tensor(prompts, device=setting.device)
    dtype = torch.bfloat16 if setting.on_gpu else torch.float32
    half = model if dtype == torch.float32 else _copied(model, dtype)

    def generate(count: int) -> Any:
        return half.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            min_new_tokens=count,
            max_new_tokens=count,
            pad_token_id=0,
        )

    generate(4)
    return seconds_of(setting, lambda: generate(load.answer))


def _copied(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    import copy

    return copy.deepcopy(model).to(dtype)


# ------------------------------------------------------------------------------------------------ updates


def update(setting: Setting, keep: Keep) -> Figures:
    """An update over trajectories of random weights: tokens per second, and operations by formula (a forward pass and twice as
    much back; adapters once as much back) over what the device's matrix product does. 7b: adapters, in bfloat16, with
    activation checkpointing; the others whole."""
    found: Figures = {
        "peak_tflops": peak_of(setting.device, 8192 if setting.on_gpu else 512) / 1e12,
        "rows": [],
    }
    for shape in ("tiny",) if setting.tiny else ("0.5b", "1.7b", "7b"):
        try:
            row = _updated(setting, shape, found["peak_tflops"] * 1e12)
        except torch.OutOfMemoryError as error:  # the next one may fit
            row = {"error": str(error).splitlines()[0][:200]}
        found["rows"].append({"shape": shape, **row})
        keep(found)
        if setting.on_gpu:
            torch.cuda.empty_cache()
    return found


def _work(setting: Setting) -> Work:
    """One micro-batch of about 8,000 tokens on a GPU."""
    if setting.tiny:
        return Work(trajectories=8, turns=1, turn_tokens=8, micro_batch_tokens=2048, babble=True)
    return Work(trajectories=32, turns=1, turn_tokens=200, micro_batch_tokens=8192, babble=True)


def _updated(setting: Setting, shape: str, peak: float) -> Figures:
    adapters = shape == "7b"
    learner = {"lora_rank": 32, "activation_checkpointing": True} if adapters else {}
    work = _work(setting)
    policy = random_policy(setting, shape, torch.bfloat16 if adapters else torch.float32)
    engine = TransformersEngineConfig(
        dtype=setting.dtype,
        device=setting.device,
        max_rows=work.trajectories,
        max_context=1024,
        cache_tokens=work.trajectories * 1024,
    )
    side = OurSide(shape, precision=setting.precision, device=setting.device)
    stepper = OurStepper(policy, work, side, engine=engine, learner=learner)
    batch = collected(stepper, work, 0)
    credit = stepper.algorithm.credit(batch)
    # All sampled tokens are trained, whatever babble earned: the work is the same for every seed.
    sampled_T = batch.eligible_T.to(credit.weight_T.dtype)
    credit = replace(credit, advantage_T=sampled_T, weight_T=sampled_T)
    cost = Cost.of(stepper.learner.models.policy.module)
    stepper.learner.update(batch, credit, step=0)
    start_memory(setting)
    times = [
        seconds_of(setting, lambda step=step: stepper.learner.update(batch, credit, step=step))
        for step in (1, 2, 3)
    ]
    seconds = median(times)
    operations = (2 if adapters else 3) * forward_operations(cost, batch)
    return {
        "adapters": adapters,
        "packed": stepper.learner.models.ranks.packed,
        "tokens": batch.num_tokens,
        "trained_tokens": int(batch.eligible_T.sum()),
        "update_s": times,
        "tokens_per_s": batch.num_tokens / seconds,
        "mfu": operations / seconds / peak,
        "peak_gb": peak_gb(setting),
    }


# ------------------------------------------------------------------------------------------------ the loss


def loss(setting: Setting, keep: Keep) -> Figures:
    """Forward and backward pass of a model of two layers whose vocabulary is 151,936, all tokens trained: logits whole, and in
    pieces. Peak memory over what lay there before, seconds, and how far the logprobs are apart."""
    shape = replace(SHAPES["tiny" if setting.tiny else "1.5b"], layers=2)
    SHAPES["two layers"] = shape
    tokens = 64 if setting.tiny else 8192
    model = random_policy(setting, "two layers").model
    ids = torch.arange(5, 5 + tokens, device=setting.device) % (shape.embeddings - 8)
    micro = MicroBatch(
        ids[None],
        torch.arange(tokens),
        torch.arange(tokens, device=setting.device),
        torch.zeros(tokens, dtype=torch.int64),
    )
    ways = {"whole": _whole_logits, "in pieces": _pieces}
    found: Figures = {"tokens": tokens, "vocabulary": shape.embeddings}
    scores: dict[str, torch.Tensor] = {}
    for name, way in ways.items():
        model.zero_grad(set_to_none=True)
        start_memory(setting)
        before = torch.cuda.memory_allocated() if setting.on_gpu else 0
        seconds = seconds_of(
            setting,
            lambda way=way, name=name: scores.update({name: way(setting, model, micro, ids)}),
        )
        peak = peak_gb(setting)
        found[name] = {"seconds": seconds, "peak_gb": None if peak is None else peak - before / 1e9}
        keep(found)
    found["apart"] = float((scores["whole"] - scores["in pieces"]).abs().max())
    return found


def _whole_logits(
    setting: Setting, model: Any, micro: MicroBatch, ids_M: torch.Tensor
) -> torch.Tensor:
    logits_MV = trained_logits(model, output_head(model), micro, bf16=setting.on_gpu)
    logp_M = scored(logits_MV, ids_M, "gradient").logp_M
    logp_M.mean().backward()
    return logp_M.detach().float().cpu()


def _pieces(setting: Setting, model: Any, micro: MicroBatch, ids_M: torch.Tensor) -> torch.Tensor:
    head = output_head(model)
    logp_M = scores_in_pieces(model, head, micro, ids_M, "gradient", bf16=setting.on_gpu).logp_M
    logp_M.mean().backward()
    return logp_M.detach().float().cpu()


# ------------------------------------------------------------------------------------------------ the lint


def lint(setting: Setting, keep: Keep) -> Figures:
    """Seconds of a training step with the lint on and off, in turns; the first step of each run, which also checks what is
    checked once, counts apart. The lint's own clock is beside it."""
    steps, pairs = (2, 1) if setting.tiny else (4, 3)
    found: dict[str, list[float]] = {"assert": [], "off": [], "own clock, share": []}
    once: list[float] = []
    for pair in range(pairs):
        order = ("assert", "off") if pair % 2 == 0 else ("off", "assert")
        for mode in order:
            rows = _steps(setting, mode, steps)
            found[mode].append(median(_seconds(row) for row in rows[1:]))
            if mode == "assert":
                found["own clock, share"] += [
                    row.get("lint_s", 0.0) / _seconds(row) for row in rows[1:]
                ]
                once.append(rows[0].get("lint_s", 0.0))
            keep(_lint_figures(found, once))
    return _lint_figures(found, once)


def _lint_figures(found: Mapping[str, list[float]], once: Sequence[float]) -> Figures:
    ratios = [on / off for on, off in zip(found["assert"], found["off"])]
    return {"step_s": dict(found), "on_over_off": ratios, "once_s": list(once)}


def _steps(setting: Setting, mode: str, steps: int) -> list[Mapping[str, float]]:
    """The clock of every step of a short run."""
    settings: dict[str, Any] = {
        "policy.device": setting.device,
        "lint.mode": mode,
        "train.steps": steps,
        "train.evaluate_every": 0,
        "evaluation.num_tasks": 2,
    }
    if setting.tiny:
        settings |= {"train.tasks_per_step": 2, "train.group_size": 4}
    with tempfile.TemporaryDirectory() as folder:
        run = train_here(load_config("frozenlake", settings), Path(folder) / "run", on_note=None)
        return [run.clock_rows()[step] for step in run.steps()]


def _seconds(row: Mapping[str, Any]) -> float:
    return sum(
        value for name, value in row.items() if name.endswith("_s") and not name.endswith("_cpu_s")
    )
