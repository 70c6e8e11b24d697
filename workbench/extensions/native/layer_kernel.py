"""`layers.cpp` as it is called."""

from __future__ import annotations

from ctypes import CDLL, Structure, c_float, c_int64, c_void_p
from functools import cache

from workbench.extensions.native.kernel import LAYERS, kernel


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
