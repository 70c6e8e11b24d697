"""PPO with bi-level GAE: turns are compared first, then the tokens inside each."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.learn.algorithms.base import Advantages, CreditInputs
from workbench.learn.algorithms.ppo import PPO
from workbench.learn.ops.turn_gae import bilevel_gae
from workbench.types.errors import ConfigError


@dataclass(frozen=True)
class BilevelPPO(PPO):
    """What comes after a turn is discounted once, by `gamma_turn`, however many tokens the turns have; `gamma`
    discounts inside a turn. Turn ends are known, so that a turn without a reward is a turn.

    Source: Wang et al. 2025, "VAGEN" (arXiv 2510.16907), as in RAGEN (arXiv 2504.20073); see learn/ops/turn_gae.py.
    """

    gamma: float = 1.0        # discount per action token inside a turn
    gamma_turn: float = 0.95  # discount per turn

    name: ClassVar[str] = "bilevel_ppo"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.gamma_turn <= 1:
            raise ConfigError(f"algorithm.gamma_turn lies in 0..1, got {self.gamma_turn}")

    def advantages(self, inputs: CreditInputs) -> Advantages:
        """Per token; the critic is fitted at each."""
        found = bilevel_gae(inputs.reward_A, inputs.value_A, inputs.final_value_N, inputs.turns, gamma=self.gamma,
                            lam=self.lam, gamma_turn=self.gamma_turn)
        return Advantages(inputs.whitened(found.advantage) if self.whiten else found.advantage, found.target)
