"""How credit is given and what the loss is: algorithms as compositions (algorithm.py); those with a name (named.py)."""

from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import Advantages, Credit, CreditInputs, LossInputs, TokenLoss
from workbench.learn.algorithms.estimators import Estimator
from workbench.learn.algorithms.named import (
    ALGORITHMS,
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    PPO,
    RLOO,
    BilevelPPO,
    DrGRPO,
    GiGPO,
    Reinforce,
    ReinforcePP,
    ReinforcePPBaseline,
    ReMax,
    StarPO,
    StarPO_S,
    TurnPPO,
)

__all__ = [
    "ALGORITHMS",
    "Advantages",
    "Algorithm",
    "BilevelPPO",
    "CISPO",
    "Credit",
    "CreditInputs",
    "DAPO",
    "DrGRPO",
    "Estimator",
    "GRPO",
    "GSPO",
    "GiGPO",
    "LossInputs",
    "PPO",
    "RLOO",
    "ReMax",
    "Reinforce",
    "ReinforcePP",
    "ReinforcePPBaseline",
    "StarPO",
    "StarPO_S",
    "TokenLoss",
    "TurnPPO",
]
