"""How credit is given and what the loss is. One file per algorithm, one line here for each."""
from workbench.learn.algorithms.base import Advantages, Algorithm, Credit, CreditInputs, LossInputs, TokenLoss
from workbench.learn.algorithms.bilevel_ppo import BilevelPPO
from workbench.learn.algorithms.cispo import CISPO
from workbench.learn.algorithms.dapo import DAPO
from workbench.learn.algorithms.dr_grpo import DrGRPO
from workbench.learn.algorithms.gigpo import GiGPO
from workbench.learn.algorithms.grpo import GRPO
from workbench.learn.algorithms.gspo import GSPO
from workbench.learn.algorithms.ppo import PPO
from workbench.learn.algorithms.reinforce import Reinforce
from workbench.learn.algorithms.reinforce_pp import ReinforcePP, ReinforcePPBaseline
from workbench.learn.algorithms.rloo import RLOO
from workbench.learn.algorithms.starpo import StarPO, StarPO_S
from workbench.learn.algorithms.turn_ppo import TurnPPO

ALGORITHMS = {
    "grpo": GRPO,
    "dr_grpo": DrGRPO,
    "dapo": DAPO,
    "gspo": GSPO,
    "cispo": CISPO,
    "rloo": RLOO,
    "reinforce": Reinforce,
    "reinforce_pp": ReinforcePP,
    "reinforce_pp_baseline": ReinforcePPBaseline,
    "gigpo": GiGPO,
    "ppo": PPO,
    "turn_ppo": TurnPPO,
    "bilevel_ppo": BilevelPPO,
    "starpo": StarPO,
    "starpo_s": StarPO_S,
}

__all__ = ["ALGORITHMS", "Advantages", "Algorithm", "BilevelPPO", "CISPO", "Credit", "CreditInputs", "DAPO", "DrGRPO",
           "GRPO", "GSPO", "GiGPO", "LossInputs", "PPO", "RLOO", "Reinforce", "ReinforcePP", "ReinforcePPBaseline",
           "StarPO", "StarPO_S", "TokenLoss", "TurnPPO"]
