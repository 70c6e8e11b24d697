"""Which hypotheses close the gap: controlled toggles, one after the other, the best first. A waterfall and a verdict.

Axis letters: M sampled tokens that are looked at.

Each toggle computes the trainer's numbers as they would be if one thing had gone wrong. The one that leaves the least
is taken, the others are tried on top of it, until what is left is rounding or nothing helps any more. Two ways of being
convinced: a toggle halves a gap that rounding does not explain; or the gap, however small, lies along the very line
from the new weights to older ones, which rounding errors of hundreds of tokens do not do.
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from workbench.auditing.claims import Claims, RecordedLogits
from workbench.auditing.forward import LARGEST, NOW, POSITIONS, Forward, Hypothesis, bent
from workbench.engines.gap import TRAINING_LIMITS

TEMPERATURE, TOP_P, STALE, HEAD, PART = "temperature", "top-p", "stale weights", "output head", "part of the weights"
DTYPE, POSITION, IDS, ADAPTER, TRAINER = "dtype", "positions", "different ids", "adapter", "trainer's own pass"
SYNC, SHARED, UNEXPLAINED = "sync", "shared weights", "unexplained"
KINDS = (TEMPERATURE, TOP_P, STALE, HEAD, PART, DTYPE, POSITION, IDS, ADAPTER, TRAINER, SYNC, SHARED, UNEXPLAINED)

MEND = {
    TEMPERATURE: "tell the trainer: divide its logits by the temperature, or train on the plain logprobs",
    TOP_P: "renormalise the trainer's distribution over the same tokens, or sample with top_p = 1 for training",
    STALE: "sync after every update and before the next rollout; check that nothing keeps the old weights (a cache)",
    HEAD: "prepare the tied output head again after loading (vLLM on CPU: VllmCore.refresh_tied)",
    PART: "find out why these tensors are not loaded: a name that the engine spells otherwise is passed over in silence",
    DTYPE: "set engine.dtype to the trainer's, or keep a per-token importance ratio and watch its size",
    POSITION: "compare position ids token by token at the first turn's border; a cache that counts one token too many or "
              "too few shifts everything after it",
    IDS: "train the ids that were sampled; never decode and tokenize them again",
    ADAPTER: "merge the adapter into the weights before they are handed to the engine, or load it there as an adapter",
    TRAINER: "look at packing and position ids of the trainer's micro-batches; learner.layout='padded' goes without",
    SYNC: "the engine's sync does nothing, or only a part of it arrives",
    SHARED: "give the engine its own copy of the weights (law: an engine is told of new weights, it does not see them)",
    UNEXPLAINED: "compare the two layer by layer on the worst token; the model may be computed differently (attention "
                 "kernel, a soft cap, a window)",
}
CERTAIN = 8.0   # standard errors that the share along a line to older weights must stand above zero
HALF = 0.5      # a cause takes away at least this share of the gap
ALIKE = 2.5     # rounding to a dtype is of the same size as what was found if their ratio is below this
CLOSED = 0.05   # what leaves less than this share of the alarm has closed the gap: nothing simpler is looked for
FITTED = 0.02   # a temperature nearer than this to the one that was declared is no finding: rounding bends a little too
SUBSET = 192    # tokens that temperature and top-p are fitted on


@dataclass(frozen=True)
class Toggle:
    """A hypothesis and what it means if it closes the gap. `declared`: the settings say so, it is no fault."""

    kind: str
    words: str
    change: Mapping[str, object]
    of_weights: bool = False
    declared: bool = False


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


def explain(forward: Forward, claims: Claims, limits: tuple[float, float], toggles: Sequence[Toggle],
            rarely: Sequence[Toggle] = (), fit: bool = True) -> Explained:
    """Attribute the difference between claims and trainer.

    `limits`: (mean, largest) nats that rounding explains under the declared dtypes. `toggles` are always tried;
    `rarely`, and temperature and top-p that nobody declared (`fit`), only where the gap is beyond the limits.
    """
    now, steps, causes, tried = Hypothesis(), [], [], 0
    left = difference(forward, claims, now)
    for toggle in (t for t in toggles if t.declared):
        after = difference(forward, claims, replace(now, **toggle.change))
        tried += 1
        if _mean(after) < _mean(left):
            steps.append(WaterfallStep(toggle.kind, toggle.words, _mean(left), _mean(after), declared=True))
            now, left = replace(now, **toggle.change), after
    for _ in range(4):
        beyond = not within(left, limits)
        found: list[tuple[float, Toggle, np.ndarray, str]] = []
        for toggle in _candidates(forward, claims, now, toggles, rarely, beyond, fit):
            if not beyond and not toggle.of_weights:
                continue
            after = difference(forward, claims, replace(now, **toggle.change))
            tried += 1
            why = _convincing(left, after, beyond, toggle)
            if why is not None:
                found.append((_mean(after), toggle, after, why))
                if _mean(after) < CLOSED * limits[0]:
                    break
        if not found:
            break
        # The smallest remainder; of equal ones the first, which is the simpler hypothesis.
        least = min(mean for mean, *_ in found)
        _, toggle, after, why = next(f for f in found if f[0] <= max(1.05 * least, limits[0] * 0.01))
        steps.append(WaterfallStep(toggle.kind, toggle.words, _mean(left), _mean(after)))
        causes.append(Cause(toggle.kind, toggle.words, why))
        now, left = replace(now, **toggle.change), after
        if toggle.kind == DTYPE:  # two computations in that dtype differ by its rounding still
            named = str(toggle.change.get("dtype") or toggle.change["head_dtype"])
            limits = tuple(map(max, limits, limits_for((named,), False)))
    if not within(left, limits):
        by_size = _by_size(forward, claims, now, left, [*toggles, *rarely]) if not causes else None
        causes.append(by_size or Cause(UNEXPLAINED, "none of the hypotheses closes the gap", (
            f"{_mean(left):.2g} nats per token are left, the worst {_largest(left):.2g}; rounding explains a mean of "
            f"{limits[0]:g} and {limits[1]:g} at worst; {tried} hypotheses were tried")))
        if by_size is not None:
            steps.append(WaterfallStep(DTYPE, by_size.words, _mean(left), 0.0))
    return Explained(tuple(steps), tuple(causes), left, tried, now)


def sharper(forward: Forward, claims: Claims, heard: RecordedLogits, now: Hypothesis,
            toggles: Sequence[Toggle]) -> Cause | None:
    """Older weights, or a part of them, that hide under the rounding of half precision: looked for in the whole
    distributions of all tokens at once, weighted by their probability. None: no set of weights is certain.

    The errors of a token's many logprobs are alike, so standard errors are taken over tokens.
    """
    index = torch.from_numpy(heard.index_F)
    ones = np.ones(len(index))
    settings = (claims.temperature_M[heard.index_F], claims.top_p_M[heard.index_F]) if heard.bent else (ones, ones)

    def rows(hypothesis: Hypothesis) -> torch.Tensor:
        return bent(forward.logits(hypothesis)[index], *settings).double().cpu()

    base = rows(now)
    weight = base.exp().sqrt()
    known = (weight > 0) & heard.logp_FV.isfinite()

    def weighted(values: torch.Tensor) -> torch.Tensor:
        return torch.where(known, weight * (values - base), 0.0)

    was, found = weighted(heard.logp_FV.double()), []
    for toggle in toggles:
        line = weighted(rows(replace(now, **toggle.change)))
        size = float((line**2).sum())
        if not size > 0 or not np.isfinite(size):
            continue
        share = float((was * line).sum()) / size
        error = float(((was - share * line) * line).sum(-1).square().sum().sqrt()) / size
        if HALF < share < 2 - HALF and share > CERTAIN * error:
            found.append((share**2 * size, toggle, share, error))
    if not found:
        return None
    _, toggle, share, error = max(found, key=lambda each: each[0])
    return Cause(toggle.kind, toggle.words, (
        f"over the whole vocabulary the differences lie {share:.0%} of the way to it, {share / max(error, 1e-12):.0f} "
        f"standard errors from none of it, though {_mean(difference(forward, claims, now)):.2g} nats per token are no "
        "more than rounding"))


def _candidates(forward: Forward, claims: Claims, now: Hypothesis, toggles: Sequence[Toggle],
                rarely: Sequence[Toggle], beyond: bool, fit: bool) -> Iterator[Toggle]:
    """Simple ones first."""
    yield from (toggle for toggle in toggles if not toggle.declared)
    if beyond:
        yield from rarely
        if fit:
            yield from _fitted(forward, claims, now)


def difference(forward: Forward, claims: Claims, hypothesis: Hypothesis) -> np.ndarray:
    """[2, M]: the engine's number less that of a hypothesis, of plain logprobs and of those sampled from; NaN: not
    comparable. Capped, so that one impossible token is not all there is."""
    ones = np.ones_like(claims.temperature_M)
    rows = []
    for said_M, temperature_M, top_p_M in ((claims.plain_M, ones, ones),
                                           (claims.said_M, claims.temperature_M, claims.top_p_M)):
        if np.isnan(said_M).all():
            rows.append(np.full(len(claims), np.nan))
        else:
            with np.errstate(invalid="ignore"):
                rows.append(said_M - forward.claims(hypothesis, temperature_M, top_p_M))
    return np.clip(np.stack(rows), -LARGEST, LARGEST)


def within(left: np.ndarray, limits: tuple[float, float]) -> bool:
    return _mean(left) < limits[0] and _largest(left) < limits[1]


def _mean(left: np.ndarray) -> float:
    return float(np.nanmean(np.abs(left)))


def _largest(left: np.ndarray) -> float:
    return float(np.nanmax(np.abs(left)))


def _convincing(before: np.ndarray, after: np.ndarray, beyond: bool, toggle: Toggle) -> str | None:
    """Why a toggle is a cause, in numbers; None: it is not."""
    both = ~np.isnan(before) & ~np.isnan(after)
    was, is_now = before[both], after[both]
    if not len(was):
        return None
    mean_was, mean_now = float(np.abs(was).mean()), float(np.abs(is_now).mean())
    if beyond and mean_now <= HALF * mean_was:
        return f"{mean_was:.2g} nats per token without it, {mean_now:.2g} with it"
    line = was - is_now  # from the trainer's numbers to the hypothesis'
    size = float((line**2).sum())
    if not toggle.of_weights or not size > 0:
        return None
    share = float((was * line).sum()) / size
    error = float(np.std(was - share * line)) / np.sqrt(size)
    if share > HALF and share > CERTAIN * error:
        return (f"the differences ({mean_was:.2g} nats per token) lie {share:.0%} of the way to it, "
                f"{share / max(error, 1e-12):.0f} standard errors from none of it")
    return None


def _by_size(forward: Forward, claims: Claims, now: Hypothesis, left: np.ndarray,
             toggles: Sequence[Toggle]) -> Cause | None:
    """Two computations in half precision round differently, so trying the dtype does not close the gap; but it shows how
    large such a gap is."""
    found = []
    base = difference(forward, claims, now)
    for toggle in toggles:
        if toggle.kind == DTYPE and not toggle.declared and "dtype" in toggle.change:
            made = base - difference(forward, claims, replace(now, **toggle.change))
            ratio = max(_mean(made), 1e-30) / max(_mean(left), 1e-30)
            found.append((abs(np.log(ratio)), ratio, toggle))
    if not found:
        return None
    distance, ratio, toggle = min(found, key=lambda each: each[0])
    if distance > np.log(ALIKE):
        return None
    return Cause(DTYPE, toggle.words, f"{_mean(left):.2g} nats per token, and rounding to this dtype makes "
                                      f"{ratio * _mean(left):.2g}")


# ------------------------------------------------------------------------------------------------ toggles


def weight_toggles(known: Mapping[str, str], adapters: Sequence[str] = ()) -> list[Toggle]:
    """Older sets of weights as a whole. `known`: name -> words; those in `adapters` differ from now by an adapter."""
    return [Toggle(ADAPTER if name in adapters else STALE,
                   f"the adapter is not merged: the engine has {words}" if name in adapters else
                   f"the engine samples from {words}", {"weights": name}, of_weights=True)
            for name, words in known.items() if name != NOW]


def part_toggles(forward: Forward, known: Mapping[str, str], tied: bool) -> list[Toggle]:
    """Parts that stayed behind in one of these sets: the output head, the embedding, a layer, a tensor."""
    parts = parts_of(list(forward.known[NOW]), forward.plain.head)
    made = []
    for name, words in known.items():
        for part, names in parts.items() if name != NOW else ():
            if all(torch.equal(forward.known[NOW][n], forward.known[name][n]) for n in names):
                continue
            is_head = part == "output head"
            tie = " (tied to the embedding)" if is_head and tied else ""
            made.append(Toggle(HEAD if is_head else PART, f"the {part}{tie} was not refreshed: it is still that of {words}",
                               {"weights": name, "part": names}, of_weights=True))
    return made


def parts_of(names: Sequence[str], head: str | None) -> dict[str, tuple[str, ...]]:
    """Tensors by part: each layer is one, the output head is one, any other tensor is one by itself."""
    parts: dict[str, list[str]] = {}
    for name in names:
        layer = re.match(r"(.*?\.\d+)\.", name)
        part = "output head" if name == head else layer.group(1) if layer else name
        parts.setdefault(part, []).append(name)
    ordered = sorted(parts, key=lambda part: part != "output head")
    return {part: tuple(parts[part]) for part in ordered}


def setting_toggles(claims: Claims, temperature: float | None, top_p: float | None, *, engine_dtypes: Sequence[str],
                    bf16: bool, journal: bool, other_ids: str = "") -> list[Toggle]:
    """Hypotheses about settings that are known: what was asked for, dtypes that were declared."""
    made = [Toggle(DTYPE, f"the engine computes in {dtype}, as declared", {"dtype": dtype}, declared=True)
            for dtype in engine_dtypes if dtype in ("bfloat16", "float16")]
    if bf16 and "float32" in engine_dtypes:
        made.append(Toggle(DTYPE, "the trainer's pass is in bfloat16, as declared", {"dtype": "float32"}, declared=True))
    if journal:
        made.insert(0, Toggle(IDS, f"other ids are trained than were sampled: {other_ids}", {"journal": True}))
    declared = set(zip(claims.temperature_M.tolist(), claims.top_p_M.tolist()))
    asked = {(1.0, 1.0)} | ({(temperature, top_p)} if temperature and top_p else set())
    for heat, nucleus in sorted(asked | declared):
        if heat == 0 or declared == {(1.0, 1.0)} == {(heat, nucleus)}:
            continue
        if heat != 1 and nucleus < 1:
            made.append(Toggle(TEMPERATURE, _bent_words(heat, nucleus), {"temperature": heat, "top_p": nucleus}))
        elif nucleus < 1:
            made.append(Toggle(TOP_P, _bent_words(1.0, nucleus), {"temperature": 1.0, "top_p": nucleus}))
        elif heat != 1:
            made.append(Toggle(TEMPERATURE, _bent_words(heat, 1.0), {"temperature": heat, "top_p": 1.0}))
        elif (1.0, 1.0) not in declared:
            kind = TEMPERATURE if any(t != 1 for t, _ in declared) else TOP_P
            made.append(Toggle(kind, f"{kind} was declared and not applied: the numbers are of the model's own softmax",
                               {"temperature": 1.0, "top_p": 1.0}))
    return made


def further_toggles(engine_dtypes: Sequence[str]) -> list[Toggle]:
    """Hypotheses that nothing declares, tried where there is a gap to explain."""
    made = [Toggle(DTYPE, f"{words} in {dtype}, which nothing declares", {key: dtype})
            for key, words in (("dtype", "the engine computes"), ("head_dtype", "the engine's output head is"))
            for dtype in ("bfloat16", "float16") if dtype not in engine_dtypes]
    made += [Toggle(POSITION, words, {"positions": name}) for name, (words, _, _) in POSITIONS.items()]
    made += [Toggle(POSITION, f"the logprobs stand one token {words}", {"places": places})
             for places, words in ((1, "too early"), (-1, "too late"))]
    return made


def _fitted(forward: Forward, claims: Claims, now: Hypothesis) -> Iterator[Toggle]:
    """The temperature, and the top-p, that explain most, whether anybody asked for them or not."""
    logits_MV = forward.logits(now)
    token_M = torch.from_numpy(forward.sequences(now).token_M).to(logits_MV.device)
    said_M = np.where(np.isnan(claims.plain_M), claims.said_M, claims.plain_M)
    if claims.bent_M.all():
        said_M = claims.said_M
    some = np.flatnonzero(~np.isnan(said_M))[:SUBSET]
    logits, token = logits_MV[torch.from_numpy(some)], token_M[torch.from_numpy(some)]

    def left(temperature: float, top_p: float) -> float:
        ones = np.ones(len(some))
        logp = bent(logits, temperature * ones, top_p * ones).gather(1, token[:, None])[:, 0].double().cpu().numpy()
        return float(np.clip(np.abs(said_M[some] - logp), 0, LARGEST).mean())

    center, width = 0.0, np.log(5.0)
    for _ in range(5):
        grid = np.linspace(center - width, center + width, 21)
        center, width = float(grid[np.argmin([left(float(np.exp(x)), 1.0) for x in grid])]), width / 8
    heat = float(np.exp(center))
    if abs(heat - 1.0) > FITTED and now.temperature is None:
        yield Toggle(TEMPERATURE, _bent_words(heat, 1.0, "about "), {"temperature": heat, "top_p": 1.0})
    grid = np.arange(0.5, 1.0, 0.01 if logits.shape[1] <= 8192 else 0.05)
    nucleus = float(grid[np.argmin([left(now.temperature or 1.0, float(p)) for p in grid])])
    if now.top_p is None or now.top_p == 1.0:
        yield Toggle(TOP_P, _bent_words(now.temperature or 1.0, nucleus, "about "),
                     {"temperature": now.temperature or 1.0, "top_p": nucleus})


def _bent_words(heat: float, nucleus: float, about: str = "") -> str:
    said = [f"temperature {about}{heat:.3g}"] * (heat != 1) + [f"top-p {about}{nucleus:.2f}"] * (nucleus < 1)
    return f"{' and '.join(said)} not accounted for: the engine's numbers are of that distribution"


# ------------------------------------------------------------------------------------------------ what differs how


def limits_for(engine_dtypes: Sequence[str], bf16: bool) -> tuple[float, float]:
    """(mean, largest) nats that rounding may leave between engine and trainer."""
    dtypes = [*engine_dtypes, *(["bfloat16"] if bf16 else [])] or ["float32"]
    pairs = [TRAINING_LIMITS[getattr(torch, dtype)] for dtype in dtypes]
    return max(mean for mean, _ in pairs), max(largest for _, largest in pairs)


def is_adapter(now: Mapping[str, torch.Tensor], base: Mapping[str, torch.Tensor]) -> bool:
    """Do they differ as an adapter makes them differ: in some matrices only, and there by few directions?"""
    changed = [name for name in now if name in base and not torch.equal(now[name], base[name])]
    if not changed or any(now[name].ndim != 2 for name in changed):
        return False
    for name in changed:
        delta = (now[name].double() - base[name].double()).cpu()
        sizes = torch.linalg.svdvals(delta)
        rank = int((sizes > 1e-3 * sizes[0]).sum())
        if rank > min(64, min(delta.shape) // 3):
            return False
    return True
