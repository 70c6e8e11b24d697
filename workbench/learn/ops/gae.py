"""Generalised advantage estimation on the timeline of action tokens, whitening, and what a critic's numbers are worth.

What the environment says between two actions takes no time here: the state before an action token is everything that
stands before it, so the step from the last token of one turn to the first of the next is one step like any other. An
observation neither discounts nor bootstraps, however long it is, and however a history is cut into segments.

Axis letters: A action tokens, trajectory after trajectory, each in the order of time · N trajectories · K turns (flat).
All arithmetic in float64.
"""

from __future__ import annotations

from typing import NamedTuple

from workbench.basics.tensors import Tensor, torch
from workbench.learn.ops.returns import check_timeline, discounted_return, value_after

# Inside the root, as in the published implementations: it keeps the quotient finite where nearly all values agree.
WHITEN_EPSILON = 1e-8


class Advantage(NamedTuple):
    """Per action token, float64: `advantage` = how much better than expected it went on; `target` = what the value of
    the state before the token is fitted to (advantage + value)."""

    advantage: Tensor
    target: Tensor


def gae(
    reward_A: Tensor,
    value_A: Tensor,
    final_value_N: Tensor,
    row_A: Tensor,
    *,
    gamma: float,
    lam: float,
) -> Advantage:
    """d_j = r_j + gamma V_{j+1} - V_j        A_j = d_j + gamma lam A_{j+1}        target_j = A_j + V_j

    where j counts the action tokens of one trajectory, V_j is the value before token j, A after the last token is 0,
    and V after the last token is `final_value_N` (0 where the trajectory ended there; a value where it was cut short).
    `row_A` [A] says which trajectory a token belongs to; it must not decrease. With gamma = lam = 1 the sum telescopes:
    A_j = (rewards from j on) + final value - V_j. Raises ValueError for shapes or an order that do not fit.
    Source: Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation"
    (arXiv 1506.02438), eq. 11-12 and 16; bootstrap at a time limit: Pardo et al. 2018 (arXiv 1712.00378), section 3.2.
    """
    check_timeline(row_A, reward_A, value_A)
    delta_A = (
        reward_A.double() + gamma * value_after(value_A, row_A, final_value_N) - value_A.double()
    )
    advantage_A = discounted_return(delta_A, row_A, gamma=gamma * lam)
    return Advantage(advantage_A, advantage_A + value_A.double())


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
    flat = bool(
        (over == over[0]).all()
    )  # a mean of equal floats may be off by one bit, which must not become credit
    return (values_A - (over[0] if flat else over.mean())) / (over.var() + WHITEN_EPSILON).sqrt()
