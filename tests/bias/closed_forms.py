"""The gradient of J = E[sum_k gamma^k r_k] once more, two ways that know nothing of the enumeration: formulas worked
out by hand, task by task, and automatic differentiation of J itself."""

from __future__ import annotations

import torch
from torch import Tensor

from workbench.extensions.bias.tasks import CLIMB, REST_HIGH, REST_LOW
from workbench.extensions.bias.trajectories import Templates


def stop_continue_gradient(gamma, continues=0.574442516811659):
    return (gamma * continues * (1 - continues),)


def bandit_gradient(gamma, safe_payout, risky=0.3, risky_chance=0.25):
    return (risky * (1 - risky) * (risky_chance - safe_payout),)


def lengths_gradient(gamma, goes_long=0.4, careful=0.6, short_payout=0.4):
    return goes_long * (1 - goes_long) * (careful - short_payout), careful * (
        1 - careful
    ) * goes_long


def three_turns_gradient(g, p=0.35, q=0.2):
    """Bellman's recursion and its derivatives, from the last turn back; L and H: what is still to come, low and high.

    L = (1-p) (rest_low + g L') + p (climb + g H')       H = (1-q) (rest_high + g L') + q (climb + g H')
    """
    low = high = low_p = high_p = low_q = high_q = (
        0.0  # after the last turn: values, and derivatives by p and by q
    )
    for _ in range(3):
        resting_low, resting_high, climbing = (
            REST_LOW + g * low,
            REST_HIGH + g * low,
            CLIMB + g * high,
        )
        low, high, low_p, high_p, low_q, high_q = (
            (1 - p) * resting_low + p * climbing,
            (1 - q) * resting_high + q * climbing,
            climbing - resting_low + g * ((1 - p) * low_p + p * high_p),
            g * ((1 - q) * low_p + q * high_p),
            g * ((1 - p) * low_q + p * high_q),
            climbing - resting_high + g * ((1 - q) * low_q + q * high_q),
        )
    return (p * (1 - p) * low_p, q * (1 - q) * low_q)


def gradient_by_autograd(source: Templates, gamma: float) -> Tensor:
    """dJ / dlogits [D] once more, by differentiating J itself: nothing in it knows the score function."""
    logits_D = source.policy.logits_D.clone().requires_grad_()
    logp_V = source.policy.logp_V(logits_D)
    expected = sum(
        o.chance * logp_V[source.policy.token_ids(o)].sum().exp() * o.worth(gamma)
        for o in source.task.outcomes
    )
    return torch.autograd.grad(expected, logits_D)[0]
