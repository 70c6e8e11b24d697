"""Advantages where a turn is the step: GAE over turns alone, and over turns and then the tokens inside each.

Turn ends are explicit (`TurnSpans`): a turn that earned nothing is a turn like any other. Values are those of what
stands before a token, as everywhere; a turn that comes after the timeline's end is worth `final_value_N`.

Axis letters: A timeline tokens · P turns that have one (learn/ops/turns.py) · N trajectories. All arithmetic in float64.
"""

from __future__ import annotations

from workbench.basics.tensors import Tensor, torch
from workbench.learn.ops.gae import Advantage, gae
from workbench.learn.ops.returns import discounted_return, value_after
from workbench.learn.ops.turns import TurnSpans, sum_over_turns


def turn_gae(
    reward_A: Tensor,
    value_A: Tensor,
    final_value_N: Tensor,
    turns: TurnSpans,
    *,
    gamma: float,
    lam: float,
) -> Advantage:
    """The step-level decision process: a turn is one action, the state is what stood before its first token.

        d_k = r_k + gamma V_{k+1} - V_k        A_k = d_k + gamma lam A_{k+1}        target_k = A_k + V_k

    with r_k the sum of the turn's rewards and V_k the value before its first token; V after the last turn is
    `final_value_N` (0 where the trajectory ended there). Discounts once per turn, however long it is. Every token of a
    turn gets its A_k [A]; the critic is asked nothing but V_k, so `target` [A] is NaN at all but first tokens.
    Source: Schulman et al. 2016 (arXiv 1506.02438), eq. 16, over turns; as in Agent-R1's step-level training (Cheng et
    al. 2025, arXiv 2511.14460).
    """
    of_turns = gae(
        sum_over_turns(reward_A, turns),
        value_A[turns.first_P],
        final_value_N,
        turns.row_P,
        gamma=gamma,
        lam=lam,
    )
    target_A = torch.full((len(value_A),), torch.nan, dtype=torch.float64)
    target_A = target_A.index_copy(0, turns.first_P, of_turns.target)
    return Advantage(of_turns.advantage[turns.turn_of_A], target_A)


def bilevel_gae(
    reward_A: Tensor,
    value_A: Tensor,
    final_value_N: Tensor,
    turns: TurnSpans,
    *,
    gamma: float,
    lam: float,
    gamma_turn: float,
) -> Advantage:
    """First over turns, then over the tokens of each turn, which end in what the turn level says of their end.

        d_k = r_k + gamma_turn (i_{k+1} + V_{k+1}) - V_k        B_k = d_k + gamma_turn lam B_{k+1}
        d_t = r'_t + gamma V_{t+1} - V_t                        A_t = d_t + gamma lam A_{t+1}        target_t = A_t + V_t

    Here r_k is paid at the turn's last token and V_k is the value before it; i_k is what the turn's earlier tokens were
    paid (a pull towards a reference, say; most often nothing). In the second line r' is r, but B_k + V_k at a turn's
    last token, after which V and A are 0: the walk starts anew in every turn. After the last turn V is `final_value_N`
    (0 where the trajectory ended there). gamma = gamma_turn = lam = 1: target = what is still to be paid.
    Source: Wang et al. 2025, "VAGEN" (arXiv 2510.16907), and the published RAGEN (arXiv 2504.20073), where turn ends
    are guessed from rewards that are not zero, and nothing is worth anything after a limit.
    """
    end_P = turns.last_P
    value_A = value_A.double()
    inside_P = sum_over_turns(reward_A.double().index_fill(0, end_P, 0.0), turns)
    after_P = value_after(inside_P + value_A[end_P], turns.row_P, final_value_N)
    delta_P = reward_A[end_P].double() + gamma_turn * after_P - value_A[end_P]
    worth_P = discounted_return(delta_P, turns.row_P, gamma=gamma_turn * lam) + value_A[end_P]
    return gae(
        reward_A.double().index_copy(0, end_P, worth_P),
        value_A,
        torch.zeros(len(end_P)),
        turns.turn_of_A,
        gamma=gamma,
        lam=lam,
    )
