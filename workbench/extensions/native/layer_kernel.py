"""`layers.cpp` as it is called."""

from __future__ import annotations

from ctypes import CDLL, Structure, c_float, c_int64, c_void_p
from functools import cache

import torch
from torch import Tensor

from workbench.extensions.native.kernel import LAYERS, addresses, kernel


class Heads(Structure):
    """Queries, keys or values of each head, row by row, and what is done to them."""

    _fields_ = [
        ("numbers", c_void_p),
        ("stride", c_int64),
        *((name, c_void_p) for name in ("weight", "cosine", "sine")),
        *((name, c_int64) for name in ("heads", "size")),
        ("epsilon", c_float),
    ]


def layer_kernel() -> CDLL:
    """Raises EngineError where it cannot be built."""
    return _with_types(kernel(LAYERS))


@cache
def _with_types(built: CDLL) -> CDLL:
    for name, arrays, counts in (
        ("norm_backward", 7, 3),
        ("gate_forward", 3, 4),
        ("gate_backward", 5, 4),
        ("rotate", 4, 9),
    ):
        getattr(built, name).argtypes = [c_void_p] * arrays + [c_int64] * counts
    built.norm_forward.argtypes = [c_void_p] * 4 + [c_int64, c_int64, c_float, c_int64]
    built.heads_forward.argtypes = [c_void_p] * 3 + [c_int64] * 3
    built.heads_backward.argtypes = [
        *(c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_void_p),
        *(c_int64, c_void_p, c_int64, c_int64),
    ]
    return built


def threads() -> int:
    return torch.get_num_threads()


def norm_rows(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The RMS norm of the rows of x [..., W], which lie end to end, and what its way back needs of each row."""
    out = torch.empty_like(x)
    width = x.shape[-1]
    inverse = torch.empty(x.numel() // width)
    numbers = addresses(x, weight, out, inverse)
    layer_kernel().norm_forward(*numbers, len(inverse), width, epsilon, threads())
    return out, inverse


def norm_rows_back(
    x: Tensor, weight: Tensor, inverse: Tensor, grad: Tensor, around: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The gradients of x, with that of what is around the norm, and of the weight."""
    of_x = torch.empty_like(x)
    of_weight = torch.empty_like(weight)
    also = None if around is None else around.data_ptr()
    came = addresses(x, weight, inverse, grad)
    made = addresses(of_x, of_weight)
    layer_kernel().norm_backward(*came, also, *made, len(inverse), x.shape[-1], threads())
    return of_x, of_weight
