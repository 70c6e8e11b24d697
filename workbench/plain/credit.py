"""What every token is worth: from what was paid to one advantage per token.

    credit_of(trajectories, Recipe(group_relative))                          GRPO
    credit_of(trajectories, Recipe(gae, {"lam": 0.95}, bootstrap="truncated"))  PPO

An estimator is a function `(lines, **settings) -> (advantages, targets)`. It is given a `CreditLine`
for each trajectory that counts, and returns for each what its tokens are worth, and what a critic is
fitted to there (None: no critic)."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy import ndarray

from workbench.basics.tensors import torch
from workbench.plain.loss import clip, kl
from workbench.plain.rewards import (
    FilterRule,
    TrajectoryTokens,
    above_the_others,
    by_spread,
    is_flat,
    members,
    normalized,
    payments,
)

WHITEN_EPSILON = 1e-8  # inside the root, as in the published implementations of PPO
Found = tuple[list[ndarray], list[ndarray] | None]  # what an estimator returns


@dataclass(frozen=True)
class Recipe:
    """A whole algorithm."""

    estimator: Callable
    settings: dict[str, Any] = field(default_factory=dict)  # of the estimator
    objective: Callable = clip
    bounds: dict[str, Any] = field(default_factory=dict)  # of the objective
    reduction: str = "token-mean"
    fixed_length: int = 0
    sampler_cap: float = 0.0
    entropy_coef: float = 0.0
    kl_coef: float = 0.0
    kl_estimator: str = "k3"
    # or "reward": each token pays for leaving the reference, before credit is given
    kl_in: str = "loss"
    value_clip: float = 0.5
    # or "context_full", "truncated": where the critic says what comes after the end
    bootstrap: str = "never"
    normalize: str = "none"  # rewards: see rewards.normalized
    over: str = "group"  # ... over the trajectories of a "group", of the "batch", or of a "tag"
    filter_rule: FilterRule = FilterRule()  # of what `filter` keeps
    # (rewards, groups, filter_rule) -> which trajectories are learned from
    filter: Callable = by_spread
    # Mask switches at which what the environment said takes part, as if it were actions: gae_over,
    # whiten_over, kl_reward_over, critic_over, loss_over, entropy_over, kl_loss_over.
    widened: frozenset[str] = frozenset()
    epochs: int = 1
    minibatches: int = 1
    minibatch_size: int = 0  # or: trajectories per update
    equal_updates: bool = False  # with a filter as many updates as without

    def tokens(self, trajectory: TrajectoryTokens, switch: str) -> ndarray:
        """bool [T]: the tokens that a switch lets through."""
        return trajectory.response if switch in self.widened else trajectory.sampled

    def credited(self, trajectory: TrajectoryTokens) -> ndarray:
        """bool [T]: the tokens that the estimator gives credit to."""
        if getattr(self.estimator, "in_order", False):
            return self.tokens(trajectory, "gae_over")
        return self.tokens(trajectory, "loss_over") | self.tokens(trajectory, "whiten_over")


@dataclass(frozen=True, eq=False)
class CreditLine:
    """One trajectory as an estimator sees it: the tokens that get credit, in the order of time [J].
    What the environment said in between takes no time."""

    group: int
    reward: float  # R: all that it earned, normalised, minus what its tokens paid
    paid: ndarray  # at each token; the sum is R
    turn: ndarray  # that each token belongs to
    value: ndarray | None = None  # what the critic expects before each token
    final_value: float = 0.0  # ... and after the last; 0 where the trajectory ended for good
    states: Sequence[Hashable] = ()  # in which each turn of the trajectory began, by its number
    counted: ndarray | None = None  # bool: in the statistics of whitening; None: all
    elsewhere: int = 0  # tokens in these statistics, too, that get no credit
    greedy: float | None = None  # what the greedy trajectory of the same task earned, normalised

    def turns(self) -> list[slice]:
        """Where each turn that has such tokens begins and ends."""
        slices = []
        first = 0
        for j in range(1, len(self.turn) + 1):
            # A turn ends where the next token is of another one, or where there is none.
            if j == len(self.turn) or self.turn[j] != self.turn[j - 1]:
                slices.append(slice(first, j))
                first = j
        return slices

    def paid_by_turn(self) -> list[float]:
        """What each of these turns was paid."""
        return [self.paid[turn].sum() for turn in self.turns()]

    def over_turns(self, numbers: Sequence[float]) -> ndarray:
        """Give every token of a turn the number of its turn [J]."""
        lengths = [turn.stop - turn.start for turn in self.turns()]
        return np.repeat(np.array(numbers, float), lengths)


Lines = Sequence[CreditLine]  # of all trajectories that count


def discounted(amounts: Sequence[float], gamma: float) -> ndarray:
    """G_j = r_j + gamma G_{j+1}, nothing after the end. Sutton and Barto 2018, eq. 3.9."""
    returns = np.zeros(len(amounts))
    later = 0.0
    for j in reversed(range(len(amounts))):
        later = amounts[j] + gamma * later
        returns[j] = later
    return returns


def advantages_over_time(
    paid: Sequence[float], value: Sequence[float], final_value: float, gamma: float, lam: float
) -> ndarray:
    """GAE: d_j = r_j + gamma V_{j+1} - V_j and A_j = d_j + gamma lam A_{j+1}, with V after the end =
    `final_value`. Schulman et al. 2016 (arXiv 1506.02438), eq. 11, 12 and 16."""
    after = [*value[1:], final_value]
    errors = []
    for reward, expected, later in zip(paid, value, after):
        errors.append(reward + gamma * later - expected)
    return discounted(errors, gamma * lam)


def whitened(values: Sequence[ndarray], lines: Lines) -> list[ndarray]:
    """Whiten over the step: (x - mean) / sqrt(var + 1e-8), mean and unbiased variance over all counted
    tokens; those that get no credit count as 0. Zeros where fewer than two are counted. Andrychowicz
    et al. 2021 (arXiv 2006.05990)."""
    counted = []
    for own, line in zip(values, lines):
        counted.append(own if line.counted is None else own[line.counted])
    elsewhere = sum(line.elsewhere for line in lines)
    over = np.concatenate([*counted, np.zeros(elsewhere)])
    if len(over) < 2:
        return [np.zeros(len(own)) for own in values]
    # A mean of equal numbers may be off by one bit, and would be divided by nearly nothing.
    mean = over[0] if (over == over[0]).all() else over.mean()
    deviation = math.sqrt(over.var(ddof=1) + WHITEN_EPSILON)
    return [(own - mean) / deviation for own in values]


def compared(lines: Lines, **how: bool) -> list[ndarray]:
    """Give all tokens of a trajectory what it earned above its group."""
    earned = [line.reward for line in lines]
    groups = [line.group for line in lines]
    above = above_the_others(earned, groups, **how)
    return [np.full(len(line.paid), own) for line, own in zip(lines, above)]


def group_relative(lines: Lines, *, normalize_std: bool = True) -> Found:
    """GRPO (arXiv 2402.03300): above the mean of the group, divided by its deviation. So in DAPO, GSPO and CISPO;
    Dr. GRPO (arXiv 2503.20783) does not divide."""
    return compared(lines, std=normalize_std), None


def rloo(lines: Lines) -> Found:
    """RLOO (arXiv 2402.14740): above the mean of the others."""
    return compared(lines, leave_one_out=True), None


def remax(lines: Lines) -> Found:
    """ReMax (arXiv 2310.10505): above what the greedy trajectory of the same task earned; where that is
    not known, nothing."""
    advantages = []
    for line in lines:
        above = 0.0 if line.greedy is None else line.reward - line.greedy
        advantages.append(np.full(len(line.paid), above))
    return advantages, None


def reinforce(lines: Lines, *, gamma: float = 1.0, baseline: str = "others") -> Found:
    """REINFORCE over turns (Williams 1992): G_k for every token of turn k, minus what the others of its
    group earned from their beginning (baseline "none": less nothing). A trajectory without others gets
    zero."""
    to_come = [discounted(line.paid_by_turn(), gamma) for line in lines]
    if baseline == "others":
        # From its beginning a trajectory earns G_0.
        start = []
        for line, own in zip(lines, to_come):
            start.append(own[0] if len(own) else line.reward)
        groups = [line.group for line in lines]
        above = above_the_others(start, groups, leave_one_out=True)
        for n, group in enumerate(groups):
            # The baseline is start - above: the same for every turn.
            own = to_come[n] - start[n] + above[n]
            to_come[n] = own * (groups.count(group) > 1)
    return [line.over_turns(own) for line, own in zip(lines, to_come)], None


def reinforce_pp(lines: Lines, *, gamma: float = 1.0) -> Found:
    """REINFORCE++ (arXiv 2501.03262): the discounted return of each token, whitened over the step."""
    returns = [discounted(line.paid, gamma) for line in lines]
    return whitened(returns, lines), None


def reinforce_pp_baseline(lines: Lines) -> Found:
    """REINFORCE++ with a baseline (the same paper): what was earned above the group's mean, whitened
    over tokens. A trajectory that is compared with nobody, or whose group is a zero-variance group,
    stays at zero."""
    apart = set()
    for group, at in members([line.group for line in lines]).items():
        own = [lines[n].reward for n in at]
        if len(own) > 1 and not is_flat(own):
            apart.add(group)
    white = whitened(compared(lines), lines)
    return [own * (line.group in apart) for own, line in zip(white, lines)], None


def gigpo(
    lines: Lines,
    *,
    normalize_std: bool = True,
    gamma: float = 0.95,
    omega: float = 1.0,
) -> Found:
    """GiGPO (arXiv 2505.10978): GRPO's advantage, and omega times the same among all turns of a group
    that began in the same state, by what was earned from the turn on."""
    to_come = []
    keys = []
    for line in lines:
        to_come.extend(discounted(line.paid_by_turn(), gamma))
        for turn in line.turns():
            state = line.states[line.turn[turn.start]]
            keys.append(None if state is None else (line.group, state))
    # Turns of all trajectories are compared at once, and then dealt out again in their order.
    above = iter(above_the_others(to_come, keys, std=normalize_std))
    advantages = []
    for line, whole in zip(lines, compared(lines, std=normalize_std)):
        steps = [next(above) for _ in line.turns()]
        advantages.append(whole + omega * line.over_turns(steps))
    return advantages, None


def gae(lines: Lines, *, gamma: float = 1.0, lam: float = 1.0, whiten: bool = True) -> Found:
    """PPO (arXiv 1707.06347): GAE over tokens. The critic is fitted to advantage + value, before
    whitening."""
    advantages = []
    targets = []
    for line in lines:
        own = advantages_over_time(line.paid, line.value, line.final_value, gamma, lam)
        advantages.append(own)
        targets.append(own + line.value)
    return whitened(advantages, lines) if whiten else advantages, targets


def turn_gae(lines: Lines, *, gamma: float = 1.0, lam: float = 1.0, whiten: bool = True) -> Found:
    """GAE over turns: a turn is one action, its state is what stood before its first token, where alone
    the critic is fitted. The step-level training of Agent-R1 (arXiv 2511.14460)."""
    advantages = []
    targets = []
    for line in lines:
        first = [turn.start for turn in line.turns()]
        value = line.value[first]
        own = advantages_over_time(line.paid_by_turn(), value, line.final_value, gamma, lam)
        advantages.append(line.over_turns(own))
        # NaN: the critic is not fitted there.
        target = np.full(len(line.paid), math.nan)
        target[first] = own + value
        targets.append(target)
    return whitened(advantages, lines) if whiten else advantages, targets


def bilevel_gae(
    lines: Lines,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
    gamma_turn: float = 0.95,
    whiten: bool = True,
) -> Found:
    """GAE first over turns, at their last tokens; then over the tokens of each turn, which end in what
    that says:

        d_k = r_k + gamma_turn (i_{k+1} + V_{k+1}) - V_k        B_k = d_k + gamma_turn lam B_{k+1}

    with r_k and V_k at the turn's last token, and i_k what its earlier tokens were paid. Inside a turn
    it is GAE, with B_k + V_k paid at the last token, and nothing after. VAGEN (arXiv 2510.16907), RAGEN
    (arXiv 2504.20073)."""
    advantages = []
    targets = []
    for line in lines:
        turns = line.turns()
        last = [turn.stop - 1 for turn in turns]
        value = line.value[last]
        # What a turn is entered with: i_k + V_k; after the last turn, what the critic expects.
        inside = line.paid_by_turn() - line.paid[last]
        after = [*(inside + value)[1:], line.final_value]
        errors = []
        for reward, expected, later in zip(line.paid[last], value, after):
            errors.append(reward + gamma_turn * later - expected)
        paid = line.paid.copy()
        paid[last] = discounted(errors, gamma_turn * lam) + value
        # Each turn by itself: nothing comes after its end, as all of it is paid at its last token.
        own = np.zeros(len(paid))
        for turn in turns:
            own[turn] = advantages_over_time(paid[turn], line.value[turn], 0.0, gamma, lam)
        advantages.append(own)
        targets.append(own + line.value)
    return whitened(advantages, lines) if whiten else advantages, targets


# Their credit follows the order of tokens: a line holds what `gae_over` lets through.
reinforce_pp.in_order = True
gae.in_order = True
bilevel_gae.in_order = True
remax.greedy = True  # it needs a greedy trajectory of each task: collect(..., greedy=True)


@dataclass(frozen=True, eq=False)
class TrajectoryCredit:
    """What each token of a trajectory is worth [T]."""

    advantage: ndarray
    weights: dict[str, ndarray]  # in each term of the loss: "policy", "entropy", "kl", "critic"
    target: ndarray  # what the critic is fitted to; NaN where it is not


def credit_of(trajectories: Sequence[TrajectoryTokens], recipe: Recipe) -> list[TrajectoryCredit]:
    """What each token of each trajectory is worth. Trajectories that are not scored, or left out by the filter,
    weigh nothing anywhere: not in a baseline, not in a whitening, not in the loss."""
    kept = kept_by(trajectories, recipe)
    keys = []
    for n in kept:
        sets = {"group": trajectories[n].group, "batch": 0, "tag": trajectories[n].tag}
        keys.append(sets[recipe.over])
    changes = normalized([trajectories[n].reward for n in kept], keys, recipe.normalize)
    lines = [line_of(trajectories[n], recipe, *change) for n, change in zip(kept, changes)]
    # The one place where algorithms differ: everything around it is the same for all.
    advantages, targets = recipe.estimator(lines, **recipe.settings)
    credits = []
    for n, trajectory in enumerate(trajectories):
        weights = _weights(trajectory, recipe, float(n in kept))
        advantage = np.zeros(len(trajectory.ids))
        target = np.full(len(trajectory.ids), math.nan)
        # A line holds some of the tokens: they go back to their places.
        if n in kept:
            place = kept.index(n)
            advantage[recipe.credited(trajectory)] = advantages[place]
            if targets is not None:
                target = _fitted_to(trajectory, lines[place], targets[place], recipe)
        # The critic is trained wherever it has a target.
        if targets is not None:
            weights["critic"] = 1.0 - np.isnan(target)
        credits.append(TrajectoryCredit(advantage * weights["policy"], weights, target))
    return credits


def _weights(trajectory: TrajectoryTokens, recipe: Recipe, scale: float) -> dict[str, ndarray]:
    """Weigh tokens in the terms of the loss that the recipe has: `scale` where a mask lets them through."""
    weights = {"policy": recipe.tokens(trajectory, "loss_over") * scale}
    if recipe.entropy_coef:
        weights["entropy"] = recipe.tokens(trajectory, "entropy_over") * scale
    if recipe.kl_coef and recipe.kl_in == "loss":
        weights["kl"] = recipe.tokens(trajectory, "kl_loss_over") * scale
    return weights


def kept_by(trajectories: Sequence[TrajectoryTokens], recipe: Recipe) -> list[int]:
    """Numbers of the trajectories that count: scored, and kept by the filter, which looks at raw rewards."""
    earned = [trajectory.reward for trajectory in trajectories]
    groups = [trajectory.group for trajectory in trajectories]
    kept = recipe.filter(earned, groups, recipe.filter_rule)
    return [n for n, keep in enumerate(kept) if keep]


def line_of(trajectory: TrajectoryTokens, recipe: Recipe, scale: float, shift: float) -> CreditLine:
    """Show a trajectory to the recipe's estimator, its rewards put on this scale."""
    on = recipe.credited(trajectory)
    counted = recipe.tokens(trajectory, "whiten_over")
    # A divergence in the reward is a price, paid where the token is sampled.
    price = np.zeros(len(on))
    if recipe.kl_coef and recipe.kl_in == "reward":
        pays = recipe.tokens(trajectory, "kl_reward_over")
        logp = torch.as_tensor(trajectory.old_logp[pays])
        ref_logp = torch.as_tensor(trajectory.ref_logp[pays])
        price[pays] = recipe.kl_coef * kl(logp, ref_logp, recipe.kl_estimator).numpy()
    # After an end for good nothing comes; after one by a limit the critic may say what would have.
    goes_on = {
        "never": False,
        "truncated": trajectory.truncated,
        "context_full": trajectory.context_full,
    }[recipe.bootstrap]
    return CreditLine(
        trajectory.group,
        scale * trajectory.reward + shift - price.sum(),
        payments(trajectory, on, scale, shift, price)[on],
        trajectory.turn[on],
        value=None if trajectory.value is None else trajectory.value[on],
        final_value=trajectory.final_value if goes_on else 0.0,
        states=trajectory.states,
        counted=counted[on],
        elsewhere=int((counted & ~on).sum()),
        greedy=None if trajectory.greedy is None else scale * trajectory.greedy + shift,
    )


def _fitted_to(
    trajectory: TrajectoryTokens, line: CreditLine, target: ndarray, recipe: Recipe
) -> ndarray:
    """Targets of the critic [T]: where it is fitted, the target of the next token that gets credit, as
    nothing is paid on the way; behind the last of them, what comes after the end."""
    fitted = np.full(len(trajectory.ids), math.nan)
    places = np.flatnonzero(recipe.credited(trajectory))
    for t in np.flatnonzero(recipe.tokens(trajectory, "critic_over")):
        later = np.searchsorted(places, t)
        fitted[t] = target[later] if later < len(places) else line.final_value
    return fitted


def updates_per_epoch(trajectories: Sequence[TrajectoryTokens], recipe: Recipe) -> int:
    """Into how many updates a pass is cut. With `minibatch_size` a filter removes updates, as in RAGEN,
    unless there are to be as many as without it; each needs a trajectory."""
    if not recipe.minibatch_size:
        return recipe.minibatches
    acted = [
        trajectory.reward is not None and trajectory.sampled.any() for trajectory in trajectories
    ]
    kept = sum(acted[n] for n in kept_by(trajectories, recipe))
    dealt = sum(acted) if recipe.equal_updates else kept
    wanted = math.ceil(dealt / recipe.minibatch_size)
    return max(1, min(wanted, kept))
