"""Generalised advantage estimation on the timeline of action tokens, whitening, and what a critic's numbers are worth.

What the environment says between two actions takes no time here: the state before an action token is everything that
stands before it, so the step from the last token of one turn to the first of the next is one step like any other. An
observation neither discounts nor bootstraps, however long it is, and however a history is cut into segments.

Axis letters: A action tokens, trajectory after trajectory, each in the order of time · N trajectories · K turns (flat)
· L action tokens of the longest trajectory. All arithmetic in float64.
"""
from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

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
    if not reward_A.shape == value_A.shape == row_A.shape or reward_A.ndim != 1:
        raise ValueError(f"rewards {tuple(reward_A.shape)}, values {tuple(value_A.shape)} and rows "
                         f"{tuple(row_A.shape)} must be one number per action token each")
    if bool((row_A.diff() < 0).any()):
        raise ValueError("action tokens must stand trajectory after trajectory, but row_A decreases")
    rows, length_R = row_A.unique_consecutive(return_counts=True)
    if not len(rows):
        return Advantage(reward_A.double(), value_A.double())
    row_of_A = torch.repeat_interleave(torch.arange(len(rows)), length_R)
    column_A = torch.arange(len(row_A)) - (length_R.cumsum(0) - length_R)[row_of_A]
    longest = int(length_R.max())
    # One padded table [R, L], walked from right to left; the tokens stand at its left, so padding is never read.
    reward_RL = torch.zeros(len(rows), longest, dtype=torch.float64).index_put((row_of_A, column_A), reward_A.double())
    next_RL = torch.zeros(len(rows), longest + 1, dtype=torch.float64)
    next_RL[row_of_A, column_A] = value_A.double()
    next_RL[torch.arange(len(rows)), length_R] = final_value_N[rows].double()
    advantage_RL = torch.zeros(len(rows), longest, dtype=torch.float64)
    running_R = torch.zeros(len(rows), dtype=torch.float64)
    for j in reversed(range(longest)):
        delta_R = reward_RL[:, j] + gamma * next_RL[:, j + 1] - next_RL[:, j]
        running_R = torch.where(j < length_R, delta_R + gamma * lam * running_R, 0.0)
        advantage_RL[:, j] = running_R
    advantage_A = advantage_RL[row_of_A, column_A]
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


def whiten(values_A: Tensor) -> Tensor:
    """(x - mean) / sqrt(var + 1e-8), with the unbiased variance over exactly the values handed in, float64, never NaN.

    Hand in the trained tokens only: statistics over anything else would depend on how much the environment said. Values
    that are all the same (a single one among them) give exact zeros.
    Source: Andrychowicz et al. 2021, "What Matters In On-Policy Reinforcement Learning?" (arXiv 2006.05990), where it
    is done per minibatch; here once a step, over the whole batch.
    """
    values_A = values_A.double()
    if len(values_A) < 2 or bool((values_A == values_A[0]).all()):
        return torch.zeros_like(values_A)
    return (values_A - values_A.mean()) / (values_A.var() + WHITEN_EPSILON).sqrt()
