"""What is still to come, discounted: the one walk from right to left that returns and advantages are made of.

A timeline may count tokens or turns, the walk is the same; what stands between two of its steps takes no time.

Axis letters: J steps of a timeline, trajectory after trajectory, each in the order of time (A where they are tokens, P
where they are turns) · N trajectories · L steps of the longest one. All arithmetic in float64.
"""

from __future__ import annotations

from workbench.basics.tensors import Tensor, torch


def discounted_return(
    reward_J: Tensor, row_J: Tensor, *, gamma: float, after_N: Tensor | None = None
) -> Tensor:
    """G_j = r_j + gamma G_{j+1}        [J], float64

    within each trajectory; `row_J` [J] says which one a step belongs to and must not decrease. G after the last step is
    `after_N`, indexed by trajectory; None: 0, nothing comes after the end. Over turns it discounts once per turn,
    however many tokens they have; over tokens once per token. Raises ValueError for shapes or an order that do not fit.
    Source: Sutton and Barto 2018, "Reinforcement Learning: An Introduction", eq. 3.9; per token of an answer: Hu et al.
    2025, "REINFORCE++" (arXiv 2501.03262).
    """
    check_timeline(row_J, reward_J)
    rows, length_R = row_J.unique_consecutive(return_counts=True)
    if not len(rows):
        return reward_J.double()
    row_of_J = torch.repeat_interleave(torch.arange(len(rows)), length_R)
    column_J = torch.arange(len(row_J)) - (length_R.cumsum(0) - length_R)[row_of_J]
    longest = int(length_R.max())
    # One padded table [R, L], walked from right to left; the steps stand at its left, so padding is never read.
    reward_RL = torch.zeros(len(rows), longest, dtype=torch.float64).index_put(
        (row_of_J, column_J), reward_J.double()
    )
    after_R = (
        torch.zeros(len(rows), dtype=torch.float64) if after_N is None else after_N[rows].double()
    )
    return_RL = torch.zeros_like(reward_RL)
    running_R = after_R
    for j in reversed(range(longest)):
        running_R = torch.where(j < length_R, reward_RL[:, j] + gamma * running_R, after_R)
        return_RL[:, j] = running_R
    return return_RL[row_of_J, column_J]


def value_after(value_J: Tensor, row_J: Tensor, final_N: Tensor) -> Tensor:
    """V_{j+1} [J], float64: the value of what comes after each step, in the same trajectory; `final_N` after its last."""
    check_timeline(row_J, value_J)
    last_J = torch.ones(len(row_J), dtype=torch.bool)
    last_J[:-1] = row_J.diff() != 0
    return torch.where(last_J, final_N[row_J].double(), value_J.double().roll(-1))


def check_timeline(row_J: Tensor, *numbers_J: Tensor) -> None:
    """Raises ValueError unless there is one number per step, trajectory after trajectory."""
    if row_J.ndim != 1 or any(number_J.shape != row_J.shape for number_J in numbers_J):
        raise ValueError(
            f"rows {tuple(row_J.shape)} and {[tuple(n.shape) for n in numbers_J]} must be one number per "
            "step of the timeline each"
        )
    if bool((row_J.diff() < 0).any()):
        raise ValueError(
            "steps must stand trajectory after trajectory, but the row number decreases"
        )
