"""The benchmark's own policy: random Qwen3-shaped weights that learn, in two minutes, to call the lake's tool.

It need not play well. It must write calls in its chat template's format, so that both sides play whole trajectories, and
end its turns, so that no side waits for babble. Made once, deterministic for a seed, kept in `results/`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from data.make.fine_tuning import FineTuning, fine_tune
from data.make.pretrain import Transcript, encode
from data.make.tiny_tokenizer import build_tokenizer
from experiments.bench.lake import DIRECTIONS, MOVE_SCHEMA, Lake, call_text, execute, towards
from workbench.chat import ChatFormat
from workbench.values import Message, Observation
from workbench.values.seeds import rng_at, seed_of

TEMPLATE = "qwen3_instruct_2507.jinja"  # as published; TRL carries it, and reads its tool calls


@dataclass(frozen=True)
class BenchPolicy:
    """Everything that the policy is made from. 3.3 million parameters at the defaults."""

    family: str = "qwen3"
    vocabulary: int = 512  # of the tokenizer, at most
    embeddings: int = 512  # of the model
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 768
    positions: int = 4096
    tied: bool = True  # the output head is the table of embeddings
    steps: int = 72  # of fine-tuning; 0: the weights stay random, and it babbles
    batch: int = 4
    turns: int = 5
    stray: float = (
        0.3  # of the demonstrated moves are random, so that trajectories of a group differ
    )
    chatty: float = 0.5  # of the holes are mentioned before a move, so that answers differ in length, as in life
    early: float = 0.5  # of the turns after the goal or a hole end the trajectory, so that trajectories differ in length
    seed: int = 0


SHAPES = {
    "3m": BenchPolicy(),
    # between both
    "32m": BenchPolicy(
        embeddings=4096,
        hidden=512,
        layers=8,
        heads=8,
        kv_heads=4,
        head_dim=64,
        intermediate=1536,
        steps=0,
    ),
    # SmolLM2-135M's
    "135m": BenchPolicy(
        family="llama",
        embeddings=49_152,
        hidden=576,
        layers=30,
        heads=9,
        kv_heads=3,
        head_dim=64,
        intermediate=1536,
        positions=8192,
        steps=0,
    ),
    # for `gpu`, to see that it runs; heads of 32, for vLLM's attention on a CPU knows none smaller
    "tiny": BenchPolicy(
        family="qwen2",
        embeddings=704,
        hidden=64,
        layers=2,
        heads=2,
        kv_heads=1,
        head_dim=32,
        intermediate=96,
        steps=0,
    ),
    # Qwen2.5's shapes; nobody needs their knowledge to measure speed
    "0.5b": BenchPolicy(
        family="qwen2",
        embeddings=151_936,
        hidden=896,
        layers=24,
        heads=14,
        kv_heads=2,
        head_dim=64,
        intermediate=4864,
        positions=32_768,
        steps=0,
    ),
    "1.5b": BenchPolicy(
        family="qwen2",
        embeddings=151_936,
        hidden=1536,
        layers=28,
        heads=12,
        kv_heads=2,
        head_dim=128,
        intermediate=8960,
        positions=32_768,
        steps=0,
    ),
    # Qwen3-1.7B's: the size of published figures of training
    "1.7b": BenchPolicy(
        family="qwen3",
        embeddings=151_936,
        hidden=2048,
        layers=28,
        heads=16,
        kv_heads=8,
        head_dim=128,
        intermediate=6144,
        positions=32_768,
        steps=0,
    ),
    "7b": BenchPolicy(
        family="qwen2",
        embeddings=152_064,
        hidden=3584,
        layers=28,
        heads=28,
        kv_heads=4,
        head_dim=128,
        intermediate=18_944,
        positions=32_768,
        tied=False,
        steps=0,
    ),
}


# ------------------------------------------------------------------------------------------------ demonstrations


def demonstrate(settings: BenchPolicy, index: int) -> Transcript:
    """The moves of one trajectory, each with a thought, and a closing word."""
    rng, lake = rng_at(settings.seed, "bench.demonstration", index), Lake()
    shown = [
        Message("user", lake.reset(seed_of(settings.seed, "bench.board", index), settings.turns))
    ]
    actions = []
    for _ in range(settings.turns):
        if lake.over and rng.random() < settings.early:
            break
        move = (
            str(rng.choice(sorted(DIRECTIONS)))
            if rng.random() < settings.stray
            else towards(lake, rng)
        )
        holes = [
            f" A hole H is at row {row}, column {column}."
            for row, column in sorted(lake.holes)
            if rng.random() < settings.chatty
        ]
        thought = f"The goal G is at row {lake.goal[0]}, column {lake.goal[1]}.{''.join(holes)} I go {move}."
        actions.append(call_text(move, thought))
        shown.append(Message("tool", execute(lake, "move", {"direction": move}), name="move"))
    actions.append("I stop here.")
    tools = (MOVE_SCHEMA,)
    return Transcript(
        tuple(Observation((message,), tools=() if i else tools) for i, message in enumerate(shown)),
        tuple(actions),
        lake.success,
    )


# ------------------------------------------------------------------------------------------------ making


def tokenizer_of(settings: BenchPolicy) -> Any:
    """At most `vocabulary` tokens, trained on what the lake and the demonstrator say, with Qwen3's chat template."""
    import trl

    template = (Path(trl.__file__).parent / "chat_templates" / TEMPLATE).read_text(encoding="utf-8")
    transcripts = [demonstrate(settings, -1 - index) for index in range(100)]
    texts = [template]
    for transcript in transcripts:
        texts += [message.text for shown in transcript.observations for message in shown.messages]
        texts += list(transcript.actions)
    texts += [str(MOVE_SCHEMA).replace("'", '"')] * 20
    tokenizer = build_tokenizer(texts, vocab_size=settings.vocabulary)
    tokenizer.chat_template = template
    return tokenizer


def new_model(settings: BenchPolicy, tokenizer: Any) -> Any:
    """Random weights in float32; the same seed gives the same ones."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

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
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(settings.seed, "bench.weights"))
        return AutoModelForCausalLM.from_config(config).float()


def make_policy(
    folder: Path, settings: BenchPolicy, say: Callable[[str], None] = lambda line: None
) -> Path:
    """The folder that holds the policy of these settings below `folder`; made there if it is not yet."""
    name = "policy-" + blake2b(repr(settings).encode(), digest_size=6).hexdigest()
    out = folder / name
    if (out / "config.json").exists():
        return out
    tokenizer = tokenizer_of(settings)
    chat = ChatFormat.from_tokenizer(tokenizer)
    model = new_model(settings, tokenizer)
    if settings.steps:
        fine_tune(
            model,
            lambda index: encode(demonstrate(settings, index), chat, tokenizer),
            settings.steps,
            FineTuning(batch=settings.batch, warmup=10),
            say=say,
        )
    half = folder / (name + ".half")
    shutil.rmtree(half, ignore_errors=True)
    model.save_pretrained(half)
    tokenizer.save_pretrained(half)
    half.rename(out)
    return out
