"""PPO where a whole turn is the action: the step-level decision process."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.learn.algorithms.base import Advantages, CreditInputs
from workbench.learn.algorithms.ppo import PPO
from workbench.learn.ops.turn_gae import turn_gae


@dataclass(frozen=True)
class TurnPPO(PPO):
    """GAE over turns: the critic is asked once per turn, before its first token, and all tokens of a turn are worth
    what the turn is worth.

    Whitening is over tokens here as everywhere (a long turn counts for more); Agent-R1 whitens over turns.
    Source: the step-level training of Agent-R1 (Cheng et al. 2025, arXiv 2511.14460); see learn/ops/turn_gae.py.
    """

    gamma: float = 1.0  # discount per turn
    lam: float = 1.0    # 1: rewards to the end minus the value; lower: lean on the critic sooner

    name: ClassVar[str] = "turn_ppo"
    has_timeline: ClassVar[bool] = False  # what stands inside a turn, or after its last action token, moves nothing

    def advantages(self, inputs: CreditInputs) -> Advantages:
        """The same for every token of a turn; the critic is fitted at the first of them."""
        found = turn_gae(inputs.reward_A, inputs.value_A, inputs.final_value_N, inputs.turns, gamma=self.gamma,
                         lam=self.lam)
        return Advantages(inputs.whitened(found.advantage) if self.whiten else found.advantage, found.target)
