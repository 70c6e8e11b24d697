"""How credit is given and what the loss is. One file per algorithm, one line here for each."""
from workbench.algorithms.base import Algorithm, Credit, LossInputs, TokenLoss
from workbench.algorithms.grpo import GRPO
from workbench.algorithms.ppo import PPO

ALGORITHMS = {
    "grpo": GRPO,
    "ppo": PPO,
}

__all__ = ["ALGORITHMS", "Algorithm", "Credit", "GRPO", "LossInputs", "PPO", "TokenLoss"]
