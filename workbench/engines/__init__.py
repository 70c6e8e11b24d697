"""Engines: token ids in, sampled ids with their logprobs out. They know no tasks and no text.

    base                  the contract
    config, layout        settings
    scripted              follows a script (tests, a human)
    transformers_engine   embedded: a Hugging Face model, CPU and GPU
    vllm_engine           vLLM in this process; as a server of its own it is the extension vllm_server

Inside the embedded engine: intake (refuses requests and weights) · slot_runner, slots, attention (kept cache) ·
cohort_runner (fallback) · probe (which of the two) · sampling.
Inside the vllm engine: intake · vllm_core (all that touches vLLM) · vllm_transfer (runs in its workers) · broadcast (one way
of weights into them) · adapter_route (adapters alone) · vllm_turns (turns in its words) · digests, vllm_check and gap (are
these the new weights?).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from workbench.basics.extensions import provided, service
from workbench.basics.plugins import NameTable
from workbench.engines.config import TransformersEngineConfig, VllmEngineConfig
from workbench.engines.layout import LayoutConfig

if TYPE_CHECKING:
    from workbench.engines.base import Engine

__all__ = ["ENGINES", "LayoutConfig", "TransformersEngineConfig", "VllmEngineConfig", "open_engine"]

# What a config can name.
ENGINES = NameTable(
    {
        "transformers": "workbench.engines.config:TransformersEngineConfig",
        "vllm": "workbench.engines.config:VllmEngineConfig",
    },
    functools.partial(provided, "engines"),
)


def open_engine(
    config: TransformersEngineConfig | VllmEngineConfig,
    model,
    layout: LayoutConfig = LayoutConfig(),
    *,
    adapter_rank: int = 0,
) -> Engine:
    """The engine that these settings describe, with its own copy of `model`'s weights, where `layout` has it. Settings of
    one's own bring `open(model)`. `adapter_rank`: of adapters that `layout` sends alone. Raises EngineError."""
    if hasattr(config, "open"):
        return config.open(model)
    # Torch, and vLLM, are imported only when they are needed.
    if isinstance(config, VllmEngineConfig) and layout.has_server:
        open_server_engine = service("server_engine", f"layout.kind = {layout.kind!r}")
        return open_server_engine(model, config, layout, adapter_rank)
    if isinstance(config, VllmEngineConfig):
        from workbench.engines.vllm_engine import open_vllm_engine

        return open_vllm_engine(model, config)
    if config.drafts:
        return service("drafting_engine", "engine.drafts")(model, config)
    from workbench.engines.transformers_engine import TransformersEngine

    return TransformersEngine(model, config)
