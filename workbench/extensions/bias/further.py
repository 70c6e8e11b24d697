"""More of what holds of any estimator and any objective of one's own, and of what its own words claim (R47, R48).

    unscored    a trajectory without a score changes nothing for the others of its group, and nothing is NaN
    worst       the worst of a group is not credited above the others
    past        a reward reaches the turns before it, not those behind it
    alone       "leave one out": a trajectory's own reward is no part of its baseline
    gradient    on policy a token goes the way of its advantage
    sampler     the ratio is taken against the policy before the update, not against the sampler
    sides       clip_low holds what falls, clip_high what rises
    uncounted   tokens that no loss is summed over do not change the others'
    entropy     a bonus raises entropy; "high entropy" tokens are those
    size        twice the advantage pulls twice as much where nothing has moved

Asked of made-up tokens, as in properties.py and pulls.py.

Axis letters: N trajectories · T tokens · M tokens of a micro-batch.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from typing import Any

import numpy as np

from workbench.basics.findings import Checked, Finding, RuleResult
from workbench.basics.tensors import Tensor, torch
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import LossInputs
from workbench.learn.algorithms.parts import Rewards
from workbench.learn.batch import Batch
from workbench.linting.expected import declares

NEAR = 1e-6
NOTHING = 1e-7
GROUP = 2
SHIFT = 3.0
TOKENS = 12
OLD = -2.0  # logprob of the tokens before the update
LEFT_OUT = re.compile(
    r"leave.one.out|\brloo\b|mean of the others|without itself|other trajectories", re.IGNORECASE
)
GROUP_MEANT = re.compile(
    r"\b(?:of|over|within|in|by) (?:its|the|their|each|a) (?:own )?(?:group|task)\b|\bgroup (?:mean|average|baseline|relative)\b|"
    r"\bsame (?:task|prompt|question)\b",
    re.IGNORECASE,
)
OVER_ALL = re.compile(r"\bbatch\b|\bglobal|\bwhiten|\ball tasks\b|\brunning\b", re.IGNORECASE)
UNDIVIDED = re.compile(
    r"\b(?:no|without|not|never|nothing)\b(?: is)? (?:divi\w+|normali\w+|scal\w+)?(?: by)?(?: the| a| its)? ?(?:group'?s? )?"
    r"(?:std|standard deviations?|deviation|spread)\b",
    re.IGNORECASE,
)
DIVIDED = re.compile(
    r"\b(?:divided|over|normali[sz]ed|scaled)\b[^.\n]{0,30}\b(?:std|standard deviations?|deviation|spread)\b|\bz-?scores?\b",
    re.IGNORECASE,
)
HIGH = re.compile(
    r"(?:high(?:est)?|largest|upper|top|most)\b[^.\n]{0,40}\bentrop|\bfork\w*|entrop\w*[^.\n]{0,30}\b(?:high|above|upper|top)|uncertain",
    re.IGNORECASE,
)
LOW = re.compile(
    r"(?:low(?:est)?|smallest|lower|least)\b[^.\n]{0,40}\bentrop|entrop\w*[^.\n]{0,30}\b(?:below|lower)|\bconfident",
    re.IGNORECASE,
)
SAMPLER = re.compile(r"sampler|rollout|behaviou?r|engine", re.IGNORECASE)
SIZES = re.compile(
    r"\b(?:sign|signs|squar\w+|clip\w* (?:the )?advantages?|bound\w*|tanh|sigmoid|logistic|hinge|margin|binary|rank\w*|temper\w*|exponential|softmax|weights?)\b",
    re.IGNORECASE,
)
LESS_ENTROPY = re.compile(
    r"minimi[sz]\w* (?:the )?entropy|entropy (?:penalty|minimi[sz])|sharpen", re.IGNORECASE
)


def words_of(part: Any) -> str:
    """What an algorithm's author says of a function or an objective: its name, its docstring, its module's first line."""
    module = inspect.getmodule(part if inspect.isroutine(part) else type(part))
    own = inspect.getdoc(part) or ""
    called = getattr(part, "__name__", "") or getattr(part, "name", "")
    about = (getattr(module, "__doc__", "") or "").strip()
    is_ours = getattr(module, "__name__", "").startswith("workbench.")
    return f"{called}\n{own}\n{'' if is_ours else about}".replace("_", " ")


# ------------------------------------------------------------------------------------------------ estimators


def unscored(algorithm: Algorithm, batch: Batch, credit: Any) -> Iterator[RuleResult]:
    """`credit(batch)` -> [T]. The others of a group that earned the same teach nothing, scored or not as one of them is."""
    members = (batch.group_of_trajectory_N == GROUP).nonzero()[:, 0]
    flat = torch.full((len(members),), 0.5, dtype=torch.float64)
    credit_T = credit(_group_paid(batch, members, flat, missing=True))
    yield Checked(1, "a trajectory without a score")
    if not bool(credit_T.isfinite().all()):
        yield Finding(
            f"one trajectory without a score makes {int((~credit_T.isfinite()).sum())} tokens' credit NaN; expected that it is left "
            f"out: inputs.reward_N is NaN where inputs.kept_N is false. Let the estimator of {algorithm.name} take its means over "
            "kept_N alone (nanmean, torch.where)"
        )
        return
    of_group_T = batch.group_of_trajectory_N[batch.trajectory_of_token_T] == GROUP
    worst = float((credit_T * of_group_T).abs().max())
    if worst > NEAR:
        yield Finding(
            f"in a group where all earned 0.5 and one has no score, the others are credited with up to {worst:.4g}; expected 0: the "
            f"missing score is counted as a number, zero perhaps (nan_to_num), in the mean or the spread of {algorithm.name}'s "
            "estimator. None is not zero: leave it out, by inputs.kept_N"
        )
        return
    rising = torch.linspace(0.1, 0.9, len(members), dtype=torch.float64)
    moved = [
        float(
            (
                credit(_group_paid(batch, members, rising + SHIFT, missing=missing))
                - credit(_group_paid(batch, members, rising, missing=missing))
            )
            .abs()
            .max()
        )
        for missing in (False, True)
    ]
    if moved[0] <= NEAR < moved[1]:
        yield Finding(
            f"{SHIFT:g} more for every trajectory of a group changes nothing where all have a score, and moves credit by up to {moved[1]:.4g} "
            "where one has none; expected no change either: the missing score is counted as a number, zero perhaps (nan_to_num), in the mean "
            f"or the spread of {algorithm.name}'s estimator. None is not zero: leave it out, by inputs.kept_N"
        )
        return
    yield from _as_if_it_were_not_there(
        algorithm, _group_paid(batch, members, rising, missing=True), members, credit
    )


def _as_if_it_were_not_there(
    algorithm: Algorithm, batch: Batch, members: Tensor, credit: Any
) -> Iterator[RuleResult]:
    """The others of a group are credited as where the one without a score had not been played."""
    left_out = int(members[0])
    others = [n for n in range(batch.num_trajectories) if n != left_out]
    with_it_T = credit(batch)[batch.trajectory_of_token_T != left_out]
    without_T = credit(batch.select(others))
    worst = float((with_it_T - without_T).abs().max())
    on_T = without_T.abs() > NEAR
    factor = float((with_it_T[on_T] / without_T[on_T]).median()) if bool(on_T.any()) else 1.0
    # A scale of the whole step moves all credit by one factor and pushes no token another way.
    by_one_factor = float((with_it_T - factor * without_T).abs().max()) <= NEAR
    if worst > NEAR and not by_one_factor:
        yield Finding(
            f"the others of a group are credited otherwise, by up to {worst:.4g}, where one trajectory has no score than where it was "
            "not played at all; expected the same: the missing score has a part in what they are compared with, as a number "
            f"(nan_to_num) or in a count. Let {algorithm.name}'s estimator look at inputs.kept_N alone"
        )


def _group_paid(batch: Batch, members: Tensor, paid_M: Tensor, *, missing: bool) -> Batch:
    """The batch with its group paid so at the end. `missing`: the first of them has no score."""
    last = batch.turn_offsets[members + 1] - 1
    paid_K = batch.turn_reward_K.clone()
    for n in members.tolist():
        paid_K[batch.turn_offsets[n] : batch.turn_offsets[n + 1]] = 0.0
    paid_K[last] = paid_M.to(paid_K.dtype)
    reward_N = batch.reward_N.clone()
    reward_N[members] = (paid_M + batch.outcome_N.nan_to_num(0.0)[members]).to(reward_N.dtype)
    if missing:
        paid_K[last[0]] = torch.nan
        reward_N[members[0]] = torch.nan
    return replace(batch, turn_reward_K=paid_K, reward_N=reward_N, scored_N=reward_N.isfinite())


def worst_of_group(algorithm: Algorithm, batch: Batch, plain_T: Tensor) -> Iterator[RuleResult]:
    """Who earned least is not credited above zero, in every group that differs."""
    above = 0
    asked = 0
    example = (0.0, 0.0)
    for group in range(int(batch.group_of_trajectory_N.max()) + 1):
        members = (batch.group_of_trajectory_N == group).nonzero()[:, 0].tolist()
        paid = [float(batch.reward_N[n]) for n in members]
        if float(np.ptp(paid)) < 0.1:
            continue
        asked += 1
        worst = members[int(np.argmin(paid))]
        own_T = (batch.trajectory_of_token_T == worst) & batch.eligible_T
        credit = float(plain_T[own_T].mean()) if bool(own_T.any()) else 0.0
        if credit > NEAR:
            above += 1
            example = min(paid), credit
    yield Checked(asked, "the worst of a group")
    if asked >= 3 and above == asked and not declares(algorithm, "against_rewards"):
        yield Finding(
            f"the worst trajectory of a group, which earned {example[0]:.4g}, is credited with {example[1]:+.4g}, so in {above} of {asked} "
            f"groups; expected not above zero: the estimator of {algorithm.name} loses a sign (abs, a square), or its baseline is "
            "below everybody"
        )


def past_turns(
    algorithm: Algorithm, batch: Batch, plain_T: Tensor, credit: Any
) -> Iterator[RuleResult]:
    """A reward of the last turn reaches the first one; one of the first turn does not reach the last one instead."""
    wrong = 0
    asked = 0
    lengths = (batch.turn_offsets[1:] - batch.turn_offsets[:-1]).tolist()
    for n in [n for n, count in enumerate(lengths) if count > 1][:4]:
        first_T = (batch.trajectory_of_token_T == n) & (batch.turn_T == 0) & batch.eligible_T
        last_T = (
            (batch.trajectory_of_token_T == n) & (batch.turn_T == lengths[n] - 1) & batch.eligible_T
        )
        back = _moved(batch, plain_T, credit, n, lengths[n] - 1, first_T)
        forth = _moved(batch, plain_T, credit, n, 0, last_T)
        asked += 1
        wrong += back <= NEAR < forth
    yield Checked(asked, "turns before and behind a reward")
    if asked >= 3 and wrong == asked:
        yield Finding(
            f"a reward is credited to the turns behind it and not to those before it, in {wrong} of {asked} trajectories: 1 more in the "
            f"last turn leaves the first one as it is, and 1 more in the first turn raises the last one. The estimator of "
            f"{algorithm.name} sums from the front (cumsum); what a turn is worth is what comes from there on: sum from the end"
        )


def _moved(batch: Batch, plain_T: Tensor, credit: Any, n: int, turn: int, at_T: Tensor) -> float:
    paid_K = batch.turn_reward_K.clone()
    paid_K[int(batch.turn_offsets[n]) + turn] += 1.0
    reward_N = batch.reward_N.clone()
    reward_N[n] += 1.0
    moved_T = credit(replace(batch, turn_reward_K=paid_K, reward_N=reward_N)) - plain_T
    return float(moved_T[at_T].mean()) if bool(at_T.any()) else 0.0


def left_out(
    algorithm: Algorithm, batch: Batch, plain_T: Tensor, credit: Any
) -> Iterator[RuleResult]:
    """Where its words say that a trajectory is left out of its own baseline, 1 more for it is 1 more."""
    if not LEFT_OUT.search(words_of(algorithm.estimator.function)) or algorithm.estimator.says(
        "divides"
    ):
        return
    n = int((batch.group_of_trajectory_N == GROUP).nonzero()[0, 0])
    last = int(batch.turn_offsets[n + 1] - batch.turn_offsets[n]) - 1
    own_T = (
        (batch.trajectory_of_token_T == n)
        & batch.eligible_T
        & (batch.turn_T == last)
        & (plain_T != 0)
    )
    size = int((batch.group_of_trajectory_N == GROUP).sum())
    moved = _moved(batch, plain_T, credit, n, last, own_T)
    yield Checked(1, "its own reward in its baseline")
    if bool(own_T.any()) and abs(moved - (1 - 1 / size)) < 1e-4:
        yield Finding(
            f"{algorithm.name} says that a trajectory is left out of its own baseline, and 1 more for it is credited with {moved:.4g} "
            f"in a group of {size}: that is 1 - 1/{size}, the mean with itself in it; expected 1. Take (sum - own) / (n - 1)"
        )


def says_group(algorithm: Algorithm) -> bool:
    """Whether its words say that trajectories are compared with their group, though `compares` does not."""
    words = words_of(algorithm.estimator.function)
    elsewhere = algorithm.estimator.says("whitens") or OVER_ALL.search(words)
    return bool(GROUP_MEANT.search(words)) and not elsewhere


def scale_claimed(
    algorithm: Algorithm, batch: Batch, plain_T: Tensor, credit: Any
) -> Iterator[RuleResult]:
    """Twice the rewards: the same credit where its words say that it is divided by a spread, twice where they say it is not."""
    words = words_of(algorithm.estimator.function)
    undivided = bool(UNDIVIDED.search(words))
    divided = bool(DIVIDED.search(words))
    if undivided == divided or algorithm.rewards != Rewards():
        return
    twice = replace(
        batch,
        turn_reward_K=2 * batch.turn_reward_K,
        reward_N=2 * batch.reward_N,
        outcome_N=2 * batch.outcome_N,
    )
    size = float(plain_T.abs().sum()) or 1.0
    factor = float(credit(twice).abs().sum()) / size
    yield Checked(1, "twice the rewards")
    if undivided and factor < 1.1:
        yield Finding(
            f"{algorithm.name} says that nothing is divided by a standard deviation, and twice the rewards give {factor:.3g} times the "
            "credit; expected 2: it is divided by their spread"
        )
    elif divided and factor > 1.9:
        yield Finding(
            f"{algorithm.name} says that credit is divided by a standard deviation, and twice the rewards give {factor:.3g} times the "
            "credit; expected the same: it is divided by nothing, or by what rewards do not move"
        )


# ------------------------------------------------------------------------------------------------ objectives


def loss_inputs(moved_M: Tensor, advantage_M: Tensor, **facts: Tensor) -> tuple[LossInputs, Tensor]:
    old_M = torch.full_like(moved_M, OLD)
    logp_M = (old_M + moved_M).requires_grad_()
    count = len(moved_M)
    plain = {
        "entropy_M": torch.linspace(0.1, 2.0, count, dtype=torch.float64),
        "old_logp_M": old_M,
        "rollout_logp_M": old_M,
        "segment_M": torch.arange(count),
        "ref_logp_M": old_M,
        "counts_M": torch.ones(count, dtype=torch.bool),
    }
    return LossInputs(logp_M=logp_M, advantage_M=advantage_M, **(plain | facts)), logp_M


def pull_of(algorithm: Algorithm, moved_M: Tensor, advantage_M: Tensor, **facts: Tensor) -> Tensor:
    """The gradient of the summed loss by each token's logprob."""
    inputs, logp_M = loss_inputs(moved_M, advantage_M, **facts)
    loss_M = algorithm.loss(inputs).loss_M
    if not loss_M.requires_grad:
        return torch.zeros_like(moved_M)
    [pull_M] = torch.autograd.grad(loss_M.sum(), logp_M, allow_unused=True)
    return torch.zeros_like(moved_M) if pull_M is None else pull_M


def pull_of_advantage(algorithm: Algorithm, moved_M: Tensor, advantage_M: Tensor) -> Tensor:
    """`pull_of`, beside what is lost without an advantage."""
    without_M = pull_of(algorithm, moved_M, torch.zeros_like(advantage_M))
    return pull_of(algorithm, moved_M, advantage_M) - without_M


def further_objective(algorithm: Algorithm) -> Iterator[RuleResult]:
    """Ask the objective of an algorithm, as it is set. Raises whatever its loss raises."""
    for look in (_size, _sampler, _sides, _uncounted, _entropy_bonus, _entropy_mask):
        yield from look(algorithm)


def _zeros(count: int = TOKENS) -> Tensor:
    return torch.zeros(count, dtype=torch.float64)


def gradient_on_policy(algorithm: Algorithm) -> Iterator[RuleResult]:
    """A token goes the way of its advantage where nothing has moved."""
    ones_M = torch.ones(TOKENS, dtype=torch.float64)
    better, worse = (pull_of_advantage(algorithm, _zeros(), sign * ones_M) for sign in (1.0, -1.0))
    yield Checked(2 * TOKENS, "the gradient on policy")
    up = float(better.mean())
    down = float(worse.mean())
    if max(abs(up), abs(down)) <= NOTHING:
        yield Finding(
            f"on policy (ratio 1) no advantage has a gradient in the loss of {algorithm.name}, neither +1 nor -1; expected that of a "
            "policy gradient, -A for each token: the ratio is detached, or every token is held (bounds in the wrong order)"
        )
    elif up > NOTHING or down < -NOTHING:
        yield Finding(
            f"on policy (ratio 1) the loss of {algorithm.name} has the gradient {up:+.3g} by the logprob of a token with an advantage of "
            f"+1 and {down:+.3g} with -1; expected below zero and above zero: it makes good tokens rarer. Look at the sign of the "
            "loss and at which logprob is taken from which in the ratio"
        )


def _size(algorithm: Algorithm) -> Iterator[RuleResult]:
    """On policy the pull of an advantage goes by its size."""
    ones_M = torch.ones(TOKENS, dtype=torch.float64)
    once, twice = (pull_of_advantage(algorithm, _zeros(), size * ones_M) for size in (1.0, 2.0))
    yield Checked(TOKENS, "the size of an advantage")
    factor = float(twice.mean()) / float(once.mean()) if abs(float(once.mean())) > NOTHING else 2.0
    if abs(factor - 2.0) > 1e-3 and not SIZES.search(words_of(algorithm.objective)):
        yield Finding(
            f"on policy (ratio 1) an advantage of 2 pulls {factor:.3g} times as much as one of 1 in the loss of {algorithm.name}; expected 2: its size is lost, or "
            "counts otherwise (a sign, a square, a bound). Multiply by the advantage itself, or say in the docstring what is made of it"
        )


def _sampler(algorithm: Algorithm) -> Iterator[RuleResult]:
    """The sampler's logprobs moved, and the trainer's, one after the other."""
    if SAMPLER.search(words_of(algorithm.objective)):
        return
    away_M = torch.full((TOKENS,), OLD - 0.05, dtype=torch.float64)
    plain_M = _ratio(algorithm)
    by_sampler = float((_ratio(algorithm, rollout_logp_M=away_M) - plain_M).abs().max())
    by_old = float((_ratio(algorithm, old_logp_M=away_M) - plain_M).abs().max())
    yield Checked(TOKENS, "whose logprobs the ratio is taken against")
    if by_sampler > NOTHING and by_old <= NOTHING:
        yield Finding(
            f"the ratio of {algorithm.name} is taken against the sampler's logprobs (inputs.rollout_logp_M), and those of the policy before "
            "the update (inputs.old_logp_M) have no effect; expected the latter: a sampler rounds, bends by temperature and top-p, "
            "and lags, so that ratios differ from 1 where nothing was updated. Take old_logp_M"
        )


def _ratio(algorithm: Algorithm, **facts: Tensor) -> Tensor:
    """[M]: as the objective gives it, of tokens that have moved a little."""
    moved_M = torch.linspace(-0.1, 0.1, TOKENS, dtype=torch.float64)
    inputs, _ = loss_inputs(moved_M, torch.ones(TOKENS, dtype=torch.float64), **facts)
    return algorithm.loss(inputs).ratio_M.detach().double()


def _sides(algorithm: Algorithm) -> Iterator[RuleResult]:
    """Where an objective has clip_low and clip_high, each holds its own side."""
    objective: Any = algorithm.objective
    if (
        not is_dataclass(objective)
        or not hasattr(objective, "clip_low")
        or not hasattr(objective, "clip_high")
    ):
        return
    try:
        uneven = replace(algorithm, objective=replace(objective, clip_low=0.1, clip_high=0.5))
    except Exception:  # bounds of its own: this question is not for it
        return
    between_M = torch.full((TOKENS,), 0.25, dtype=torch.float64)  # a ratio of 1.28, or 0.78
    ones_M = torch.ones(TOKENS, dtype=torch.float64)
    rises, falls = (
        # Beside what is lost without an advantage: a penalty pulls wherever the ratio is.
        float(
            (
                pull_of(uneven, side * between_M, side * ones_M)
                - pull_of(uneven, side * between_M, 0 * ones_M)
            )
            .abs()
            .max()
        )
        > NOTHING
        for side in (1.0, -1.0)
    )
    yield Checked(2 * TOKENS, "the two bounds of a ratio")
    if not rises and falls:
        yield Finding(
            f"with clip_low = 0.1 and clip_high = 0.5 {algorithm.name} holds a ratio of 1.28 (A > 0) and lets 0.78 (A < 0) go on; expected the "
            "other way round: the two bounds are swapped. Hold the ratio within 1 - clip_low and 1 + clip_high"
        )


def _uncounted(algorithm: Algorithm) -> Iterator[RuleResult]:
    """What stands in a segment and is not trained, a tool's answer say, moves nothing."""
    count = TOKENS
    counts_M = torch.arange(count) % 2 == 0
    segment_M = torch.arange(count) // 4
    ones_M = torch.ones(count, dtype=torch.float64)
    still_M = pull_of(algorithm, _zeros(), ones_M, segment_M=segment_M, counts_M=counts_M)
    moved_M = torch.where(counts_M, 0.0, 0.4).double()
    other_M = pull_of(algorithm, moved_M, ones_M, segment_M=segment_M, counts_M=counts_M)
    gap = float((still_M - other_M)[counts_M].abs().max())
    yield Checked(count, "tokens that are not trained")
    if gap > NOTHING:
        yield Finding(
            f"tokens that are not trained (inputs.counts_M is false: tools' answers, say) move the gradient of those that are by up to "
            f"{gap:.3g}: the sum or mean over a sequence in {algorithm.name} takes them in. Sum over inputs.counts_M alone"
        )


def _entropy_bonus(algorithm: Algorithm) -> Iterator[RuleResult]:
    """What an objective makes of entropy by itself."""
    objective = algorithm.objective
    entropy_M = torch.ones(TOKENS, dtype=torch.float64).requires_grad_()
    inputs, _ = loss_inputs(_zeros(), _zeros(), entropy_M=entropy_M)
    loss_M = algorithm.loss(inputs).loss_M
    if not loss_M.requires_grad:
        return
    [pull_M] = torch.autograd.grad(loss_M.sum(), entropy_M, allow_unused=True)
    yield Checked(TOKENS, "entropy in the objective")
    if (
        pull_M is not None
        and float(pull_M.mean()) > NOTHING
        and not LESS_ENTROPY.search(words_of(objective))
    ):
        yield Finding(
            f"the objective of {algorithm.name} grows with entropy ({float(pull_M.mean()):+.3g} for a nat): minimising it makes the policy "
            "less random, which a bonus would not. Subtract it, or say in the docstring that entropy is minimised"
        )


def _entropy_mask(algorithm: Algorithm) -> Iterator[RuleResult]:
    """Which tokens learn, where an objective chooses them by entropy and its words say which."""
    entropy_M = torch.linspace(0.1, 2.0, 4 * TOKENS, dtype=torch.float64)
    pull_M = pull_of(
        algorithm, _zeros(len(entropy_M)), torch.ones_like(entropy_M), entropy_M=entropy_M
    )
    used_M = pull_M.abs() > NOTHING
    words = words_of(algorithm.objective)
    high = bool(HIGH.search(words))
    low = bool(LOW.search(words))
    yield Checked(len(entropy_M), "tokens chosen by entropy")
    if high == low or bool(used_M.all()) or not bool(used_M.any()):
        return
    learns_low = float(entropy_M[used_M].mean()) < float(entropy_M[~used_M].mean())
    if learns_low == high:
        which, claimed = ("lowest", "highest") if learns_low else ("highest", "lowest")
        yield Finding(
            f"{algorithm.name} learns from the {int(used_M.sum())} of {len(used_M)} tokens with the {which} entropy, and its words say "
            f"those with the {claimed}: the comparison or the quantile is turned round"
        )
