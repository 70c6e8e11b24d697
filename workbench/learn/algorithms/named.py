"""The algorithms that have a name: each a composition of parts, its source beside it. What a part is, its own page says.

What is not said is the default: PPO's clip at 0.2 on both sides, the mean over tokens, one update a step, no filter, no
pull towards a reference, actions alone.
"""

from __future__ import annotations

from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.estimators import (
    BILEVEL_GAE,
    GAE,
    GIGPO,
    GROUP_RELATIVE,
    REINFORCE,
    REINFORCE_PP,
    REINFORCE_PP_BASELINE,
    REMAX,
    TURN_GAE,
)
from workbench.learn.algorithms.estimators import RLOO as LEAVE_ONE_OUT
from workbench.learn.algorithms.objectives import CISPOObjective, ClipObjective, GSPOObjective
from workbench.learn.algorithms.parts import CriticLoss, Filter, ReferenceKL

# Where a pull is asked for, it is paid in the reward, by k1.
PAID = ReferenceKL(kl_estimator="k1", kl_in="reward")

# Shao et al. 2024 (arXiv 2402.03300), over whole trajectories of several turns and segments, with the token mean of DAPO
# instead of a mean per answer.
GRPO = Algorithm("grpo", GROUP_RELATIVE)

# Liu et al. 2025 (arXiv 2503.20783), section 3: nothing is divided by what the trajectories happened to be, neither by the
# group's deviation nor by a trajectory's own length, which makes long failures cheap. The length is only a scale of the
# step size, the same for all. The gradient is that of the objective times (n - 1) / n and 1 / fixed_length, as long as
# nothing is clipped.
DrGRPO = Algorithm(
    "dr_grpo",
    GROUP_RELATIVE.with_settings(normalize_std=False),
    reduction="fixed-length",
    fixed_length=256,
)

# Yu et al. 2025 (arXiv 2503.14476), section 3, as far as it is about credit: clip-higher, the token mean, no reference,
# and groups in which all earned the same are left out of the denominator too. The paper samples further prompts until a
# step is full of groups that teach; here a step has the tasks it has, and those that teach nothing make it smaller. Its
# penalty for overlong answers would be a reward of the environment.
DAPO = Algorithm(
    "dapo",
    GROUP_RELATIVE,
    objective=ClipObjective(clip_high=0.28),
    filter=Filter(zero_variance="drop"),
)

# Zheng et al. 2025 (arXiv 2507.18071), with its bounds. A ratio is over what the model saw in one piece, a segment: in a
# history that is rewritten each turn has its own, as in StepPO (arXiv 2604.18401).
GSPO = Algorithm("gspo", GROUP_RELATIVE, objective=GSPOObjective(), reduction="seq-mean-token-mean")

# MiniMax 2025, "MiniMax-M1" (arXiv 2506.13585), section 3.1: REINFORCE with a bounded importance weight.
CISPO = Algorithm("cispo", GROUP_RELATIVE, objective=CISPOObjective())

RLOO = Algorithm("rloo", LEAVE_ONE_OUT)
Reinforce = Algorithm("reinforce", REINFORCE)

# Li et al. 2024 (arXiv 2310.10505): one more trajectory of each task, by the likeliest tokens, is the baseline of the others.
ReMax = Algorithm("remax", REMAX)

# Hu et al. 2025 (arXiv 2501.03262): the pull is paid in the reward; with a group baseline it is k2 in the loss.
ReinforcePP = Algorithm("reinforce_pp", REINFORCE_PP, reference=PAID)
ReinforcePPBaseline = Algorithm(
    "reinforce_pp_baseline", REINFORCE_PP_BASELINE, reference=ReferenceKL(kl_estimator="k2")
)

GiGPO = Algorithm("gigpo", GIGPO)

# Schulman et al. 2017 (arXiv 1707.06347); a turn as one action: Agent-R1 (arXiv 2511.14460); both: VAGEN (2510.16907).
PPO = Algorithm("ppo", GAE, reference=PAID)
TurnPPO = Algorithm("turn_ppo", TURN_GAE, reference=PAID)
BilevelPPO = Algorithm("bilevel_ppo", BILEVEL_GAE, reference=PAID)

# Wang et al. 2025, "RAGEN" (arXiv 2504.20073), eq. 4 and 6, and the code published with it: credit over the whole
# trajectory, thoughts included, by GAE(1, 1); clipped from below by the dual clip too; a small bonus for entropy; every
# token pays a thousandth of its log-ratio to the reference. A step of the paper is 8 tasks x 16 trajectories in mini-batches
# of 32, one pass: four updates.
#
#   paper and code differ    taken here            the other one
#   mean over tokens         code: all alike       paper, eq. 4: each trajectory's mean: reduction="seq-mean-token-mean"
#   whose tokens             actions alone (invariant 1) the paper writes a sum over all of the trajectory, and its first code
#                                                  trained on what the environment said, too: masks.loss_mask=false,
#                                                  masks.advantage_mask=false
#   after a limit            code: nothing         bootstrap="truncated" asks the critic
#   the reference            paper: on             later code switches it on by a flag that its scripts do not set
#
# The paper's learning rates (1e-6, critic 1e-5) belong to its models and are the learner's and the critic's here, as is
# the gradient's norm of 1; the penalty for a wrong format (-0.1) is the environment's.
StarPO = Algorithm(
    "starpo",
    GAE,
    CriticLoss(bootstrap="never"),
    ClipObjective(dual_clip=3.0),
    entropy_coef=0.001,
    reference=ReferenceKL(0.001, "k1", "reward"),
    minibatch_size=32,
)

# StarPO, stabilised: only the quarter of the prompts whose trajectories differ most in raw reward, no reference, and more
# room above than below. The critic stays.
#
# At the paper's sizes a quarter of 8 x 16 trajectories is one mini-batch of 32: one update per step, from the weights that
# sampled. The ratio is then 1, and neither the higher bound nor the dual clip nor the value clip ever binds; and the
# unfiltered run that it is compared with makes four times as many updates. The loader warns of the first; the metric
# `credit_updates_removed_by_filter` counts the second. `filter.equal_updates=true` makes as many (smaller) updates as
# StarPO does, and then the clips can bind.
#
# The quarter with the largest spread is not a fair sample of what was done: on the bandit it is made of the groups in
# which the risky arm paid, and pulls towards that arm even where the safe one is better (`make bias`).
#
# Of groups with equal spread the first are taken, as many as a quarter is, even where some of them are flat: a critic
# still learns there. `filter.zero_variance="drop"` leaves those out; a step may then keep nothing. The published code
# chose among *normalised* rewards when they were normalised (in place, before the filter); here the choice is by raw
# rewards whatever `rewards` says. The paper also tried shares of 50 and 75 %.
StarPO_S = Algorithm(
    "starpo_s",
    GAE,
    CriticLoss(bootstrap="never"),
    ClipObjective(clip_high=0.28, dual_clip=3.0),
    entropy_coef=0.001,
    reference=PAID,
    minibatch_size=32,
    filter=Filter("top_share", share=0.25),
)

ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        GRPO,
        DrGRPO,
        DAPO,
        GSPO,
        CISPO,
        RLOO,
        ReMax,
        Reinforce,
        ReinforcePP,
        ReinforcePPBaseline,
        GiGPO,
        PPO,
        TurnPPO,
        BilevelPPO,
        StarPO,
        StarPO_S,
    )
}
