"""Sums that say what they are divided by (law 4)."""
from __future__ import annotations

import torch
from torch import Tensor


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
