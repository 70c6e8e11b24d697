"""Where each turn stands on the timeline of tokens that get credit.

Axis letters: A timeline tokens, trajectory after trajectory, each in the order of time · P turns that have at least one
of them, in the same order. A turn without a timeline token is no row here: nothing in it can be given credit.
"""

from __future__ import annotations

from typing import NamedTuple

from workbench.basics.tensors import Tensor, torch


class TurnSpans(NamedTuple):
    """All int64. `first_P` and `last_P` are indices into A; the tokens of a turn are all those from first to last."""

    row_P: Tensor  # the trajectory it belongs to
    turn_P: Tensor  # its number there
    first_P: Tensor
    last_P: Tensor
    turn_of_A: Tensor  # index into P of each token's turn


def turn_spans(row_A: Tensor, turn_A: Tensor) -> TurnSpans:
    """The turns of a timeline, from each token's trajectory and turn number [A].

    Raises ValueError for tokens that do not stand in the order of trajectories and turns, because a turn would then not
    be one stretch of them.
    """
    if row_A.shape != turn_A.shape or row_A.ndim != 1:
        raise ValueError(
            f"rows {tuple(row_A.shape)} and turns {tuple(turn_A.shape)} must be one number per token each"
        )
    row_A = row_A.long()
    turn_A = turn_A.long()
    next_row_A = row_A.diff()
    next_turn_A = turn_A.diff()
    backwards_A = (next_row_A < 0) | ((next_row_A == 0) & (next_turn_A < 0))
    if bool(backwards_A.any()):
        raise ValueError("timeline tokens must stand in the order of trajectories and turns")
    opens_A = torch.ones(len(row_A), dtype=torch.bool)
    opens_A[1:] = (next_row_A != 0) | (next_turn_A != 0)
    first_P = opens_A.nonzero()[:, 0]
    end = torch.full((min(len(first_P), 1),), len(row_A))  # none where there is no turn
    last_P = torch.cat([first_P[1:], end]) - 1
    turn_of_A = opens_A.long().cumsum(0) - 1
    return TurnSpans(row_A[first_P], turn_A[first_P], first_P, last_P, turn_of_A)


def sum_over_turns(value_A: Tensor, turns: TurnSpans) -> Tensor:
    """What the tokens of each turn have together [P], float64 (their rewards, for one)."""
    total_P = torch.zeros(len(turns.row_P), dtype=torch.float64)
    return total_P.index_add(0, turns.turn_of_A, value_A.double())
