"""Settings that fit the small policies that ship and no pretrained model, each with what to set instead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workbench.basics.extensions import has_service, service
from workbench.engines.policy import PRETRAINED

MOST_LR = 5e-5  # of all weights
LEAST_LR_OF_ADAPTERS = 5e-5
SHORTEST_TURN = 64  # tokens
MOST_TASKS = 256  # of an evaluation on a CPU
FULL_PROMPT = "has_full_prompt"  # of an extension: worlds without one say everything in the prompt that they have


def toy_settings(config: Any, size: int, on_cpu: bool) -> list[str]:
    """One sentence for each setting that is a small policy's, of a model of `size` parameters; none for a small one."""
    return list(_remarks(config, size, on_cpu)) if size >= PRETRAINED else []


def _remarks(config: Any, size: int, on_cpu: bool) -> Iterator[str]:
    model = f"a model of {size / 1e6:,.0f} million parameters"
    learner = config.learner
    if learner.lora_rank and learner.lr < LEAST_LR_OF_ADAPTERS:
        yield (
            f"learner.lr = {learner.lr:g} is low for adapters (learner.lora_rank = {learner.lora_rank}); 1e-4 is "
            "usual"
        )
    if not learner.lora_rank and learner.lr > MOST_LR:
        yield (
            f"learner.lr = {learner.lr:g} for all weights of {model} is a small policy's; set 1e-6 to 3e-5, or "
            "learner.lora_rank = 16 with 1e-4"
        )
    if config.collect.max_turn_tokens < SHORTEST_TURN:
        yield (
            f"collect.max_turn_tokens = {config.collect.max_turn_tokens} is a small policy's; an instruct model that was not "
            "shown how to answer writes sentences: set 128 to 512"
        )
    if config.collect.temperature == 1 and config.collect.top_p == 1:
        yield (
            f"collect.temperature = 1 over the whole vocabulary is noise for many pretrained models; try 0.7 to 0.9 for {model}, "
            "with algorithm.sampler_cap = 2"
        )
    has_other = has_service(FULL_PROMPT) and service(FULL_PROMPT, "notes")(config.env)
    if has_other and config.interface.prompt == "short":
        yield (
            "interface.prompt = 'short' is a prompt for policies that know the task; set interface.prompt = 'full' and "
            "interface.format = 'lenient'"
        )
    if on_cpu and config.evaluation.num_tasks > MOST_TASKS:
        yield (
            f"evaluation.num_tasks = {config.evaluation.num_tasks} takes {model} long on a CPU; set 64"
        )
    if has_other:
        yield (
            "workbench tune-in POLICY ENV shows how many turns are valid, and which settings to take; a preset's name "
            "with -real behind it has such settings"
        )
