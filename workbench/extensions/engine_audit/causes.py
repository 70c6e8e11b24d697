"""Which hypotheses close the gap: controlled toggles, one after the other, the best first. A waterfall and a verdict.

Axis letters: M sampled tokens that are looked at.

Each toggle computes the trainer's numbers as they would be if one thing had gone wrong. The one that leaves the least
is taken, the others are tried on top of it, until what is left is rounding or nothing helps any more. Two ways of being
convinced: a toggle halves a gap that rounding does not explain; or the gap, however small, lies along the very line
from the new weights to older ones, which rounding errors of hundreds of tokens do not do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from workbench.engines.gap import TRAINING_LIMITS
from workbench.extensions.engine_audit.claims import Claims, RecordedLogits
from workbench.extensions.engine_audit.forward import LARGEST, Forward, Hypothesis, bent
from workbench.extensions.engine_audit.toggles import (
    ADAPTER,
    DTYPE,
    HEAD,
    IDS,
    PART,
    POSITION,
    SHARED,
    STALE,
    SYNC,
    TEMPERATURE,
    TOP_P,
    TRAINER,
    UNEXPLAINED,
    Toggle,
    fitted_toggles,
)

MEND = {
    TEMPERATURE: "tell the trainer: divide its logits by the temperature, or train on the plain logprobs",
    TOP_P: "renormalise the trainer's distribution over the same tokens, or sample with top_p = 1 for training",
    STALE: "sync after every update and before the next rollout; check that nothing keeps the old weights (a cache)",
    HEAD: "prepare the tied output head again after loading (vLLM on CPU: vllm_transfer.pack_embeddings)",
    PART: "find out why these tensors are not loaded: a name that the engine spells otherwise is passed over in silence",
    DTYPE: "set engine.dtype to the trainer's, or keep a per-token importance ratio and watch its size",
    POSITION: "compare position ids token by token at the first turn's border; a cache that counts one token too many or "
    "too few shifts everything after it",
    IDS: "train the ids that were sampled; never decode and tokenize them again",
    ADAPTER: "merge the adapter into the weights before they are handed to the engine, or load it there as an adapter",
    TRAINER: "look at packing and position ids of the trainer's micro-batches; learner.layout='padded' goes without",
    SYNC: "the engine's sync does nothing, or only a part of it arrives",
    SHARED: "give the engine its own copy of the weights (an engine gets new weights by a sync only)",
    UNEXPLAINED: "compare the two layer by layer on the worst token; the model may be computed differently (attention "
    "kernel, a soft cap, a window)",
}
ROUGH = 1e-3  # an alarm above this is one of half precision: older weights may hide under it
CERTAIN = 8.0  # standard errors that the share along a line to older weights must stand above zero
HALF = 0.5  # a cause takes away at least this share of the gap
ALIKE = (
    2.5  # rounding to a dtype is of the same size as what was found if their ratio is below this
)
CLOSED = 0.05  # what leaves less than this share of the alarm has closed the gap: nothing simpler is looked for
MOST_CAUSES = 4
SAY_S = 5.0  # between two words on what is tried


@dataclass(frozen=True)
class WaterfallStep:
    """One bar of the waterfall: mean |difference| in nats before and after the toggle was taken."""

    kind: str
    words: str
    before: float
    after: float
    declared: bool = False

    @property
    def nats(self) -> float:
        return self.before - self.after


@dataclass(frozen=True)
class Cause:
    """A named fault. `evidence`: the numbers it rests on."""

    kind: str
    words: str
    evidence: str

    @property
    def mend(self) -> str:
        return MEND[self.kind]


@dataclass(frozen=True, eq=False)
class Explained:
    """`steps`: the waterfall; `left_M`: what no toggle explains, per token; `tried`: how many hypotheses were tried."""

    steps: tuple[WaterfallStep, ...]
    causes: tuple[Cause, ...]
    left_M: np.ndarray
    tried: int
    now: Hypothesis = Hypothesis()


@dataclass
class _Search:
    """Which toggles were taken so far (`now`, `steps`) and what they leave unexplained (`left`, [2, M])."""

    forward: Forward
    claims: Claims
    limits: tuple[float, float]
    now: Hypothesis = Hypothesis()
    steps: list[WaterfallStep] = field(default_factory=list)
    tried: int = 0
    on_note: Callable[[str], None] = lambda words: None
    said_at: float = 0.0

    def __post_init__(self) -> None:
        self.left = difference(self.forward, self.claims, self.now)

    def after(self, toggle: Toggle) -> np.ndarray:
        """The gap that would be left with this toggle on top."""
        self.tried += 1
        if time.monotonic() - self.said_at > SAY_S:
            self.said_at = time.monotonic()
            self.on_note(f"hypothesis {self.tried}: {toggle.words}")
        return difference(self.forward, self.claims, replace(self.now, **toggle.change))

    def take(self, toggle: Toggle, after: np.ndarray) -> None:
        self.steps.append(
            WaterfallStep(
                toggle.kind, toggle.words, _mean(self.left), _mean(after), toggle.declared
            )
        )
        self.now = replace(self.now, **toggle.change)
        self.left = after

    def best(
        self, toggles: Sequence[Toggle], rarely: Sequence[Toggle], fit: bool
    ) -> tuple[Toggle, np.ndarray, str] | None:
        """The convincing toggle that leaves least, what it leaves, and why it convinces; None where none does."""
        beyond = not within(self.left, self.limits)
        convincing = []
        for toggle in self._candidates(toggles, rarely, beyond, fit):
            if not beyond and not toggle.of_weights:
                continue
            after = self.after(toggle)
            why = _convincing(self.left, after, beyond, toggle)
            if why is not None:
                convincing.append((_mean(after), toggle, after, why))
                if _mean(after) < CLOSED * self.limits[0]:
                    break
        if not convincing:
            return None
        # The smallest remainder; of equal ones the first, which is the simpler hypothesis.
        least = min(mean for mean, *_ in convincing)
        return next(f[1:] for f in convincing if f[0] <= max(1.05 * least, self.limits[0] * 0.01))

    def _candidates(
        self, toggles: Sequence[Toggle], rarely: Sequence[Toggle], beyond: bool, fit: bool
    ) -> Iterator[Toggle]:
        """Simple ones first."""
        yield from (toggle for toggle in toggles if not toggle.declared)
        if beyond:
            yield from rarely
            if fit:
                yield from fitted_toggles(self.forward, self.claims, self.now)


def explain(
    forward: Forward,
    claims: Claims,
    limits: tuple[float, float],
    toggles: Sequence[Toggle],
    rarely: Sequence[Toggle] = (),
    fit: bool = True,
    on_note: Callable[[str], None] = lambda words: None,
) -> Explained:
    """Attribute the difference between claims and trainer.

    `limits`: (mean, largest) nats that rounding explains under the declared dtypes. `toggles` are always tried;
    `rarely`, and temperature and top-p that were not declared (`fit`), only where the gap is beyond the limits. `on_note` is told what is tried, now and then.
    """
    search = _Search(forward, claims, limits, on_note=on_note)
    causes: list[Cause] = []
    for toggle in (t for t in toggles if t.declared):
        after = search.after(toggle)
        if _mean(after) < _mean(search.left):
            search.take(toggle, after)
    while len(causes) < MOST_CAUSES and (best := search.best(toggles, rarely, fit)) is not None:
        toggle, after, why = best
        search.take(toggle, after)
        causes.append(Cause(toggle.kind, toggle.words, why))
        if toggle.kind == DTYPE:  # two computations in that dtype differ by its rounding still
            named = str(toggle.change.get("dtype") or toggle.change["head_dtype"])
            search.limits = tuple(map(max, search.limits, limits_for((named,), False)))
    left = search.left
    if not within(left, search.limits):
        by_size = _by_size(search, [*toggles, *rarely]) if not causes else None
        causes.append(by_size or _unexplained(search))
        if by_size is not None:
            search.steps.append(WaterfallStep(DTYPE, by_size.words, _mean(left), 0.0))
    return Explained(tuple(search.steps), tuple(causes), left, search.tried, search.now)


def _unexplained(search: _Search) -> Cause:
    return Cause(
        UNEXPLAINED,
        "none of the hypotheses closes the gap",
        f"{_mean(search.left):.2g} nats per token are left, the worst {_largest(search.left):.2g}; rounding explains "
        f"a mean of {search.limits[0]:g} and {search.limits[1]:g} at worst; {search.tried} hypotheses were tried",
    )


def hidden_weights(
    forward: Forward,
    claims: Claims,
    recorded: RecordedLogits,
    now: Hypothesis,
    toggles: Sequence[Toggle],
) -> Cause | None:
    """Older weights, or a part of them, that hide under the rounding of half precision: looked for in the whole
    distributions of all tokens at once, weighted by their probability. None: no set of weights is certain.

    The errors of a token's many logprobs are alike, so standard errors are taken over tokens.
    """
    index = torch.from_numpy(recorded.index_F)
    settings = recorded.settings(claims)

    def rows(hypothesis: Hypothesis) -> torch.Tensor:
        return bent(forward.logits(hypothesis)[index], *settings).double().cpu()

    base = rows(now)
    weight = base.exp().sqrt()
    known = (weight > 0) & recorded.logp_FV.isfinite()

    def weighted(values: torch.Tensor) -> torch.Tensor:
        return torch.where(known, weight * (values - base), 0.0)

    was = weighted(recorded.logp_FV.double())
    certain: list[tuple[float, Toggle, float, float]] = []
    for toggle in toggles:
        line = weighted(rows(replace(now, **toggle.change)))
        size = float((line**2).sum())
        if not size > 0 or not np.isfinite(size):
            continue
        share = float((was * line).sum()) / size
        error = float(((was - share * line) * line).sum(-1).square().sum().sqrt()) / size
        if HALF < share < 2 - HALF and share > CERTAIN * error:
            certain.append((share**2 * size, toggle, share, error))
    if not certain:
        return None
    _, toggle, share, error = max(certain, key=lambda candidate: candidate[0])
    return Cause(
        toggle.kind, toggle.words, _share_in_words(share, error, difference(forward, claims, now))
    )


def _share_in_words(share: float, error: float, left: np.ndarray) -> str:
    return (
        f"over the whole vocabulary the differences lie {share:.0%} of the way to it, {share / max(error, 1e-12):.0f} "
        f"standard errors from none of it, though {_mean(left):.2g} nats per token are no more than rounding"
    )


def difference(forward: Forward, claims: Claims, hypothesis: Hypothesis) -> np.ndarray:
    """[2, M]: the engine's number less that of a hypothesis, of plain logprobs and of those sampled from; NaN: not
    comparable. Capped, so that one impossible token is not all there is."""
    rows = []
    for said_M, settings in (
        (claims.plain_M, (1.0, 1.0)),
        (claims.said_M, (claims.temperature_M, claims.top_p_M)),
    ):
        nothing = np.isnan(said_M).all()
        with np.errstate(invalid="ignore"):
            rows.append(said_M if nothing else said_M - forward.claims(hypothesis, *settings))
    return np.clip(np.stack(rows), -LARGEST, LARGEST)


def gap_words(left: np.ndarray, limits: tuple[float, float]) -> str:
    """How large the gap is, and whether a cause is looked for."""
    gap = f"engine and trainer differ by {_mean(left):.2g} nats per token, {_largest(left):.2g} at most"
    bound = f"{limits[0]:g} and {limits[1]:g}"
    if within(left, limits):
        return f"{gap}: rounding explains {bound}, so no cause is looked for but older weights, which can hide below that"
    return f"{gap}: more than rounding explains ({bound}); looking for the cause"


def within(left: np.ndarray, limits: tuple[float, float]) -> bool:
    return _mean(left) < limits[0] and _largest(left) < limits[1]


def _mean(left: np.ndarray) -> float:
    return float(np.nanmean(np.abs(left)))


def _largest(left: np.ndarray) -> float:
    return float(np.nanmax(np.abs(left)))


def _convincing(before: np.ndarray, after: np.ndarray, beyond: bool, toggle: Toggle) -> str | None:
    """Why a toggle is a cause, in numbers; None: it is not."""
    both = ~np.isnan(before) & ~np.isnan(after)
    was = before[both]
    is_now = after[both]
    if not len(was):
        return None
    mean_was = float(np.abs(was).mean())
    mean_now = float(np.abs(is_now).mean())
    if beyond and mean_now <= HALF * mean_was:
        return f"{mean_was:.2g} nats per token without it, {mean_now:.2g} with it"
    line = was - is_now  # from the trainer's numbers to the hypothesis'
    size = float((line**2).sum())
    if not toggle.of_weights or not size > 0:
        return None
    share = float((was * line).sum()) / size
    error = float(np.std(was - share * line)) / np.sqrt(size)
    if share > HALF and share > CERTAIN * error:
        return (
            f"the differences ({mean_was:.2g} nats per token) lie {share:.0%} of the way to it, "
            f"{share / max(error, 1e-12):.0f} standard errors from none of it"
        )
    return None


def _by_size(search: _Search, toggles: Sequence[Toggle]) -> Cause | None:
    """Two computations in half precision round differently, so trying the dtype does not close the gap; but it shows how
    large such a gap is."""
    base = difference(search.forward, search.claims, search.now)
    candidates = []
    for toggle in toggles:
        if toggle.kind == DTYPE and not toggle.declared and "dtype" in toggle.change:
            made = base - difference(
                search.forward, search.claims, replace(search.now, **toggle.change)
            )
            ratio = max(_mean(made), 1e-30) / max(_mean(search.left), 1e-30)
            candidates.append((abs(np.log(ratio)), ratio, toggle))
    distance, ratio, toggle = min(
        candidates, key=lambda candidate: candidate[0], default=(np.inf, 0.0, None)
    )
    if distance > np.log(ALIKE):
        return None
    return Cause(
        DTYPE,
        toggle.words,
        f"{_mean(search.left):.2g} nats per token, and rounding to this dtype makes "
        f"{ratio * _mean(search.left):.2g}",
    )


def limits_for(engine_dtypes: Sequence[str], bf16: bool) -> tuple[float, float]:
    """(mean, largest) nats that rounding may leave between engine and trainer."""
    dtypes = [*engine_dtypes, *(["bfloat16"] if bf16 else [])] or ["float32"]
    pairs = [TRAINING_LIMITS[getattr(torch, dtype)] for dtype in dtypes]
    return max(mean for mean, _ in pairs), max(largest for _, largest in pairs)
