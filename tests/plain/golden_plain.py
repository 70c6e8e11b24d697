"""The formulas of `plain` in the clothes of those that train, so that `tests/golden.py` can hold another program's
numbers against them: padded tables come in as flat arrays with a row for each token."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from workbench.learn.ops.gae import Advantage
from workbench.learn.ops.loss import Reduction, ValueLoss
from workbench.plain import credit, loss, rewards


def by_row(row_A: Tensor) -> list[Tensor]:
    """Which tokens each row has."""
    return [(row_A == row).nonzero()[:, 0] for row in row_A.unique()]


def laid(row_A: Tensor, parts: list[np.ndarray]) -> Tensor:
    found = torch.zeros(len(row_A), dtype=torch.float64)
    for at, part in zip(by_row(row_A), parts):
        found[at] = torch.as_tensor(part, dtype=torch.float64)
    return found


def gae(reward_A, value_A, final_N, row_A, *, gamma, lam) -> Advantage:
    advantage = laid(
        row_A,
        [
            credit.advantages_over_time(
                reward_A[at].tolist(), value_A[at].tolist(), 0.0, gamma, lam
            )
            for at in by_row(row_A)
        ],
    )
    return Advantage(advantage, advantage + value_A)


def discounted_return(reward_A, row_A, *, gamma) -> Tensor:
    return laid(row_A, [credit.discounted(reward_A[at].tolist(), gamma) for at in by_row(row_A)])


def whiten(values_A) -> Tensor:
    line = credit.CreditLine(0, 0.0, values_A.numpy(), np.zeros(len(values_A), int))
    return torch.from_numpy(credit.whitened([values_A.double().numpy()], [line])[0])


def group_advantage(reward_N, group_N, include_N, *, normalize_std) -> Tensor:
    return torch.tensor(
        rewards.above_the_others(reward_N.tolist(), group_N.tolist(), std=normalize_std)
    )


def leave_one_out(reward_N, group_N, include_N) -> Tensor:
    return torch.tensor(
        rewards.above_the_others(reward_N.tolist(), group_N.tolist(), leave_one_out=True)
    )


def clipped_surrogate(logp, old, advantage, *, low, high, dual=0.0) -> loss.ObjectiveValue:
    return loss.clip(
        logp, old, advantage, torch.ones_like(logp).bool(), low=low, high=high, dual=dual
    )


def sequence_surrogate(logp, old, advantage, row_A, counts, *, low, high) -> loss.ObjectiveValue:
    parts = [
        (at, loss.gspo(logp[at], old[at], advantage[at], counts[at], low=low, high=high))
        for at in by_row(row_A)
    ]
    return loss.ObjectiveValue(
        *(laid(row_A, [part[i].numpy() for _, part in parts]) for i in range(3))
    )


def weighted_logprob(logp, old, advantage, *, low, high) -> loss.ObjectiveValue:
    return loss.cispo(logp, old, advantage, torch.ones_like(logp).bool(), low=low, high=high)


def reduction(kind, counts_A, row_A, *, fixed_length) -> Reduction:
    """The share of a token times the number of rows, and that number."""
    rows = len(row_A.unique())
    shares = loss.shares([np.ones(len(at)) for at in by_row(row_A)], kind, fixed_length)
    return Reduction(laid(row_A, [own * rows for own in shares]), float(rows))


def clipped_value_loss(value, old, target, *, clip) -> ValueLoss:
    return ValueLoss(loss.value_loss(value, old, target, clip), None)


INSTEAD = {
    "gae": gae,
    "discounted_return": discounted_return,
    "whiten": whiten,
    "group_advantage": group_advantage,
    "leave_one_out": leave_one_out,
    "clipped_surrogate": clipped_surrogate,
    "kl_estimate": loss.kl,
    "sequence_surrogate": sequence_surrogate,
    "weighted_logprob": weighted_logprob,
    "reduction": reduction,
    "clipped_value_loss": clipped_value_loss,
}
