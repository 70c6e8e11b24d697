"""Turns that stood in the same state, compared with each other.

Axis letters: P turns (flat) of all trajectories. All arithmetic in float64.
"""

from __future__ import annotations

from workbench.basics.tensors import Tensor, torch
from workbench.learn.ops.group import group_advantage


def anchor_advantage(
    return_P: Tensor, group_P: Tensor, state_P: Tensor, *, normalize_std: bool
) -> Tensor:
    """How much better it went on from a turn than from the others of its group that stood in the same state [P]:

        A_k = (G_k - mean G) / (std G + 1e-6)        normalize_std=True
        A_k =  G_k - mean G                          normalize_std=False

    over the turns with the same `group_P` and the same `state_P` (a number per state; -1: not known, compared with
    nobody). `return_P` is the discounted return from the turn on. A state in which only one turn stood gives it zero,
    and so do returns that are all the same; never NaN. A trajectory that comes back to a state counts there each time.
    Source: Feng et al. 2025, "Group-in-Group Policy Optimization" (arXiv 2505.10978), its
    step-relative advantage.
    """
    known_P = state_P >= 0
    _, anchor_P = torch.stack([group_P.long(), state_P.long()]).unique(dim=1, return_inverse=True)
    return group_advantage(return_P, anchor_P, known_P, normalize_std=normalize_std)
