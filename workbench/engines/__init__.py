"""Engines: token ids in, sampled ids with their logprobs out. They know no tasks and no text.

    base                  the contract            scripted              follows a script (tests, a human)
    config                settings                transformers_engine   embedded: a Hugging Face model, CPU and GPU
                                                  vllm_engine           vLLM in this process

Inside the embedded engine: intake (refuses requests and weights) · slot_runner, slots, attention (kept cache) ·
cohort_runner (fallback) · probe (which of the two) · sampling.
Inside the vllm engine: intake · vllm_core (all that touches vLLM) · vllm_turns (turns in its words) · vllm_check and gap
(are these the new weights?).
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.engines.config import TransformersEngineConfig, VllmEngineConfig
from workbench.types.plugins import NameTable

if TYPE_CHECKING:
    from workbench.engines.base import Engine

__all__ = ["ENGINES", "TransformersEngineConfig", "VllmEngineConfig", "open_engine"]

# What a config can name.
ENGINES = NameTable({"transformers": "workbench.engines.config:TransformersEngineConfig",
                         "vllm": "workbench.engines.config:VllmEngineConfig"})


def open_engine(config: TransformersEngineConfig | VllmEngineConfig, model) -> "Engine":
    """The engine that these settings describe, with its own copy of `model`'s weights. Settings of one's own bring
    `open(model)`. Raises EngineError."""
    if hasattr(config, "open"):
        return config.open(model)
    # Torch, and vLLM, are imported only when they are needed.
    if isinstance(config, VllmEngineConfig):
        from workbench.engines.vllm_engine import open_vllm_engine

        return open_vllm_engine(model, config)
    from workbench.engines.transformers_engine import TransformersEngine

    return TransformersEngine(model, config)
