"""What can be asked of rollouts that another framework wrote: arrays as they were found, fit or not.

The same rule ids as for our own rollouts; here each looks at the arrays alone, since there is no engine, no template
and no environment to ask. Only what cannot be right in anybody's conventions is an error; what is merely unusual is a
note. Tokens (R1 R3 R4 R5 R12) are here, groups, credit and rewards in `raw_credit`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked
from workbench.extensions.interop import raw_credit, raw_said
from workbench.extensions.interop.dumps import RawSequence
from workbench.extensions.interop.raw_credit import at, looked_at, turns_of
from workbench.linting.evidence import Evidence
from workbench.linting.messages import at_first
from workbench.linting.rule import Check, RuleResult
from workbench.values.sequences import first_difference

__all__ = ["RAW_CHECKS", "RawSequence"]

NO_IDS = "token ids: the file has none"
SHORT = 16  # tokens by which a tokenization of the same text differs at most; a longer difference is another history
AGAIN = 4  # tokens that must agree again after a difference, for it to be called one
REACH = 400  # tokens that may be gone, or have come, before they do

# What may have happened at the first difference, the least first: tokens gone, come, or a few exchanged for others.
GONE = [(n, 0) for n in range(1, REACH)]
COME = [(0, n) for n in range(1, REACH)]
EXCHANGED = product(range(1, 2 * SHORT), repeat=2)
DIFFERENCES = sorted([*GONE, *COME, *EXCHANGED], key=sum)


# ------------------------------------------------------------------------------------------------ R1


def exact_prefix(evidence: Evidence) -> Iterator[RuleResult]:
    """R1: where a framework writes one sequence a turn, each must begin with all of the one before it, or say that it
    starts anew."""
    seen = 0
    forks = []
    for turns in turns_of(evidence.raw).values():
        for before, after in pairwise(turns):
            old = _history(before)
            if old is None or after.prompt_ids is None:
                continue
            seen += 1
            if after.fork:
                forks.append(after)
            elif len(before.completion_ids) and not np.array_equal(
                after.prompt_ids[: len(old)], old
            ):
                yield _prefix_finding(before, after, old)
    if forks:
        yield Finding(
            f"{len(forks)} sequences diverge from the history of their trajectory, as the file says itself: each "
            "becomes a training sample of its own, and what they share is in all of them",
            at(forks[0]),
            NOTE,
            len(forks),
        )
    yield from looked_at(seen, _or_no_ids("trajectories of several sequences", evidence.raw))


def _history(sequence: RawSequence) -> np.ndarray | None:
    """Prompt and completion."""
    if sequence.prompt_ids is None or sequence.completion_ids is None:
        return None
    return np.concatenate([sequence.prompt_ids, sequence.completion_ids])


def _prefix_finding(before: RawSequence, after: RawSequence, old: np.ndarray) -> Finding:
    new = after.prompt_ids
    place = first_difference(old, new)
    sampled_place = place - len(before.prompt_ids)
    whose = f"token {place} of the prompt of turn {before.number}"
    if sampled_place >= 0:
        whose = f"token {sampled_place} of what was sampled in turn {before.number}"
    gone, come = _difference(old[place:], new[place:])
    where = at(after, position=place)
    if gone is None:
        return Finding(
            f"the prompt diverges from turn {before.number} at {whose}, and what stood after it does not come "
            "again: a history that was rewritten, which nobody says here; as one sequence with the turn "
            "before it is wrong, as one of its own it is fine",
            where,
            _severity(after),
        )
    was = old[place : place + gone].tolist()
    now = new[place : place + come].tolist()
    if gone and come and max(gone, come) <= SHORT:
        return Finding(
            f"{whose} comes again as other tokens: ids {was} became {now}, and the rest is the same: "
            "tokenized again",
            where,
            ERROR,
            max(gone, come),
        )
    if not come:
        change = f"{gone} tokens are gone"
    elif not gone:
        change = f"{come} tokens have come"
    else:
        change = f"{gone} tokens became {come}"
    return Finding(
        f"from {whose} on {change} in the prompt of turn {after.number}, and the rest is the same: a template "
        "that rewrites the past; as one sequence with the turn before it is wrong, as one of its own it is "
        "fine",
        where,
        _severity(after),
        max(gone, come),
    )


def _severity(after: RawSequence) -> str:
    """An error where the framework says that the sequence goes on from the one before it: then it is trained as one with
    it."""
    return ERROR if after.fork is False else NOTE


def _difference(old: np.ndarray, new: np.ndarray) -> tuple[int | None, int | None]:
    """How many tokens of `old` became how many of `new` before the two agree again for `AGAIN` tokens (or to the end of
    the old one); (None, None) where they do not. Both begin with a token that differs."""
    before = old[: REACH + AGAIN].tolist()
    after = new[: REACH + AGAIN].tolist()
    for gone, come in DIFFERENCES:
        if gone < len(before):
            again = before[gone : gone + AGAIN]
            if after[come : come + len(again)] == again:
                return gone, come
    return None, None


# ------------------------------------------------------------------------------------------------ R3, R5


def mask_is_provenance(evidence: Evidence) -> Iterator[RuleResult]:
    """R3: what is trained was sampled, as far as the file says apart from the mask who wrote a token."""
    looked = 0
    is_said_apart = False
    for sequence in evidence.raw:
        if sequence.prompt_mask is not None:
            is_said_apart = True
            looked += len(sequence.prompt_mask)
            trained = np.flatnonzero(sequence.prompt_mask)
            yield from at_first(
                trained,
                lambda k: (
                    f"{len(trained)} tokens of the prompt are trained, the first with {_id_at(sequence.prompt_ids, k)}; "
                    "nobody sampled a prompt"
                ),
                lambda k: at(sequence, position=k),
            )
        mask = sequence.trained
        if mask is None:
            continue
        odd = sorted(set(np.unique(sequence.mask).tolist()) - {0, 1})
        if odd:
            yield Finding(
                f"the mask holds {odd[:4]}, neither 0 nor 1: a weight, or not a mask",
                at(sequence),
                NOTE,
            )
        if sequence.sampled is None or len(sequence.sampled) != len(mask):
            continue
        is_said_apart = True
        looked += len(mask)
        yield from _against_provenance(sequence, mask)
    realigned = _realigned(evidence.raw)
    yield Checked(looked + realigned.looked)
    yield from realigned.findings
    if not is_said_apart and not realigned.looked:
        yield NotChecked(_or_no_ids("who wrote each token, apart from the mask", evidence.raw))


class _Realigned(NamedTuple):
    """Tokens that logprobs speak of, and what was found among them."""

    looked: int
    findings: tuple[Finding, ...]


def _realigned(sequences: Sequence[RawSequence]) -> _Realigned:
    """What was sampled, by its logprob, and is context by its mask: where a turn is tokenized again, tokens that come out
    otherwise are masked without a word (TRL's `fork_threshold_tokens`). Only where context has no logprobs do these say who
    sampled; where the file says it by itself, `_against_provenance` is asked."""
    looked = bare = sampled = 0
    turned: list[tuple[RawSequence, np.ndarray]] = []
    for sequence in sequences:
        mask = sequence.trained
        if sequence.sampled is not None or mask is None or not mask.any():
            continue
        logprobs = sequence.logprobs
        if logprobs is None or len(logprobs) != len(mask):
            continue
        drawn = np.isfinite(logprobs) & (logprobs != 0)
        looked += len(mask)
        sampled += int((mask | drawn).sum())
        bare += int((~mask & ~drawn).sum())
        if (~mask & drawn).any():
            turned.append((sequence, np.flatnonzero(~mask & drawn)))
    if not bare or not turned:
        return _Realigned(looked if bare else 0, ())
    count = sum(len(places) for _, places in turned)
    sequence, places = turned[0]
    finding = Finding(
        f"{count} of {sampled} tokens that were sampled, as their logprobs say ({count / sampled:.2%}), are context by the mask, "
        f"in {len(turned)} sequences; the first is {_id_at(sequence.completion_ids, places[0])}: turns that were tokenized again "
        "are masked where they came out otherwise",
        at(sequence, completion=places[0]),
        ERROR,
        count,
    )
    return _Realigned(looked, (finding,))


def _against_provenance(sequence: RawSequence, mask: np.ndarray) -> Iterator[Finding]:
    extra = np.flatnonzero(mask & ~sequence.sampled)
    lost = np.flatnonzero(~mask & sequence.sampled)
    yield from at_first(
        extra,
        lambda k: (
            f"{len(extra)} tokens are trained that no model sampled, the first with {_id_at(sequence.completion_ids, k)}"
        ),
        lambda k: at(sequence, completion=k),
    )
    if mask.any():  # a row that is left out as a whole is R5's and R11's
        yield from at_first(
            lost,
            lambda k: (
                f"{len(lost)} sampled tokens are not trained ({len(lost) / sequence.sampled.sum():.1%} of the row's) while others of "
                "the row are, the first with "
                f"{_id_at(sequence.completion_ids, k)}"
            ),
            lambda k: at(sequence, completion=k),
        )


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
        yield Finding(
            f"no token of this completion is trained: {why}",
            at(sequence),
            NOTE if excused or len(mask) == 0 else ERROR,
            max(1, len(mask)),
        )
    yield from looked_at(looked, _or_no_ids("masks that fit their tokens", evidence.raw))


# ------------------------------------------------------------------------------------------------ R4


def lengths(evidence: Evidence) -> Iterator[RuleResult]:
    """R4: every array is as long as the tokens it is about; ids can be ids; no mask was made from ids."""
    looked = 0
    for sequence in evidence.raw:
        for name in ("mask", "sampled", "logprobs", "advantages", "prompt_mask"):
            ids_name = "prompt_ids" if name == "prompt_mask" else "completion_ids"
            array = getattr(sequence, name)
            ids = getattr(sequence, ids_name)
            if array is None or ids is None:
                continue
            looked += 1
            if len(array) != len(ids):
                longer = "longer" if len(array) > len(ids) else "shorter"
                yield Finding(
                    f"{name} has {len(array)} entries for {len(ids)} {ids_name}: "
                    f"{abs(len(array) - len(ids))} {longer}, so from some token on it describes another one",
                    at(sequence),
                )
        for name in ("prompt_ids", "completion_ids"):
            ids = getattr(sequence, name)
            if ids is None:
                continue
            looked += 1
            if (ids < 0).any():
                bad = int((ids < 0).argmax())
                yield Finding(
                    f"{name}[{bad}] is {int(ids[bad])}: no token has a negative id", at(sequence)
                )
    yield from _mask_of_ids(evidence.raw)
    yield from looked_at(looked, NO_IDS)


def _mask_of_ids(sequences: Sequence[RawSequence]) -> Iterator[Finding]:
    """A mask that leaves out one id everywhere, and nothing else, though it was sampled: made by `ids != pad`."""
    left_out = Counter()
    kept = set()
    witnesses = []
    for sequence in sequences:
        mask = sequence.trained
        if mask is None or not mask.any():
            continue
        ids = sequence.completion_ids
        left_out.update(ids[~mask].tolist())
        kept.update(np.unique(ids[mask]).tolist())
        logprobs = sequence.logprobs
        if logprobs is not None and len(logprobs) == len(ids):
            drawn = ~mask & np.isfinite(logprobs) & (logprobs != 0)
            if drawn.any():
                witnesses.append((sequence, int(drawn.argmax())))
    if len(left_out) != 1 or not kept:
        return
    [(token, count)] = left_out.items()
    if token in kept or not witnesses:
        return
    sequence, first = witnesses[0]
    yield Finding(
        f"the masks leave out every token with id {token} ({count} of them) and nothing else, and these were "
        f"sampled (logprob {sequence.logprobs[first]:.4g} here): made by comparing ids with the padding, "
        "which is a token of the policy's as well",
        at(sequence, completion=first),
        ERROR,
        count,
    )


# ------------------------------------------------------------------------------------------------ R12


def logprobs(evidence: Evidence) -> Iterator[RuleResult]:
    """R12: the logprobs of trained tokens can be logprobs."""
    known = [sequence for sequence in evidence.raw if _has_logprobs(sequence)]
    values = [np.zeros(0)]
    for sequence in known:
        trained = np.flatnonzero(sequence.acted)
        logprobs = sequence.logprobs[trained]
        values.append(logprobs)
        yield from _impossible(sequence, trained, logprobs)
    values = np.concatenate(values)
    if len(values) >= 8 and not values.any():
        yield Finding(
            f"all {len(values)} logprobs are exactly 0, as if every token had been certain: they were not "
            "kept",
            at(known[0]),
            ERROR,
            len(values),
        )
    yield from looked_at(len(values), _or_no_ids("logprobs of trained tokens", evidence.raw))


def _impossible(
    sequence: RawSequence, trained: np.ndarray, logprobs: np.ndarray
) -> Iterator[Finding]:
    for wrong, words in (
        (np.isnan(logprobs), "is missing (NaN or null)"),
        (np.isneginf(logprobs), "is -inf: a token of probability 0 was sampled"),
        (logprobs > 1e-3, "is above 0: a probability above 1"),
    ):
        yield from at_first(
            wrong,
            lambda k: (
                f"the logprob{'' if np.isnan(logprobs[k]) else f' {logprobs[k]:.4g}'} of a trained token {words}; "
                f"{wrong.sum()} of {len(logprobs)} in this sequence"
            ),
            lambda k: at(sequence, completion=trained[k]),
        )


def _has_logprobs(sequence: RawSequence) -> bool:
    """Whether some token can have a logprob, and all of them have one."""
    mask = sequence.acted
    if mask is None or sequence.logprobs is None or len(sequence.logprobs) != len(mask):
        return False
    return bool(mask.any())


def _id_at(ids: np.ndarray | None, index: int) -> str:
    return f"id {int(ids[index])}" if ids is not None and index < len(ids) else "no id at all"


def _or_no_ids(missing: str, sequences: Sequence[RawSequence]) -> str:
    """What is missing; where there are not even ids, these."""
    return missing if any(sequence.completion_ids is not None for sequence in sequences) else NO_IDS


RAW_CHECKS: dict[str, Check] = {
    "R1": raw_said.compared_as_well("R1", exact_prefix),
    "R3": raw_said.compared_as_well("R3", mask_is_provenance, raw_said.after_the_stop),
    "R4": raw_said.compared_as_well("R4", lengths),
    "R5": raw_said.compared_as_well("R5", trained_share),
    "R6": raw_credit.credit_of_trajectories,
    "R7": raw_credit.group_identity,
    "R8": raw_credit.groups_that_teach,
    "R11": raw_credit.truncation,
    "R12": raw_said.compared_as_well("R12", logprobs),
    "R16": raw_said.compared_as_well("R16", raw_credit.rewards),
    "R22": raw_credit.own_noise,
    "R28": raw_said.compared_as_well("R28", raw_said.calls),
    "R37": raw_said.compared_as_well("R37", raw_said.once),
}
