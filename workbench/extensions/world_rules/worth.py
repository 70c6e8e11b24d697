"""What a success is worth, from one step of a run to another (R31).

A reward that is scaled by a running number, turned by a wrong sign or judged by code that was changed pays otherwise
from some step on, while success means what it meant. Successes are compared with failures of the same steps, and with
successes that look like them: the same end, as many turns that could not be read, paid for the same things. Where those
are paid by their length, or by the task, nothing is said of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from workbench.basics.findings import Checked, Finding, NotChecked, Place
from workbench.linting.evidence import Evidence, StepFacts
from workbench.linting.rule import Rule, RuleResult

ENOUGH = 8  # trajectories of either kind, before and after
SIGMAS = 4.0  # standard errors between successes and failures
RECENT = 50  # steps in which a change is looked for


def check_worth(evidence: Evidence) -> Iterator[RuleResult]:
    steps = [row for row in evidence.steps if row.paid]
    if len(steps) < 2:
        if evidence.step != 1:  # before that, nothing can have changed
            yield NotChecked("successes and rewards of several steps")
        return
    yield Checked(sum(len(row.paid) for row in steps))
    yield from _sign(steps)
    yield from _scale(steps)


def _sign(steps: Sequence[StepFacts]) -> Iterator[RuleResult]:
    """The first step by which successes, that earned more than failures, clearly earn less, or the other way round."""
    moments = [[*_moments(row, True), *_moments(row, False)] for row in steps]
    sums = list(accumulate(moments, _added, initial=[0.0] * 6))
    for end in range(2, len(steps) + 1):
        for split in range(max(1, end - RECENT), end):
            rest = [a - b for a, b in zip(sums[end], sums[split])]
            before = _clear_lead(sums[split], rest)
            after = _clear_lead(rest, sums[split])
            if before * after < 0:
                yield Finding(
                    f"until step {steps[split - 1].step} trajectories that succeed earn {before:+.4g} beside those "
                    f"that fail, since step {steps[split].step} {after:+.4g}: the sign of a reward has turned",
                    Place(step=steps[end - 1].step),
                )
                return


def _moments(row: StepFacts, won: bool) -> tuple[float, float, float]:
    """(count, sum, sum of squares) of what successes of a step were paid, or failures."""
    paid = [value for success, _, value in row.paid if success is won]
    return len(paid), sum(paid), sum(value**2 for value in paid)


def _added(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a + b for a, b in zip(one, other)]


def _clear_lead(sums: Sequence[float], others: Sequence[float]) -> float:
    """How much more successes earn than failures, by the moments of both; 0.0 where that is not clear. Either kind's
    rewards spread at least as they do in the `others`: where success pays seldom, the first dozen may all earn nothing."""
    sides = []
    for here, there in ((sums[:3], others[:3]), (sums[3:], others[3:])):
        if here[0] < ENOUGH:
            return 0.0
        sides.append((here[1] / here[0], max(_variance(here), _variance(there)) / here[0]))
    gap = sides[0][0] - sides[1][0]
    error = math.sqrt(sides[0][1] + sides[1][1])
    return gap if abs(gap) > max(SIGMAS * error, 1e-9) else 0.0


def _variance(moments: Sequence[float]) -> float:
    count, total, squares = moments
    return max(squares / count - (total / count) ** 2, 0.0) if count else 0.0


def _scale(steps: Sequence[StepFacts]) -> Iterator[RuleResult]:
    """The first step by which successes that look alike, and were all paid one number, are all paid another; where any
    other kind of success is paid as before, it is something else that changed."""
    kinds: dict[str, dict[float, _Times]] = defaultdict(dict)
    for number, row in enumerate(steps):
        for kind, value in ((kind, round(value, 9)) for won, kind, value in row.paid if won):
            count, first, _ = kinds[kind].get(value, _Times(0, number, number))
            kinds[kind][value] = _Times(count + 1, first, number)
        for kind, times in kinds.items():
            if len(times) != 2 or min(record.count for record in times.values()) < ENOUGH:
                continue
            (before, one), (after, other) = times.items()
            if one.last <= other.first and not _paid_through(kinds, other.first):
                yield Finding(
                    f"successes that look alike ({kind}) were all paid {before:g}, and since step "
                    f"{steps[other.first].step} all {after:g}: the reward of a success has changed",
                    Place(step=row.step),
                )
                return


def _paid_through(kinds: Mapping[str, Mapping[float, _Times]], place: int) -> bool:
    """Whether any kind of success was paid the same before and after a step."""
    for times in kinds.values():
        if any(record.first < place < record.last for record in times.values()):
            return True
    return False


class _Times(NamedTuple):
    """How often a number was paid, and in which steps, by their places, first and last."""

    count: int
    first: int
    last: int


R31 = Rule(
    "R31",
    "the reward of a success is the same all through a run",
    "The policy is taught one thing at the beginning and another at the end, and its reward curve shows the reward's own "
    "changes as learning.",
    "Compute rewards from the trajectory alone: no running means, schedules or counters in the environment or the verifier; "
    "rescale in algorithm.rewards, where it is declared. Code of a reward that changes in a run begins a new one.",
    ("steps",),
    check_worth,
    "run",
)

RULES: tuple[Rule, ...] = (R31,)
