"""Engines: token ids in, sampled ids with their logprobs out. They know no tasks and no text.

    base                  the contract            scripted              follows a script (tests, a human)
    config                settings                transformers_engine   embedded: a Hugging Face model, CPU and GPU

Inside the embedded engine: intake (refuses) · slot_runner, slots, attention (kept cache) · cohort_runner (fallback) ·
probe (which of the two) · sampling · weights · rows.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.engines.config import TransformersEngineConfig

if TYPE_CHECKING:
    from workbench.engines.base import Engine

__all__ = ["ENGINES", "TransformersEngineConfig", "open_engine"]

# What a config can name.
ENGINES: dict[str, type] = {"transformers": TransformersEngineConfig}


def open_engine(config: TransformersEngineConfig, model) -> "Engine":
    """The engine that these settings describe, with its own copy of `model`'s weights. Raises EngineError."""
    from workbench.engines.transformers_engine import TransformersEngine  # torch is imported only when it is needed

    return TransformersEngine(model, config)
