"""StarPO and StarPO-S: RAGEN's training of whole trajectories, as presets over the parts that are here anyway.

Nothing is computed in this file. What the paper writes and what its code does are not always the same; the docstrings
say which one was taken, and how to get the other.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.learn.algorithms.filtering import Filter
from workbench.learn.algorithms.ppo import PPO


@dataclass(frozen=True)
class StarPO(PPO):
    """State-Thinking-Actions-Reward policy optimisation, with PPO: credit over the whole trajectory, thoughts included,
    by GAE(1, 1) with a critic; whitened; clipped at 0.2 on both sides, from below by the dual clip too; a small bonus
    for entropy; every token pays a thousandth of its log-ratio to the reference (k1, in the reward).

    A step of the paper is 8 tasks x 16 attempts in mini-batches of 32, one pass: four updates.

    paper and code differ    taken here            the other one
    mean over tokens         code: all alike       paper, eq. 4: each attempt's mean: reduction="seq-mean-token-mean"
    whose tokens             actions alone (law 1) the paper writes a sum over all of the trajectory, and its first code
                                                   trained on what the environment said, too: masks.loss_mask=false,
                                                   masks.advantage_mask=false
    after a limit            code: nothing         bootstrap="truncated" asks the critic
    the reference            paper: on             later code switches it on by a flag that its scripts do not set

    The paper's learning rates (1e-6, critic 1e-5) belong to its models and are the learner's and the critic's here, as
    is the gradient's norm of 1; the penalty for a wrong format (-0.1) is the environment's.
    Source: Wang et al. 2025, "RAGEN" (arXiv 2504.20073), eq. 4 and 6, and the code published with it.
    """

    bootstrap: str = "never"
    dual_clip: float = 3.0
    entropy_coef: float = 0.001
    kl_coef: float = 0.001
    minibatch_size: int = 32

    name: ClassVar[str] = "starpo"


@dataclass(frozen=True)
class StarPO_S(StarPO):
    """StarPO, stabilised: only the quarter of the prompts whose attempts differ most in raw reward, no reference, and
    more room above (0.28) than below (0.2). The critic stays.

    At the paper's sizes a quarter of 8 x 16 attempts is one mini-batch of 32: one update per step, from the weights that
    sampled. The ratio is then 1, and neither the higher bound nor the dual clip nor the value clip ever binds; and
    the unfiltered run that it is compared with makes four times as many updates. The loader warns of the first; the
    metric `credit_updates_removed_by_filter` counts the second. `filter.equal_updates=true` makes as many (smaller)
    updates as StarPO does, and then the clips can bind.

    The quarter with the largest spread is not a fair sample of what was done: on the bandit it is made of the groups in
    which the risky arm paid, and pulls towards that arm even where the safe one is better (`make bias`).

    Of groups with equal spread the first are taken, as many as a quarter is, even where some of them are flat: a critic
    still learns there. `filter.zero_variance="drop"` leaves those out; a step may then keep nothing.
    The published code chose among *normalised* rewards when they were normalised (in place, before the filter); here
    the choice is by raw rewards whatever `rewards` says. The paper also tried shares of 50 and 75 %.
    Source: as StarPO.
    """

    clip_high: float = 0.28
    kl_coef: float = 0.0
    filter: Filter = Filter("top_share", share=0.25)

    name: ClassVar[str] = "starpo_s"
    min_group_size: ClassVar[int] = 2  # one attempt alone has no spread
