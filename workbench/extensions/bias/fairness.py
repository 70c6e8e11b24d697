"""What an estimator makes of trajectories of one group that differ in one thing: in length, in what they earned (R47).

    length    two that earned the same are credited alike by token, however long they are
    below     who earned less than the others is credited below zero, if anybody is credited above it
    order     who earned more is credited with more, whatever the size of the rewards
    whole     each token of a trajectory is credited, where all are worth the same
    lengths   exchanged rewards of a short and a long one change nothing for the others of the group

Asked of estimators that compare the trajectories of a group, and whose credit is the same for all of a trajectory.

Axis letters: N trajectories · K turns (flat) · T tokens of the batch (flat).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from workbench.basics.findings import Checked, Finding, RuleResult
from workbench.basics.tensors import Tensor
from workbench.extensions.bias.further import words_of
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.parts import Rewards
from workbench.learn.batch import Batch
from workbench.linting.expected import declares

NEAR = 1e-6
STEPS = (
    -2.5,
    -0.6,
    0.3,
    0.7,
    4.0,
)  # rewards of a group, no two of which round to the same but the middle ones
# What an author says of an estimator that leaves one side alone, or does not tell rewards apart, on purpose.
ONE_SIDED = re.compile(
    r"\b(?:positives?|success\w*|winners?|winning|best|top|raft|reject\w*|imitat\w*|clon\w*|failures?|mistakes?|non-?negative|one.?sided)\b|"
    r"\bonly\b[^.\n]{0,30}\b(?:good|better|above)\b|\b(?:no|never|without)\b[^.\n]{0,30}\b(?:negative|punish\w*|push\w* (?:down|away))\b",
    re.IGNORECASE,
)
COARSE = re.compile(
    r"\b(?:clip\w*|cap\w*|clamp\w*|bound\w*|sign|ranks?|ranking|threshold\w*|binar\w*|median|quantile|best|worst|round\w*|buckets?|bins?)\b",
    re.IGNORECASE,
)
# What an author says of a baseline that weighs trajectories by their length on purpose.
BY_LENGTH = re.compile(
    r"\b(?:lengths?|per token|token.?weighted|weighted by|over (?:all )?tokens|token mean|optimal baseline|variance)\b",
    re.IGNORECASE,
)
Credited = Callable[[Batch], Tensor]  # -> [T]


def fair(algorithm: Algorithm, batch: Batch, credit: Credited) -> Iterator[RuleResult]:
    """Ask an estimator. `credit(batch)` -> [T]."""
    plain_T = credit(batch)
    yield from _whole(algorithm, batch, plain_T)
    if not all(_is_even(batch, plain_T, n) for n in range(batch.num_trajectories)):
        return  # credit by the turn or the token
    yield from _length(algorithm, batch, credit)
    yield from _lengths_of_others(algorithm, batch, credit)
    if algorithm.rewards == Rewards() and not declares(algorithm, "against_rewards"):
        yield from _steps(algorithm, batch, credit)


# ------------------------------------------------------------------------------------------------ made-up groups


def _groups(batch: Batch) -> Iterator[list[int]]:
    for group in range(int(batch.group_of_trajectory_N.max()) + 1):
        yield (batch.group_of_trajectory_N == group).nonzero()[:, 0].tolist()


def _paying(batch: Batch, members: Sequence[int], rewards: Sequence[float]) -> Batch:
    """The same trajectories, of which some are paid so much at their end and nothing before."""
    paid_K = batch.turn_reward_K.clone()
    reward_N = batch.reward_N.clone()
    for n, reward in zip(members, rewards):
        first, last = (int(offset) for offset in batch.turn_offsets[n : n + 2])
        paid_K[first:last] = 0.0
        paid_K[last - 1] = reward
        reward_N[n] = reward + float(batch.outcome_N[n].nan_to_num(0.0))
    return replace(batch, turn_reward_K=paid_K, reward_N=reward_N)


def _own(batch: Batch, n: int) -> Tensor:
    """bool [T]: what the policy said in a trajectory."""
    return (batch.trajectory_of_token_T == n) & batch.eligible_T


def _is_even(batch: Batch, credit_T: Tensor, n: int) -> bool:
    own = credit_T[_own(batch, n)]
    return not len(own) or float(own.max() - own.min()) <= NEAR * max(float(own.abs().max()), 1.0)


def _worth(batch: Batch, credit_T: Tensor, n: int) -> float:
    own = credit_T[_own(batch, n)]
    return float(own.mean()) if len(own) else 0.0


def _size(batch: Batch, n: int) -> int:
    return int(_own(batch, n).sum())


# ------------------------------------------------------------------------------------------------ what is asked


def _whole(algorithm: Algorithm, batch: Batch, plain_T: Tensor) -> Iterator[RuleResult]:
    """Some tokens of a trajectory get nothing, and the others all the same."""
    if algorithm.estimator.per != "attempt":
        return
    asked = 0
    missing = 0
    example = (0, 0)
    for n in range(batch.num_trajectories):
        own = plain_T[_own(batch, n)]
        credited = own[own.abs() > NEAR]
        if len(own) < 2 or not len(credited):
            continue
        asked += 1
        if len(credited) < len(own) and float(credited.max() - credited.min()) <= NEAR:
            missing += 1
            example = len(own) - len(credited), len(own)
    yield Checked(asked, "all tokens of a trajectory")
    if asked and 2 * missing > asked:
        yield Finding(
            f"{example[0]} of {example[1]} tokens of a trajectory get no credit, and the others the same, in {missing} of {asked} "
            f"trajectories; expected that each token of it is worth the same, since {algorithm.name} says so (per = 'attempt'). Look at "
            "slices and masks over inputs.row_A, or say per = 'token'"
        )


def _length(algorithm: Algorithm, batch: Batch, credit: Credited) -> Iterator[RuleResult]:
    """Two trajectories of a group earn the same and differ in length."""
    asked = 0
    apart = 0
    example = (0, 0, 0.0, 0.0)
    for members in _groups(batch):
        pair = max(
            combinations(members, 2),
            key=lambda two: abs(_size(batch, two[0]) - _size(batch, two[1])),
        )
        sizes = [_size(batch, n) for n in pair]
        if min(sizes) < 1 or sizes[0] == sizes[1]:
            continue
        rest = [n for n in members if n not in pair]
        paid = _paying(batch, [*pair, *rest], [1.0, 1.0, *([0.0] * len(rest))])
        credit_T = credit(paid)
        one, other = (_worth(batch, credit_T, n) for n in pair)
        asked += 1
        if abs(one - other) > NEAR * max(abs(one), abs(other), 1e-3):
            apart += 1
            example = (*sizes, one, other)
    yield Checked(asked, "length")
    if asked >= 3 and apart == asked:
        long, short, of_long, of_short = example
        yield Finding(
            f"two trajectories of a group that earned the same, of {long} and of {short} tokens, are credited with {of_long:.4g} and "
            f"{of_short:.4g} a token, so in {apart} of {asked} groups; expected the same: the credit of {algorithm.name} is divided by, or "
            "multiplied with, the length that a trajectory happened to have (its tokens, its turns), which biases the gradient towards "
            "short or long answers. Divide by a constant, and leave lengths to algorithm.reduction"
        )


def _lengths_of_others(
    algorithm: Algorithm, batch: Batch, credit: Credited
) -> Iterator[RuleResult]:
    """The shortest and the longest trajectory of a group earn each what the other one did."""
    asked = 0
    moved = 0
    largest = 0.0
    for members in _groups(batch):
        by_size = sorted(members, key=lambda n: _size(batch, n))
        short, *rest, long = by_size
        if not rest or not 0 < _size(batch, short) < _size(batch, long):
            continue
        paid = [1.0, *(0.25 + 0.1 * place for place in range(len(rest)))]
        before, after = (
            credit(_paying(batch, [one, *rest, other], [*paid, 0.0]))
            for one, other in ((short, long), (long, short))
        )
        apart = max(abs(_worth(batch, before, n) - _worth(batch, after, n)) for n in rest)
        asked += 1
        moved += apart > NEAR * max(float(before.abs().max()), 1.0)
        largest = max(largest, apart)
    yield Checked(asked, "the lengths of others")
    if (
        asked >= 3
        and moved == asked
        and not BY_LENGTH.search(words_of(algorithm.estimator.function))
    ):
        yield Finding(
            f"where a short and a long trajectory of a group exchange what they earned, the credit of the others moves by up to "
            f"{largest:.4g}, so in {moved} of {asked} groups; expected the same: the baseline of {algorithm.name} weighs trajectories by the "
            "length that they happened to have (a mean over tokens or turns). Take it over trajectories (inputs.reward_N), or say in the "
            "docstring that tokens are weighed on purpose"
        )


class CreditRecord(NamedTuple):
    """Groups whose rewards rise step by step, how many of them have somebody below and above zero, and neighbours of whom the one
    that earned more is credited with less, or with as much: (less, more, of less, of more)."""

    asked: int
    below: int
    above: int
    wrong: list[tuple[float, float, float, float]]
    equal: list[tuple[float, float, float, float]]


def _rising(batch: Batch, credit: Credited) -> CreditRecord:
    groups = [members for members in _groups(batch) if len(members) == len(STEPS)]
    below = 0
    above = 0
    pairs: list[tuple[float, float, float, float]] = []
    for members in groups:
        credit_T = credit(_paying(batch, members, STEPS))
        worth = [_worth(batch, credit_T, n) for n in members]
        below += min(worth) < -NEAR
        above += max(worth) > NEAR
        pairs += zip(STEPS, STEPS[1:], worth, worth[1:])
    wrong = [pair for pair in pairs if pair[3] < pair[2] - NEAR]
    equal = [pair for pair in pairs if abs(pair[3] - pair[2]) <= NEAR]
    return CreditRecord(len(groups), below, above, wrong, equal)


def _steps(algorithm: Algorithm, batch: Batch, credit: Credited) -> Iterator[RuleResult]:
    """Rewards of a group that rise step by step, of any size and sign."""
    words = words_of(algorithm.estimator.function)
    asked, below, above, wrong, equal = _rising(batch, credit)
    yield Checked(asked, "rewards that rise")
    if not asked or ONE_SIDED.search(words):
        return
    if above == asked and not below:
        yield Finding(
            f"nobody is credited below zero: of rewards {', '.join(f'{step:g}' for step in STEPS)} in a group the better ones are credited, "
            f"and the worse ones with nothing, in {asked} of {asked} groups; expected that what earned less than the others is made rarer. "
            f"What is below zero is lost in {algorithm.name} (clamp(min=0), relu, a mask), so that its gradient is no longer that of the "
            "return; say in the docstring where one side is left alone on purpose"
        )
    elif len(wrong) >= asked:
        less, more, of_less, of_more = wrong[0]
        yield Finding(
            f"in a group where one earned {less:g} and the next one {more:g}, the former is credited with {of_less:.4g} and the latter with "
            f"{of_more:.4g}; expected that who earned more is credited with more. Look at signs, squares and the order of ranks in the estimator of {algorithm.name}"
        )
    elif len(equal) >= asked and not COARSE.search(words):
        less, more, worth_of, _ = equal[0]
        yield Finding(
            f"in a group where one earned {less:g} and the next one {more:g}, both are credited with {worth_of:.4g}; expected that who earned "
            f"more is credited with more: rewards or advantages are cut or rounded in {algorithm.name} (clamp, int(), round), which its "
            "docstring does not say"
        )
