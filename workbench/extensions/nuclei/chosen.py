"""`choose.cpp`: the tokens that top-p keeps, and the token that a uniform number means, by a kernel; without one, without it.

Axis letters: R rows · V vocabulary · N blocks of it · K tokens of the largest nucleus (a shorter one ends in token 0 at -inf).

The answers are those of the other ways to the bit: the kernel decides by sums in another order only where that cannot matter.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from workbench.basics.extensions import has_service, service
from workbench.engines.sampling import BLOCK, choose_of_blocks, inverse_cdf
from workbench.values.errors import EngineError

SOURCE = Path(__file__).with_name("choose.cpp")
MOST = 1_000_000  # tokens of a vocabulary for which the kernel's bounds of rounding hold

Nucleus = Callable[[np.ndarray, float], np.ndarray]


@functools.cache
def kernel() -> ctypes.CDLL | None:
    """None where nothing can be compiled: all is done without it then."""
    if not has_service("kernel"):
        return None
    try:
        return service("kernel", "sampling")(SOURCE)
    except EngineError:
        return None


def choose_in_blocks(p_RV: Tensor, sum_RN: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor]:
    """`choose_of_blocks` of the engines."""
    built = kernel()
    if built is None or not p_RV.is_contiguous():
        return choose_of_blocks(p_RV, sum_RN, uniform_R)
    token_R, total_R = _answers(len(p_RV))
    sum_RN = sum_RN.contiguous()
    uniform_R = uniform_R.contiguous()
    built.pick_of_blocks(
        _at(p_RV),
        *_whole(*p_RV.shape),
        _at(sum_RN),
        *_whole(sum_RN.shape[1], BLOCK),
        _at(uniform_R),
        _at(token_R),
        _at(total_R),
    )
    return token_R, total_R


def choose(p_RK: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor]:
    """(place in its row [R], total probability [R]) as `inverse_cdf` has them."""
    built = kernel()
    if built is None:
        place_R, _, total_R = inverse_cdf(p_RK, uniform_R)
        return place_R, total_R
    place_R, total_R = _answers(len(p_RK))
    p_RK = p_RK.contiguous()
    uniform_R = uniform_R.contiguous()
    built.pick(_at(p_RK), *_whole(*p_RK.shape), _at(uniform_R), _at(place_R), _at(total_R))
    return place_R, total_R


def nuclei_of(logp_RV: Tensor, top_p_R: np.ndarray, nucleus: Nucleus) -> tuple[Tensor, Tensor]:
    """(tokens that are kept, ascending; their log-probabilities), each [R, K]. `nucleus`: the tokens of one row, asked where
    the kernel cannot say."""
    rows, vocabulary = logp_RV.shape
    built = kernel() if vocabulary <= MOST and logp_RV.is_contiguous() else None
    if built is None:
        return _laid_out(logp_RV, [nucleus(*row) for row in zip(logp_RV.numpy(), top_p_R)])
    kept_R = torch.empty(rows, dtype=torch.long)
    top_p = np.ascontiguousarray(top_p_R, np.float64)
    built.nuclei(_at(logp_RV), *_whole(rows, vocabulary), top_p.ctypes, _at(kept_R))
    longest = max(int(kept_R.max()), 1)
    place_RK = torch.empty(rows, longest, dtype=torch.long)
    logp_RK = torch.empty(rows, longest)
    built.lay_out(_at(kept_R), *_whole(rows, longest), _at(place_RK), _at(logp_RK))
    if (kept_R >= 0).all():
        return place_RK, logp_RK
    nuclei = [place[:count] for place, count in zip(place_RK.numpy(), kept_R.tolist())]
    for row in (kept_R < 0).nonzero()[:, 0].tolist():
        nuclei[row] = nucleus(logp_RV[row].numpy(), top_p[row])
    return _laid_out(logp_RV, nuclei)


def _laid_out(logp_RV: Tensor, nuclei: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    shape = len(nuclei), max(map(len, nuclei))
    place = np.zeros(shape, np.int64)
    logp = np.full(shape, -np.inf, np.float32)
    for row, (logp_V, kept_K) in enumerate(zip(logp_RV.numpy(), nuclei)):
        place[row, : len(kept_K)] = kept_K
        logp[row, : len(kept_K)] = logp_V[kept_K]
    return torch.from_numpy(place), torch.from_numpy(logp)


def _answers(rows: int) -> tuple[Tensor, Tensor]:
    return torch.empty(rows, dtype=torch.long), torch.empty(rows, dtype=torch.float64)


def _at(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _whole(*numbers: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(number) for number in numbers]
