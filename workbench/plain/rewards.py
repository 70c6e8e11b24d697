"""Rewards: which trajectories count, on which scale, and at which token each amount is paid.

above_the_others([1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1], std=True)                [0.707, -0.707, 0, 0]
by_spread([1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1], FilterRule(zero_variance="drop"))   [True, True, False, False]"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray

from workbench.values import Group, StopReason, Trajectory, sum_of

STD_EPSILON = 1e-6  # added to a standard deviation, as in the published GRPO
# A reward is a sum of turns, and -0.1 three times is not the float -0.3: differences this small, relative to the
# largest number, are rounding. Divided by a deviation they would become credit.
ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class TrajectoryTokens:
    """One trajectory as training sees it. Entry t of every array is about token t [T], segments end to end:

        ids        The map: ... | <answer> Right </answer> <|im_end|> | You moved ... | <answer> ...
        sampled    0 0 0 0 0 0    1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1    0 0 0 0 0 0     1 1 1 1 ...
        response   0 0 0 0 0 0    1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1    1 1 1 1 1 1     1 1 1 1 ...

    Of each turn: `rewards` (None: could not be scored) and `states`, what names the state that it began in."""

    group: int  # trajectories of the same task have the same number
    ids: ndarray
    turn: ndarray
    segment: ndarray  # counted from 0
    sampled: ndarray  # by the policy, in this very segment
    rewards: Sequence[float | None]
    outcome: float | None = None  # earned by the trajectory as a whole
    broken: bool = False  # something broke, or it could not be scored
    truncated: bool = False  # a limit ended it
    context_full: bool = False  # ... and it was that of the context
    states: Sequence[Hashable] = ()
    tag: Hashable = 0  # the kind of its task
    # None here and below: not asked.
    rollout_logp: ndarray | None = None  # the sampler's logprobs; NaN where nothing was sampled
    old_logp: ndarray | None = None  # the policy's at the step's beginning
    ref_logp: ndarray | None = None  # the reference policy's
    value: ndarray | None = None  # what the critic expects before each token
    final_value: float = 0.0  # ... and after the last one
    greedy: float | None = None  # what the greedy trajectory of the same task earned

    @property
    def reward(self) -> float | None:
        """R: all that it earned; None where any of it is not known. None is not zero."""
        if self.broken or None in self.rewards:
            return None
        total = sum_of(self.rewards) + (self.outcome or 0.0)
        return total if math.isfinite(total) else None

    @property
    def response(self) -> ndarray:
        """bool [T]: from the first token sampled in its segment on."""
        response = self.sampled.copy()
        for t in range(1, len(response)):
            if self.segment[t] == self.segment[t - 1]:
                response[t] |= response[t - 1]
        return response


def trajectory_tokens_of(groups: Sequence[Group]) -> list[TrajectoryTokens]:
    """List all trajectories of a step, in their order; what a greedy one earned stands with those
    that it is compared with."""
    trajectories = []
    for number, group in enumerate(groups):
        greedy = tokens_of_trajectory(group.greedy, number).reward if group.greedy else None
        for member in group:
            trajectories.append(replace(tokens_of_trajectory(member, number), greedy=greedy))
    return trajectories


def tokens_of_trajectory(trajectory: Trajectory, group: int) -> TrajectoryTokens:
    """Read a trajectory off its spans: whether a token was sampled here was recorded when it was born."""
    rows = []  # of each token: id, turn, segment, sampled, logprob
    for number, segment in enumerate(trajectory.segments):
        for span in segment.spans:
            logps = [math.nan] * len(span)
            if span.logprobs is not None:
                logps = span.logprobs.tolist()
            for token, logp in zip(span.token_ids.tolist(), logps):
                rows.append((token, span.turn, number, span.sampled, logp))
    # One that broke at its reset has no tokens at all.
    ids, turn, segments, sampled, logp = zip(*rows) if rows else [()] * 5
    stop = trajectory.stop_reason
    task = trajectory.task
    return TrajectoryTokens(
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


def members(keys: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """{key: numbers of those that have it}; those with the key None are in no set."""
    sets = {}
    for n, key in enumerate(keys):
        if key is not None:
            sets.setdefault(key, []).append(n)
    return sets


def is_flat(values: Sequence[float]) -> bool:
    """Whether two or more values are all the same, up to rounding."""
    if len(values) < 2:
        return False
    largest = max(abs(value) for value in values)
    return max(values) - min(values) <= ROUNDING * largest


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
        # Every member is measured by the same deviation; the baseline may leave it out itself.
        scale = own.std(ddof=1) + STD_EPSILON if std else 1.0
        for n, value in zip(at, own):
            baseline = own.mean()
            if leave_one_out:
                baseline = (own.sum() - value) / (len(own) - 1)
            advantages[n] = (value - baseline) / scale
    return advantages


def normalized(
    rewards: Sequence[float], keys: Sequence[Hashable], method: str
) -> list[tuple[float, float]]:
    """(scale, shift) of each trajectory, R' = scale R + shift, over those with the same key:

        none  R' = R    mean  R' = R - mean    mean_std  R' = (R - mean) / (std + 1e-6)    asym_clip  held within -1..3

    (0, 0) without others. Turns are multiplied, the shift is paid at the end. RAGEN (arXiv 2504.20073), its code."""
    if method == "none":
        return [(1.0, 0.0)] * len(rewards)
    scales = [0.0] * len(rewards)
    for at in members(keys).values():
        own = np.array([rewards[n] for n in at], float)
        # Zero-variance groups have no deviation to divide by, so they stay at 0.
        if len(at) < 2 or (method != "mean" and is_flat(own)):
            continue
        for n in at:
            scales[n] = 1.0 if method == "mean" else 1 / (own.std(ddof=1) + STD_EPSILON)
    # The shift is what is missing to the total that the method asks for.
    changes = []
    totals = above_the_others(rewards, keys, std=method != "mean")
    for scale, total, reward in zip(scales, totals, rewards):
        if method == "asym_clip":
            total = min(max(total, -1.0), 3.0)
        changes.append((scale, total - scale * reward))
    return changes


def payments(
    trajectory: TrajectoryTokens,
    on: ndarray,
    scale: float = 1.0,
    shift: float = 0.0,
    price: ndarray | float = 0.0,
) -> ndarray:
    """Pay rewards at tokens [T]: what is paid at each of the tokens `on`, minus the price that each
    token pays. A turn is paid at the last token sampled in it, or before it; the outcome and the
    shift at the last one of all. What falls to a token that is not `on` goes to the last one before
    it that is. Where there is none before, to the first one after."""
    amounts = np.zeros(len(on)) - price
    sampled = np.flatnonzero(trajectory.sampled)
    if len(sampled):
        for k, reward in enumerate(trajectory.rewards):
            until = sampled[trajectory.turn[sampled] <= k]
            last = until[-1] if len(until) else sampled[0]
            amounts[last] += scale * reward
        # Only now, behind all turns: the outcome is known at the end.
        amounts[sampled[-1]] += scale * (trajectory.outcome or 0.0) + shift
    # What a mask leaves out moves to its neighbour, so that the sum stays what was earned.
    paid = np.zeros(len(on))
    places = np.flatnonzero(on)
    if len(places):
        for t in np.flatnonzero(amounts):
            before = places[places <= t]
            last = before[-1] if len(before) else places[0]
            paid[last] += amounts[t]
    return paid


@dataclass(frozen=True)
class FilterRule:
    """Which trajectories are learned from, by how much the raw rewards of their group differ."""

    keep: str = "all"  # top_share, top_k, top_p, min_p, band, within_group, or all
    # top_share: of all groups, those with the largest std: StarPO-S (arXiv 2504.20073)
    share: float = 0.25
    groups: int = 4  # top_k: so many groups with the largest std
    # top_p: the fewest groups, largest first, with this share of all std (RAGEN-2) ...
    p: float = 0.9
    # ... of their sum, minus the slack; or "softmax": of the softmax of the std
    mass: str = "linear"
    slack: float = 0.01
    ratio: float = 0.5  # min_p: groups with at least so much of the largest std
    low: float = 0.0  # band: groups between two quantiles of std
    high: float = 1.0
    attempts: int = 4  # within_group: those of each group whose rewards have the largest variance
    # "drop": groups in which all earned the same go first, as in DAPO (arXiv 2503.14476)
    zero_variance: str = "keep"

    def keeps_all(self) -> bool:
        """Whether no scored trajectory can be left out."""
        whole = {
            "all": True,
            "top_share": self.share == 1,
            "top_p": self.p == 1,
            "min_p": self.ratio == 0,
            "band": self.low == 0 and self.high == 1,
        }
        return self.zero_variance == "keep" and whole.get(self.keep, False)


def by_spread(
    earned: Sequence[float | None], group_of: Sequence[int], rule: FilterRule
) -> list[bool]:
    """Which trajectories are kept. Unscored ones never are; nor, if anything is filtered, those of
    groups without a std."""
    scored = [reward is not None for reward in earned]
    if rule.keeps_all():
        return scored
    groups = members(group_of)
    spread = {}
    for group, at in groups.items():
        own = np.array([earned[n] for n in at if scored[n]], float)
        # Equal rewards have a std of exactly 0, whatever rounding makes of it.
        if is_flat(own):
            if rule.zero_variance == "keep":
                spread[group] = 0.0
        elif len(own) > 1:
            spread[group] = float(own.std(ddof=1))
    # Groups first: those that the rule leaves out lose all their trajectories.
    chosen = _chosen(spread, len(groups), rule)
    kept = [scored[n] and group in chosen for n, group in enumerate(group_of)]
    if rule.keep != "within_group":
        return kept
    # Within a group, some of those that are scored are kept.
    for at in groups.values():
        own = [n for n in at if kept[n]]
        widest = _widest([earned[n] for n in own], rule.attempts)
        for i, n in enumerate(own):
            kept[n] = i in widest
    return kept


def _chosen(spread: dict[int, float], total: int, rule: FilterRule) -> list[int]:
    """Choose groups by their std, of `total` groups in all; returns their numbers."""
    largest = max(spread.values(), default=0.0)
    # Largest first; those that differ by rounding are equal, and stay in order.
    scale = largest or 1.0
    falling = sorted(spread, key=lambda group: (-round(spread[group] / scale, 9), group))
    if rule.keep == "top_share":
        count = math.floor(rule.share * total + 1e-9)
        return falling[: max(1, count)]
    if rule.keep == "top_k":
        return falling[: rule.groups]
    # From here on std itself counts, and not only its order.
    if rule.keep == "min_p":
        least = rule.ratio * largest - ROUNDING * largest
        return [group for group in falling if spread[group] >= least]
    if rule.keep == "band":
        # A group stands in the middle of its share of the ranks.
        ranks = enumerate(reversed(falling))
        count = len(falling)
        return [group for n, group in ranks if rule.low <= (n + 0.5) / count < rule.high]
    if rule.keep == "top_p":
        return _reaching([spread[group] for group in falling], falling, rule)
    return falling


def _reaching(stds: list[float], falling: list[int], rule: FilterRule) -> list[int]:
    """Take the fewest groups, largest first, whose stds reach the rule's share of all."""
    shares = stds
    slack = rule.slack
    if rule.mass == "softmax":
        shares = [math.exp(std - max(stds)) for std in stds]
        slack = 0.0
    total = sum(shares)
    wanted = rule.p * total - slack
    # Slack may ask for nothing at all.
    if wanted <= 0:
        return []
    # A sum that is short by rounding alone is not short.
    for count in range(1, len(shares)):
        if sum(shares[:count]) >= wanted - 1e-12 * total:
            return falling[:count]
    return falling


def _widest(rewards: list[float], count: int) -> list[int]:
    """Choose the `count` rewards with the largest variance; returns their numbers. Always some of
    the lowest and some of the highest; of equal choices the fewest lowest, of equal rewards the
    first. Xu et al. 2025 (arXiv 2504.13818)."""
    numbers = range(len(rewards))
    rising = sorted(numbers, key=lambda i: (rewards[i], i))
    falling = sorted(numbers, key=lambda i: (-rewards[i], i))
    best = []
    largest = -1.0
    # All splits are tried: so many of the lowest, the others from the top.
    for lowest in range(count + 1):
        low = rising[:lowest]
        others = [i for i in falling if i not in low]
        chosen = low + others[: count - lowest]
        # A single reward has no variance; a difference by rounding is no larger variance.
        variance = 0.0
        if len(chosen) > 1:
            variance = float(np.var([rewards[i] for i in chosen], ddof=1))
        if variance * (1 - ROUNDING) > largest:
            best = chosen
            largest = variance
    return best
