"""Strips: the credit of many tokens at one glance, a row of pixels per trajectory or estimator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench.look.looks import CARD, MUTED, RED_BLUE, red_blue
from workbench.look.png import palette_png

# Colours after the seven steps from red to blue.
PAPER = 7
GAP = 8
UNTRAINED = 9
PALETTE = (*(fill for fill, _ in RED_BLUE), CARD, MUTED, "#e3dcea")
MOST_COLUMNS = 4000  # pixels of a strip


def pixels_of(
    advantage_T: np.ndarray,
    weight_T: np.ndarray,
    turn_T: np.ndarray,
    sampled_T: np.ndarray,
    scale: float,
    gaps: bool = True,
) -> np.ndarray:
    """One colour per sampled (or widened) token, and a grey one between turns."""
    here = np.flatnonzero(sampled_T | (weight_T != 0))
    row = []
    previous = None
    for t in here:
        if gaps and previous is not None and turn_T[t] != previous:
            row.append(GAP)
        previous = turn_T[t]
        row.append(
            RED_BLUE.index(red_blue(float(advantage_T[t]), scale))
            if weight_T[t] != 0
            else UNTRAINED
        )
    return np.array(row, np.uint8)


def tall(rows: int) -> int:
    """Pixels of a strip; one more lies between two."""
    return int(np.clip(240 // rows, 3, 14))


def row_labels(count: int, chosen: int) -> tuple[list[str], int]:
    """Numbers to stand beside so many strips, and the pixels from one to the next: one beside each strip, or beside
    every few where a strip is lower than a number. The chosen one has an arrow."""
    pitch = tall(count) + 1
    every = -(-11 // pitch)
    labels = [
        f"{'→' if first <= chosen < first + every else ''}{first}"
        for first in range(0, count, every)
    ]
    return labels, every * pitch


def stacked(rows: Sequence[np.ndarray], *, widest: int = 1000) -> bytes:
    """The rows as a picture, one below the other; of more than MOST_COLUMNS pixels the first. White where there are
    none."""
    longest = max((len(row) for row in rows), default=0)
    if not longest:
        return palette_png(np.full((4, 4), PAPER, np.uint8), PALETTE)
    wide = int(np.clip(widest // longest, 1, 9))
    high = tall(len(rows))
    pixels = np.full((len(rows) * (high + 1), longest * wide), PAPER, np.uint8)
    for i, row in enumerate(rows):
        pixels[i * (high + 1) : i * (high + 1) + high, : len(row) * wide] = np.repeat(row, wide)
    return palette_png(pixels[:, :MOST_COLUMNS], PALETTE)


def cut_words(tokens: int) -> str:
    """What a caption says where a row of so many tokens does not fit."""
    return (
        f"; at most the first {MOST_COLUMNS:,} tokens of a row are drawn"
        if tokens >= MOST_COLUMNS
        else ""
    )
