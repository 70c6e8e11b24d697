"""Causal attention over sequences that lie end to end, where several of them may share their beginning.

Axis letters: T tokens of the pass · H query heads · K key/value heads · D head size of queries and keys · E head size of
values (another one in latent attention) · n queries of a block · L keys that a block sees.

Nothing is padded, no mask of T x T is made, and a prompt that eight attempts share is computed once: its tokens stand in
the pass once, every attempt looks at them, and its gradient is the sum of theirs. Blocks of queries see exactly the keys
up to their own end, so that little above the diagonal is computed; heads that share a key are further queries of it, so
that keys are never repeated. The backward pass computes the weights again instead of keeping them.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 64  # queries at once: their weights stay in the processor's cache


class Part(NamedTuple):
    """Tokens start .. stop-1 of the pass, one behind the other in one sequence that begins with tokens
    prefix_start .. prefix_stop-1 of the same pass (none: both 0)."""

    start: int
    stop: int
    prefix_start: int = 0
    prefix_stop: int = 0


def packed_attention(query_HTD: Tensor, key_KTD: Tensor, value_KTE: Tensor, parts: Sequence[Part],
                     scale: float | None = None) -> Tensor:
    """softmax(scale * q k^T) v for every token over its own past and its prefix: [H, T, E], in float32 inside.

    `parts` are disjoint; tokens in none of them get zeros. A token sees all of its part's prefix and its own part up to
    itself. `scale` None: 1 / sqrt(D). Has a first derivative, no second.
    """
    return _PackedAttention.apply(query_HTD, key_KTD, value_KTE, tuple(parts), scale)


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, parts, scale):
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        ctx.parts, ctx.scale, ctx.dtypes = parts, scale, (query.dtype, key.dtype, value.dtype)
        with torch.autocast(query.device.type, enabled=False):
            query, key, value = _grouped(query.float(), key.shape[0]), key.float(), value.float()
            ctx.save_for_backward(query, key, value)
            out = query.new_zeros((*query.shape[:3], value.shape[2]))
            for part in parts:
                keys, values = _sequence(key, part), _sequence(value, part)
                for first, last, seen in _blocks(part):
                    weights = _weights(query[:, :, first:last], keys[:, :seen], scale)
                    out[:, :, first:last] = torch.bmm(weights, values[:, :seen]).view(out[:, :, first:last].shape)
            return out.flatten(0, 1).to(ctx.dtypes[0])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        query, key, value = ctx.saved_tensors
        with torch.autocast(query.device.type, enabled=False):
            grad = _grouped(grad.float(), key.shape[0])
            grad_query = torch.zeros_like(query, memory_format=torch.contiguous_format)
            grad_key, grad_value = torch.zeros_like(key), torch.zeros_like(value)
            for part in ctx.parts:
                keys, values = _sequence(key, part), _sequence(value, part)
                grad_keys, grad_values = torch.zeros_like(keys), torch.zeros_like(values)
                for first, last, seen in _blocks(part):
                    queries, gradient = _rows(query[:, :, first:last]), _rows(grad[:, :, first:last])
                    weights = _weights(query[:, :, first:last], keys[:, :seen], ctx.scale)
                    grad_values[:, :seen].baddbmm_(weights.transpose(1, 2), gradient)
                    grad_weights = torch.bmm(gradient, values[:, :seen].transpose(1, 2))
                    grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
                    grad_query[:, :, first:last] = torch.bmm(grad_scores, keys[:, :seen]).view(
                        grad_query[:, :, first:last].shape)
                    grad_keys[:, :seen].baddbmm_(grad_scores.transpose(1, 2), queries)
                _add_sequence(grad_key, part, grad_keys)
                _add_sequence(grad_value, part, grad_values)
            grad_query, grad_key = grad_query.mul_(ctx.scale).flatten(0, 1), grad_key.mul_(ctx.scale)
            grads = (grad_query, grad_key, grad_value)
            return (*(g.to(dtype) for g, dtype in zip(grads, ctx.dtypes)), None, None)


def _grouped(states_HTD: Tensor, key_heads: int) -> Tensor:
    """[K, H / K, T, D]"""
    return states_HTD.unflatten(0, (key_heads, -1))


def _rows(states_KGnD: Tensor) -> Tensor:
    """[K, G * n, D]"""
    return states_KGnD.flatten(1, 2)


def _sequence(states_KTD: Tensor, part: Part) -> Tensor:
    """What a part's tokens may look at, in order: its prefix, then itself."""
    own = states_KTD[:, part.start:part.stop]
    if part.prefix_stop == part.prefix_start:
        return own
    return torch.cat([states_KTD[:, part.prefix_start:part.prefix_stop], own], dim=1)


def _add_sequence(target_KTD: Tensor, part: Part, grad: Tensor) -> None:
    prefix = part.prefix_stop - part.prefix_start
    target_KTD[:, part.start:part.stop] += grad[:, prefix:]
    if prefix:
        target_KTD[:, part.prefix_start:part.prefix_stop] += grad[:, :prefix]


def _blocks(part: Part):
    """(first token, last token + 1, keys that the last of them sees) of each block of queries."""
    prefix = part.prefix_stop - part.prefix_start
    for first in range(part.start, part.stop, BLOCK):
        last = min(first + BLOCK, part.stop)
        yield first, last, prefix + last - part.start


def _weights(query_KGnD: Tensor, keys_KLD: Tensor, scale: float) -> Tensor:
    """[K, G * n, L]: how much each query looks at each key; nothing of it above the diagonal of the last n keys."""
    heads, groups, count, _ = query_KGnD.shape
    scores = torch.bmm(_rows(query_KGnD) * scale, keys_KLD.transpose(1, 2))
    above = torch.ones(count, count, dtype=torch.bool, device=scores.device).triu_(1)
    scores.view(heads, groups, count, -1)[..., -count:].masked_fill_(above, -math.inf)
    return torch.softmax(scores, dim=-1)
