"""The record of one update: exactly what every token was weighted by.

Axis letters: T tokens of the whole batch (flat: segments end to end)
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from workbench.types.errors import DataError


@dataclass(frozen=True, eq=False)
class CreditTable:
    """Exactly what one update used, one row per token of the batch [T]; a later view shows it, a replay recomputes it.

    Columns (numpy, all of length T; a column that was not computed is absent, never zero):
        trajectory, segment, turn int32 · position int32 (in its segment) · token_id int32 · source int8 · eligible bool
        advantage, weight, return float64 (credit is computed in float64; what the critic is fitted to)
        rollout_logp, old_logp, new_logp, entropy, ratio float32 (NaN where not eligible)
        clip_state int8 (0 free, -1 clipped low, +1 clipped high) · ref_logp float32
        value, new_value float32: the critic's, before the token, when credit was computed and in this update
        final_value float32: the critic's, after the token, at the last one of a truncated trajectory, else NaN
    """

    step: int
    update: int
    columns: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"a credit table has one row per token, but its columns differ in length: {lengths}")

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            raise DataError(f"the credit table has no column {name!r} (not computed); it has {sorted(self.columns)}")
        return self.columns[name]
