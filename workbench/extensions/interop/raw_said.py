"""What a file says twice, or says of itself, over rollouts that another framework wrote.

Readers compare what stands in one row twice (`Compared`); here that is given a voice, and what only the whole file can tell
is looked at: names that come twice (R37), and trained tokens behind the token that ends a turn (R3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, Place
from workbench.extensions.interop.dumps import Compared, RawSequence
from workbench.extensions.interop.raw_credit import at
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Check, RuleResult

ZEROS = 4  # tokens in a row with a logprob of exactly 0 that no policy is so sure of behind the end of its turn
TURNS = 3  # ends of turns that must agree on a token before it is taken for the one that ends them


def compared_as_well(rule: str, *checks: Check) -> Check:
    """The checks, and what readers compared for this rule. "Not checked" stands where none of them looked at anything."""

    def check(evidence: Evidence) -> Iterator[RuleResult]:
        results = [*_of_readers(rule, evidence.raw)]
        for part in checks:
            results += part(evidence)
        looked = sum(result.count for result in results if isinstance(result, Checked))
        for result in results:
            if not (looked and isinstance(result, NotChecked)):
                yield result

    check.__doc__ = checks[0].__doc__
    return check


def _of_readers(rule: str, sequences: Sequence[RawSequence]) -> Iterator[RuleResult]:
    looked = 0
    for sequence in sequences:
        for compared in sequence.compared:
            if compared.rule == rule:
                looked += compared.count
                yield from _finding(sequence, compared)
    if looked:
        yield Checked(looked)


def _finding(sequence: RawSequence, compared: Compared) -> Iterator[Finding]:
    if compared.wrong is not None:
        yield Finding(compared.wrong, at(sequence), ERROR if compared.is_error else NOTE)


# ------------------------------------------------------------------------------------------------ R28, R37


def calls(evidence: Evidence) -> Iterator[RuleResult]:
    """R28: every answer is to a call that is there. Readers compare the two."""
    yield NotChecked("calls and their answers")


def once(evidence: Evidence) -> Iterator[RuleResult]:
    """R37: no trajectory is there twice, and what was sampled is there, as far as the file says what was."""
    named = {
        sequence.attempt: sequence.identity
        for sequence in evidence.raw
        if sequence.identity is not None
    }
    counted = Counter(named.values())
    for identity, count in counted.items():
        if count > 1:
            twice = [attempt for attempt, name in named.items() if name == identity]
            yield Finding(
                f"{count} trajectories are {identity}: one that was sampled once is there {count} times, and counts "
                "so often in its group",
                Place(twice[1]),
                ERROR,
                count,
            )
    yield Checked(len(named))
    if not named:
        yield NotChecked("names of trajectories that may come only once")


# ------------------------------------------------------------------------------------------------ R3


class _Stretch(NamedTuple):
    """Consecutive trained tokens of a sequence."""

    sequence: RawSequence
    start: int
    end: int


def after_the_stop(evidence: Evidence) -> Iterator[RuleResult]:
    """R3: within one stretch of trained tokens nothing follows the token that ends a turn, least of all tokens with a
    logprob of exactly 0: those are a reply that counts as the policy's."""
    stretches: list[_Stretch] = []
    for sequence in evidence.raw:
        if sequence.sampled is None:
            stretches += _stretches(sequence)
    stop = _stop_of(stretches)
    if stop is None:
        return
    for sequence, start, end in stretches:
        ids = sequence.completion_ids[start:end]
        logprobs = sequence.logprobs[start:end]
        for place in np.flatnonzero(ids[:-1] == stop):
            behind = logprobs[place + 1 : place + 1 + ZEROS]
            if len(behind) == ZEROS and not behind.any():
                yield Finding(
                    f"behind token {start + place} (id {stop}, which ends the other turns) more tokens are trained, "
                    f"the next {ZEROS} with a logprob of exactly 0: nobody sampled them",
                    at(sequence, completion=start + place + 1),
                )
                break


def _stretches(sequence: RawSequence) -> Iterator[_Stretch]:
    mask = sequence.trained
    if mask is None or sequence.logprobs is None or len(sequence.logprobs) != len(mask):
        return
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    for start, end in edges.reshape(-1, 2).tolist():
        yield _Stretch(sequence, start, end)


def _stop_of(stretches: Sequence[_Stretch]) -> int | None:
    """The token that ends every turn that was not cut off; None where turns end in several ways."""
    last = Counter(
        int(stretch.sequence.completion_ids[stretch.end - 1])
        for stretch in stretches
        if not stretch.sequence.truncated
    )
    if not last:
        return None
    token, count = last.most_common(1)[0]
    return token if count >= TURNS and count == last.total() else None
