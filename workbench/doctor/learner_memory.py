"""What a learner holds, of the plan of a run's memory (doctor/plan.py): by counts of a model's weights, and over how many
processes they are dealt out."""

from __future__ import annotations

import math
from collections.abc import Iterator

from workbench.doctor.memory import MOMENTS, Item
from workbench.doctor.model_size import ModelSize
from workbench.learn.algorithms.base import needs_critic
from workbench.learn.microbatch import LOGITS_AT_ONCE
from workbench.learn.packing import PROBE_PROMPT, PROBE_TAILS
from workbench.training.config import Config

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
LOGITS = 4  # arrays of that size that are there at once: logits, their softmax, gradients of both
PROBE_LOGITS = (
    10  # of the probe that asks whether a model takes segments packed, and of its gradient
)
LOGITS_OF_ENTROPY = 2  # more of them, where the entropy has a gradient


def processes_that_share(config: Config) -> int:
    """Over how many processes weights, gradients and moments are dealt out; 1: each holds them all."""
    return config.learner.num_processes if config.learner.sharding == "full" else 1


def place_of_parts(config: Config) -> str:
    """Where a process keeps its part of what is dealt out."""
    return "host" if config.learner.offload and processes_that_share(config) > 1 else "device"


def policy_items(config: Config, size: ModelSize) -> Iterator[Item]:
    """Of the policy as it was loaded: who shards keeps no copy of it that nobody uses."""
    shared, dtype = processes_that_share(config), config.policy.dtype
    is_reference, is_base = "ref_logp_T" in config.algorithm.requires, config.learner.lora_rank > 0
    if shared == 1 or is_reference or is_base:
        yield Item(
            "policy's weights",
            size.parameters * BYTES[dtype] + size.buffers,
            MOMENTS,
            f"{dtype}, kept as it was{'; the reference policy' * is_reference}",
        )
    for what, there in (("the reference", is_reference), ("the base below adapters", is_base)):
        yield Item(
            f"part of {what}",
            math.ceil(size.parameters * BYTES[dtype] / shared) * (there and shared > 1),
            MOMENTS,
            f"{dtype}, dealt out over {shared} processes",
            place_of_parts(config),
        )


def learner_items(
    config: Config, size: ModelSize, shape: str, trained_tokens: int, *, on_cpu: bool
) -> Iterator[Item]:
    """`shape` of a micro-batch, in words; `trained_tokens` of it have logits."""
    shared, lora = processes_that_share(config), config.learner.lora_rank > 0
    parts, place = (
        "" if shared == 1 else f", dealt out over {shared} processes",
        place_of_parts(config),
    )
    own = (
        size.below_the_head + size.width + 1
        if needs_critic(config.algorithm) and config.critic.trunk == "own"
        else 0
    )
    trained, critic = math.ceil(size.trained / shared), math.ceil(own / shared)
    at_once = min(trained_tokens, LOGITS_AT_ONCE["cpu" if on_cpu else "cuda"] // size.vocabulary)
    logits = (
        (LOGITS + LOGITS_OF_ENTROPY * bool(config.algorithm.entropy_coef))
        * at_once
        * size.vocabulary
        * 4
    )
    yield Item(
        "learner's weights",
        trained * 4 + size.buffers * (not lora),
        MOMENTS,
        ("adapters, float32: what is below them is the policy's" if lora else "float32, trained")
        + parts,
        place,
    )
    yield Item(
        "optimizer",
        trained * 8,
        MOMENTS,
        f"AdamW: two moments, from the first update on{parts}",
        place,
    )
    yield Item(
        "gradients",
        trained * 4,
        ("updating",),
        f"float32, of the {'adapters' if lora else 'policy'}{parts}",
        place,
    )
    yield Item(
        "activations",
        size.kept + logits,
        ("updating",),
        f"{shape}, logits of {at_once} at once "
        f"(learner.micro_batch_tokens = {config.learner.micro_batch_tokens:,})",
    )
    if lora and on_cpu:
        # Of all weights, gradients and moments find room in these pieces. Held against runs of 26 million parameters.
        pieces = (
            PROBE_LOGITS * (PROBE_PROMPT + sum(PROBE_TAILS)) * size.vocabulary * 4
            + (size.kept + logits) // 2
        )
        yield Item(
            "pieces of memory",
            pieces,
            ("updating",),
            "that the allocator keeps: half of the activations, and a probe's",
        )
    yield from _whole(config, size, shared)
    yield Item(
        "merged weights",
        size.merged * 4,
        ("saving",),
        "float32, for the engine: adapters are added to them",
    )
    yield Item(
        "copies to save",
        (size.trained + own) * 12,
        ("saving",),
        "weights and moments, each once more" + "; the first process" * (shared > 1),
        "host",
    )
    yield Item(
        "critic",
        critic * 4,
        MOMENTS,
        f"float32: a trunk of its own (critic.trunk='policy' shares it){parts}",
        place,
    )
    yield Item("critic's optimizer", critic * 8, MOMENTS, f"two moments{parts}", place)
    yield Item("critic's gradients", critic * 4, ("updating",), f"float32{parts}", place)


def _whole(config: Config, size: ModelSize, shared: int) -> Iterator[Item]:
    """What is put together for a while, where weights are dealt out."""
    if shared == 1:
        return
    lora = config.learner.lora_rank > 0
    number = BYTES[config.policy.dtype] if lora else 4
    # Embedding and output head for all of a pass, with their gradients at its end; two layers at a time, and one's gradient.
    weights, gradients = size.around + 2 * size.layer, (size.around + size.layer) * (not lora)
    yield Item(
        "layers put together",
        (weights + gradients) * number,
        ("updating",),
        "two decoder layers and what stands around them" + ", with gradients" * (not lora),
    )
    yield Item(
        "weights put together",
        size.parameters * number,
        ("saving",),
        "for the engine: all of them, in each process",
        place_of_parts(config),
    )
