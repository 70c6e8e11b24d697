"""Segments end to end through an unmodified Hugging Face model: no padding, and a shared prompt computed once.

Everything in such a model treats tokens one by one, except attention, and transformers lets a model's attention be
replaced by name. Under the name `PACKED` attention keeps the segments of the running pass apart (`attending_to`);
outside of such a pass it is transformers' own. A probe compares with plain passes before a model is packed; models that
cannot be get padded rows (`microbatch`).

`packed_attention` makes no mask of T x T: a prompt that eight trajectories share stands in the pass once, every trajectory
looks at it, and its gradient is the sum of theirs. Blocks of queries see exactly the keys up to their own end, so that
little above the diagonal is computed; heads that share a key are further queries of it, so that keys are never
repeated. The backward pass computes the weights again instead of keeping them. That is for CPUs; on an NVIDIA GPU, where
many small products cost more than padding, `varlen_attention` hands the same parts to torch's variable-length flash
attention, in half precision (learner.precision = "bf16"; not run on a GPU here). In float32 there the rows are padded.

Axis letters: T tokens of the pass (packed, batch size 1) · H query heads, or width of the hidden states · K key/value
heads · D head size of queries and keys · E head size of values (another one in latent attention) · n queries of a block ·
L keys that a block sees, or tokens of one sequence · V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from workbench.learn.varlen import varlen_attention
from workbench.values.errors import LearnerError

BLOCK = 64  # queries at once: their weights stay in the processor's cache
PACKED = "workbench_packed"
# Tensors that models hand down to attention although they are spent before it (rotation was already applied).
SPENT = frozenset({"position_ids", "cache_position", "input_ids", "attention_mask"})
# Tokens: a prompt that two sequences share, and what each goes on with; also more than one block of queries attends at.
PROBE_PROMPT = BLOCK + 9
PROBE_TAILS = (BLOCK + 14, 3)
# Largest difference in float32, of the largest log-probability: below it is rounding (1e-6 for policies of a few million
# parameters, 1e-5 for 135 million), wrong is far above.
TOLERANCE = 5e-5
GRADIENT_TOLERANCE = 1e-3  # of the gradient's norm: the same, for the way back
# In half precision plain passes are themselves this far from float32, and packed ones may be twice as far.
HALF_PRECISION = 2.0


class Part(NamedTuple):
    """Tokens start .. stop-1 of the pass, one behind the other in one sequence that begins with tokens
    prefix_start .. prefix_stop-1 of the same pass (none: both 0)."""

    start: int
    stop: int
    prefix_start: int = 0
    prefix_stop: int = 0

    @property
    def sequence_length(self) -> int:
        return self.stop - self.start + self.prefix_stop - self.prefix_start


class RunningPass(NamedTuple):
    """What a pass through a model is of. `parts` None: of no packed segments; `read_M`: the tokens whose last hidden states
    are read, None: any."""

    parts: Sequence[Part] | None = None
    read_M: Tensor | None = None


_PASS: ContextVar[RunningPass] = ContextVar("workbench_pass", default=RunningPass())


def packed_attention(
    query_HTD: Tensor,
    key_KTD: Tensor,
    value_KTE: Tensor,
    parts: Sequence[Part],
    scale: float | None = None,
) -> Tensor:
    """softmax(scale * q k^T) v for every token over its own past and its prefix: [H, T, E], in float32 inside.

    `parts` are disjoint; tokens in none of them get zeros. A token sees all of its part's prefix and its own part up to
    itself. `scale` None: 1 / sqrt(D). Has a first derivative, no second.
    """
    return _PackedAttention.apply(query_HTD, key_KTD, value_KTE, tuple(parts), scale)


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, parts, scale):
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        ctx.parts = parts
        ctx.scale = scale
        ctx.dtypes = (query.dtype, key.dtype, value.dtype)
        with torch.autocast(query.device.type, enabled=False):
            query = query.float().unflatten(0, (len(key), -1))  # [K, G, T, D]
            key = key.float()
            value = value.float()
            ctx.save_for_backward(query, key, value)
            out = query.new_zeros((*query.shape[:3], value.shape[2]))
            for part in parts:
                keys = _sequence(key, part)
                values = _sequence(value, part)
                for first, last, seen in _blocks(part):
                    weights = _weights(query[:, :, first:last], keys[:, :seen], scale)
                    seen_by_block = torch.bmm(weights, values[:, :seen])
                    out[:, :, first:last] = seen_by_block.view(out[:, :, first:last].shape)
            return out.flatten(0, 1).to(ctx.dtypes[0])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        query, key, value = ctx.saved_tensors
        with torch.autocast(query.device.type, enabled=False):
            grad = grad.float().unflatten(0, (len(key), -1))
            grad_query = torch.zeros_like(query, memory_format=torch.contiguous_format)
            grad_key = torch.zeros_like(key)
            grad_value = torch.zeros_like(value)
            for part in ctx.parts:
                keys = _sequence(key, part)
                values = _sequence(value, part)
                grad_keys = torch.zeros_like(keys)
                grad_values = torch.zeros_like(values)
                for first, last, seen in _blocks(part):
                    grad_query[:, :, first:last] = _add_block_gradients(
                        query[:, :, first:last],
                        keys[:, :seen],
                        values[:, :seen],
                        grad[:, :, first:last],
                        ctx.scale,
                        grad_keys[:, :seen],
                        grad_values[:, :seen],
                    )
                _add_sequence(grad_key, part, grad_keys)
                _add_sequence(grad_value, part, grad_values)
            query_type, key_type, value_type = ctx.dtypes
            return (
                grad_query.mul_(ctx.scale).flatten(0, 1).to(query_type),
                grad_key.mul_(ctx.scale).to(key_type),
                grad_value.to(value_type),
                None,
                None,
            )


def _add_block_gradients(
    query_KGnD: Tensor,
    keys_KLD: Tensor,
    values_KLE: Tensor,
    grad_KGnE: Tensor,
    scale: float,
    grad_keys_KLD: Tensor,
    grad_values_KLE: Tensor,
) -> Tensor:
    """The gradient of a block's queries, before the scale [K, G, n, D]; that of its keys and values is added to
    `grad_keys_KLD` (before the scale) and `grad_values_KLE`."""
    weights = _weights(query_KGnD, keys_KLD, scale)
    grad_rows = grad_KGnE.flatten(1, 2)
    grad_values_KLE.baddbmm_(weights.transpose(1, 2), grad_rows)
    grad_weights = torch.bmm(grad_rows, values_KLE.transpose(1, 2))
    grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
    grad_keys_KLD.baddbmm_(grad_scores.transpose(1, 2), query_KGnD.flatten(1, 2))
    return torch.bmm(grad_scores, keys_KLD).view_as(query_KGnD)


def _sequence(states_KTD: Tensor, part: Part) -> Tensor:
    """The tokens that a part's may look at, in order: its prefix, then itself."""
    own = states_KTD[:, part.start : part.stop]
    if part.prefix_stop == part.prefix_start:
        return own
    return torch.cat([states_KTD[:, part.prefix_start : part.prefix_stop], own], dim=1)


def _add_sequence(target_KTD: Tensor, part: Part, grad: Tensor) -> None:
    prefix = part.prefix_stop - part.prefix_start
    target_KTD[:, part.start : part.stop] += grad[:, prefix:]
    if prefix:
        target_KTD[:, part.prefix_start : part.prefix_stop] += grad[:, :prefix]


def _blocks(part: Part) -> Iterator[tuple[int, int, int]]:
    """(first token, last token + 1, keys that the last of them sees) of each block of queries."""
    prefix = part.prefix_stop - part.prefix_start
    for first in range(part.start, part.stop, BLOCK):
        last = min(first + BLOCK, part.stop)
        yield first, last, prefix + last - part.start


def _weights(query_KGnD: Tensor, keys_KLD: Tensor, scale: float) -> Tensor:
    """[K, G * n, L]: how much each query looks at each key; nothing of it above the diagonal of the last n keys."""
    heads, groups, count, _ = query_KGnD.shape
    scores = torch.bmm(query_KGnD.flatten(1, 2) * scale, keys_KLD.transpose(1, 2))
    above = torch.ones(count, count, dtype=torch.bool, device=scores.device).triu_(1)
    scores.view(heads, groups, count, -1)[..., -count:].masked_fill_(above, -math.inf)
    return torch.softmax(scores, dim=-1)


# ------------------------------------------------------------------------------------------------ a model's attention, by name


def running_pass() -> RunningPass:
    """What `attending_to` was given, inside of its block."""
    return _PASS.get()


@contextmanager
def attending_to(parts: Sequence[Part] | None, read_M: Tensor | None = None) -> Iterator[None]:
    """Within this block, models that were made `packable` attend within these parts."""
    token = _PASS.set(RunningPass(parts, read_M))
    try:
        yield
    finally:
        _PASS.reset(token)


def packed_forward(
    module,
    query,
    key,
    value,
    attention_mask,
    scaling=None,
    sliding_window=None,
    softcap=None,
    is_causal=None,
    attention=None,
    **others,
):
    """The attention that a model calls: query [1, H, T, D]. Returns ([1, T, H, D], None). `attention`: what computes it, None: what
    there is for the device.

    Raises LearnerError where a model asks for something that the packed form does not have; the probe turns that into
    padded rows.
    """
    if (parts := _PASS.get().parts) is None:
        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            scaling=scaling,
            is_causal=is_causal,
            **others,
        )
    strange = [
        name for name, other in others.items() if isinstance(other, Tensor) and name not in SPENT
    ]
    longest = max(part.sequence_length for part in parts)
    if strange or softcap is not None or attention_mask is not None or is_causal is False:
        raise LearnerError(f"its attention wants {strange or 'a mask or cap of its own'}")
    if sliding_window is not None and sliding_window < longest:
        raise LearnerError(
            f"its attention sees {sliding_window} tokens back, and a sequence has {longest}"
        )
    if attention is None:
        attention = packed_attention if query.device.type == "cpu" else varlen_attention
    # squeeze, not [0]: the gradient of that is an array of zeros, filled in
    row = (states.squeeze(0) for states in (query, key, value))
    out_HTE = attention(*row, parts, scaling)
    return out_HTE.transpose(0, 1)[None], None


def packed_mask(*args, **kwargs):
    """No mask in a packed pass; outside of one, the mask that transformers' own attention gets."""
    return None if _PASS.get().parts is not None else sdpa_mask(*args, **kwargs)


def make_packable(model: nn.Module, precision: str = "fp32", name: str = PACKED) -> bool:
    """Let this model (a learner's own) attend to packed segments, if a probe finds its logits unchanged; else leave it
    as it is and return False. In transformers' terms only its attention implementation changes. `precision`: the
    learner's ("bf16": under autocast). `name`: of the attention; another one begins with PACKED, too."""
    config = getattr(model, "config", None)
    if (
        config is None
        or not getattr(model, "_supports_attention_backend", False)
        or config._attn_implementation != "sdpa"
        or getattr(config.get_text_config(decoder=True), "sliding_window", None) is not None
    ):
        return False
    device = next(model.parameters()).device.type
    if device != "cpu" and (device, precision) != ("cuda", "bf16"):
        return False
    model.set_attn_implementation(name)
    try:
        # On a CPU attention is computed in float32 also under autocast: there the sharper comparison can be had.
        if is_packable(model) and _agrees(model, bf16=device != "cpu"):
            return True
    except Exception:  # whatever a model does with it, the answer is the same: it gets padded rows
        pass
    model.set_attn_implementation("sdpa")
    return False


def is_packable(model: nn.Module) -> bool:
    """True for a model that `make_packable` prepared, wrapped (DDP) or not."""
    config = getattr(getattr(model, "module", model), "config", None)
    return str(getattr(config, "_attn_implementation", None)).startswith(PACKED)


def _agrees(model: nn.Module, *, bf16: bool = False) -> bool:
    """Log-probabilities of packed sequences, and their gradient at the embedded tokens, are those of plain passes; in half
    precision as near to those of float32 as plain passes in half precision are, within HALF_PRECISION."""
    probe = _Probe(model)
    exact = probe.ask(packed=False, half=False)
    packed = probe.ask(packed=True, half=bf16)
    allowed = (TOLERANCE, GRADIENT_TOLERANCE)
    if bf16:
        rounding = _distances(probe.ask(packed=False, half=True), exact)
        allowed = tuple(HALF_PRECISION * distance for distance in rounding)
    distances = _distances(packed, exact)
    return all(distance <= most for distance, most in zip(distances, allowed, strict=True))


# Log-probabilities of each sequence, end to end, and the gradient that the embedded tokens got from its own tokens'.
Answer = tuple[Tensor, Tensor]


def _distances(answer: Answer, other: Answer) -> tuple[float, float]:
    """Largest difference of a log-probability, and of the gradients, relative to the other's largest and norm."""
    logp_difference = (answer[0] - other[0]).abs().max() / other[0].abs().max()
    gradient_difference = (answer[1] - other[1]).norm() / other[1].norm()
    return logp_difference.item(), gradient_difference.item()


class _Probe:
    """Two sequences that begin with the same prompt, through a model: packed, or one by one."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._embedding = model.get_input_embeddings()
        vocabulary = self._embedding.weight.shape[0]
        self._device = self._embedding.weight.device
        tokens = torch.arange(PROBE_PROMPT + sum(PROBE_TAILS), device=self._device)
        self._ids_T = tokens * 7919 % vocabulary
        prompt_L = torch.arange(PROBE_PROMPT, device=self._device)
        self._parts = [Part(0, PROBE_PROMPT)]
        self._sequences = []  # where the tokens of each sequence stand [L]
        positions = [prompt_L]
        for tail in PROBE_TAILS:
            start = self._parts[-1].stop
            tail_L = torch.arange(tail, device=self._device)
            self._parts.append(Part(start, start + tail, 0, PROBE_PROMPT))
            self._sequences.append(torch.cat([prompt_L, start + tail_L]))
            positions.append(PROBE_PROMPT + tail_L)
        self._position_ids_T = torch.cat(positions)

    def ask(self, *, packed: bool, half: bool) -> Answer:
        with torch.enable_grad(), torch.autocast(self._device.type, torch.bfloat16, enabled=half):
            states_TH = self._embedding(self._ids_T).detach().requires_grad_()
            if not packed:
                logps = [self._logp(states_TH[at_L]) for at_L in self._sequences]
                return self._answer(states_TH, logps)
            with attending_to(self._parts):
                logp_TV = self._logp(states_TH, position_ids=self._position_ids_T[None])
            return self._answer(states_TH, [logp_TV[at_L] for at_L in self._sequences])

    def _logp(self, states_LH: Tensor, **placed: Tensor) -> Tensor:
        logits = self._model(inputs_embeds=states_LH[None], use_cache=False, **placed).logits
        return logits[0].float().log_softmax(-1)

    def _answer(self, states_TH: Tensor, logps: Sequence[Tensor]) -> Answer:
        total = states_TH.new_zeros(())
        for at_L, logp_LV in zip(self._sequences, logps):
            total = total + logp_LV[:-1].gather(1, self._ids_T[at_L[1:], None]).sum()
        gradient_TH = torch.autograd.grad(total, states_TH)[0]
        return torch.cat([logp_LV.detach() for logp_LV in logps]), gradient_TH


# The name is global in transformers; a model uses it only if its own config names it, and only prepared ones do.
AttentionInterface.register(PACKED, packed_forward)
AttentionMaskInterface.register(PACKED, packed_mask)
