"""Known traps, shown by enumeration: estimators that look reasonable and point nowhere, or the wrong way.

per turn index   rewards compared among all trajectories that are in their k-th turn: exactly zero on stop/continue
deviation        GRPO's division by the group's standard deviation: away from the better arm of the bandit
filter           learning from the groups that differ most: towards the risky arm, even where it is the worse one
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product

import numpy as np
import torch
from torch import Tensor

from workbench.extensions.bias.measure import Estimator, Unit, all_units, enumerated, estimates
from workbench.extensions.bias.tasks import SAFE_PAYOUTS, bandit, stop_continue
from workbench.extensions.bias.trajectories import templates, true_gradient
from workbench.learn.batch import Batch
from workbench.learn.ops.group import group_advantage

CURVE_SIZES = (2, 4, 8, 16)
TRAPPED_SIZES = (2, 3, 4, 5, 6, 7, 8)  # for these the bandit must be shown to go wrong
BETTER_SAFE = 0.35  # a safe arm that pays more than the risky one's 0.25
# Groups and trajectories of a batch from which the group with the largest spread is kept.
FILTERED = (4, 3)
# Where the bandit's sign is looked at, for every group size.
RISKY_GRID = tuple(p / 10 for p in range(1, 10))
RISKY = 0.3  # how often the policy takes the risky arm where one number is given
GRID = tuple(float(p) for p in np.linspace(0.02, 0.98, 33).round(4))


@dataclass(frozen=True)
class Trap:
    """`shown`: what the title says was found, to the last digit that matters. `lines` are for people."""

    title: str
    shown: bool
    lines: tuple[str, ...]


@dataclass(frozen=True)
class SignCurve:
    """By how much the risky arm's expected advantage exceeds the safe one's, over the probability of taking it. The
    sign is where training goes; `flips`: probabilities at which it changes."""

    safe_payout: float
    attempts: int
    risky_P: tuple[float, ...]
    difference_P: tuple[float, ...]
    flips: tuple[float, ...] = ()


# ------------------------------------------------------------------------------------------------ per turn index


def per_turn_index(batch: Batch, *, normalize_std: bool = True, to_the_end: bool = True) -> Tensor:
    """Credit [T] as it must not be given, and is: each turn's reward minus the mean of the rewards that the group's
    trajectories got in *their* turn of the same number (over its deviation), on the tokens of that turn, or summed from it
    to the end (`to_the_end`). Who chose to go on is compared with those who went on too, never with those who did not.
    """
    turns_N = batch.turn_offsets.diff()
    row_K = torch.repeat_interleave(torch.arange(batch.num_trajectories), turns_N)
    turn_K = torch.arange(len(row_K)) - batch.turn_offsets[:-1][row_K]
    most = int(turns_N.max())
    peers_K = batch.group_of_trajectory_N[row_K] * most + turn_K
    worth_K = group_advantage(
        batch.turn_reward_K,
        peers_K,
        torch.ones_like(peers_K, dtype=torch.bool),
        normalize_std=normalize_std,
    )
    worth_NK = torch.zeros(batch.num_trajectories, most, dtype=torch.float64)
    worth_NK[row_K, turn_K] = worth_K
    if to_the_end:
        worth_NK = worth_NK.flip(1).cumsum(1).flip(1)
    worth_T = worth_NK[batch.trajectory_of_token_T, batch.turn_T.long()]
    return torch.where(batch.eligible_T, worth_T, 0.0)


def turn_index_trap(
    honest: Estimator, trap: Callable[..., Tensor] = per_turn_index, attempts: int = 8
) -> Trap:
    """The estimate is zero for every group there is, with and without deviation, own turn or to the end; `honest` gets
    the true gradient on the very same groups."""
    source = templates(stop_continue())
    unit = Unit(attempts)
    truth = float(true_gradient(source, 1.0)[0])
    outcome_UN, probability_U = all_units(source.probability_O, unit)
    largest = 0.0
    for std, end in product((True, False), repeat=2):
        estimator = partial(trap, normalize_std=std, to_the_end=end)
        estimate_UD = estimates(source, estimator, unit, outcome_UN)
        largest = max(largest, float(estimate_UD.abs().max()))
    learned = float(probability_U @ estimates(source, honest, unit, outcome_UN)[:, 0].numpy())
    return Trap(
        "normalising per turn index gives no gradient at all on stop/continue",
        largest == 0.0 and abs(learned - truth) <= 1e-9 * abs(truth) and truth != 0,
        (
            f"true gradient {truth:.4f}; leave-one-out finds {learned:.4f}",
            f"per turn index: {largest:.4f} at most, in each of the {len(outcome_UN)} groups of {attempts} that there are "
            "(with the deviation and without, own turn only and to the end)",
        ),
    )


# ------------------------------------------------------------------------------------------------ deviation


def arm_difference(estimator: Estimator, safe_payout: float, attempts: int, risky: float) -> float:
    """E[advantage | risky arm] - E[advantage | safe arm], by enumeration of all groups: the expected gradient over
    p (1 - p). Without any division it is (chance - safe) (G - 1)/G, whatever p."""
    source = templates(bandit(safe_payout, risky))
    return float(enumerated(source, estimator, Unit(attempts)).mean_D[0]) / (risky * (1 - risky))


def sign_curve(
    estimator: Estimator, safe_payout: float, attempts: int, risky_P: Sequence[float] = GRID
) -> SignCurve:
    """The difference over a grid of probabilities, and where between two of them it changes its sign (to 1e-6)."""
    difference = partial(arm_difference, estimator, safe_payout, attempts)
    difference_P = tuple(map(difference, risky_P))
    flips = []
    for (low, left), (high, right) in pairwise(zip(risky_P, difference_P)):
        if (left < 0) != (right < 0):
            flips.append(_root(difference, low, high))
    return SignCurve(safe_payout, attempts, tuple(risky_P), difference_P, tuple(flips))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    is_below = function(low) < 0
    while high - low > 1e-6:
        middle = (low + high) / 2
        if (function(middle) < 0) == is_below:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def deviation_trap(divided: Estimator, undivided: Estimator, curves: Sequence[SignCurve]) -> Trap:
    """For both published payouts, every group size up to 8 and every probability of RISKY_GRID (0.3 among them) the
    expected update makes the better arm rarer; the same without the division makes it likelier."""
    bandits = [*product(SAFE_PAYOUTS, TRAPPED_SIZES)]
    wrong = all(
        arm_difference(divided, *arms, risky) < 0 for arms, risky in product(bandits, RISKY_GRID)
    )
    right = all(arm_difference(undivided, *arms, RISKY) > 0 for arms in bandits)
    lines = []
    for safe in SAFE_PAYOUTS:
        differences = []
        for attempts in (*TRAPPED_SIZES, 16):
            difference = arm_difference(divided, safe, attempts, RISKY)
            differences.append(f"{difference:+.3f} (G={attempts})")
        lines.append(
            f"safe arm {safe:g}, risky arm taken with probability {RISKY:g}: risky minus safe advantage "
            f"{', '.join(differences)}"
        )
    lines.append(
        f"G = {TRAPPED_SIZES[0]} to {TRAPPED_SIZES[-1]}, each at probabilities from {RISKY_GRID[0]:g} to "
        f"{RISKY_GRID[-1]:g}: {'wrong at all of them' if wrong else 'not wrong at all of them'}"
    )
    lines += [_flip_line(curve) for curve in curves]
    return Trap(
        "dividing by the group's standard deviation points to the worse arm of the bandit in groups of 8 and "
        "fewer",
        wrong and right,
        tuple(lines),
    )


def _flip_line(curve: SignCurve) -> str:
    bandit_words = f"safe arm {curve.safe_payout:g}, G={curve.attempts}"
    negative = np.mean(np.array(curve.difference_P) < 0)
    if negative == 1:
        return f"{bandit_words}: wrong at every probability looked at"
    if negative == 0:
        return f"{bandit_words}: right at every probability looked at"
    flips = ", ".join(f"p = {p:.3f}" for p in curve.flips)
    first = "wrong" if curve.difference_P[0] < 0 else "right"
    return f"{bandit_words}: changes sign at {flips} ({first} below it)"


# ------------------------------------------------------------------------------------------------ filter


def filter_trap(filtered: Estimator, unfiltered: Estimator) -> Trap:
    """With a safe arm that is the better one, the groups of largest spread alone say that the risky one is; all groups
    say the truth. Nothing is divided by a deviation here: the choice of groups does it. `filtered` keeps a quarter."""
    groups, attempts = FILTERED
    source = templates(bandit(BETTER_SAFE, RISKY))
    measured = enumerated(source, filtered, Unit(attempts, groups, alone=False))
    kept = 1 / groups  # the other groups are zeros in the mean
    chosen = float(measured.mean_D[0]) / (RISKY * (1 - RISKY)) / kept
    honest = arm_difference(unfiltered, BETTER_SAFE, attempts, RISKY)
    return Trap(
        "learning from the quarter of groups with the largest spread points to the risky arm where the safe one is "
        "better",
        chosen > 0 > honest,
        (
            f"safe arm {BETTER_SAFE:g}, risky arm taken with probability {RISKY:g}, groups of {attempts}, no division by "
            f"the deviation: risky minus safe advantage {honest:+.3f} over all groups, {chosen:+.3f} over the one that is "
            f"kept of {groups} ({measured.units} batches, all there are)",
            "so the filter is no cure for the division: it errs to the other side",
        ),
    )
