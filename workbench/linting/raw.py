"""What can be asked of rollouts that another framework wrote: arrays as they were found, fit or not.

The same rule ids as for our own rollouts; here each looks at the arrays alone, since there is no engine, no template
and no environment to ask. Only what cannot be right in anybody's conventions is an error; what is merely unusual is a
note. Tokens (R1 R3 R4 R5 R12) are here, groups, credit and rewards in `raw_credit`.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.linting import raw_credit
from workbench.linting.evidence import Evidence
from workbench.linting.raw_credit import at, turns_of
from workbench.linting.rule import Check, RuleResult
from workbench.types.dumps import RawSequence
from workbench.types.findings import ERROR, NOTE, Checked, Finding, NotChecked

__all__ = ["RAW_CHECKS", "RawSequence"]

NO_IDS = "token ids: the file has none"
SHORT = 16    # tokens by which a tokenization of the same text differs at most; a longer difference is another history
AGAIN = 4     # tokens that must agree again after a difference, for it to be called one
REACH = 400   # tokens that may be gone, or have come, before they do

# What may have happened at the first difference, the least first: tokens gone, come, or a few exchanged for others.
DIFFERENCES = sorted([*((n, 0) for n in range(1, REACH)), *((0, n) for n in range(1, REACH)),
                      *((n, k) for n in range(1, 2 * SHORT) for k in range(1, 2 * SHORT))], key=sum)


# ------------------------------------------------------------------------------------------------ R1


def exact_prefix(evidence: Evidence) -> Iterator[RuleResult]:
    """R1: where a framework writes one sequence a turn, each must begin with all of the one before it, or say that it
    starts anew."""
    seen, forks = 0, []
    for turns in turns_of(evidence.raw).values():
        for before, after in zip(turns, turns[1:]):
            if before.prompt_ids is None or before.completion_ids is None or after.prompt_ids is None:
                continue
            seen += 1
            if after.fork:
                forks.append(after)
            if len(before.completion_ids) == 0 or after.fork:
                continue
            old = np.concatenate([before.prompt_ids, before.completion_ids])
            if len(after.prompt_ids) < len(old) or not np.array_equal(after.prompt_ids[:len(old)], old):
                yield _prefix_finding(before, after, old)
    if forks:
        yield Finding(f"{len(forks)} sequences part from the history of their attempt, as the file says itself: each "
                      "becomes a training sample of its own, and what they share is in all of them", at(forks[0]), NOTE,
                      len(forks))
    yield Checked(seen)
    if not seen:
        yield NotChecked("attempts of several sequences" if _has_ids(evidence.raw) else NO_IDS)


def _prefix_finding(before: RawSequence, after: RawSequence, old: np.ndarray) -> Finding:
    new = after.prompt_ids
    shared = min(len(old), len(new))
    differs = np.flatnonzero(old[:shared] != new[:shared])
    place = int(differs[0]) if len(differs) else shared
    whose = (f"token {place - len(before.prompt_ids)} of what was sampled in turn {before.number}"
             if place >= len(before.prompt_ids) else f"token {place} of the prompt of turn {before.number}")
    gone, come = _difference(old[place:], new[place:])
    where = at(after, position=place)
    if gone is None:
        return Finding(f"the prompt parts from turn {before.number} at {whose}, and what stood after it does not come "
                       "again: a history that was rewritten, which nobody says here; as one sequence with the turn "
                       "before it is wrong, as one of its own it is fine", where, NOTE)
    was, now = old[place:place + gone].tolist(), new[place:place + come].tolist()
    if gone and come and max(gone, come) <= SHORT:
        return Finding(f"{whose} comes again as other tokens: ids {was} became {now}, and the rest is the same: "
                       "tokenized again", where, ERROR, max(gone, come))
    verb = f"{gone} tokens are gone" if not come else f"{come} tokens have come" if not gone else \
        f"{gone} tokens became {come}"
    return Finding(f"from {whose} on {verb} in the prompt of turn {after.number}, and the rest is the same: a template "
                   "that rewrites the past; as one sequence with the turn before it is wrong, as one of its own it is "
                   "fine", where, NOTE, max(gone, come))


def _difference(old: np.ndarray, new: np.ndarray) -> tuple[int | None, int | None]:
    """How many tokens of `old` became how many of `new` before the two agree again for `AGAIN` tokens (or to the end of
    the old one); (None, None) where they do not. Both begin with a token that differs."""
    before, after = old[:REACH + AGAIN].tolist(), new[:REACH + AGAIN].tolist()
    for gone, come in DIFFERENCES:
        if gone < len(before):
            again = before[gone:gone + AGAIN]
            if after[come:come + len(again)] == again:
                return gone, come
    return None, None


# ------------------------------------------------------------------------------------------------ R3, R5


def mask_is_provenance(evidence: Evidence) -> Iterator[RuleResult]:
    """R3: what is trained was sampled, as far as the file says apart from the mask who wrote a token."""
    looked, said_apart = 0, False
    for sequence in evidence.raw:
        if sequence.prompt_mask is not None:
            said_apart, looked = True, looked + len(sequence.prompt_mask)
            trained = np.flatnonzero(sequence.prompt_mask)
            if len(trained):
                yield Finding(f"{len(trained)} tokens of the prompt are trained, the first with "
                              f"{_id_at(sequence.prompt_ids, trained[0])}; nobody sampled a prompt",
                              at(sequence, position=int(trained[0])), ERROR, len(trained))
        mask = sequence.trained
        if mask is None:
            continue
        odd = sorted(set(np.unique(sequence.mask).tolist()) - {0, 1})
        if odd:
            yield Finding(f"the mask holds {odd[:4]}, neither 0 nor 1: a weight, or not a mask", at(sequence), NOTE)
        if sequence.sampled is None or len(sequence.sampled) != len(mask):
            continue
        said_apart, looked = True, looked + len(mask)
        yield from _against_provenance(sequence, mask)
    yield Checked(looked)
    if not said_apart:
        yield NotChecked("who wrote each token, apart from the mask" if _has_ids(evidence.raw) else NO_IDS)


def _against_provenance(sequence: RawSequence, mask: np.ndarray) -> Iterator[Finding]:
    extra, lost = np.flatnonzero(mask & ~sequence.sampled), np.flatnonzero(~mask & sequence.sampled)
    first = len(sequence.prompt_ids) if sequence.prompt_ids is not None else 0
    if len(extra):
        yield Finding(f"{len(extra)} tokens are trained that no model sampled, the first with "
                      f"{_id_at(sequence.completion_ids, extra[0])}",
                      at(sequence, position=first + int(extra[0])), ERROR, len(extra))
    if len(lost) and mask.any():  # a row that is left out as a whole is R5's and R11's
        yield Finding(f"{len(lost)} sampled tokens are not trained while others of the row are, the first with "
                      f"{_id_at(sequence.completion_ids, lost[0])}",
                      at(sequence, position=first + int(lost[0])), ERROR, len(lost))


def trained_share(evidence: Evidence) -> Iterator[RuleResult]:
    """R5: rows in which nothing is trained though nothing is wrong with them."""
    looked = 0
    for sequence in evidence.raw:
        mask = sequence.trained
        if mask is None:
            continue
        looked += 1
        if mask.any():
            continue
        excused = sequence.truncated or sequence.failed or sequence.reward is None
        why = "it is empty" if len(mask) == 0 else f"all {len(mask)} are masked out"
        yield Finding(f"no token of this completion is trained: {why}", at(sequence),
                      NOTE if excused or len(mask) == 0 else ERROR, max(1, len(mask)))
    yield Checked(looked)
    if not looked:
        yield NotChecked("masks that fit their tokens" if _has_ids(evidence.raw) else NO_IDS)


# ------------------------------------------------------------------------------------------------ R4


def lengths(evidence: Evidence) -> Iterator[RuleResult]:
    """R4: every array is as long as the tokens it is about; ids can be ids; no mask was made from ids."""
    looked = 0
    for sequence in evidence.raw:
        for name in ("mask", "sampled", "logprobs", "advantages", "prompt_mask"):
            ids_name = "prompt_ids" if name == "prompt_mask" else "completion_ids"
            array, ids = getattr(sequence, name), getattr(sequence, ids_name)
            if array is None or ids is None:
                continue
            looked += 1
            if len(array) != len(ids):
                longer = "longer" if len(array) > len(ids) else "shorter"
                yield Finding(f"{name} has {len(array)} entries for {len(ids)} {ids_name}: "
                              f"{abs(len(array) - len(ids))} {longer}, so from some token on it describes another "
                              "one", at(sequence), ERROR)
        for name in ("prompt_ids", "completion_ids"):
            ids = getattr(sequence, name)
            if ids is None:
                continue
            looked += 1
            if len(ids) and int(ids.min()) < 0:
                bad = int(np.flatnonzero(ids < 0)[0])
                yield Finding(f"{name}[{bad}] is {int(ids[bad])}: no token has a negative id", at(sequence), ERROR)
    yield from _mask_of_ids(evidence.raw)
    yield Checked(looked)
    if not looked:
        yield NotChecked(NO_IDS)


def _mask_of_ids(sequences: Sequence[RawSequence]) -> Iterator[Finding]:
    """A mask that leaves out one id everywhere, and nothing else, though it was sampled: made by `ids != pad`."""
    left_out, kept, witnesses = Counter(), set(), {}
    for sequence in sequences:
        mask = sequence.trained
        if mask is None or not mask.any():
            continue
        ids = sequence.completion_ids
        left_out.update(ids[~mask].tolist())
        kept.update(np.unique(ids[mask]).tolist())
        if sequence.logprobs is not None and len(sequence.logprobs) == len(ids):
            drawn = np.flatnonzero(~mask & np.isfinite(sequence.logprobs) & (sequence.logprobs != 0))
            if len(drawn) and sequence.attempt not in witnesses:
                witnesses[sequence.attempt] = (sequence, int(drawn[0]))
    if len(left_out) != 1 or not kept:
        return
    (token, count), = left_out.items()
    if token in kept or not witnesses:
        return
    sequence, first = next(iter(witnesses.values()))
    start = len(sequence.prompt_ids) if sequence.prompt_ids is not None else 0
    yield Finding(f"the masks leave out every token with id {token} ({count} of them) and nothing else, and these were "
                  f"sampled (logprob {sequence.logprobs[first]:.4g} here): made by comparing ids with the padding, "
                  "which is a token of the policy's as well", at(sequence, position=start + first), ERROR, count)


# ------------------------------------------------------------------------------------------------ R12


@dataclass(frozen=True)
class _Logprobs:
    """The logprobs of the trained tokens of a sequence, and where they stand in it."""

    sequence: RawSequence
    position: np.ndarray
    value: np.ndarray


def logprobs(evidence: Evidence) -> Iterator[RuleResult]:
    """R12: the logprobs of trained tokens can be logprobs."""
    found = [each for each in map(_trained_logprobs, evidence.raw) if each is not None]
    for each in found:
        for wrong, words in ((np.isnan(each.value), "is missing (NaN or null)"),
                             (np.isneginf(each.value), "is -inf: a token of probability 0 was sampled"),
                             (each.value > 1e-3, "is above 0: a probability above 1")):
            where = np.flatnonzero(wrong)
            if len(where):
                value = each.value[where[0]]
                number = "" if np.isnan(value) else f" {value:.4g}"
                yield Finding(f"the logprob{number} of a trained token {words}; {len(where)} of {len(each.value)} in "
                              "this sequence", at(each.sequence, position=int(each.position[where[0]])), ERROR, len(where))
    values = np.concatenate([each.value for each in found]) if found else np.zeros(0)
    if len(values) >= 8 and not values.any():
        yield Finding(f"all {len(values)} logprobs are exactly 0, as if every token had been certain: they were not "
                      "kept",
                      at(found[0].sequence), ERROR, len(values))
    yield Checked(len(values))
    if not len(values):
        yield NotChecked("logprobs of trained tokens" if _has_ids(evidence.raw) else NO_IDS)


def _trained_logprobs(sequence: RawSequence) -> _Logprobs | None:
    mask = sequence.acted
    if mask is None or sequence.logprobs is None or len(sequence.logprobs) != len(mask) or not mask.any():
        return None
    where = np.flatnonzero(mask)
    return _Logprobs(sequence, where + (0 if sequence.prompt_ids is None else len(sequence.prompt_ids)),
                     sequence.logprobs[where])


def _id_at(ids: np.ndarray | None, index: int) -> str:
    return f"id {int(ids[index])}" if ids is not None and index < len(ids) else "no id at all"


def _has_ids(sequences: Sequence[RawSequence]) -> bool:
    return any(sequence.completion_ids is not None for sequence in sequences)


RAW_CHECKS: dict[str, Check] = {
    "R1": exact_prefix,
    "R3": mask_is_provenance,
    "R4": lengths,
    "R5": trained_share,
    "R6": raw_credit.credit_of_attempts,
    "R7": raw_credit.group_identity,
    "R8": raw_credit.groups_that_teach,
    "R11": raw_credit.truncation,
    "R12": logprobs,
    "R16": raw_credit.rewards,
    "R22": raw_credit.own_noise,
}
