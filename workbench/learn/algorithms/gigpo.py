"""GiGPO: beside the group of attempts, groups of turns that stood in the same state."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.learn.algorithms.base import Advantages, CreditInputs
from workbench.learn.algorithms.grpo import GRPO
from workbench.learn.ops.anchor import anchor_advantage
from workbench.learn.ops.returns import discounted_return
from workbench.types.errors import ConfigError, DataError


@dataclass(frozen=True)
class GiGPO(GRPO):
    """Group-in-group policy optimisation: A = (as in GRPO, the same for the whole attempt) + omega (among the turns of
    the group that stood in the same state, by what was earned from the turn on, discounted once per turn).

    Needs an environment that names its states (`state_key()`): a turn whose state nobody else stood in, or that has no
    name, gets the first part alone. A group in which all earned the same may still differ turn by turn. `normalize_std`
    divides both parts by their own group's deviation, or neither.
    Source: Feng et al. 2025, "Group-in-Group Policy Optimization" (arXiv 2505.10978), with its gamma and omega.
    """

    omega: float = 1.0   # what the comparison of turns counts, beside that of attempts
    gamma: float = 0.95  # discount per turn, of that comparison

    name: ClassVar[str] = "gigpo"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gamma <= 1 or not 0 <= self.omega < float("inf"):
            raise ConfigError(f"algorithm.gamma lies in 0..1 and algorithm.omega is finite and not negative; got "
                              f"{self.gamma}, {self.omega}")

    @property
    def ignores_shifts(self) -> bool:
        return not self.omega or self.gamma == 1

    def advantages(self, inputs: CreditInputs) -> Advantages:
        """The same for every token of a turn. Raises DataError where no turn of the whole batch names its state."""
        turns, state_K = inputs.turns, inputs.batch.state_of_turn_K
        if len(state_K) and not bool((state_K >= 0).any()):
            raise DataError("gigpo compares turns that stood in the same state, but no turn of this batch names its "
                            "state: give the environment a state_key(), or take grpo")
        return_P = discounted_return(inputs.reward_P, turns.row_P, gamma=self.gamma)
        step_P = anchor_advantage(return_P, inputs.group_N[turns.row_P], inputs.state_P,
                                  normalize_std=self.normalize_std)
        return Advantages(super().advantages(inputs).advantage_A + self.omega * step_P[turns.turn_of_A])
