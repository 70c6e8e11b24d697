"""A stand-in for bitsandbytes where it is not installed: sixteen even levels, one scale for each block, two weights a byte."""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import torch
from pytest import MonkeyPatch


def quantize_4bit(weights, blocksize=64, compress_statistics=False, quant_type="nf4"):
    assert (compress_statistics, quant_type) == (False, "nf4")
    flat = weights.reshape(-1)
    flat = torch.cat([flat, flat.new_zeros(-len(flat) % blocksize)])
    blocks = flat.reshape(-1, blocksize)
    absmax = blocks.abs().amax(1)
    levels = ((blocks / absmax[:, None].clamp_min(1e-12) + 1) * 7.5).round().to(torch.uint8)
    levels = levels.reshape(-1, 2)
    return (levels[:, 0] * 16 + levels[:, 1])[:, None], SimpleNamespace(absmax=absmax)


def dequantize_4bit(packed, state):
    levels = torch.stack([packed[:, 0] // 16, packed[:, 0] % 16], 1).reshape(-1, state.blocksize)
    blocks = (levels.to(state.dtype) / 7.5 - 1) * state.absmax[:, None]
    return blocks.reshape(-1)[: state.shape.numel()].reshape(state.shape)


def quant_state(absmax, *, shape, dtype, blocksize, quant_type):
    assert quant_type == "nf4"
    return SimpleNamespace(absmax=absmax, shape=shape, dtype=dtype, blocksize=blocksize)


def stand_in_where_it_is_missing(patch: MonkeyPatch) -> None:
    """Until `patch` is undone. Other packages see the machine as it is: peft asks for bitsandbytes, too."""
    if find_spec("bitsandbytes") is not None:
        return
    inner = ModuleType("bitsandbytes.functional")
    inner.quantize_4bit = quantize_4bit
    inner.dequantize_4bit = dequantize_4bit
    inner.QuantState = quant_state
    package = ModuleType("bitsandbytes")
    package.functional = inner
    name = "workbench.extensions.four_bit.linear"
    with patch.context() as importing:
        importing.setitem(sys.modules, "bitsandbytes", package)
        importing.setitem(sys.modules, inner.__name__, inner)
        linear = importlib.import_module(name)
    del sys.modules[name]
    patch.setitem(sys.modules, name, linear)  # undone, it is gone
    patch.setattr("workbench.extensions.four_bit.base.find_spec", lambda package: True)
