"""The nucleus of each row (the tokens that top-p keeps), looked for among its likely tokens.

Axis letters: R rows · V vocabulary · K tokens of the largest nucleus (a shorter one ends in token 0 at -inf).

Exact by construction. Tokens no less likely than some bound are the first ones of the sorted vocabulary, and the running
sum over them has the bits that it has there. Once it is above top-p by more than rounding, no later token is kept. Where it
is not, the bound is lowered, at last to nothing.

By a kernel (`chosen`) where this machine can compile it, which sorts less still; what it cannot decide for certain is left to
the search here.
"""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

from workbench.extensions.nuclei.chosen import choose, nuclei_of

LEAST = (-9.0, -11.0, -13.0, -np.inf)  # log-probabilities: the bounds, one after the other
ROUNDING = 1e-9  # of a running sum of float64; a million terms are off by 1e-10 at most
PLACE = 0xFFFFFFFF  # the lower half of a number in which a token is sorted
_kept = threading.local()  # memory of each thread


def draw_in_nuclei(
    logits_RV: Tensor, temperature_R: np.ndarray, top_p_R: np.ndarray, uniform_R: Tensor
) -> Tensor:
    """[4, R]: token, its log-probability, the same of the unbent softmax, and the total probability, which is NaN where a
    row is no distribution. No row is greedy."""
    bends = bool((temperature_R != 1.0).any())
    work_RV = _work_like(logits_RV)
    if bends:
        torch.div(logits_RV, _column(temperature_R), out=work_RV)
    torch.log_softmax(work_RV if bends else logits_RV, dim=-1, out=work_RV)
    place_RK, unbent_RK, logp_RK = _nuclei(work_RV, top_p_R)
    index_R, total_R = choose(logp_RK.exp(), uniform_R)
    index_R1 = index_R[:, None]
    token_R1 = place_RK.gather(1, index_R1)
    plain_R1 = unbent_RK.gather(1, index_R1)
    if bends:
        torch.log_softmax(logits_RV, dim=-1, out=work_RV)
        plain_R1 = work_RV.gather(1, token_R1)
    logp_R1 = logp_RK.gather(1, index_R1)
    columns = (token_R1.double(), logp_R1.double(), plain_R1.double(), total_R[:, None])
    return torch.cat(columns, dim=1).T


def cut_to_nuclei(logp_RV: Tensor, top_p_R: np.ndarray) -> Tensor:
    """Log-probabilities [R, V] after top-p, renormalised; what is cut has -inf. Written over `logp_RV`."""
    place_RK, _, logp_RK = _nuclei(logp_RV, top_p_R)
    return logp_RV.fill_(-torch.inf).scatter_reduce_(1, place_RK, logp_RK, "amax")


def _work_like(logits_RV: Tensor) -> Tensor:
    """One piece of memory for all, and for the next call: to get a new one of this size takes as long as to fill it."""
    work = getattr(_kept, "work", None)
    if work is None or work.numel() < logits_RV.numel():
        work = _kept.work = torch.empty(logits_RV.numel())
    return work[: logits_RV.numel()].view(logits_RV.shape)


def _column(numbers_R: np.ndarray) -> Tensor:
    return torch.from_numpy(numbers_R.astype(np.float32))[:, None]


def _nuclei(logp_RV: Tensor, top_p_R: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """(tokens that are kept, ascending; their log-probabilities; the same renormalised), each [R, K]. `logp_RV` is spent."""
    place_RK, logp_RK = nuclei_of(logp_RV, top_p_R, _nucleus)
    # As `torch.logsumexp` goes over a row whose other tokens have -inf: a sum in another order would round otherwise.
    most_R1 = logp_RK.amax(dim=-1, keepdim=True)
    logp_RV.zero_().scatter_add_(1, place_RK, (logp_RK - most_R1).exp())
    return place_RK, logp_RK, logp_RK - (logp_RV.sum(dim=-1, keepdim=True).log() + most_R1)


def _nucleus(logp_V: np.ndarray, top_p: float) -> np.ndarray:
    """Tokens that top-p keeps, ascending; all of them where the row is no distribution."""
    for least in LEAST:
        place_K = np.flatnonzero(~(logp_V < least))
        # One number for each token, in the order of a stable sort: by how unlikely it is, then by its place.
        unlikely_K = np.abs(logp_V[place_K]).view(np.int32).astype(np.int64)
        order_K = unlikely_K << 32 | place_K
        order_K.sort()
        place_K = order_K & PLACE
        probability_K = torch.from_numpy(logp_V[place_K]).double().exp().numpy()
        sum_K = probability_K.cumsum()
        if len(sum_K) and sum_K[-1] > top_p + ROUNDING:
            break
    # Rounding may put a later token below top_p again, so each is asked, as where all are sorted.
    return np.sort(place_K[~(sum_K - probability_K >= top_p)])
