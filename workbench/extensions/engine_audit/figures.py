"""How far apart two descriptions of the same tokens are: nats per token, divergence over the vocabulary, raw ratios.

Axis letters: M tokens · F tokens with a whole distribution · V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

TOP = 5
BINS = (
    0.0,
    0.5,
    0.8,
    0.9,
    0.95,
    0.99,
    1.01,
    1.05,
    1.1,
    1.25,
    2.0,
    float("inf"),
)  # of ratios: [from, to)
BIN_NAMES = tuple(
    f"{low:g}–{high:g}" if high != float("inf") else f"over {low:g}"
    for low, high in zip(BINS, BINS[1:])
)


@dataclass(frozen=True)
class Ratios:
    """trainer's probability / engine's, at sampled tokens, before any mask, cap or clip. `histogram`: counts in `BINS`.

    `outside`: share that is not in [0.9, 1.1]. `kl`: estimate of KL(engine || trainer) as mean(r - 1 - log r), in nats
    (Schulman, joschu.net/blog/kl-approx.html); unbiased where the engine samples from its own softmax. `mult_error`:
    mean of exp|log r|, 1 where they agree.
    """

    mean: float
    outside: float
    largest: float
    smallest: float
    kl: float
    mult_error: float
    histogram: tuple[int, ...]
    tokens: int

    @classmethod
    def between(cls, engine_M: np.ndarray, trainer_M: np.ndarray) -> Ratios | None:
        """Ratios of logprobs; tokens of which one does not say are left out. None where none is left."""
        log_r = np.asarray(trainer_M, np.float64) - np.asarray(engine_M, np.float64)
        log_r = log_r[np.isfinite(log_r)]
        if not len(log_r):
            return None
        r = np.exp(log_r)
        counts, _ = np.histogram(r, np.array(BINS))
        return cls(
            float(r.mean()),
            float(((r < 0.9) | (r > 1.1)).mean()),
            float(r.max()),
            float(r.min()),
            float((np.expm1(log_r) - log_r).mean()),
            float(np.exp(np.abs(log_r)).mean()),
            tuple(int(count) for count in counts),
            len(r),
        )


@dataclass(frozen=True)
class Whole:
    """Over the full vocabulary, each a mean over tokens, and the worst one. `kl`: KL(engine || trainer) in nats; `tv`:
    total variation, in [0, 1]; `first_changed`: share of tokens whose likeliest choice differs; `swapped`: of the `TOP`
    likeliest, how many are not among the other's."""

    kl: float
    kl_worst: float
    tv: float
    tv_worst: float
    first_changed: float
    swapped: float
    tokens: int
    vocabulary: int

    @classmethod
    def between(cls, engine_FV: Tensor, trainer_FV: Tensor) -> Whole:
        """Compare logprobs that sum to one, row by row."""
        # Once more in double precision: what float32 leaves of the sum would be taken for divergence.
        engine = engine_FV.double().log_softmax(-1)
        trainer = trainer_FV.double().log_softmax(-1)
        p = engine.exp()
        q = trainer.exp()
        # Where the engine has nothing, nothing is added; where only the trainer has nothing, it is infinite.
        kl_F = (p * (engine - trainer).masked_fill(p == 0, 0.0)).sum(-1)
        tv_F = 0.5 * (p - q).abs().sum(-1)
        top = min(TOP, p.shape[-1])
        ours = engine.topk(top).indices
        theirs = trainer.topk(top).indices
        shared_F = (ours[:, :, None] == theirs[:, None, :]).any(-1).sum(-1)
        return cls(
            float(kl_F.mean()),
            float(kl_F.max()),
            float(tv_F.mean()),
            float(tv_F.max()),
            float((ours[:, 0] != theirs[:, 0]).double().mean()),
            float((top - shared_F).double().mean()),
            len(p),
            p.shape[-1],
        )
