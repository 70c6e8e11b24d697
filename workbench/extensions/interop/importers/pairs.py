"""Things that a file has in pairs, compared: calls of tools and what came back, numbers that stand in two places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from workbench.extensions.interop.dumps import Compared
from workbench.extensions.interop.importers.values import name

SLACK = 1e-6  # relative: files round


def calls_and_answers(calls: Iterable[str], answers: Iterable[str]) -> Compared:
    """Ids of calls that were sampled, against ids of calls that were answered, each as often as it comes.

    An answer without a call is an error: the call has gone missing. A call without an answer is none: an attempt may end
    there."""
    made = Counter(calls)
    answered = Counter(answers)
    count = made.total() + answered.total()
    orphans = sorted((answered - made).elements())
    if orphans:
        return Compared(
            "R28",
            count,
            f"{len(orphans)} answers are to calls that are not there, the first to {name(orphans[0])}: a call that was "
            "sampled has been dropped",
        )
    open_calls = sorted((made - answered).elements())
    if len(open_calls) > 1:
        words = f"{len(open_calls)} calls have no answer, the first {name(open_calls[0])}"
        return Compared("R28", count, words, is_error=False)
    return Compared("R28", count)


def same_number(rule: str, one: float | None, other: float | None, words: str) -> Compared | None:
    """Whether a number is the same in two places; None where it stands in one of them only. `words`: what differs."""
    if one is None or other is None:
        return None
    equal = one == other or abs(one - other) <= SLACK * max(1.0, abs(one), abs(other))
    both_nan = one != one and other != other
    return Compared(rule, 1, None if equal or both_nan else f"{words}: {one:.6g} and {other:.6g}")
