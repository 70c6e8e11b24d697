"""A small stand-in for a policy: the same architecture and settings, few and narrow layers, random weights.

    small_stand_in(policy.model)        0.1 million parameters in place of 135 million, on the CPU; None: none can be made

Whether the learner's gradient is that of the definition (R19) and whether settings act (R13) is decided by masks, shifts,
packing, denominators and the optimizer, which are the learner's and not the weights'. So a policy that is too large to be
tried segment by segment, or that lives on a GPU, is asked by one that has every kind of its layers, once each.

Narrow is tried first; where an architecture does not bear that (widths that depend on each other), fewer layers and a
smaller vocabulary alone. What cannot be built and run is not used.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import product
from typing import Any

import torch
from torch import nn

from workbench.engines.policy import num_parameters

VOCABULARY = 512
LAYERS = 2
WIDTH = 64
HEADS = 4
EXPERTS = 4
SPREAD = (
    0.2  # of the weights: as small as models begin, attention would hardly see what it attends to
)
SEED = 20260801  # of the weights
MOST = 20_000_000  # parameters: more would take as long as the policy itself
# Fields of a transformers configuration -> what they are in a narrow one; only those that it has are set.
NARROW: Mapping[str, int] = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_attention_heads": HEADS,
    "head_dim": WIDTH // HEADS,
    "moe_intermediate_size": WIDTH,
    "shared_expert_intermediate_size": WIDTH,
    "num_experts": EXPERTS,
    "num_local_experts": EXPERTS,
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": WIDTH // 2,
    "kv_lora_rank": WIDTH // 2,
    "qk_nope_head_dim": WIDTH // HEADS,
    "qk_rope_head_dim": WIDTH // HEADS,
    "v_head_dim": WIDTH // HEADS,
    "linear_num_key_heads": HEADS // 2,
    "linear_num_value_heads": HEADS,
    "linear_key_head_dim": WIDTH // HEADS,
    "linear_value_head_dim": WIDTH // HEADS,
}
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


def small_stand_in(model: nn.Module) -> nn.Module | None:
    """A small model of the same class on the CPU, float32, the same at every call; None where none can be built and run.
    `model` is read and left alone; parameters that it does not train are not trained here."""
    if not hasattr(model, "config"):
        return None
    for fields, attention in product((NARROW, {}), (None, "eager")):
        try:
            config = copy.deepcopy(model.config)
            for part in (config, *vars(config).values()):  # of text, of pictures
                if hasattr(part, "num_hidden_layers"):
                    _reduce(part, fields)
            if attention is not None:
                config._attn_implementation = attention
            return _built(model, config)
        except Exception:  # whatever a published architecture says of widths that it does not bear
            continue
    return None


def _reduce(config: Any, fields: Mapping[str, int]) -> None:
    """Make a configuration small."""
    heads = getattr(config, "num_attention_heads", HEADS)
    shared = getattr(config, "num_key_value_heads", None)
    for name, value in fields.items():
        if getattr(config, name, None) is not None:
            setattr(config, name, value)
    if fields and shared is not None:
        config.num_key_value_heads = HEADS if shared == heads else min(shared, HEADS // 2)
    kinds = getattr(config, "layer_types", None)
    count = min(LAYERS, config.num_hidden_layers)
    if kinds:
        chosen = list(dict.fromkeys(kinds))
        config.layer_types = chosen + list(kinds[: count - len(chosen)])
        count = len(config.layer_types)
    config.num_hidden_layers = count
    if hasattr(config, "vocab_size"):
        config.vocab_size = min(VOCABULARY, config.vocab_size)
    for name in TOKENS:
        setattr(config, name, None)
    if hasattr(config, "initializer_range"):
        config.initializer_range = SPREAD


def _built(model: nn.Module, config: Any) -> nn.Module:
    """The model of a configuration, once it has answered. Raises whatever the architecture raises."""
    with torch.device("meta"):
        size = num_parameters(type(model)(config))
    if size > MOST:
        raise ValueError(f"{size} parameters")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        small = type(model)(config).float().eval()
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    for name, parameter in small.named_parameters():
        parameter.requires_grad_(name not in frozen)
    with torch.no_grad():
        logits = small(input_ids=torch.arange(8)[None], use_cache=False).logits
    if not bool(logits.isfinite().all()):
        raise ValueError("logits that are not finite")
    return small
