"""Are the logprobs of a bent sampler those that temperature and top-p make of the model's own? (part of R12)
And does one that is not bent draw by the logprobs that it says? (part of R23, at the end)

The two numbers that are stored with a token cannot tell: how far temperature moves one token depends on all the others.
So the whole distribution is computed anew, by the plain model of a probe, and bent by `plain.engine`, which shares nothing
with an engine.

Axis letters: L tokens of one segment · V vocabulary · M sampled tokens that were compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, Place
from workbench.basics.tensors import torch
from workbench.linting.evidence import Evidence
from workbench.linting.rule import RuleResult
from workbench.values import Span
from workbench.values.seeds import rng_at

CLEAR = 0.01  # nats: far above the rounding of two float32 passes (logprobs differ by 1e-4), far below a wrong setting
SHARE = (
    0.05  # of the tokens: rounding may put one at the edge of the nucleus on its other side, seldom
)
ENOUGH = 16
OPEN = 0.3  # nats of entropy: below it almost all tokens are a little likelier than on average, few much less likely
DRAWS = 800  # so many open ones before their mean says anything: then a few dozen of the unlikely ones are expected
STRANGE = 6.0  # standard errors: a note
IMPOSSIBLE = 8.0  # ... an error
BINS = 10  # of the places of tokens
UNEVEN = 45.0  # chi-square of so many bins: above it by chance in 1e-6 of all cases
BENT = 60.0  # ... in 1e-9
PLACED = 100  # tokens, before their places in the distribution say anything
CERTAIN = 0.9  # a likeliest token above this is drawn wherever random numbers lie
LOOKS = 4  # times the tokens of a probe: without gradients they cost a fraction
WHOLE = 0.9  # of what was sampled: where credit chose among trajectories, it chose among draws


def against_the_model(evidence: Evidence) -> Iterator[RuleResult]:
    """The stored logprobs of bent spans beside those of the plain model, which has the untrained weights, bent as
    `workbench.plain` bends them."""
    from workbench.plain.engine import distribution

    flat = evidence.flat
    where: list[tuple[int, int]] = []
    stored: list[float] = []
    computed: list[float] = []
    for _, spans, rows_LV in _predicted(evidence, _is_bent, 1):
        for p in spans:
            span = flat.spans[p]
            first = int(flat.start_P[p]) - 1
            for k, token_id in enumerate(span.token_ids.tolist()):
                row_V = torch.from_numpy(rows_LV[first + k])
                logp_V = distribution(row_V, span.sampling.temperature, span.sampling.top_p)
                computed.append(float(logp_V[token_id]))
                where.append((p, k))
            stored += span.logprobs.tolist()
    yield Checked(len(where))
    off = np.flatnonzero(~(np.abs(np.array(stored) - np.array(computed)) < CLEAR))
    if len(where) >= ENOUGH and len(off) > SHARE * len(where):
        first = int(off[0])
        sampling = flat.spans[where[first][0]].sampling
        yield Finding(
            f"temperature {sampling.temperature:g} and top-p {sampling.top_p:g} make {computed[first]:.4f} of the model's "
            f"own distribution, stored is {stored[first]:.4f}; so at {len(off)} of {len(where)} tokens: the sampler "
            "modifies the distribution in another way than declared",
            flat.place_of_span(*where[first]),
            count=len(off),
        )


def _predicted(
    evidence: Evidence, is_wanted: Callable[[Span], bool], looks: int
) -> Iterator[tuple[int, list[int], np.ndarray]]:
    """Segments with wanted spans, as many as a probe can take `looks` times: the segment, these spans, and the plain
    model's log-probabilities of whatever may stand at its second token and after [L - 1, V]. None where the weights
    have moved since."""
    probe = evidence.probe
    flat = evidence.flat
    if probe is None or probe.not_itself is not None or evidence.policy_version not in (None, 0):
        return
    left = probe.own_tokens or looks * probe.tokens
    for segment in range(len(flat.trajectory_S)):
        spans = [p for p in flat.spans_of(segment) if is_wanted(flat.spans[p]) and flat.start_P[p]]
        ids_L = flat.segment_ids(segment).astype(np.int64)
        if probe.own_tokens:  # a large policy is asked about the beginning of a segment
            ids_L = ids_L[: max(left, 0)]
            spans = [p for p in spans if flat.start_P[p] + flat.length_P[p] <= len(ids_L)]
        if spans and left > 0:
            left -= len(ids_L)
            yield segment, spans, probe.predictions(torch.from_numpy(ids_L)).numpy()


def _is_bent(span: Span) -> bool:
    sampling = span.sampling
    return (
        span.logprobs is not None
        and len(span) > 0
        and span.policy_version in (None, 0)
        and sampling is not None
        and sampling.bends
        and sampling.temperature != 0
        and sampling.dtype == "float32"
    )


# ------------------------------------------------------------------------------------------------ are they drawn?


def drawn_as_said(logp_M: np.ndarray, entropy_M: np.ndarray, place: Place) -> Iterator[RuleResult]:
    """logp + entropy of a token that was drawn from this very distribution is 0 on average, whatever was drawn before
    it: sums of it are a martingale, also where a turn ends by what was drawn, and its steps are uncorrelated. [M]"""
    open_M = np.isfinite(logp_M) & (entropy_M > OPEN)
    surprise = logp_M[open_M].astype(np.float64) + entropy_M[open_M]
    yield Checked(len(surprise))
    if len(surprise) < DRAWS:
        return
    error = float(np.sqrt((surprise**2).sum()))
    away = float(surprise.sum()) / max(error, 1e-12)
    if abs(away) > STRANGE:
        yield Finding(
            f"the tokens drawn are {'more' if away > 0 else 'less'} likely than draws from the distribution "
            f"of their logprobs: logp + entropy is {surprise.mean():+.4f} nats on average over "
            f"{len(surprise)} tokens, {abs(away):.1f} standard errors away from 0. The sampler's random "
            "numbers are not uniform, or it draws from another distribution than it says",
            place,
            ERROR if abs(away) > IMPOSSIBLE else NOTE,
            len(surprise),
        )


def drawn_from_the_model(evidence: Evidence) -> Iterator[RuleResult]:
    """Where in its distribution does each token lie? Its place, in the order of token ids, with a random number between
    where it begins and where it ends, is uniform and independent of those before it (Rosenblatt 1952), whatever the
    sampler's method. Random numbers that are not uniform, or the same one at every position of a turn, show in it."""
    flat = evidence.flat
    rng = rng_at("lint.drawn")
    by_span: list[np.ndarray] = []
    open_places: list[np.ndarray] = []
    for segment, plain_spans, logp_LV in _predicted(evidence, _is_plain, LOOKS):
        p_LV = np.exp(logp_LV.astype(np.float64))
        chosen = np.arange(len(p_LV)), flat.segment_ids(segment)[1 : len(p_LV) + 1]
        place_L = np.cumsum(p_LV, axis=1)[chosen] - rng.random(len(p_LV)) * p_LV[chosen]
        open_L = p_LV.max(1) < CERTAIN
        for p in plain_spans:
            first = int(flat.start_P[p]) - 1
            here = slice(first, first + len(flat.spans[p]))
            by_span.append(place_L[here])
            open_places.append(place_L[here][open_L[here]])
    places = np.concatenate([np.zeros(0), *open_places])
    yield Checked(len(places))
    if len(places) >= PLACED:
        yield from _uneven(places, Place(step=evidence.step))
        yield from _alike_in_a_row(by_span, Place(step=evidence.step))


def _uneven(places: np.ndarray, place: Place) -> Iterator[Finding]:
    """Places in [0, 1] that are not uniform."""
    counts = np.bincount(np.clip((places * BINS).astype(int), 0, BINS - 1), minlength=BINS)
    expected = len(places) / BINS
    chi_square = float(((counts - expected) ** 2).sum() / expected)
    if chi_square > UNEVEN:
        yield Finding(
            f"the places of {len(places)} sampled tokens in the model's own distribution are not even: tenth "
            f"by tenth {', '.join(map(str, counts))} (chi-square {chi_square:.0f}, by chance below {UNEVEN:g}). "
            "The sampler's random numbers are not uniform, or it draws from another distribution",
            place,
            ERROR if chi_square > BENT else NOTE,
            len(places),
        )


def _alike_in_a_row(by_span: Sequence[np.ndarray], place: Place) -> Iterator[Finding]:
    """Places of tokens that follow on each other and are correlated."""
    products = [(places[1:] - 0.5) * (places[:-1] - 0.5) for places in by_span]
    pairs = np.concatenate([np.zeros(0), *products])
    away = 12 * float(pairs.sum()) / max(len(pairs), 1) ** 0.5
    if len(pairs) >= PLACED and abs(away) > STRANGE:
        yield Finding(
            f"the places of tokens that follow on each other in a turn are alike: correlation "
            f"{12 * pairs.mean():+.2f} over {len(pairs)} pairs, {abs(away):.0f} standard errors away from 0. "
            "The sampler uses a random number again",
            place,
            ERROR if abs(away) > IMPOSSIBLE else NOTE,
            len(pairs),
        )


def _is_plain(span: Span) -> bool:
    """Sampled by an engine that has a distribution, which nothing bends."""
    sampling = span.sampling
    return (
        span.logprobs is not None
        and sampling is not None
        and not sampling.bends
        and sampling.dtype == "float32"
        and sampling.engine not in ("scripted", "human", "")
    )
