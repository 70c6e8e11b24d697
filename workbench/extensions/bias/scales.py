"""Further properties of one's own estimators and objectives (R47, R48): how credit goes by the scale of rewards, which turns a reward
reaches, and what a single token's gradient goes by.

    scale      four times the rewards of all give four times the credit or the same, and not sixteen times or a quarter; and, with four
               times the values, four times a critic's targets
    reach      a reward reaches the turns before it, not more than its own turn, and no trajectory of another task alone
    one        on policy the ratio is 1, a token's pull goes neither by its probability nor counts twice, and both signs pull
    reference  a token that is likelier than in the reference is not pushed further from it
    weight     a token that the sampler made rarer than the trainer's policy has it does not weigh less

Axis letters: N trajectories · K turns (flat) · T tokens of the batch (flat) · M tokens of a loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from workbench.basics.findings import NOTE, Checked, Finding, RuleResult
from workbench.basics.tensors import Tensor, torch
from workbench.extensions.bias.further import (
    NOTHING,
    OLD,
    TOKENS,
    loss_inputs,
    pull_of,
    pull_of_advantage,
    words_of,
)
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.parts import Rewards
from workbench.learn.batch import Batch

TIMES = 4.0
SHIFT = 1.0
APART = 0.3  # of logprobs
SMALL_MOVE = 0.05  # of a logprob: within any clip
BENT = re.compile(
    r"\b(?:clip\w*|clamp\w*|sign\w*|squar\w+|round\w*|thresh\w*|binar\w*|tanh|sigmoid|softmax"
    r"|exponential\w*|temper\w*|quantil\w*|power|log|bounded|"
    r"varianc\w+|inverse\w*|rank\w*|weights?|success\w*)\b",
    re.IGNORECASE,
)
ALONE = re.compile(
    r"\b(?:own reward|immediate|of its turn alone|this turn'?s? (?:own )?reward|bandit|step "
    r"reward|gamma (?:=|is|of) 0|myopic)\b",
    re.IGNORECASE,
)
TO_GO = re.compile(r"\breturns?\b|\bto go\b|\bdiscount\w*|\bgamma\b|\bfuture\b", re.IGNORECASE)
ONE_SIGN = re.compile(
    r"\b(?:negative|positive|fail\w*|success\w*|unlearn\w*|worse|better|one[- ]sided|reject\w*"
    r"|best|good|bad)\b",
    re.IGNORECASE,
)
BY_TOKEN = re.compile(
    r"probab\w*|confiden\w*|entrop\w*|\bweigh\w*|\bfocal\b|\bsurpris\w*|\brare\w*|\bhard\w*",
    re.IGNORECASE,
)


# ------------------------------------------------------------------------------------------------ estimators


def scale_of_rewards(
    algorithm: Algorithm, batch: Batch, plain_T: Tensor, credit: Callable[[Batch], Tensor]
) -> Iterator[RuleResult]:
    """Credit is linear in rewards, or goes by their order and spread alone."""
    if algorithm.rewards != Rewards() or algorithm.estimator.critic:
        return
    words = words_of(algorithm.estimator.function)
    larger_T = credit(_times(batch, TIMES))
    on_T = plain_T.abs() > 1e-3 * plain_T.abs().max()
    yield Checked(1, "four times the rewards")
    if not bool(on_T.any()) or BENT.search(words):
        return
    factors = larger_T[on_T] / plain_T[on_T]
    middle = float(factors.median())
    even = bool(((factors - middle).abs() < 0.05 * abs(middle)).all())
    if even and (middle > 1.5 * TIMES or middle < 1 / 1.5):
        yield Finding(
            f"four times the rewards give {middle:.3g} times the credit of {algorithm.name}; "
            f"expected 4 times, or the same where it is divided by a spread: "
            f"{'it is multiplied by their spread where it should be divided' if middle > TIMES else 'it is divided by their variance, or twice by their spread'}. "
            "Divide once, by the standard deviation"
        )
    elif not even and not bool(((factors > 0.8) & (factors < 1.2 * TIMES)).all()):
        yield Finding(
            f"four times the rewards give between {float(factors.min()):.3g} "
            f"and {float(factors.max()):.3g} times the credit of {algorithm.name}, by token; "
            "expected one factor: rewards are rounded, cut or compared with a number on the way, "
            "and its docstring says nothing of it",
            severity=NOTE,
        )


def scale_of_targets(algorithm: Algorithm, batch: Batch) -> Iterator[RuleResult]:
    """What a critic is fitted to is of the size of the rewards: four times rewards and values are four times the targets."""
    if algorithm.rewards != Rewards() or not algorithm.estimator.critic:
        return
    plain_T = algorithm.credit(batch).return_T
    if plain_T is None or batch.value_T is None:
        return
    larger = replace(
        _times(batch, TIMES),
        value_T=TIMES * batch.value_T,
        final_value_N=None if batch.final_value_N is None else TIMES * batch.final_value_N,
    )
    larger_T = algorithm.credit(larger).return_T
    on_T = plain_T.isfinite() & larger_T.isfinite()
    yield Checked(1, "four times the rewards and values")
    worst = float((larger_T[on_T] - TIMES * plain_T[on_T]).abs().max()) if bool(on_T.any()) else 0.0
    # A penalty for leaving the reference is part of a target and does not grow with the rewards.
    if worst > 0.05 * TIMES * float(plain_T[on_T].abs().max()):
        yield Finding(
            f"four times the rewards, with four times the critic's values, do not give four times what the critic of "
            f"{algorithm.name} is fitted to (off by up to {worst:.3g}); expected that a target is what is still earned, in the "
            "size of the rewards: advantages are whitened or cut before the target is made of them. Make it of the advantages as "
            "they were before"
        )


def _times(batch: Batch, factor: float) -> Batch:
    greedy = None if batch.greedy_N is None else factor * batch.greedy_N
    return replace(
        batch,
        turn_reward_K=factor * batch.turn_reward_K,
        reward_N=factor * batch.reward_N,
        outcome_N=factor * batch.outcome_N,
        greedy_N=greedy,
    )


def reach_of_rewards(
    algorithm: Algorithm, batch: Batch, plain_T: Tensor, credit: Callable[[Batch], Tensor]
) -> Iterator[RuleResult]:
    """More in the last turn of one trajectory: which turns and trajectories are credited otherwise."""
    estimator = algorithm.estimator
    if estimator.per == "attempt" or estimator.critic or estimator.says("whitens"):
        return
    lengths = (batch.turn_offsets[1:] - batch.turn_offsets[:-1]).tolist()
    asked = unreached = grows = strangers = 0
    example = ""
    for n in [n for n, turns in enumerate(lengths) if turns > 1][:8]:
        moved_T = credit(_with_last_turn_paid(batch, n)) - plain_T
        turns = [_of_turn(batch, moved_T, n, turn) for turn in range(lengths[n])]
        if abs(turns[-1]) <= NOTHING:
            continue
        asked += 1
        unreached += all(abs(turn) <= NOTHING for turn in turns[:-1])
        if abs(turns[0]) > 1.001 * abs(turns[-1]):
            grows += 1
            example = f"{turns[0]:.3g} in its first turn and {turns[-1]:.3g} in its own"
        strangers += _some_strangers(batch, moved_T, n)
    yield Checked(asked, "which turns a reward reaches")
    if asked < 4:
        return
    words = words_of(estimator.function)
    if grows == asked:
        yield _grows_with_distance(algorithm.name, example, asked)
    elif unreached == asked and TO_GO.search(words) and not ALONE.search(words):
        yield _reaches_no_turn_before(algorithm.name, asked)
    elif 2 * strangers > asked:
        yield _reaches_strangers(algorithm.name, strangers, asked)


def _with_last_turn_paid(batch: Batch, n: int) -> Batch:
    """The batch with SHIFT more in the last turn of trajectory n."""
    paid_K = batch.turn_reward_K.clone()
    paid_K[int(batch.turn_offsets[n + 1]) - 1] += SHIFT
    reward_N = batch.reward_N.clone()
    reward_N[n] += SHIFT
    return replace(batch, turn_reward_K=paid_K, reward_N=reward_N)


def _grows_with_distance(name: str, example: str, asked: int) -> Finding:
    return Finding(
        f"{SHIFT:g} more in the last turn of a trajectory is worth {example}, so in {asked} of "
        f"{asked} trajectories; expected that a reward is worth no more far from it than where it "
        f"was paid: {name} divides by its discount, or raises it to a negative power"
    )


def _reaches_no_turn_before(name: str, asked: int) -> Finding:
    return Finding(
        f"{SHIFT:g} more in the last turn of a trajectory moves the credit of no turn before it, "
        f"in {asked} of {asked} trajectories, and {name} speaks of returns: what earlier turns led "
        "to is not credited to them. Sum rewards from the end (flip, cumsum, flip)"
    )


def _reaches_strangers(name: str, strangers: int, asked: int) -> Finding:
    return Finding(
        f"{SHIFT:g} more in the last turn of a trajectory moves the credit of one that belongs to "
        f"another task, and of others not, in {strangers} of {asked} cases: a running sum of "
        f"{name} goes on from one trajectory into the next. "
        "Begin it anew where inputs.turns.row_P changes"
    )


def _of_turn(batch: Batch, moved_T: Tensor, n: int, turn: int) -> float:
    own_T = (batch.trajectory_of_token_T == n) & (batch.turn_T == turn) & batch.eligible_T
    return float(moved_T[own_T].mean()) if bool(own_T.any()) else 0.0


def _some_strangers(batch: Batch, moved_T: Tensor, n: int) -> bool:
    """Whether some trajectories of other tasks are moved, and others not: a baseline of the batch moves all of them."""
    group_N = batch.group_of_trajectory_N
    elsewhere = {int(other) for other in (group_N != group_N[n]).nonzero()[:, 0]}
    moved = {int(other) for other in batch.trajectory_of_token_T[moved_T.abs() > NOTHING].tolist()}
    return bool(moved & elsewhere) and bool(elsewhere - moved)


# ------------------------------------------------------------------------------------------------ objectives


def single_tokens(algorithm: Algorithm) -> Iterator[RuleResult]:
    """What is asked of single tokens; each look ends with what it has found."""
    for look in (
        _one_ratio,
        _weight_off_policy,
        _both_signs,
        _by_probability,
        _away_from_reference,
        _sampler_weight,
    ):
        yield from look(algorithm)


def _zeros() -> Tensor:
    return torch.zeros(TOKENS, dtype=torch.float64)


def _ones() -> Tensor:
    return torch.ones(TOKENS, dtype=torch.float64)


def _one_ratio(algorithm: Algorithm) -> Iterator[RuleResult]:
    inputs, _ = loss_inputs(_zeros(), _ones())
    ratio_M = algorithm.loss(inputs).ratio_M
    if ratio_M is None:
        return
    yield Checked(TOKENS, "the ratio on policy")
    ratio = float(ratio_M.detach().double().mean())
    if abs(ratio) <= NOTHING:
        yield Finding(
            f"where nothing has moved the ratio of {algorithm.name} is {ratio:.3g}; expected 1: "
            f"the difference of logprobs is taken for the ratio. A clip around 1 "
            "then holds every token at its bound. Take its exp"
        )


def _weight_off_policy(algorithm: Algorithm) -> Iterator[RuleResult]:
    """A token that has become likelier is not pushed by the old probability over the new one."""
    on_policy = float(pull_of_advantage(algorithm, _zeros(), _ones()).mean())
    if not on_policy:
        return
    weights = [
        float(pull_of_advantage(algorithm, _zeros() + moved, _ones()).mean()) / on_policy
        for moved in (-SMALL_MOVE, SMALL_MOVE)
    ]
    yield Checked(2 * TOKENS, "the weight off policy")
    expected = (math.exp(-SMALL_MOVE), math.exp(SMALL_MOVE))
    turned = [
        abs(weight - 1 / right) < 0.1 * SMALL_MOVE for weight, right in zip(weights, expected)
    ]
    if all(turned):
        yield Finding(
            f"off policy a token whose probability is {expected[1]:.3g} times the old one is "
            f"pushed with {weights[1]:.3g}, and one of {expected[0]:.3g} times with "
            f"{weights[0]:.3g}; expected {expected[1]:.3g} and {expected[0]:.3g}, the new "
            f"probability over the old one: the ratio of {algorithm.name} is upside down. It shows "
            "in a second epoch or minibatch alone. Take exp(logp - old_logp)"
        )


def _both_signs(algorithm: Algorithm) -> Iterator[RuleResult]:
    up, down = (
        float(pull_of_advantage(algorithm, _zeros(), sign * _ones()).abs().mean())
        for sign in (1.0, -1.0)
    )
    yield Checked(2 * TOKENS, "both signs of an advantage")
    if min(up, down) <= NOTHING < max(up, down) and not ONE_SIGN.search(
        words_of(algorithm.objective)
    ):
        which = "+1 has none" if up <= NOTHING else "-1 has none"
        yield Finding(
            f"on policy an advantage of {which} of the gradient in the loss of {algorithm.name}, "
            f"and one of the other sign has: a bound that is meant for one sign "
            "(the dual clip is for A < 0 alone) is applied to both. Choose by the advantage's "
            "sign (torch.where), or say so in the docstring"
        )


def _by_probability(algorithm: Algorithm) -> Iterator[RuleResult]:
    """Tokens with other logprobs, before as after the update: the gradient by the logprob is that of the advantage."""
    if BY_TOKEN.search(words_of(algorithm.objective)):
        return
    levels_M = torch.linspace(-4.0, -0.1, TOKENS, dtype=torch.float64)
    facts = dict.fromkeys(("old_logp_M", "rollout_logp_M", "ref_logp_M"), levels_M)
    pull_M = pull_of(algorithm, levels_M - OLD, _ones(), **facts, entropy_M=_ones())
    yield Checked(TOKENS, "tokens of other probabilities")
    size_M = pull_M.abs()
    if float(size_M.max()) > 1.5 * float(size_M.min()) + NOTHING:
        yield Finding(
            f"on policy the pull on a token goes by its probability in the loss "
            f"of {algorithm.name}: {float(size_M[0]):.3g} at a logprob of -4 and "
            f"{float(size_M[-1]):.3g} at -0.1; expected the same for both: the probability is "
            f"taken where its logarithm or the ratio is meant, so rare tokens "
            "hardly learn. Take the ratio to the policy before the update"
        )
    elif float(size_M.mean()) > 1.5:
        yield Finding(
            f"on policy an advantage of 1 pulls {float(size_M.mean()):.3g} times in the loss "
            f"of {algorithm.name}; expected 1 at most: the gradient counts a factor "
            "twice (a weight that is not detached, a term that is added to itself). Detach weights",
            severity=NOTE,
        )


def _away_from_reference(algorithm: Algorithm) -> Iterator[RuleResult]:
    """A reference that has tokens rarer, and then likelier, than the policy."""
    rarer, likelier = (
        float(
            pull_of(
                algorithm,
                _zeros(),
                _zeros(),
                ref_logp_M=torch.full((TOKENS,), OLD + apart, dtype=torch.float64),
            ).mean()
        )
        for apart in (-APART, APART)
    )
    by_itself = float(pull_of(algorithm, _zeros(), _zeros()).mean())
    yield Checked(2 * TOKENS, "the reference policy")
    if not _reads_reference(algorithm):
        return
    if rarer < -NOTHING and likelier <= NOTHING or rarer < by_itself - NOTHING:
        yield Finding(
            f"a token that is likelier than in the reference is made likelier still by the loss "
            f"of {algorithm.name} (gradient {rarer:+.3g} by its logprob, without any "
            "advantage); expected that it is pulled back: the sign of the penalty, or the order "
            "of its difference, is turned round"
        )


def _reads_reference(algorithm: Algorithm) -> bool:
    losses = []
    for apart in (0.0, APART):
        ref_M = torch.full((TOKENS,), OLD + apart, dtype=torch.float64)
        inputs, _ = loss_inputs(_zeros(), _zeros(), ref_logp_M=ref_M)
        losses.append(algorithm.loss(inputs).loss_M.detach())
    return float((losses[0] - losses[1]).abs().max()) > NOTHING


def _sampler_weight(algorithm: Algorithm) -> Iterator[RuleResult]:
    """The sampler had tokens rarer, and then likelier, than the trainer's policy before the update."""
    rarer, likelier = (
        float(
            pull_of(
                algorithm,
                _zeros(),
                _ones(),
                rollout_logp_M=torch.full((TOKENS,), OLD + apart, dtype=torch.float64),
            )
            .abs()
            .mean()
        )
        for apart in (-APART, APART)
    )
    yield Checked(2 * TOKENS, "the sampler's logprobs")
    if rarer < likelier - 1e-3:
        yield Finding(
            f"a token that the sampler had rarer than the trainer's policy pulls {rarer:.3g}, "
            f"and one that it had likelier {likelier:.3g}, in the loss of "
            f"{algorithm.name}; expected the other way round: the weight that corrects for the "
            f"sampler is upside down. Take exp(old_logp - rollout_logp)"
        )
