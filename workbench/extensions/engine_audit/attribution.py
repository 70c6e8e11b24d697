"""One symptom, four causes: the recorded logprobs do not agree with the learner's. Which of the four is it?

    staleness               turns were sampled by an older version of the weights, and say so
    weights not delivered   the engine answers by other weights than those whose number it says
    engine mismatch         the same weights on the same ids: settings or arithmetic of the engine differ
    re-tokenisation         the ids that are trained are not those that were sampled

Each has evidence of its own: ids are compared with what the engine was asked and answered, older weights and those that the engine
holds are tried turn by turn and held against the version that the turn says, settings are tried as the audit tries them. A
setting is believed by itself where it leaves next to nothing: weights that nobody knows can look like one, a little. What remains where
the ids are the engine's and it holds the learner's weights is its arithmetic. Where evidence is missing, the answer is that it cannot be
told, and what is missing.

Axis letters: M sampled tokens that are looked at · U turns of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from workbench.extensions.engine_audit.causes import (
    ROUGH,
    Explained,
    difference,
    within,
)
from workbench.extensions.engine_audit.claims import Claims, OtherIds
from workbench.extensions.engine_audit.forward import HELD, NOW, Forward, Hypothesis
from workbench.extensions.engine_audit.held import HeldWeights
from workbench.extensions.engine_audit.toggles import (
    ADAPTER,
    DTYPE,
    HEAD,
    IDS,
    PART,
    POSITION,
    STALE,
    TEMPERATURE,
    TOP_P,
    UNEXPLAINED,
)

STALENESS = "staleness"
DELIVERY = "weights not delivered"
ENGINE = "engine mismatch"
TOKENS = "re-tokenisation"
FOUR = (STALENESS, DELIVERY, ENGINE, TOKENS)
OF_ENGINE = (TEMPERATURE, TOP_P, DTYPE, POSITION)
OF_PARTS = (HEAD, PART, ADAPTER)
SHARP = 0.1  # in float32 the right weights leave less than this share of what rounding may leave
CLOSER = {
    False: 0.5,
    True: 0.75,
}  # what older weights leave of a turn's gap, at most; True: half precision
ALIKE = 1.5  # weights that leave no more than this times the least explain a turn as well
VERSIONS = "the version of the weights that each turn was sampled by"
JOURNAL = "what the engine was asked and answered (its ids)"
OLDER = "the weights of all versions that the engine was given"
READING = "the weights that the engine held as it sampled (an engine's `held`; the embedded engine and vLLM have it)"


@dataclass(frozen=True)
class WeightVersions:
    """What is known of weights. `of`: set of weights -> its version, where that is known; `trainer`: the learner's version;
    `held`: what the engine holds, None: it does not say."""

    of: Mapping[str, int]
    trainer: int | None
    held: HeldWeights | None = None


@dataclass(frozen=True)
class Attribution:
    """`causes`: of the four, most often one; empty: it cannot be told which of `candidates` it is, for lack of `missing`."""

    causes: tuple[str, ...]
    words: str
    evidence: tuple[str, ...]
    candidates: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        numbers = "; ".join(self.evidence)
        if self.causes:
            begin = "The cause is" if len(self.causes) == 1 else "The causes are"
            return f"{begin} {' and '.join(self.causes)}: {self.words} ({numbers})"
        return (
            f"The cause cannot be told from what is at hand: {' or '.join(self.candidates)} ({numbers}); missing: "
            f"{'; '.join(self.missing)}"
        )


@dataclass(frozen=True, eq=False)
class MismatchEvidence:
    """Everything that can be asked. `others`: how the trained ids differ from the
    journal's; `has_journal`: whether all of these turns stand in it; `recovered`: other ids of a turn that give the recorded
    logprobs, in words, where there is no journal; `explained`: the audit's search."""

    forward: Forward
    claims: Claims
    limits: tuple[float, float]
    versions: WeightVersions
    others: OtherIds | None
    has_journal: bool
    recovered: Callable[[np.ndarray], str | None]
    explained: Callable[[], Explained] | None = None


def attribute(facts: MismatchEvidence) -> Attribution | None:
    """Name the cause of a gap; None: there is none that rounding does not explain."""
    left = difference(facts.forward, facts.claims, Hypothesis())
    if within(left, facts.limits):
        return None
    gap_M = _sizes(left)
    evidence = (_pattern(facts, left),)
    if facts.others is not None:
        return _of_other_ids(facts, gap_M, evidence)
    return _of_same_ids(facts, gap_M, evidence)


# ------------------------------------------------------------------------------------------------ the pattern


def _sizes(left: np.ndarray) -> np.ndarray:
    """|difference| [M]: of whichever logprobs of a token differ more."""
    return np.nan_to_num(np.abs(left)).max(0)


def turn_of_tokens(claims: Claims) -> np.ndarray:
    """[M]: the number of each token's turn among all turns."""
    columns = np.stack([claims.trajectory_M, claims.segment_M, claims.turn_M], 1)
    return np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1)


def _by_turn(values_M: np.ndarray, turn_M: np.ndarray) -> np.ndarray:
    """Means by turn [U]."""
    return np.bincount(turn_M, values_M) / np.bincount(turn_M)


def off_turns(gap_M: np.ndarray, turn_M: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    """bool [U]: turns with a gap that rounding does not explain."""
    largest_U = np.zeros(turn_M.max() + 1)
    np.maximum.at(largest_U, turn_M, gap_M)
    return (_by_turn(gap_M, turn_M) >= limits[0]) | (largest_U >= limits[1])


def _pattern(facts: MismatchEvidence, left: np.ndarray) -> str:
    """Where the disagreement is: in which turns, at how many tokens, and to which side."""
    turn_M = turn_of_tokens(facts.claims)
    gap_M = _sizes(left)
    off_U = off_turns(gap_M, turn_M, facts.limits)
    signed = left[0] if not np.isnan(left[0]).all() else left[1]
    return (
        f"{int(off_U.sum())} of {len(off_U)} turns and {np.mean(gap_M >= facts.limits[0]):.0%} of their tokens disagree, "
        f"by {gap_M.mean():.2g} nats on average, {np.nanmean(signed):+.2g} with the sign"
    )


# ------------------------------------------------------------------------------------------------ other ids


def _touched(claims: Claims, others: OtherIds) -> np.ndarray:
    """bool [M]: tokens that are trained with other ids than were sampled, or after other ids than the engine saw."""
    trained = claims.sequences
    journal = others.journal
    touched = []
    places = (trained.row_M, trained.place_M, journal.row_M, journal.place_M)
    for row, place, journal_row, journal_place in zip(*(values.tolist() for values in places)):
        own = trained.ids[row][: place + 1]
        theirs = journal.ids[journal_row][: journal_place + 1]
        touched.append(not np.array_equal(own, theirs))
    return np.array(touched)


def _of_other_ids(
    facts: MismatchEvidence, gap_M: np.ndarray, evidence: tuple[str, ...]
) -> Attribution:
    """The journal has other ids than are trained: it is that, and what is off besides is looked at by itself."""
    claims = facts.claims
    others = facts.others
    touched_M = _touched(claims, others)
    by_journal = difference(facts.forward, claims, Hypothesis(journal=True))
    rest_M = np.where(touched_M, 0.0, gap_M)
    words = f"other ids are trained than were sampled: {others.words}"
    numbers = (
        f"{int(touched_M.sum())} of {len(claims)} tokens are other ids or stand after other ids; the engine's own ids leave "
        f"{_sizes(by_journal)[touched_M].mean():.2g} nats there, and {gap_M[touched_M].mean():.2g} without them",
    )
    if not (rest_M.max() >= facts.limits[1] or _mean(rest_M, ~touched_M) >= facts.limits[0]):
        agreeing = f"everywhere else they agree to {_mean(rest_M, ~touched_M):.1g} nats"
        return Attribution((TOKENS,), words, (*evidence, *numbers, agreeing))
    further = _of_same_ids(facts, np.where(touched_M, 0.0, gap_M), (), Hypothesis(journal=True))
    causes = (TOKENS, *(cause for cause in further.causes if cause != TOKENS))
    words = f"{words}; and where the ids are the same, {further.words}"
    return Attribution(causes, words, (*evidence, *numbers, *further.evidence))


def _mean(values_M: np.ndarray, which_M: np.ndarray) -> float:
    return float(values_M[which_M].mean()) if which_M.any() else 0.0


# ------------------------------------------------------------------------------------------------ the same ids


def _of_same_ids(
    facts: MismatchEvidence,
    gap_M: np.ndarray,
    evidence: tuple[str, ...],
    now: Hypothesis = Hypothesis(),
) -> Attribution:
    whole = _by_weights(facts, gap_M, now)
    if whole is not None:
        return replace(whole, evidence=(*evidence, *whole.evidence))
    if not facts.has_journal:
        words = facts.recovered(gap_M)
        if words is not None:
            return Attribution((TOKENS,), words, evidence)
    held = _held(facts, gap_M)
    if held is not None and held.name != NOW:
        return _other_weights(facts, held, gap_M, evidence, now)
    searched = _by_search(facts, gap_M, held is not None)
    if searched is not None:
        return replace(searched, evidence=(*evidence, *searched.evidence, *_reading(held)))
    return _by_exclusion(facts, gap_M, evidence)


# ------------------------------------------------------------------------------------------------ what the engine holds


def _held(facts: MismatchEvidence, gap_M: np.ndarray) -> HeldWeights | None:
    """What the engine held as it sampled the turns that disagree; None: not known, as of turns that say another version than it has
    now."""
    held = facts.versions.held
    off_U = off_turns(gap_M, turn_of_tokens(facts.claims), facts.limits)
    if held is None or (_labels(facts.claims)[off_U] != held.version).any():
        return None
    return held


def _reading(held: HeldWeights | None) -> tuple[str, ...]:
    """That the engine holds the learner's weights, in words."""
    if held is None:
        return ()
    return ("the engine holds the learner's weights" + f", {held.words}" * bool(held.words),)


def _other_weights(
    facts: MismatchEvidence,
    held: HeldWeights,
    gap_M: np.ndarray,
    evidence: tuple[str, ...],
    now: Hypothesis,
) -> Attribution:
    """The engine holds other weights than the learner, and these alone do not reproduce what was recorded."""
    versions = facts.versions
    evidence = (*evidence, f"read from the engine: {held.words}")
    if held.version != versions.trainer:
        return Attribution((), "", evidence, (STALENESS, DELIVERY), (OLDER,))
    words = (
        f"the engine holds {_words_of(versions, held.name)} and calls them version {held.version}"
    )
    if held.name not in facts.forward.known:
        return Attribution((DELIVERY,), words, evidence)
    left = difference(facts.forward, facts.claims, replace(now, weights=held.name))
    left_M = np.where(gap_M > 0, _sizes(left), 0.0)
    more = f"; with these weights {left_M.mean():.2g} of {gap_M.mean():.2g} nats are left, so something else is wrong as well"
    if not facts.has_journal:
        return Attribution((DELIVERY,), words + more, evidence)
    return Attribution((DELIVERY, ENGINE), f"{words}{more}: the ids are the engine's", evidence)


def _by_weights(facts: MismatchEvidence, gap_M: np.ndarray, now: Hypothesis) -> Attribution | None:
    """Weights of other versions, tried turn by turn; None where they do not reproduce what was recorded."""
    turn_M = turn_of_tokens(facts.claims)
    gaps = {NOW: gap_M}
    for name in facts.forward.known:
        if name != NOW:
            left = difference(facts.forward, facts.claims, replace(now, weights=name))
            gaps[name] = np.where(gap_M > 0, _sizes(left), 0.0)
    name_U = _weights_of_turns(facts, {name: _by_turn(gaps[name], turn_M) for name in gaps})
    left_M = np.array([gaps[name_U[turn]][m] for m, turn in enumerate(turn_M.tolist())])
    mean, largest = facts.limits
    allowed = mean if mean > ROUGH else SHARP * mean
    if set(name_U) == {NOW} or left_M.mean() >= allowed or left_M.max() >= largest:
        return None
    return _named_by_label(facts, name_U, float(gap_M.mean()), float(left_M.mean()))


def _labels(claims: Claims) -> np.ndarray:
    """The version that each turn says it was sampled by [U], -1: none."""
    turn_M = turn_of_tokens(claims)
    label_U = np.zeros(turn_M.max() + 1, np.int64)
    label_U[turn_M] = claims.version_M
    return label_U


def _weights_of_turns(facts: MismatchEvidence, gaps: Mapping[str, np.ndarray]) -> list[str]:
    """The weights that reproduce each turn [U]: the learner's where they leave no more than rounding or do as well as any, then those
    of the version that the turn names, then those that leave least. Under the rounding of half precision weights look alike, so there
    turns of the version that the engine holds are of what it holds."""
    by_version = {version: name for name, version in facts.versions.of.items()}
    is_rough = facts.limits[0] > ROUGH
    closer = CLOSER[is_rough]
    held = facts.versions.held
    chosen: list[str] = []
    for turn, label in enumerate(_labels(facts.claims).tolist()):
        is_read = is_rough and held is not None and label == held.version
        names = {NOW, held.name} & gaps.keys() if is_read else gaps
        left = {name: float(gaps[name][turn]) for name in gaps if name in names}
        best = min(left, key=left.__getitem__)
        named = by_version.get(label)
        if left[best] > closer * left[NOW] or left[NOW] < SHARP * facts.limits[0]:
            best = NOW
        elif named in left and left[named] <= ALIKE * left[best]:
            best = named
        chosen.append(best)
    return chosen


def _named_by_label(
    facts: MismatchEvidence, name_U: Sequence[str], before: float, after: float
) -> Attribution:
    """Older weights, by what the turns say of themselves: honest ones are stale, others were not delivered."""
    versions = facts.versions
    honest: set[int] = set()
    wrong: set[tuple[str, int]] = set()
    silent: set[str] = set()
    for name, label in zip(name_U, _labels(facts.claims).tolist()):
        version = versions.of.get(name)
        if name == NOW or label == versions.trainer == version:
            continue
        if label < 0 or (version is None and label != versions.trainer):
            silent.add(name)
        elif version == label:
            honest.add(label)
        else:
            wrong.add((_words_of(versions, name), label))
    old = sum(name != NOW for name in name_U)
    evidence = (
        f"{old} of {len(name_U)} turns are reproduced by {_listed({_words_of(versions, name) for name in name_U if name != NOW})}: "
        f"{after:.1g} nats are left of {before:.2g}",
    )
    if silent:
        missing = (VERSIONS,) if -1 in _labels(facts.claims) else (OLDER,)
        return Attribution((), "", evidence, (STALENESS, DELIVERY), missing)
    causes: list[str] = []
    words: list[str] = []
    if wrong:
        causes.append(DELIVERY)
        weights, label = min(wrong)
        words.append(f"the engine answers by {weights} and calls them version {label}")
    if honest:
        causes.append(STALENESS)
        words.append(
            f"turns were sampled by version {_listed(honest)} of the weights, as they say, and the learner holds version "
            f"{versions.trainer}"
        )
    return Attribution(tuple(causes), "; ".join(words), evidence)


def _words_of(versions: WeightVersions, name: str) -> str:
    version = versions.of.get(name)
    if version is not None:
        return f"the weights of version {version}"
    if name == HELD:
        return f"weights that no version is known to have ({versions.held.words})"
    return f"the weights of {name}"


def _listed(values: set) -> str:
    return ", ".join(str(value) for value in sorted(values))


def _by_search(facts: MismatchEvidence, gap_M: np.ndarray, is_read: bool) -> Attribution | None:
    """What the audit's search closes the gap with: settings and arithmetic of the engine, or a part of older weights. Believed
    where next to nothing is left of the gap; what closes less of it, only of the engine's arithmetic and where it `is_read` to hold the
    learner's weights."""
    explained = facts.explained()
    kinds = {cause.kind for cause in explained.causes}
    closed = [cause for cause in explained.causes if cause.kind not in (UNEXPLAINED, STALE)]
    if not closed or UNEXPLAINED in kinds:
        return None
    causes: dict[str, None] = {}
    for cause in closed:
        name = DELIVERY if cause.kind in OF_PARTS else ENGINE
        causes[TOKENS if cause.kind == IDS else name] = None
    if STALE in kinds:
        labels = set(_labels(facts.claims).tolist())
        causes[DELIVERY if labels == {facts.versions.trainer} else STALENESS] = None
    if not _is_closed(facts, gap_M, explained) and not (is_read and set(causes) == {ENGINE}):
        return None
    return Attribution(
        tuple(causes),
        "; ".join(cause.words for cause in explained.causes),
        tuple(cause.evidence for cause in explained.causes),
    )


def _is_closed(facts: MismatchEvidence, gap_M: np.ndarray, explained: Explained) -> bool:
    """Whether a search left so little that nothing but what it took can have made the gap."""
    mean = facts.limits[0]
    allowed = mean if mean > ROUGH else SHARP * mean
    return float(_sizes(explained.left_M).mean()) < min(allowed, SHARP * float(gap_M.mean()))


def _by_exclusion(
    facts: MismatchEvidence, gap_M: np.ndarray, evidence: tuple[str, ...]
) -> Attribution:
    """Nothing closes the gap. Where the ids are the engine's and it holds the learner's weights, its arithmetic is what is left; else it
    cannot be told."""
    held = _held(facts, gap_M)
    missing = [JOURNAL] * (not facts.has_journal) + [READING] * (held is None)
    if not missing:
        words = "it computes or samples in a way that no hypothesis repeats, from the learner's weights and on the same ids"
        tried = "the ids are the engine's"
        return Attribution((ENGINE,), words, (*evidence, tried, *_reading(held)))
    stale = _stale_by_label(facts, gap_M)
    if stale is not None:
        return Attribution((STALENESS,), stale, evidence)
    candidates = [ENGINE]
    if held is None:
        labels = set(_labels(facts.claims).tolist())
        candidates += [STALENESS] * (labels != {facts.versions.trainer}) + [DELIVERY]
    candidates += [TOKENS] * (not facts.has_journal)
    return Attribution((), "", evidence, tuple(candidates), tuple(missing))


def _stale_by_label(facts: MismatchEvidence, gap_M: np.ndarray) -> str | None:
    """The turns that disagree are those that say they are older, and no others: in words; None: they are not."""
    label_U = _labels(facts.claims)
    off_U = off_turns(gap_M, turn_of_tokens(facts.claims), facts.limits)
    trainer = facts.versions.trainer
    older_U = (label_U >= 0) & (label_U != trainer)
    if trainer is None or not off_U.any() or not np.array_equal(off_U, older_U) or off_U.all():
        return None
    return (
        f"the turns that disagree are those that say they were sampled by version {_listed(set(label_U[off_U].tolist()))}, "
        f"the learner holds version {trainer}, and turns of that version agree; the older weights are not at hand, so they were "
        "not tried"
    )
