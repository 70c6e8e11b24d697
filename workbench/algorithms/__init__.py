"""How credit is given and what the loss is. One file per algorithm, one line here for each."""
from workbench.algorithms.base import Advantages, Algorithm, Credit, CreditInputs, LossInputs, TokenLoss
from workbench.algorithms.bilevel_ppo import BilevelPPO
from workbench.algorithms.cispo import CISPO
from workbench.algorithms.dapo import DAPO
from workbench.algorithms.dr_grpo import DrGRPO
from workbench.algorithms.gigpo import GiGPO
from workbench.algorithms.grpo import GRPO
from workbench.algorithms.gspo import GSPO
from workbench.algorithms.ppo import PPO
from workbench.algorithms.reinforce import Reinforce
from workbench.algorithms.reinforce_pp import ReinforcePP, ReinforcePPBaseline
from workbench.algorithms.rloo import RLOO
from workbench.algorithms.starpo import StarPO, StarPO_S
from workbench.algorithms.turn_ppo import TurnPPO

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
