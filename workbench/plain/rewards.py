"""What attempts earned: which of them count, on which scale, and at which token each amount is paid.

above_the_others([1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1], std=True)                [0.707, -0.707, 0, 0]
by_spread([1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1], FilterRule(zero_variance="drop"))   [True, True, False, False]"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.types import Group, StopReason, Trajectory

STD_EPSILON = 1e-6  # added to a standard deviation, as in the published GRPO
# A reward is a sum of turns, and -0.1 three times is not the float -0.3: differences this small, relative to the
# largest number, are rounding. Divided by a deviation they would become credit.
ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class AttemptTokens:
    """One trajectory as training sees it. Entry t of every array is about token t [T], segments end to end:

        ids        The map: ... | <answer> Right </answer> <|im_end|> | You moved ... | <answer> ...
        sampled    0 0 0 0 0 0    1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1    0 0 0 0 0 0     1 1 1 1 ...
        response   0 0 0 0 0 0    1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1    1 1 1 1 1 1     1 1 1 1 ...

    Of each turn: `rewards` (None: could not be scored) and `states`, what names the state that it began in."""

    group: int  # attempts at the same task have the same number
    ids: np.ndarray
    turn: np.ndarray
    segment: np.ndarray  # counted from 0
    sampled: np.ndarray  # by the policy, in this very segment
    rewards: Sequence[float | None]
    outcome: float | None = None  # earned by the attempt as a whole
    broken: bool = False  # something broke, or it could not be scored
    truncated: bool = False  # a limit ended it
    context_full: bool = False  # ... and it was that of the context
    states: Sequence[Hashable | None] = ()
    tag: Hashable = 0  # the kind of its task
    rollout_logp: np.ndarray | None = None  # the sampler's logprobs; NaN where nothing was sampled
    old_logp: np.ndarray | None = (
        None  # the policy's at the step's beginning; None: not asked, here and below
    )
    ref_logp: np.ndarray | None = None  # the reference policy's
    value: np.ndarray | None = None  # what the critic expects before each token
    final_value: float = 0.0  # ... and after the last one
    greedy: float | None = None  # what the greedy attempt at the same task earned

    @property
    def reward(self) -> float | None:
        """R: all that it earned; None where any of it is not known. None is not zero."""
        if self.broken or any(reward is None for reward in self.rewards):
            return None
        total = sum(self.rewards) + (self.outcome or 0.0)
        return total if math.isfinite(total) else None

    @property
    def response(self) -> np.ndarray:
        """bool [T]: from the first token sampled in its segment on."""
        found = self.sampled.copy()
        for t in range(1, len(found)):
            found[t] |= found[t - 1] and self.segment[t] == self.segment[t - 1]
        return found


def attempts_of(groups: Sequence[Group]) -> list[AttemptTokens]:
    """All trajectories of a step, in their order; what a greedy one earned stands with those that it is compared with."""
    return [
        replace(
            attempt_of(trajectory, number),
            greedy=group.greedy and attempt_of(group.greedy, number).reward,
        )
        for number, group in enumerate(groups)
        for trajectory in group
    ]


def attempt_of(trajectory: Trajectory, group: int) -> AttemptTokens:
    """Read off the spans: whether a token was sampled here was recorded when it was born."""
    tokens, stop, task = [], trajectory.stop_reason, trajectory.task
    for number, segment in enumerate(trajectory.segments):
        for span in segment.spans:
            logps = [math.nan] * len(span) if span.logprobs is None else span.logprobs.tolist()
            tokens += [
                (token, span.turn, number, span.sampled, logp)
                for token, logp in zip(span.token_ids.tolist(), logps)
            ]
    ids, turn, segments, sampled, logp = zip(*tokens) if tokens else ((),) * 5
    return AttemptTokens(
        group,
        np.array(ids, int),
        np.array(turn, int),
        np.array(segments, int),
        np.array(sampled, bool),
        [turn.reward for turn in trajectory.turns],
        trajectory.outcome,
        broken=stop.is_fault or not trajectory.scored,
        truncated=stop is not StopReason.TERMINATED and not stop.is_fault,
        context_full=stop is StopReason.CONTEXT_FULL,
        states=[turn.state_key for turn in trajectory.turns],
        tag=task.metadata.get("tag", task.env),
        rollout_logp=np.array(logp, float),
    )


def members(keys: Sequence[Hashable]) -> dict[Any, list[int]]:
    """{key: numbers of those that have it}; those with the key None are in no set."""
    different = [key for key in dict.fromkeys(keys) if key is not None]
    return {key: [n for n, other in enumerate(keys) if other == key] for key in different}


def is_flat(values: Sequence[float]) -> bool:
    """Whether two or more values are all the same, up to rounding."""
    return len(values) > 1 and max(values) - min(values) <= ROUNDING * max(
        abs(value) for value in values
    )


def above_the_others(
    values: Sequence[float],
    keys: Sequence[Hashable],
    *,
    std: bool = False,
    leave_one_out: bool = False,
) -> list[float]:
    """How much better each did than those it is compared with, which have the same key:

        A_i =  R_i - mean R                          Dr. GRPO: Liu et al. 2025 (arXiv 2503.20783)
        A_i = (R_i - mean R) / (std R + 1e-6)        GRPO: Shao et al. 2024 (arXiv 2402.03300), std of n - 1
        A_i =  R_i - mean of the others' R           RLOO: Ahmadian et al. 2024 (arXiv 2402.14740), section 3.3

    Zero where nobody else is there, and where all are the same: that says nothing about who was good."""
    advantages = [0.0] * len(values)
    for at in members(keys).values():
        own = np.array([values[n] for n in at], float)
        if len(at) < 2 or is_flat(own):
            continue
        for n, value in zip(at, own):
            baseline = (own.sum() - value) / (len(own) - 1) if leave_one_out else own.mean()
            advantages[n] = (value - baseline) / (own.std(ddof=1) + STD_EPSILON if std else 1.0)
    return advantages


def normalized(
    rewards: Sequence[float], keys: Sequence[Hashable], method: str
) -> list[tuple[float, float]]:
    """(scale, shift) of each attempt, R' = scale R + shift, over those with the same key:

        none  R' = R    mean  R' = R - mean    mean_std  R' = (R - mean) / (std + 1e-6)    asym_clip  held within -1..3

    (0, 0) without others. Turns are multiplied, the shift is paid at the end. RAGEN (arXiv 2504.20073), its code."""
    if method == "none":
        return [(1.0, 0.0)] * len(rewards)
    totals, scales = above_the_others(rewards, keys, std=method != "mean"), [0.0] * len(rewards)
    for at in members(keys).values():
        own = np.array([rewards[n] for n in at], float)
        if len(at) > 1 and (method == "mean" or not is_flat(own)):
            for n in at:
                scales[n] = 1.0 if method == "mean" else 1 / (own.std(ddof=1) + STD_EPSILON)
    if method == "asym_clip":
        totals = [min(max(total, -1.0), 3.0) for total in totals]
    return [
        (scale, total - scale * reward) for scale, total, reward in zip(scales, totals, rewards)
    ]


def payments(
    attempt: AttemptTokens,
    on: np.ndarray,
    scale: float = 1.0,
    shift: float = 0.0,
    price: np.ndarray | float = 0.0,
) -> np.ndarray:
    """[T]: what is paid at each of the tokens `on`, less the price that each token pays. A turn is paid at the last
    token sampled in it, or before it; the outcome and the shift at the last one of all. What falls to a token that is
    not `on` goes to the last one before it that is. Where there is none before, to the first one after."""
    amounts, paid = np.zeros(len(on)) - price, np.zeros(len(on))
    sampled, places = np.flatnonzero(attempt.sampled), np.flatnonzero(on)
    for k, reward in enumerate(attempt.rewards if len(sampled) else ()):
        until = sampled[attempt.turn[sampled] <= k]
        amounts[until[-1] if len(until) else sampled[0]] += scale * reward
    amounts[sampled[-1:]] += scale * (attempt.outcome or 0.0) + shift
    for t in np.flatnonzero(amounts) if len(places) else ():
        before = places[places <= t]
        paid[before[-1] if len(before) else places[0]] += amounts[t]
    return paid


@dataclass(frozen=True)
class FilterRule:
    """Which attempts are learned from, by how much the raw rewards of their group differ."""

    keep: str = "all"  # top_share, top_k, top_p, min_p, band, within_group, or all
    share: float = (
        0.25  # top_share: of all groups, those with the largest std: StarPO-S (arXiv 2504.20073)
    )
    groups: int = 4  # top_k: so many groups with the largest std
    p: float = (
        0.9  # top_p: the fewest groups, largest first, with this share of all std (RAGEN-2) ...
    )
    mass: str = (
        "linear"  # ... of their sum, less the slack; or "softmax": of the softmax of the std
    )
    slack: float = 0.01
    ratio: float = 0.5  # min_p: groups with at least so much of the largest std
    low: float = 0.0  # band: groups between two quantiles of std
    high: float = 1.0
    attempts: int = 4  # within_group: those of each group whose rewards have the largest variance
    zero_variance: str = "keep"  # "drop": groups in which all earned the same go first, as in DAPO (arXiv 2503.14476)


def by_spread(
    earned: Sequence[float | None], group_of: Sequence[int], rule: FilterRule
) -> list[bool]:
    """Which attempts are kept. Unscored ones never are; nor, if anything is filtered, those of groups without a std."""
    scored, spread = [reward is not None for reward in earned], {}
    whole = {
        "all": True,
        "top_share": rule.share == 1,
        "top_p": rule.p == 1,
        "min_p": rule.ratio == 0,
        "band": (rule.low, rule.high) == (0, 1),
    }
    if whole.get(rule.keep, False) and rule.zero_variance == "keep":
        return scored
    for g, at in members(group_of).items():
        own = np.array([earned[n] for n in at if scored[n]], float)
        if len(own) > 1 and not (is_flat(own) and rule.zero_variance == "drop"):
            spread[g] = 0.0 if is_flat(own) else float(own.std(ddof=1))
    chosen = _chosen(spread, len(set(group_of)), rule)
    kept = [scored[n] and g in chosen for n, g in enumerate(group_of)]
    for at in members(group_of).values() if rule.keep == "within_group" else ():
        own = [n for n in at if kept[n]]
        widest = _widest([earned[n] for n in own], rule.attempts)
        for i, n in enumerate(own):
            kept[n] = i in widest
    return kept


def _chosen(spread: Mapping[int, float], total: int, rule: FilterRule) -> list[int]:
    """Numbers of the groups that are kept, of `total` groups in all."""
    largest = max(spread.values(), default=0.0)
    falling = sorted(
        spread, key=lambda g: (-round(spread[g] / (largest or 1.0), 9), g)
    )  # equal ones in order
    if rule.keep == "top_share":
        return falling[: max(1, math.floor(rule.share * total + 1e-9))]
    if rule.keep == "top_k":
        return falling[: rule.groups]
    if rule.keep == "min_p":
        return [g for g in falling if spread[g] >= rule.ratio * largest - ROUNDING * largest]
    if rule.keep == "band":
        return [
            g
            for r, g in enumerate(falling[::-1])
            if rule.low <= (r + 0.5) / len(falling) < rule.high
        ]
    if rule.keep == "top_p":
        shares = [
            spread[g] if rule.mass == "linear" else math.exp(spread[g] - largest) for g in falling
        ]
        wanted = rule.p * sum(shares) - (rule.slack if rule.mass == "linear" else 0.0)
        short = [
            sum(shares[:count]) < wanted - 1e-12 * sum(shares) for count in range(1, len(shares))
        ]
        return falling[: 1 + sum(short)] if wanted > 0 else []
    return falling


def _widest(rewards: list[float], count: int) -> list[int]:
    """Numbers of the `count` rewards with the largest variance: always some of the lowest and some of the highest; of
    equal choices the fewest lowest, of equal rewards the first. Xu et al. 2025 (arXiv 2504.13818)."""
    rising, falling = (
        sorted(range(len(rewards)), key=lambda i: (sign * rewards[i], i)) for sign in (1, -1)
    )
    best, largest = [], -1.0
    for lowest in range(count + 1):
        chosen = (
            rising[:lowest] + [i for i in falling if i not in rising[:lowest]][: count - lowest]
        )
        variance = float(np.var([rewards[i] for i in chosen], ddof=1)) if len(chosen) > 1 else 0.0
        if variance * (1 - ROUNDING) > largest:
            best, largest = chosen, variance
    return best
