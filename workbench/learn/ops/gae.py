"""Generalised advantage estimation on the timeline of action tokens, whitening, and what a critic's numbers are worth.

What the environment says between two actions takes no time here: the state before an action token is everything that
stands before it, so the step from the last token of one turn to the first of the next is one step like any other. An
observation neither discounts nor bootstraps, however long it is, and however a history is cut into segments.

Axis letters: A action tokens, trajectory after trajectory, each in the order of time · N trajectories · K turns (flat).
All arithmetic in float64.
"""
from __future__ import annotations

from typing import NamedTuple

from workbench.learn.ops.returns import check_timeline, discounted_return, value_after
from workbench.types.tensors import Tensor, torch

# Inside the root, as in the published implementations: it keeps the quotient finite where nearly all values agree.
WHITEN_EPSILON = 1e-8


class Advantage(NamedTuple):
    """Per action token, float64: `advantage` = how much better than expected it went on; `target` = what the value of
    the state before the token is fitted to (advantage + value)."""

    advantage: Tensor
    target: Tensor


def gae(reward_A: Tensor, value_A: Tensor, final_value_N: Tensor, row_A: Tensor, *, gamma: float,
        lam: float) -> Advantage:
    """d_j = r_j + gamma V_{j+1} - V_j        A_j = d_j + gamma lam A_{j+1}        target_j = A_j + V_j

    where j counts the action tokens of one trajectory, V_j is the value before token j, A after the last token is 0,
    and V after the last token is `final_value_N` (0 where the trajectory ended there; a value where it was cut short).
    `row_A` [A] says which trajectory a token belongs to; it must not decrease. With gamma = lam = 1 the sum telescopes:
    A_j = (rewards from j on) + final value - V_j. Raises ValueError for shapes or an order that do not fit.
    Source: Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation"
    (arXiv 1506.02438), eq. 11-12 and 16; bootstrap at a time limit: Pardo et al. 2018 (arXiv 1712.00378), section 3.2.
    """
    check_timeline(row_A, reward_A, value_A)
    delta_A = reward_A.double() + gamma * value_after(value_A, row_A, final_value_N) - value_A.double()
    advantage_A = discounted_return(delta_A, row_A, gamma=gamma * lam)
    return Advantage(advantage_A, advantage_A + value_A.double())


def rewards_at_turn_ends(turn_reward_K: Tensor, turn_offsets: Tensor, outcome_N: Tensor, row_A: Tensor,
                         turn_A: Tensor) -> Tensor:
    """What was paid, at the token it was paid for [A], float64: a turn's reward on the last token sampled in that turn,
    the outcome on the trajectory's last token. Nothing is lost: a turn without a sampled token pays the last one before
    it (or, where there is none, the first one after).

    `turn_offsets` [N + 1] cuts `turn_reward_K` into trajectories; turns are numbered from 0 in each. `outcome_N` may be
    NaN (none given). Trajectories without an action token get nothing. Raises ValueError where tokens are not in order.
    """
    turns_N = turn_offsets.diff()
    most = max(int(turns_N.max()) if len(turns_N) else 0, int(turn_A.max()) + 1 if len(turn_A) else 0) + 1
    time_A = row_A * most + turn_A  # one number that orders tokens by trajectory, then turn
    if bool((time_A.diff() < 0).any()):
        raise ValueError("action tokens must stand in the order of trajectories and turns")
    present_N = torch.zeros(len(turns_N), dtype=torch.bool).index_fill(0, row_A, True)
    first_N = torch.searchsorted(row_A, torch.arange(len(turns_N)))
    last_N = torch.searchsorted(row_A, torch.arange(len(turns_N)), right=True) - 1
    row_K = torch.repeat_interleave(torch.arange(len(turns_N)), turns_N)
    turn_K = torch.arange(len(row_K)) - turn_offsets[:-1][row_K]
    end_K = torch.searchsorted(time_A, row_K * most + turn_K, right=True) - 1
    end_K = torch.maximum(end_K, first_N[row_K])
    paid_K, given_N = present_N[row_K], present_N & ~outcome_N.isnan()
    reward_A = torch.zeros(len(row_A), dtype=torch.float64)
    reward_A = reward_A.index_add(0, end_K[paid_K], turn_reward_K[paid_K].double())
    return reward_A.index_add(0, last_N[given_N], outcome_N[given_N].double())


def whiten(values_A: Tensor, over: Tensor | None = None) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8) [A], float64, never NaN; mean and unbiased variance over the values in `over` (None:
    over exactly the values handed in).

    Hand in the trained tokens only: statistics over anything else depend on how much the environment said, which is
    what the switch `whiten_over` is there to show. Values that are all the same (a single one among them) give exact
    zeros, and so do statistics over fewer than two values.
    Source: Andrychowicz et al. 2021, "What Matters In On-Policy Reinforcement Learning?" (arXiv 2006.05990), where it
    is done per minibatch; here once a step, over the whole batch.
    """
    values_A = values_A.double()
    over = values_A if over is None else over.double()
    if len(over) < 2:
        return torch.zeros_like(values_A)
    flat = bool((over == over[0]).all())  # a mean of equal floats may be off by one bit, which must not become credit
    return (values_A - (over[0] if flat else over.mean())) / (over.var() + WHITEN_EPSILON).sqrt()
