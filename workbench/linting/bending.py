"""Are the logprobs of a bent sampler those that temperature and top-p make of the model's own? (part of R12)

The two numbers that are stored with a token cannot tell: how far temperature moves one token depends on all the others.
So the whole distribution is computed anew, by the plain model of a probe, and bent here by the definitions, which share
nothing with an engine's.

Axis letters: L tokens of one segment · V vocabulary · M sampled tokens that were compared.
"""
from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import torch

from workbench.findings import Finding, Looked
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Said
from workbench.types import Segment, Span

CLEAR = 0.01   # nats: far above the rounding of two float32 passes (logprobs differ by 1e-4), far below a wrong setting
SHARE = 0.05   # of the tokens: rounding may put one at the edge of the nucleus on its other side, seldom
ENOUGH = 16


def bent_logprobs(logp_LV: np.ndarray, temperature: float, top_p: float) -> np.ndarray:
    """What is left of log-probabilities [L, V], float64: p**(1/T), then the smallest set of likeliest tokens that
    reaches top_p (Holtzman et al. 2020, arXiv 1904.09751), each time so that they sum to 1; -inf outside of the set."""
    bent_LV = logp_LV.astype(np.float64) / temperature
    bent_LV -= np.logaddexp.reduce(bent_LV, axis=1, keepdims=True)
    if top_p < 1:
        order_LV = np.argsort(-bent_LV, axis=1, kind="stable")
        sorted_LV = np.take_along_axis(np.exp(bent_LV), order_LV, 1)
        before_LV = np.cumsum(sorted_LV, axis=1) - sorted_LV
        np.put_along_axis(bent_LV, order_LV, np.where(before_LV >= top_p, -np.inf,
                                                      np.take_along_axis(bent_LV, order_LV, 1)), 1)
        bent_LV -= np.logaddexp.reduce(bent_LV, axis=1, keepdims=True)
    return bent_LV


def against_the_model(evidence: Evidence) -> Iterator[Said]:
    """The stored logprobs of bent spans beside those of the plain model, which has the untrained weights."""
    probe = evidence.probe
    if probe is None or probe.unable is not None or evidence.policy_version not in (None, 0):
        return
    left, where, said_M, own_M = probe.tokens, [], [], []
    for n, s, segment in _segments(evidence):
        if left <= 0:
            break
        ids_L = torch.from_numpy(np.concatenate([span.token_ids for span in segment.spans]).astype(np.int64))
        left -= len(ids_L)
        rows_LV = probe.predictions(ids_L).numpy()
        for start, span in zip(accumulate((len(span) for span in segment.spans), initial=0), segment.spans):
            if not _is_bent(span) or not start:
                continue
            logp_LV = bent_logprobs(rows_LV[start - 1:start - 1 + len(span)], span.sampling.temperature,
                                    span.sampling.top_p)
            said_M += span.logprobs.tolist()
            own_M += logp_LV[np.arange(len(span)), span.token_ids].tolist()
            where += [(n, s, span, start + place) for place in range(len(span))]
    yield Looked(len(where))
    off_M = np.flatnonzero(~(np.abs(np.array(said_M) - np.array(own_M)) < CLEAR))
    if len(where) >= ENOUGH and len(off_M) > SHARE * len(where):
        first = int(off_M[0])
        n, s, span, position = where[first]
        yield Finding(
            f"temperature {span.sampling.temperature:g} and top-p {span.sampling.top_p:g} make {own_M[first]:.4f} of "
            f"the model's own distribution, stored is {said_M[first]:.4f}; so at {len(off_M)} of {len(where)} tokens: "
            "the sampler bends otherwise than it says", evidence.place(n, segment=s, turn=span.turn, position=position),
            count=len(off_M))


def _segments(evidence: Evidence) -> Iterator[tuple[int, int, Segment]]:
    for n, trajectory in enumerate(evidence.trajectories):
        for s, segment in enumerate(trajectory.segments):
            if any(_is_bent(span) for span in segment.spans):
                yield n, s, segment


def _is_bent(span: Span) -> bool:
    sampling = span.sampling
    return (span.logprobs is not None and len(span) > 0 and span.policy_version in (None, 0) and sampling is not None
            and sampling.bends and sampling.temperature != 0 and sampling.dtype == "float32")
