"""Segments end to end through an unmodified Hugging Face model: no padding, and a shared prompt computed once.

Everything in such a model treats tokens one by one, except attention, and transformers lets a model's attention be
replaced by name. Under the name `PACKED` attention keeps the segments of the running pass apart (`attending_to`);
outside of such a pass it is transformers' own. A probe compares with plain passes before a model is packed; models that
cannot be, and accelerators, where many small products cost more than padding, get padded rows (`microbatch`).

Axis letters: T tokens of the pass (packed, batch size 1) · H heads, or width of the hidden states · D head size · L tokens
of one sequence · V vocabulary.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from workbench.learn.ops.packed_attention import BLOCK, Part, packed_attention
from workbench.types.errors import LearnerError

PACKED = "workbench_packed"
# Tensors that models hand down to attention although they are spent before it (rotation was already applied).
SPENT = frozenset({"position_ids", "cache_position", "input_ids", "attention_mask"})
# Tokens: a prompt that two sequences share, and what each goes on with; also more than one block of queries attends at.
PROBE_PROMPT, PROBE_TAILS = BLOCK + 9, (BLOCK + 14, 3)
TOLERANCE = 3e-4  # largest difference of a log-probability in float32: below it is rounding, wrong is far above
GRADIENT_TOLERANCE = 1e-3  # of the gradient's norm: the same, for the way back

_PARTS: ContextVar[Sequence[Part] | None] = ContextVar("workbench_parts", default=None)


@contextmanager
def attending_to(parts: Sequence[Part]) -> Iterator[None]:
    """Within this block, models that were made `packable` attend within these parts."""
    token = _PARTS.set(parts)
    try:
        yield
    finally:
        _PARTS.reset(token)


def packed_forward(module, query, key, value, attention_mask, scaling=None, sliding_window=None, softcap=None,
                   is_causal=None, **others):
    """The attention that a model calls: query [1, H, T, D]. Returns ([1, T, H, D], None).

    Raises LearnerError where a model asks for something that the packed form does not have; the probe turns that into
    padded rows.
    """
    parts = _PARTS.get()
    if parts is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, is_causal=is_causal,
                                      **others)
    strange = [name for name, other in others.items() if isinstance(other, Tensor) and name not in SPENT]
    longest = max(part.stop - part.start + part.prefix_stop - part.prefix_start for part in parts)
    if strange or softcap is not None or attention_mask is not None or is_causal is False:
        raise LearnerError(f"its attention wants {strange or 'a mask or cap of its own'}")
    if sliding_window is not None and sliding_window < longest:
        raise LearnerError(f"its attention sees {sliding_window} tokens back, and a sequence has {longest}")
    return packed_attention(query[0], key[0], value[0], parts, scaling).transpose(0, 1)[None], None


def _mask(*args, **kwargs):
    """No mask in a packed pass; outside of one, the mask that transformers' own attention gets."""
    return None if _PARTS.get() is not None else sdpa_mask(*args, **kwargs)


def make_packable(model: nn.Module) -> bool:
    """Let this model (a learner's own) attend to packed segments, if a probe finds its logits unchanged; else leave it
    as it is and return False. In transformers' terms only its attention implementation changes."""
    config = getattr(model, "config", None)
    if config is None or not getattr(model, "_supports_attention_backend", False) \
            or config._attn_implementation != "sdpa" or next(model.parameters()).device.type != "cpu" \
            or getattr(config.get_text_config(decoder=True), "sliding_window", None) is not None:
        return False
    model.set_attn_implementation(PACKED)
    try:
        if model.config._attn_implementation == PACKED and _agrees(model):
            return True
    except Exception:  # whatever a model does with it, the answer is the same: it gets padded rows
        pass
    model.set_attn_implementation("sdpa")
    return False


def is_packable(model: nn.Module) -> bool:
    """True for a model that `make_packable` prepared, wrapped (DDP) or not."""
    config = getattr(getattr(model, "module", model), "config", None)
    return getattr(config, "_attn_implementation", None) == PACKED


def _agrees(model: nn.Module) -> bool:
    """Log-probabilities of packed sequences, and their gradient at the embedded tokens, are those of plain passes."""
    embedding = model.get_input_embeddings()
    ids_T = torch.arange(PROBE_PROMPT + sum(PROBE_TAILS)) * 7919 % embedding.weight.shape[0]
    parts, positions = [Part(0, PROBE_PROMPT)], [torch.arange(PROBE_PROMPT)]
    for tail in PROBE_TAILS:
        parts.append(Part(parts[-1].stop, parts[-1].stop + tail, 0, PROBE_PROMPT))
        positions.append(PROBE_PROMPT + torch.arange(tail))
    with torch.enable_grad():
        states_TH = embedding(ids_T).detach().requires_grad_()
        with attending_to(parts):
            logits = model(inputs_embeds=states_TH[None], position_ids=torch.cat(positions)[None], use_cache=False).logits
        packed_TV = logits[0].log_softmax(-1)
        worst, packed_logp, plain_logp = torch.zeros(()), torch.zeros(()), torch.zeros(())
        for part in parts[1:]:
            places = torch.cat([torch.arange(PROBE_PROMPT), torch.arange(part.start, part.stop)])
            plain_LV = model(inputs_embeds=states_TH[places][None], use_cache=False).logits[0].log_softmax(-1)
            worst = torch.maximum(worst, (packed_TV[places] - plain_LV).abs().max())
            next_L1 = ids_T[places[1:], None]
            packed_logp = packed_logp + packed_TV[places[:-1]].gather(1, next_L1).sum()
            plain_logp = plain_logp + plain_LV[:-1].gather(1, next_L1).sum()
        packed_TH, plain_TH = (torch.autograd.grad(logp, states_TH)[0] for logp in (packed_logp, plain_logp))
    return bool(worst <= TOLERANCE) and bool((packed_TH - plain_TH).norm() <= GRADIENT_TOLERANCE * plain_TH.norm())


# The name is global in transformers; a model uses it only if its own config names it, and only prepared ones do.
AttentionInterface.register(PACKED, packed_forward)
AttentionMaskInterface.register(PACKED, _mask)
