"""What every token is worth: from what was paid to one advantage per token.

    credit_of(attempts, Recipe(group_relative))                              GRPO
    credit_of(attempts, Recipe(gae, {"lam": 0.95}, bootstrap="truncated"))   PPO

An estimator is a function `(lines, **settings) -> (advantages, targets)`. It is given a `CreditLine` for each attempt
that counts, and returns for each what its tokens are worth, and what a critic is fitted to there (None: no critic)."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.plain.loss import clip, kl
from workbench.plain.rewards import (
    AttemptTokens,
    FilterRule,
    above_the_others,
    by_spread,
    is_flat,
    members,
    normalized,
    payments,
)
from workbench.types.tensors import torch

WHITEN_EPSILON = 1e-8  # inside the root, as in the published implementations of PPO
Found = tuple[list[np.ndarray], list[np.ndarray] | None]  # what an estimator returns


@dataclass(frozen=True)
class Recipe:
    """A whole algorithm. `widened` names the mask switches at which what the environment said takes part, as if it were
    actions: gae_over, whiten_over, kl_reward_over, critic_over, loss_over, entropy_over, kl_loss_over."""

    estimator: Callable
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the estimator
    objective: Callable = clip
    bounds: Mapping[str, Any] = field(default_factory=dict)  # of the objective
    reduction: str = "token-mean"
    fixed_length: int = 0
    sampler_cap: float = 0.0
    entropy_coef: float = 0.0
    kl_coef: float = 0.0
    kl_estimator: str = "k3"
    kl_in: str = (
        "loss"  # or "reward": each token pays for leaving the reference, before credit is given
    )
    value_clip: float = 0.5
    bootstrap: str = (
        "never"  # or "context_full", "truncated": where the critic says what comes after the end
    )
    normalize: str = "none"  # rewards: see rewards.normalized
    over: str = "group"  # ... over the attempts of a "group", of the "batch", or of a "tag"
    filter_rule: FilterRule = FilterRule()  # of what `filter` keeps
    filter: Callable = (
        by_spread  # (rewards, groups, filter_rule) -> which attempts are learned from
    )
    widened: frozenset[str] = frozenset()
    epochs: int = 1
    minibatches: int = 1
    minibatch_size: int = 0  # or: attempts per update
    equal_updates: bool = False  # with a filter as many updates as without

    def tokens(self, attempt: AttemptTokens, switch: str) -> np.ndarray:
        """bool [T]: the tokens that a switch lets through."""
        return attempt.response if switch in self.widened else attempt.sampled

    def credited(self, attempt: AttemptTokens) -> np.ndarray:
        """bool [T]: the tokens that the estimator gives credit to."""
        if getattr(self.estimator, "in_order", False):
            return self.tokens(attempt, "gae_over")
        return self.tokens(attempt, "loss_over") | self.tokens(attempt, "whiten_over")


@dataclass(frozen=True, eq=False)
class CreditLine:
    """One attempt as an estimator sees it: the tokens that get credit, in the order of time [J]. What the environment
    said in between takes no time."""

    group: int
    reward: float  # R: all that it earned, normalised, less what its tokens paid
    paid: np.ndarray  # at each token; the sum is R
    turn: np.ndarray  # that each token belongs to
    value: np.ndarray | None = None  # what the critic expects before each token
    final_value: float = 0.0  # ... and after the last; 0 where the attempt ended for good
    states: Sequence[Hashable | None] = ()  # in which each turn of the attempt began, by its number
    counted: np.ndarray | None = None  # bool: in the statistics of whitening; None: all
    elsewhere: int = 0  # tokens in these statistics, too, that get no credit
    greedy: float | None = None  # what the greedy attempt at the same task earned, normalised

    def turns(self) -> list[slice]:
        """Where each turn that has such tokens begins and ends."""
        opens = [j for j in range(len(self.turn)) if j == 0 or self.turn[j] != self.turn[j - 1]]
        return [slice(first, after) for first, after in zip(opens, [*opens[1:], len(self.turn)])]

    def over_turns(self, numbers: Sequence[float]) -> np.ndarray:
        """Every token of a turn gets the number of its turn [J]."""
        return np.repeat(
            np.array(numbers, float), [turn.stop - turn.start for turn in self.turns()]
        )


def discounted(amounts: Sequence[float], gamma: float) -> np.ndarray:
    """G_j = r_j + gamma G_{j+1}, nothing after the end. Sutton and Barto 2018, eq. 3.9."""
    found, later = np.zeros(len(amounts)), 0.0
    for j in reversed(range(len(amounts))):
        found[j] = later = amounts[j] + gamma * later
    return found


def advantages_over_time(
    paid: Sequence[float], value: Sequence[float], final_value: float, gamma: float, lam: float
) -> np.ndarray:
    """GAE: d_j = r_j + gamma V_{j+1} - V_j and A_j = d_j + gamma lam A_{j+1}, with V after the end = `final_value`.
    Schulman et al. 2016 (arXiv 1506.02438), eq. 11, 12 and 16."""
    after = [*value[1:], final_value]
    delta = [paid[j] + gamma * after[j] - value[j] for j in range(len(paid))]
    return discounted(delta, gamma * lam)


def whitened(values: Sequence[np.ndarray], lines: Sequence[CreditLine]) -> list[np.ndarray]:
    """(x - mean) / sqrt(var + 1e-8), mean and unbiased variance over all counted tokens of the step; those that get no
    credit count as 0. Zeros where fewer than two are counted. Andrychowicz et al. 2021 (arXiv 2006.05990)."""
    counted = [
        own if line.counted is None else own[line.counted] for own, line in zip(values, lines)
    ]
    over = np.concatenate([*counted, np.zeros(sum(line.elsewhere for line in lines))])
    if len(over) < 2:
        return [np.zeros(len(own)) for own in values]
    mean = (
        over[0] if (over == over[0]).all() else over.mean()
    )  # a mean of equal numbers may be off by one bit
    return [(own - mean) / math.sqrt(over.var(ddof=1) + WHITEN_EPSILON) for own in values]


def compared(lines: Sequence[CreditLine], **how: bool) -> list[np.ndarray]:
    """All tokens of an attempt are worth what it earned above its group."""
    above = above_the_others([line.reward for line in lines], [line.group for line in lines], **how)
    return [np.full(len(line.paid), own) for line, own in zip(lines, above)]


def group_relative(lines: Sequence[CreditLine], *, normalize_std: bool = True) -> Found:
    """GRPO (arXiv 2402.03300): above the mean of the group, divided by its deviation. So in DAPO, GSPO and CISPO;
    Dr. GRPO (arXiv 2503.20783) does not divide."""
    return compared(lines, std=normalize_std), None


def rloo(lines: Sequence[CreditLine]) -> Found:
    """RLOO (arXiv 2402.14740): above the mean of the others."""
    return compared(lines, leave_one_out=True), None


def remax(lines: Sequence[CreditLine]) -> Found:
    """ReMax (arXiv 2310.10505): above what the greedy attempt at the same task earned; where that is not known, nothing."""
    return [
        np.full(len(line.paid), 0.0 if line.greedy is None else line.reward - line.greedy)
        for line in lines
    ], None


def reinforce(
    lines: Sequence[CreditLine], *, gamma: float = 1.0, baseline: str = "others"
) -> Found:
    """REINFORCE over turns (Williams 1992): G_k for every token of turn k, less what the others of its group earned
    from their beginning (baseline "none": less nothing). An attempt without others gets zero."""
    to_come = [
        discounted([line.paid[turn].sum() for turn in line.turns()], gamma) for line in lines
    ]
    if baseline == "others":
        groups = [line.group for line in lines]
        start = [own[0] if len(own) else line.reward for own, line in zip(to_come, lines)]
        above = above_the_others(start, groups, leave_one_out=True)
        for n, group in enumerate(groups):
            to_come[n] = (to_come[n] - start[n] + above[n]) * (groups.count(group) > 1)
    return [line.over_turns(own) for line, own in zip(lines, to_come)], None


def reinforce_pp(lines: Sequence[CreditLine], *, gamma: float = 1.0) -> Found:
    """REINFORCE++ (arXiv 2501.03262): the discounted return of each token, whitened over the step."""
    return whitened([discounted(line.paid, gamma) for line in lines], lines), None


def reinforce_pp_baseline(lines: Sequence[CreditLine]) -> Found:
    """REINFORCE++ with a baseline (the same paper): what was earned above the group's mean, whitened over tokens. An
    attempt that is compared with nobody, or with siblings that all earned the same, stays at zero."""
    groups = members([line.group for line in lines])
    apart = {
        g for g, at in groups.items() if len(at) > 1 and not is_flat([lines[n].reward for n in at])
    }
    white = whitened(compared(lines), lines)
    return [own * (line.group in apart) for own, line in zip(white, lines)], None


def gigpo(
    lines: Sequence[CreditLine],
    *,
    normalize_std: bool = True,
    gamma: float = 0.95,
    omega: float = 1.0,
) -> Found:
    """GiGPO (arXiv 2505.10978): GRPO's advantage, and omega times the same among all turns of a group that began in the
    same state, by what was earned from the turn on."""
    to_come, keys = [], []
    for line in lines:
        to_come += discounted([line.paid[turn].sum() for turn in line.turns()], gamma).tolist()
        states = [line.states[line.turn[turn.start]] for turn in line.turns()]
        keys += [None if state is None else (line.group, state) for state in states]
    above = iter(above_the_others(to_come, keys, std=normalize_std))
    steps = [line.over_turns([next(above) for _ in line.turns()]) for line in lines]
    return [
        whole + omega * step for whole, step in zip(compared(lines, std=normalize_std), steps)
    ], None


def gae(
    lines: Sequence[CreditLine], *, gamma: float = 1.0, lam: float = 1.0, whiten: bool = True
) -> Found:
    """PPO (arXiv 1707.06347): GAE over tokens. The critic is fitted to advantage + value, before whitening."""
    found = [
        advantages_over_time(line.paid, line.value, line.final_value, gamma, lam) for line in lines
    ]
    targets = [own + line.value for own, line in zip(found, lines)]
    return whitened(found, lines) if whiten else found, targets


def turn_gae(
    lines: Sequence[CreditLine], *, gamma: float = 1.0, lam: float = 1.0, whiten: bool = True
) -> Found:
    """GAE over turns: a turn is one action, its state is what stood before its first token, where alone the critic is
    fitted. The step-level training of Agent-R1 (arXiv 2511.14460)."""
    found, targets = [], [np.full(len(line.paid), math.nan) for line in lines]
    for line, target in zip(lines, targets):
        first = [turn.start for turn in line.turns()]
        paid = [line.paid[turn].sum() for turn in line.turns()]
        own = advantages_over_time(paid, line.value[first], line.final_value, gamma, lam)
        target[first] = own + line.value[first]
        found.append(line.over_turns(own))
    return whitened(found, lines) if whiten else found, targets


def bilevel_gae(
    lines: Sequence[CreditLine],
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    gamma_turn: float = 0.95,
    whiten: bool = True,
) -> Found:
    """First over turns, at their last tokens; then over the tokens of each turn, which end in what that says:

        d_k = r_k + gamma_turn (i_{k+1} + V_{k+1}) - V_k        B_k = d_k + gamma_turn lam B_{k+1}

    with r_k and V_k at the turn's last token, and i_k what its earlier tokens were paid. Inside a turn it is GAE, with
    B_k + V_k paid at the last token, and nothing after. VAGEN (arXiv 2510.16907), RAGEN (arXiv 2504.20073)."""
    found, targets = [], []
    for line in lines:
        turns, paid = line.turns(), line.paid.copy()
        last = [turn.stop - 1 for turn in turns]
        entry = [
            line.paid[turn].sum() - line.paid[j] + line.value[j] for turn, j in zip(turns, last)
        ]
        after = [*entry[1:], line.final_value]
        delta = [line.paid[j] + gamma_turn * after[k] - line.value[j] for k, j in enumerate(last)]
        paid[last] = discounted(delta, gamma_turn * lam) + line.value[last]
        own = [
            advantages_over_time(paid[turn], line.value[turn], 0.0, gamma, lam) for turn in turns
        ]
        found.append(np.concatenate([np.zeros(0), *own]))
        targets.append(found[-1] + line.value)
    return whitened(found, lines) if whiten else found, targets


for _estimator in (reinforce_pp, gae, bilevel_gae):
    _estimator.in_order = (
        True  # its credit follows the order of tokens: a line holds what `gae_over` lets through
    )
remax.greedy = True  # it needs a greedy attempt at each task: collect(..., greedy=True)


@dataclass(frozen=True, eq=False)
class AttemptCredit:
    """Per token [T]. `weights`: in each term of the loss that there is: "policy", "entropy", "kl", "critic"."""

    advantage: np.ndarray
    weights: Mapping[str, np.ndarray]
    target: np.ndarray  # what the critic is fitted to; NaN where it is not


def credit_of(attempts: Sequence[AttemptTokens], recipe: Recipe) -> list[AttemptCredit]:
    """What each token of each attempt is worth. Attempts that are not scored, or left out by the filter, weigh nothing
    anywhere: not in a baseline, not in a whitening, not in the loss."""
    kept = kept_by(attempts, recipe)
    keys = [
        {"group": attempts[n].group, "batch": 0, "tag": attempts[n].tag}[recipe.over] for n in kept
    ]
    changes = normalized([attempts[n].reward for n in kept], keys, recipe.normalize)
    lines = {n: line_of(attempts[n], recipe, *change) for n, change in zip(kept, changes)}
    advantages, targets = recipe.estimator(list(lines.values()), **recipe.settings)
    terms = {
        "policy": 1.0,
        "entropy": recipe.entropy_coef,
        "kl": recipe.kl_coef if recipe.kl_in == "loss" else 0.0,
    }
    switches, found = {"policy": "loss_over", "entropy": "entropy_over", "kl": "kl_loss_over"}, []
    for n, attempt in enumerate(attempts):
        weights = {
            term: recipe.tokens(attempt, switches[term]) * float(n in kept)
            for term in terms
            if terms[term]
        }
        advantage, target = np.zeros(len(attempt.ids)), np.full(len(attempt.ids), math.nan)
        if n in kept:
            advantage[recipe.credited(attempt)] = advantages[kept.index(n)]
            if targets is not None:
                target = _fitted_to(attempt, lines[n], targets[kept.index(n)], recipe)
        if targets is not None:
            weights["critic"] = 1.0 - np.isnan(target)
        found.append(AttemptCredit(advantage * weights["policy"], weights, target))
    return found


def kept_by(attempts: Sequence[AttemptTokens], recipe: Recipe) -> list[int]:
    """Numbers of the attempts that count: scored, and kept by the filter, which looks at raw rewards."""
    kept = recipe.filter(
        [each.reward for each in attempts], [each.group for each in attempts], recipe.filter_rule
    )
    return [n for n in range(len(attempts)) if kept[n]]


def line_of(
    attempt: AttemptTokens, recipe: Recipe, scale: float = 1.0, shift: float = 0.0
) -> CreditLine:
    """What the recipe's estimator sees of an attempt whose rewards are put on this scale."""
    on, counted = recipe.credited(attempt), recipe.tokens(attempt, "whiten_over")
    price = np.zeros(len(on))
    if recipe.kl_coef and recipe.kl_in == "reward":
        pays = recipe.tokens(attempt, "kl_reward_over")
        logp, ref_logp = (
            torch.as_tensor(attempt.old_logp[pays]),
            torch.as_tensor(attempt.ref_logp[pays]),
        )
        price[pays] = recipe.kl_coef * kl(logp, ref_logp, recipe.kl_estimator).numpy()
    goes_on = {
        "never": False,
        "truncated": attempt.truncated,
        "context_full": attempt.context_full,
    }[recipe.bootstrap]
    return CreditLine(
        attempt.group,
        scale * attempt.reward + shift - price.sum(),
        payments(attempt, on, scale, shift, price)[on],
        attempt.turn[on],
        value=None if attempt.value is None else attempt.value[on],
        final_value=attempt.final_value if goes_on else 0.0,
        states=attempt.states,
        counted=counted[on],
        elsewhere=int((counted & ~on).sum()),
        greedy=None if attempt.greedy is None else scale * attempt.greedy + shift,
    )


def _fitted_to(
    attempt: AttemptTokens, line: CreditLine, target: np.ndarray, recipe: Recipe
) -> np.ndarray:
    """[T]: where the critic is fitted, the target of the next token that gets credit, as nothing is paid on the way;
    behind the last of them, what comes after the end."""
    found, places = np.full(len(attempt.ids), math.nan), np.flatnonzero(recipe.credited(attempt))
    for t in np.flatnonzero(recipe.tokens(attempt, "critic_over")):
        later = np.searchsorted(places, t)
        found[t] = target[later] if later < len(places) else line.final_value
    return found


def updates_per_epoch(attempts: Sequence[AttemptTokens], recipe: Recipe) -> int:
    """Into how many updates a pass is cut. With `minibatch_size` a filter removes updates, as in RAGEN, unless there
    are to be as many as without it; each needs an attempt."""
    if not recipe.minibatch_size:
        return recipe.minibatches
    acted = [attempt.reward is not None and attempt.sampled.any() for attempt in attempts]
    kept = sum(acted[n] for n in kept_by(attempts, recipe))
    return max(
        1,
        min(
            math.ceil((sum(acted) if recipe.equal_updates else kept) / recipe.minibatch_size), kept
        ),
    )
