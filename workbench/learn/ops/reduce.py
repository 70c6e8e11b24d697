"""Sums that say what they are divided by (law 4).

A reduction is a scale per token and one denominator for all micro-batches and processes of an update:

    token-mean            sum of all tokens / number of tokens                    DAPO (arXiv 2503.14476), eq. 8
    seq-mean-token-mean   mean over sequences of each one's mean                  GRPO (arXiv 2402.03300), eq. 3
    seq-mean-token-sum    mean over sequences of each one's sum
    fixed-length          the same, divided by a length that is the same for all  Dr. GRPO (arXiv 2503.20783), section 3

A sequence is a whole trajectory, in however many segments its history was cut: so an attempt counts the same with every
history. Axis letters: T tokens (flat) · N sequences.
"""
from __future__ import annotations

from typing import NamedTuple

from workbench.types.tensors import Tensor, torch


REDUCTIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "fixed-length")


class Reduction(NamedTuple):
    """`scale` [T], float64: what a token counts, beside its weight. `denominator`: what the sum is divided by."""

    scale: Tensor
    denominator: float


def reduction(kind: str, counts_T: Tensor, row_T: Tensor, *, fixed_length: int = 0) -> Reduction:
    """How the tokens that count (bool [T]) are summed up; `row_T` says which sequence a token belongs to.

    Only sequences with a token that counts are counted. Where none does, the denominator is 0: there is no such sum.
    Raises ValueError for another kind, and for "fixed-length" without a length.
    """
    if kind not in REDUCTIONS:
        raise ValueError(f"a reduction is one of {', '.join(REDUCTIONS)}, got {kind!r}")
    if kind == "fixed-length" and fixed_length < 1:
        raise ValueError(f"the reduction 'fixed-length' divides by a length of at least 1 token, got {fixed_length}")
    scale_T = torch.ones(len(counts_T), dtype=torch.float64)
    if kind == "token-mean":
        return Reduction(scale_T, float(counts_T.sum()))
    rows, at, length = row_T[counts_T].unique(return_inverse=True, return_counts=True)
    if kind == "seq-mean-token-mean":
        scale_T[counts_T] = 1.0 / length[at].double()
    return Reduction(scale_T, float(len(rows) * (fixed_length if kind == "fixed-length" else 1)))


def masked_sum_over(values_T: Tensor, weight_T: Tensor, denominator: float) -> Tensor:
    """sum(weight * value) / denominator, over the tokens whose weight is not zero.

    The denominator is handed in because only the caller can know it: the number of trained tokens over *all*
    micro-batches and *all* processes. A mean taken here would make the gradient depend on how a batch was cut.
    Values at weight zero may be NaN (they were never computed); they and their gradients stay out.
    Raises ValueError unless the denominator is positive and finite.
    """
    if values_T.shape != weight_T.shape:
        raise ValueError(f"values {tuple(values_T.shape)} and weights {tuple(weight_T.shape)} must have the same shape")
    if not 0 < float(denominator) < float("inf"):
        raise ValueError(f"the denominator is a count of trained tokens, so positive and finite; got {denominator}")
    used = weight_T != 0
    products = torch.where(used, values_T, torch.zeros_like(values_T)) * weight_T.to(values_T.dtype)
    return products.sum() / denominator
