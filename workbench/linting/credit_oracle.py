"""Credit once more, by another hand: numpy and plain loops over attempts, turns and tokens, straight from the papers.

It reads an algorithm's *settings* and calls none of its functions, nothing of `workbench.learn.ops`, and nothing that a batch
derives: a fault in those changes what training gets and leaves this as it is. Slow where it may be (a loop per token is
a loop), since a step has only a few thousand sampled tokens.

    expected_credit(attempts, GRPO(), facts)  ->  Expected(advantage_T, weight_T, ...)   or   Missing("...")

An algorithm of your own is unknown here; one of yours that only sets other numbers (a preset) is not.

Axis letters: N trajectories · G groups · K turns (flat) · T tokens (flat) · A tokens that get credit, in the order of
time (the timeline) · P turns with at least one of those.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from workbench.linting.attempts import Attempts
from workbench.linting.filter_oracle import expected_kept, group_spread
from workbench.types.findings import Missing

if TYPE_CHECKING:
    from workbench.learn.algorithms.base import Algorithm

STD_EPSILON = 1e-6     # beside a group's deviation: the published GRPO
WHITEN_EPSILON = 1e-8  # inside the root of whitening: the published PPO implementations
MAX_LOG_RATIO, MAX_K3 = 20.0, 10.0


class Facts(NamedTuple):
    """What the models said, float64; None: not asked. NaN where none was needed."""

    old_logp_T: np.ndarray | None = None
    ref_logp_T: np.ndarray | None = None
    value_T: np.ndarray | None = None
    final_value_N: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Expected:
    """`near`: differences up to this are rounding, by the size of what was divided by the smallest deviation.
    `entropy_weight_T`, `kl_weight_T`, `return_T` None: the algorithm has no such term. `updates`: per epoch; None: as
    the algorithm says."""

    kept_N: np.ndarray
    advantage_T: np.ndarray
    weight_T: np.ndarray
    near: float
    entropy_weight_T: np.ndarray | None = None
    kl_weight_T: np.ndarray | None = None
    return_T: np.ndarray | None = None
    updates: int | None = None


class Unsure(Exception):
    """A spread lies at the edge of what counts as none: two honest roundings decide differently."""


@dataclass(eq=False)
class Scale:
    """How far rounding reaches: the largest number that was added up, the smallest one that was divided by."""

    largest: float = 1.0
    smallest: float = 1.0

    def divided(self, by: float) -> None:
        self.smallest = min(self.smallest, by)

    def saw(self, values: np.ndarray) -> None:
        if len(values):
            self.largest = max(self.largest, float(np.nanmax(np.abs(values), initial=0.0)))


# ------------------------------------------------------------------------------------------------ whose credit


def kind_of(algorithm: Any) -> str | None:
    """The one of our algorithms whose credit it gives, by name; None: it has its own."""
    for cls in type(algorithm).__mro__:
        if cls.__module__.startswith("workbench.learn.algorithms.") and cls.__name__ in ESTIMATORS:
            return cls.__name__
        if OWN & vars(cls).keys():
            return None
    return None


def gives_its_own(algorithm: Any) -> bool:
    """Whether it is an algorithm of somebody's own, whose credit may leave tokens or attempts out on purpose."""
    return algorithm is not None and kind_of(algorithm) is None


OWN = {"advantages", "credit", "_inputs", "_returns", "_updates", "bootstraps_N", "has_timeline"}


def over(masks: Any, switch: str) -> str:
    """"actions" or "response": what a mask switch stands at, by itself or by its group."""
    group = masks.loss_mask if switch in ("loss_over", "entropy_over", "kl_loss_over") else masks.advantage_mask
    return getattr(masks, switch) or ("actions" if group else "response")


def tokens_over(attempts: Attempts, masks: Any, switch: str) -> np.ndarray:
    """bool [T]"""
    return attempts.sampled_T if over(masks, switch) == "actions" else attempts.response_T


def expected_credit(attempts: Attempts, algorithm: Algorithm, facts: Facts) -> Expected | Missing:
    """What every token is worth by the algorithm's settings; Missing where that cannot be said here."""
    kind = kind_of(algorithm)
    if kind is None:
        return Missing(f"a second implementation of the credit of {type(algorithm).__name__}")
    if lacking := [name for name in _wanted(kind, algorithm) if getattr(facts, name) is None]:
        return Missing(f"{', '.join(lacking)}, of which the credit was made")
    try:
        return _expected(attempts, algorithm, facts, kind)
    except Unsure as reason:
        return Missing(str(reason))


def _wanted(kind: str, algorithm: Any) -> list[str]:
    names = ["old_logp_T", "ref_logp_T"] if algorithm.kl_coef and algorithm.kl_in == "reward" else []
    if kind in CRITICS:
        names += ["value_T"] + (["final_value_N"] if algorithm.bootstrap != "never" else [])
    return names


def _expected(attempts: Attempts, algorithm: Any, facts: Facts, kind: str) -> Expected:
    kept_N = attempts.scored_N & expected_kept(algorithm.filter, attempts.reward_N, attempts.group_N, attempts.scored_N)
    kept_T = kept_N[attempts.row_T]
    weights = {switch: tokens_over(attempts, algorithm.masks, switch) & kept_T
               for switch in ("loss_over", "entropy_over", "kl_loss_over", "critic_over")}
    timeline = _timeline(attempts, algorithm, facts, kind, kept_N, weights["loss_over"])
    advantage_A, target_A = ESTIMATORS[kind](timeline, algorithm)
    advantage_T = np.zeros(attempts.num_tokens)
    advantage_T[timeline.token_A] = advantage_A
    return_T = None
    if target_A is not None:
        return_T = _returns(timeline, target_A, weights["critic_over"])
    timeline.scale.saw(advantage_A)
    near = 1e-9 * (1 + float(np.abs(advantage_T).max(initial=0.0)))
    near += 1e-13 * timeline.scale.largest / timeline.scale.smallest
    return Expected(
        kept_N, np.where(weights["loss_over"], advantage_T, 0.0), weights["loss_over"].astype(np.float64), near,
        weights["entropy_over"].astype(np.float64) if algorithm.entropy_coef else None,
        weights["kl_loss_over"].astype(np.float64) if algorithm.kl_coef and algorithm.kl_in == "loss" else None,
        return_T, _updates(attempts, algorithm, kept_N))


def _updates(attempts: Attempts, algorithm: Any, kept_N: np.ndarray) -> int | None:
    """Updates per epoch of a step that says how many trajectories make one."""
    if not algorithm.minibatch_size:
        return None
    acted_N = np.zeros(attempts.num_trajectories, bool)
    acted_N[attempts.row_T[attempts.sampled_T]] = True
    kept = int((acted_N & kept_N).sum())
    counted = int((acted_N & attempts.scored_N).sum()) if algorithm.filter.equal_updates else kept
    return max(1, min(math.ceil(counted / algorithm.minibatch_size), kept))


# ------------------------------------------------------------------------------------------------ what was paid where


@dataclass(eq=False)
class Timeline:
    """What an estimator looks at: the tokens that get credit, what was paid at each, what the critic says before it."""

    attempts: Attempts
    kept_N: np.ndarray
    reward_N: np.ndarray   # after normalisation, less the price of leaving the reference
    token_A: np.ndarray
    row_A: np.ndarray
    reward_A: np.ndarray
    value_A: np.ndarray | None
    final_N: np.ndarray    # what comes after the end: 0, or the critic's word on a limit
    whiten_T: np.ndarray
    scale: Scale

    def turns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(first_P, last_P, turn_of_A): indices into A where each turn begins and ends; the turn of each token."""
        turn_A = self.attempts.turn_T[self.token_A]
        opens_A = np.ones(len(turn_A), bool)
        opens_A[1:] = (np.diff(self.row_A) != 0) | (np.diff(turn_A) != 0)
        first_P = np.flatnonzero(opens_A)
        return first_P, np.append(first_P[1:], len(turn_A))[:len(first_P)] - 1, np.cumsum(opens_A) - 1

    def by_turn(self, values_A: np.ndarray) -> np.ndarray:
        return np.bincount(self.turns()[2], values_A, len(self.turns()[0]))

    def whitened(self, values_A: np.ndarray) -> np.ndarray:
        """Mean 0 and deviation 1 over the tokens of `whiten_over`, those off the timeline as zeros."""
        on_A = self.whiten_T[self.token_A]
        over_B = np.concatenate([values_A[on_A], np.zeros(int(self.whiten_T.sum()) - int(on_A.sum()))])
        if len(over_B) < 2:
            return np.zeros_like(values_A)
        middle = over_B[0] if (over_B == over_B[0]).all() else over_B.mean()
        deviation = math.sqrt(over_B.var(ddof=1) + WHITEN_EPSILON)
        self.scale.saw(values_A)
        self.scale.divided(deviation)
        return (values_A - middle) / deviation


def _timeline(attempts: Attempts, algorithm: Any, facts: Facts, kind: str, kept_N: np.ndarray,
              loss_T: np.ndarray) -> Timeline:
    kept_T, masks, scale = kept_N[attempts.row_T], algorithm.masks, Scale()
    whiten_T = tokens_over(attempts, masks, "whiten_over") & kept_T
    on_T = tokens_over(attempts, masks, "gae_over") & kept_T if kind in IN_ORDER else loss_T | whiten_T
    token_A = np.flatnonzero(on_T)
    scale_N, shift_N = _normalized(algorithm.rewards, attempts, kept_N, scale)
    paid_T = _payments(attempts, kept_N, scale_N, shift_N)
    reward_N = np.where(kept_N, attempts.reward_N, 0.0) * scale_N + shift_N
    scale.saw(reward_N[kept_N])
    amounts_T = _landed(attempts, on_T, token_A, paid_T)
    if algorithm.kl_coef and algorithm.kl_in == "reward":
        paying_T = tokens_over(attempts, masks, "kl_reward_over") & kept_T
        price_T = np.zeros(attempts.num_tokens)
        price_T[paying_T] = algorithm.kl_coef * kl(facts.old_logp_T[paying_T], facts.ref_logp_T[paying_T],
                                                   algorithm.kl_estimator)
        amounts_T = amounts_T - _landed(attempts, on_T, token_A, price_T)
        reward_N = reward_N - np.bincount(attempts.row_T, price_T, attempts.num_trajectories)
    value_A, final_N = None, np.zeros(attempts.num_trajectories)
    if kind in CRITICS:
        value_A = facts.value_T[token_A]
        goes_on_N = {"never": np.zeros_like(kept_N), "truncated": attempts.truncated_N,
                     "context_full": attempts.context_full_N}[algorithm.bootstrap] & kept_N
        if goes_on_N.any():
            final_N[goes_on_N] = facts.final_value_N[goes_on_N]
        scale.saw(value_A)
    return Timeline(attempts, kept_N, reward_N, token_A, attempts.row_T[token_A], amounts_T[token_A], value_A, final_N,
                    whiten_T, scale)


def _payments(attempts: Attempts, kept_N: np.ndarray, scale_N: np.ndarray, shift_N: np.ndarray) -> np.ndarray:
    """[T]: a turn's reward at the last token sampled in it (or before it; else the first one after), the outcome and
    the shift at the trajectory's last."""
    paid_T = np.zeros(attempts.num_tokens)
    token_E = np.flatnonzero(attempts.sampled_T)
    begin_N1 = np.searchsorted(attempts.row_T[token_E], np.arange(attempts.num_trajectories + 1))
    turn_E = attempts.turn_T[token_E].tolist()
    token_E, offsets, rewards = token_E.tolist(), attempts.turn_offsets_N1.tolist(), attempts.turn_reward_K.tolist()
    begins = begin_N1.tolist()
    for n in np.flatnonzero(kept_N).tolist():
        at, stop = begins[n], begins[n + 1]
        if at == stop:
            continue
        first = at
        for k, reward in enumerate(rewards[offsets[n]:offsets[n + 1]]):
            while at < stop and turn_E[at] <= k:
                at += 1
            paid_T[token_E[max(at - 1, first)]] += reward * scale_N[n]
        outcome = attempts.outcome_N[n]
        paid_T[token_E[stop - 1]] += (0.0 if math.isnan(outcome) else outcome * scale_N[n]) + shift_N[n]
    return paid_T


def _landed(attempts: Attempts, on_T: np.ndarray, token_A: np.ndarray, amount_T: np.ndarray) -> np.ndarray:
    """[T]: amounts moved to the timeline: at their own token, else the last one before it, else the first one after."""
    if not len(token_A):
        return np.zeros_like(amount_T)
    stray = np.flatnonzero((amount_T != 0) & ~on_T)
    landed_T = np.where(on_T, amount_T, 0.0)
    for t in stray.tolist():
        place = int(np.searchsorted(token_A, t))
        before, after = place - 1, place
        if before >= 0 and attempts.row_T[token_A[before]] == attempts.row_T[t]:
            landed_T[token_A[before]] += amount_T[t]
        elif after < len(token_A) and attempts.row_T[token_A[after]] == attempts.row_T[t]:
            landed_T[token_A[after]] += amount_T[t]
    return landed_T


def _normalized(rewards: Any, attempts: Attempts, kept_N: np.ndarray, scale: Scale) -> tuple[np.ndarray, np.ndarray]:
    """(scale, shift) [N] of `R' = scale R + shift`, over the kept attempts of a group, of the batch, or of a tag."""
    scale_N, shift_N = kept_N.astype(np.float64), np.zeros(attempts.num_trajectories)
    if rewards.normalize == "none":
        return scale_N, shift_N
    set_N = {"group": attempts.group_N, "batch": np.zeros_like(attempts.group_N), "tag": attempts.tag_N}[rewards.over]
    scale_N[:] = 0.0
    for at in members(set_N, kept_N):
        raw = attempts.reward_N[at]
        if len(at) < 2:
            continue
        alike = is_flat(raw)
        if rewards.normalize == "mean":
            scale_N[at], shift_N[at] = 1.0, -raw if alike else -raw.mean()
        elif not alike:
            divisor = raw.std(ddof=1) + STD_EPSILON
            scale.divided(divisor)
            total = (raw - raw.mean()) / divisor
            if rewards.normalize == "asym_clip":
                total = np.clip(total, -1.0, 3.0)
            scale_N[at], shift_N[at] = 1.0 / divisor, total - raw / divisor
    return scale_N, shift_N


def kl(logp: np.ndarray, ref: np.ndarray, estimator: str) -> np.ndarray:
    """Schulman's estimates of KL(policy || reference) per token, nats."""
    if estimator == "k1":
        return logp - ref
    if estimator == "k2":
        return (logp - ref) ** 2 / 2
    if estimator == "abs":
        return np.abs(logp - ref)
    log_r = np.clip(ref - logp, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    return np.minimum(np.expm1(log_r) - log_r, MAX_K3)


# ------------------------------------------------------------------------------------------------ small arithmetic


def members(set_N: np.ndarray, include_N: np.ndarray) -> list[np.ndarray]:
    """The included members of each set, by number."""
    return [np.flatnonzero((set_N == s) & include_N) for s in np.unique(set_N[include_N]).tolist()]


def is_flat(values: np.ndarray) -> bool:
    """All the same, up to rounding. Raises Unsure at the edge of that."""
    spread = group_spread(values)
    if spread.doubtful:
        raise Unsure("a spread of rewards that is clearly rounding, or clearly more than that")
    return spread.flat


def _above(values_N: np.ndarray, group_N: np.ndarray, kept_N: np.ndarray, scale: Scale, *, std: bool = False,
           others: bool = False) -> np.ndarray:
    """[N]: R - mean of its group; divided by its deviation (`std`); against the mean of the others alone (`others`).
    Zero without a sibling, and where all are the same."""
    above_N = np.zeros(len(values_N))
    for at in members(group_N, kept_N):
        own = values_N[at]
        if len(at) < 2 or is_flat(own):
            continue
        scale.saw(own)
        if others:
            above_N[at] = [own[i] - np.delete(own, i).mean() for i in range(len(own))]
        else:
            above_N[at] = own - own.mean()
        if std:
            divisor = own.std(ddof=1) + STD_EPSILON
            scale.divided(divisor)
            above_N[at] /= divisor
    return above_N


def _backwards(amount: Sequence[float], row: Sequence[int], factor: float) -> np.ndarray:
    """x_j + factor * (the same of the next step of the same row)."""
    found, running, last = [0.0] * len(amount), 0.0, None
    for j in range(len(amount) - 1, -1, -1):
        if row[j] != last:
            running, last = 0.0, row[j]
        running = amount[j] + factor * running
        found[j] = running
    return np.array(found)


def _gae(reward: np.ndarray, value: np.ndarray, row: np.ndarray, final_N: np.ndarray, gamma: float,
         lam: float) -> np.ndarray:
    """Schulman et al. 2016, eq. 16, over whatever the steps are."""
    after = np.append(value[1:], 0.0) if len(value) else value
    ends = np.append(np.diff(row) != 0, True) if len(row) else np.zeros(0, bool)
    after = np.where(ends, final_N[row], after)
    return _backwards((reward + gamma * after - value).tolist(), row.tolist(), gamma * lam)


# ------------------------------------------------------------------------------------------------ the estimators

Found = tuple[np.ndarray, np.ndarray | None]  # advantage_A, what a critic is fitted to


def _group(t: Timeline, algorithm: Any) -> Found:
    """GRPO and its kin (arXiv 2402.03300); without division Dr. GRPO (2503.20783)."""
    return _above(t.reward_N, t.attempts.group_N, t.kept_N, t.scale, std=algorithm.normalize_std)[t.row_A], None


def _rloo(t: Timeline, algorithm: Any) -> Found:
    """arXiv 2402.14740"""
    return _above(t.reward_N, t.attempts.group_N, t.kept_N, t.scale, others=True)[t.row_A], None


def _reinforce(t: Timeline, algorithm: Any) -> Found:
    """G_k of the turn, less what the others earned from their beginning."""
    first_P, _, turn_of_A = t.turns()
    row_P = t.row_A[first_P]
    return_P = _backwards(t.by_turn(t.reward_A).tolist(), row_P.tolist(), algorithm.gamma)
    if algorithm.baseline == "others":
        start_N = t.reward_N.copy()
        rows, at = np.unique(row_P, return_index=True)
        start_N[rows] = return_P[at]
        t.scale.saw(start_N[t.kept_N])
        above_N = _above(start_N, t.attempts.group_N, t.kept_N, t.scale, others=True)
        count_G = np.bincount(t.attempts.group_N[t.kept_N], minlength=int(t.attempts.group_N.max(initial=0)) + 1)
        compared_N = count_G[t.attempts.group_N] > 1
        return_P = np.where(compared_N[row_P], return_P - start_N[row_P] + above_N[row_P], 0.0)
    return return_P[turn_of_A], None


def _reinforce_pp(t: Timeline, algorithm: Any) -> Found:
    """arXiv 2501.03262: the discounted return per action token, whitened over the batch."""
    return t.whitened(_backwards(t.reward_A.tolist(), t.row_A.tolist(), algorithm.gamma)), None


def _reinforce_pp_baseline(t: Timeline, algorithm: Any) -> Found:
    """... of which the group's mean is taken first; who can be compared with nobody stays at zero."""
    white_A = t.whitened(_above(t.reward_N, t.attempts.group_N, t.kept_N, t.scale)[t.row_A])
    says_N = np.zeros(len(t.kept_N), bool)
    for at in members(t.attempts.group_N, t.kept_N):
        says_N[at] = len(at) > 1 and not is_flat(t.reward_N[at])
    return np.where(says_N[t.row_A], white_A, 0.0), None


def _gigpo(t: Timeline, algorithm: Any) -> Found:
    """arXiv 2505.10978: the comparison of attempts, and of turns of a group that stood in the same state."""
    first_P, _, turn_of_A = t.turns()
    row_P, attempts = t.row_A[first_P], t.attempts
    state_P = attempts.state_K[attempts.turn_offsets_N1[row_P] + attempts.turn_T[t.token_A[first_P]]]
    return_P = _backwards(t.by_turn(t.reward_A).tolist(), row_P.tolist(), algorithm.gamma)
    step_P = _above(return_P, state_P, state_P >= 0, t.scale, std=algorithm.normalize_std)
    return _group(t, algorithm)[0] + algorithm.omega * step_P[turn_of_A], None


def _ppo(t: Timeline, algorithm: Any) -> Found:
    """arXiv 1707.06347 with GAE over tokens; what the environment says takes no time."""
    advantage_A = _gae(t.reward_A, t.value_A, t.row_A, t.final_N, algorithm.gamma, algorithm.lam)
    return _maybe_whitened(t, algorithm, advantage_A), advantage_A + t.value_A


def _turn_ppo(t: Timeline, algorithm: Any) -> Found:
    """A turn is one action; its state is what stood before its first token."""
    first_P, _, turn_of_A = t.turns()
    value_P = t.value_A[first_P]
    advantage_P = _gae(t.by_turn(t.reward_A), value_P, t.row_A[first_P], t.final_N, algorithm.gamma, algorithm.lam)
    target_A = np.full(len(t.token_A), np.nan)
    target_A[first_P] = advantage_P + value_P
    return _maybe_whitened(t, algorithm, advantage_P[turn_of_A]), target_A


def _bilevel(t: Timeline, algorithm: Any) -> Found:
    """arXiv 2510.16907: over turns, at their last tokens; then inside each turn, which ends in what that says."""
    first_P, last_P, turn_of_A = t.turns()
    row_P, gamma, lam = t.row_A[first_P], algorithm.gamma, algorithm.lam
    inside_P = t.by_turn(t.reward_A) - t.reward_A[last_P]
    value_P = t.value_A[last_P]
    ends_P = np.append(np.diff(row_P) != 0, True) if len(row_P) else np.zeros(0, bool)
    next_P = np.append((inside_P + value_P)[1:], 0.0) if len(row_P) else value_P
    after_P = np.where(ends_P, t.final_N[row_P], next_P)
    delta_P = t.reward_A[last_P] + algorithm.gamma_turn * after_P - value_P
    worth_P = _backwards(delta_P.tolist(), row_P.tolist(), algorithm.gamma_turn * lam) + value_P
    reward_A = t.reward_A.copy()
    reward_A[last_P] = worth_P
    nothing_P = np.zeros(len(first_P))
    advantage_A = _gae(reward_A, t.value_A, turn_of_A, nothing_P, gamma, lam)
    return _maybe_whitened(t, algorithm, advantage_A), advantage_A + t.value_A


def _maybe_whitened(t: Timeline, algorithm: Any, advantage_A: np.ndarray) -> np.ndarray:
    return t.whitened(advantage_A) if algorithm.whiten else advantage_A


def _returns(t: Timeline, target_A: np.ndarray, critic_T: np.ndarray) -> np.ndarray:
    """[T], NaN where no critic is fitted: on the timeline its target; beside it, what the next token on it is worth."""
    return_T = np.full(t.attempts.num_tokens, np.nan)
    at_C = np.flatnonzero(critic_T)
    if not len(at_C):
        return return_T
    row_C = t.attempts.row_T[at_C]
    return_T[at_C] = t.final_N[row_C]
    if len(t.token_A):
        next_C = np.searchsorted(t.token_A, at_C)
        held_C = np.minimum(next_C, len(t.token_A) - 1)
        same_C = (next_C < len(t.token_A)) & (t.row_A[held_C] == row_C)
        return_T[at_C[same_C]] = target_A[held_C[same_C]]
    return return_T


# By the name of the class: what it does, in which the settings are read, never called.
ESTIMATORS: dict[str, Callable[[Timeline, Any], Found]] = {
    "GRPO": _group, "DrGRPO": _group, "DAPO": _group, "GSPO": _group, "CISPO": _group, "RLOO": _rloo,
    "Reinforce": _reinforce, "ReinforcePP": _reinforce_pp, "ReinforcePPBaseline": _reinforce_pp_baseline,
    "GiGPO": _gigpo, "PPO": _ppo, "StarPO": _ppo, "StarPO_S": _ppo, "TurnPPO": _turn_ppo, "BilevelPPO": _bilevel,
}
CRITICS = ("PPO", "StarPO", "StarPO_S", "TurnPPO", "BilevelPPO")
IN_ORDER = ("ReinforcePP", "PPO", "StarPO", "StarPO_S", "BilevelPPO")  # credit follows the order of `gae_over`'s tokens
# One value for all tokens of an attempt; of a turn.
PER_ATTEMPT = ("GRPO", "DrGRPO", "DAPO", "GSPO", "CISPO", "RLOO", "ReinforcePPBaseline")
PER_TURN = ("Reinforce", "GiGPO", "TurnPPO")
