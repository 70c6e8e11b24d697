"""Attention of packed segments by `attention.cpp` (`learner.attention = "native"`): `packing.packed_attention` in one call
of a kernel, forward and backward, on as many threads as torch has.

Axis letters: T tokens of the pass · Q those that are asked for · H query heads · K key/value heads · D head size of queries and keys · E of values.

Its numbers are those of `packed_attention` up to rounding, and so are its gradients; the number of threads changes no bit of
them. It is for CPUs: on a GPU the variable-length attention of torch is asked, as it is without this setting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import Structure, byref, c_float, c_int64, c_void_p
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from workbench.extensions.native.kernel import ATTENTION, kernel
from workbench.learn.packing import PACKED, Part, packed_forward, packed_mask
from workbench.learn.varlen import varlen_attention
from workbench.values.errors import EngineError, LearnerError

NATIVE = f"{PACKED}_native"  # the name of a model's attention


class States(Structure):
    _fields_ = [("numbers", c_void_p), ("head", c_int64), ("token", c_int64)]


class PackedPass(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("tokens", "queries")),
        *((name, c_int64) for name in ("heads", "key_heads", "size", "value_size")),
        *((name, c_int64) for name in ("parts", "trees", "threads")),
        ("scale", c_float),
        ("part", c_void_p),
        ("tree", c_void_p),
        ("place", c_void_p),
        *((name, States) for name in ("query", "key", "value", "out")),
        ("log_sum", c_void_p),
        *((name, States) for name in ("grad_out", "grad_query", "grad_key", "grad_value")),
    ]


def native_packing() -> str:
    """The name of this attention, for `packing.make_packable`. Raises LearnerError where it cannot be built."""
    try:
        kernel(ATTENTION)
    except EngineError as error:
        raise LearnerError(
            f"learner.attention = 'native' cannot be used here: {error}. learner.attention = 'torch' needs no compiler"
        ) from error
    AttentionInterface.register(NATIVE, partial(packed_forward, attention=native_attention))
    AttentionMaskInterface.register(NATIVE, packed_mask)
    return NATIVE


def native_attention(
    query_HTD: Tensor,
    key_KTD: Tensor,
    value_KTE: Tensor,
    parts: Sequence[Part],
    scale: float | None = None,
) -> Tensor:
    """`packing.packed_attention` by the kernel: [H, T, E], float32 inside; has a first derivative, no second."""
    if query_HTD.device.type != "cpu":
        return varlen_attention(query_HTD, key_KTD, value_KTE, parts, scale)
    return attention_of(query_HTD, key_KTD, value_KTE, parts, scale)


def attention_of(
    query_HQD: Tensor,
    key_KTD: Tensor,
    value_KTE: Tensor,
    parts: Sequence[Part],
    scale: float | None = None,
    place_Q: Tensor | None = None,
) -> Tensor:
    """The same of some tokens alone: those at `place_Q`, in ascending order (None: all of them) [H, Q, E]. On a CPU."""
    if place_Q is None:
        place_Q = torch.arange(query_HQD.shape[1])
    return _NativeAttention.apply(query_HQD, key_KTD, value_KTE, tuple(parts), scale, place_Q)


class PassLayout(NamedTuple):
    """Which tokens of a pass look at which, as the kernel reads it: parts [P, 6], tree by tree; the first part of each tree;
    which tokens the queries are [Q]."""

    parts: Tensor
    trees: Tensor
    place_Q: Tensor

    @classmethod
    def of(cls, parts: Sequence[Part], place_Q: Tensor) -> PassLayout:
        ordered, trees = _trees(tuple(parts))
        queries = torch.searchsorted(place_Q, ordered[:, :2].contiguous())
        return cls(torch.cat([ordered, queries], 1), trees, place_Q)


class _NativeAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value, parts, scale, place):
        ctx.scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        ctx.layout = PassLayout.of(parts, place)
        ctx.dtypes = (query.dtype, key.dtype, value.dtype)
        inputs = [_laid_out(states) for states in (query, key, value)]
        out, log_sums = attend(*inputs, ctx.layout, ctx.scale)
        ctx.save_for_backward(*inputs, out, log_sums)
        return out.to(ctx.dtypes[0])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        inputs = ctx.saved_tensors
        gradients = [torch.empty_like(states) for states in inputs[:3]]
        attend_back(inputs, _laid_out(grad), gradients, ctx.layout, ctx.scale)
        return *(made.to(dtype) for made, dtype in zip(gradients, ctx.dtypes)), None, None, None


def attend(
    query_HQD: Tensor, key_KTD: Tensor, value_KTE: Tensor, layout: PassLayout, scale: float
) -> tuple[Tensor, Tensor]:
    """What each query reads [H, Q, E], and the logarithms that its way back needs [H, Q]. Float32, the numbers of a head
    side by side."""
    # Token by token, as the matrix behind it reads it.
    shape = (query_HQD.shape[1], query_HQD.shape[0], value_KTE.shape[2])
    out = _zeros_where_needed(layout.parts, torch.empty(shape)).transpose(0, 1)
    log_sums = torch.zeros(query_HQD.shape[:2])
    work = _work(layout, scale, query_HQD, key_KTD, value_KTE, out, log_sums)
    kernel(ATTENTION).attention_forward(byref(work))
    return out, log_sums


def attend_back(
    answer: Sequence[Tensor],
    grad_HQE: Tensor,
    gradients: Sequence[Tensor],
    layout: PassLayout,
    scale: float,
) -> None:
    """Fill the gradients of query, key and value. `answer`: these three and what `attend` made of them."""
    _zeros_where_needed(layout.parts, gradients[0].transpose(0, 1))
    work = _work(layout, scale, *answer)
    work.grad_out = _states(grad_HQE)
    work.grad_query, work.grad_key, work.grad_value = map(_states, gradients)
    kernel(ATTENTION).attention_backward(byref(work))


def _work(layout, scale, query, key, value, out, log_sums) -> PackedPass:
    heads, queries, size = query.shape
    return PackedPass(
        tokens=key.shape[1],
        queries=queries,
        heads=heads,
        key_heads=len(key),
        size=size,
        value_size=value.shape[2],
        parts=len(layout.parts),
        trees=len(layout.trees) - 1,
        threads=torch.get_num_threads(),
        scale=scale,
        part=layout.parts.data_ptr(),
        tree=layout.trees.data_ptr(),
        place=layout.place_Q.data_ptr(),
        query=_states(query),
        key=_states(key),
        value=_states(value),
        out=_states(out),
        log_sum=log_sums.data_ptr(),
    )


def _zeros_where_needed(parts: Tensor, of_queries: Tensor) -> Tensor:
    """What the kernel is to fill [Q, ...]: it passes over queries that are in none of the parts [P, 6]."""
    in_parts = int((parts[:, 5] - parts[:, 4]).sum())
    return of_queries if in_parts == len(of_queries) else of_queries.zero_()


def _laid_out(states: Tensor) -> Tensor:
    """In float32, the numbers of a head side by side."""
    states = states.detach().float()
    return states if states.stride(2) == 1 else states.contiguous()


def _states(states: Tensor) -> States:
    return States(states.data_ptr(), states.stride(0), states.stride(1))


@lru_cache(maxsize=4)  # the layers of a pass ask for the same, forward and backward
def _trees(parts: tuple[Part, ...]) -> tuple[Tensor, Tensor]:
    """The parts as numbers [P, 4], tree by tree, and where each tree begins among them. Parts of different trees look at
    different tokens, so that threads may add up their gradients at the same time."""
    stretches = []
    for number, part in enumerate(parts):
        stretches += [(part.start, part.stop, number)]
        stretches += [(part.prefix_start, part.prefix_stop, number)]
    tree_of = list(range(len(parts)))
    end = 0
    before = 0
    for start, stop, number in sorted(stretches):
        if start == stop:
            continue
        if start < end:
            joined = tree_of[before]
            gone = tree_of[number]
            tree_of = [joined if tree == gone else tree for tree in tree_of]
        end = max(end, stop)
        before = number
    ordered = sorted(range(len(parts)), key=lambda number: (tree_of[number], number))
    begins = [
        place
        for place, number in enumerate(ordered)
        if not place or tree_of[number] != tree_of[ordered[place - 1]]
    ]
    return torch.tensor([parts[number] for number in ordered]), torch.tensor([*begins, len(parts)])
