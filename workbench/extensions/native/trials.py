"""When a part that computes otherwise than a model's own counts as equal to it, in a trial."""

from __future__ import annotations

from typing import Any

from torch import Tensor

TOLERANCE = 1e-5  # relative to the largest number: rounding is far below, another formula far above


def is_close(one: Tensor, other: Any) -> bool:
    """Whether both are tensors of one shape whose numbers differ by rounding only."""
    if not isinstance(other, Tensor) or one.shape != other.shape:
        return False
    return float((one - other).abs().max()) <= TOLERANCE * max(1.0, float(other.abs().max()))
