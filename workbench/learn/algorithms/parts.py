"""The parts that algorithms are composed of, beside estimator and objective. Each is a frozen dataclass of settings:

    Masks         which tokens take part in what
    ReferenceKL   the pull towards a reference policy
    Rewards       rewards put on a common scale before credit is given
    CriticLoss    how a critic is asked and fitted
    Filter        which trajectories of a step are learned from

Axis letters: N trajectories · G groups · T tokens of the whole batch (flat) · A action tokens · M trained tokens of a
micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from workbench.basics.settings import above, at_least, check_settings, one_of
from workbench.basics.tensors import Tensor, torch
from workbench.learn.algorithms.base import LossInputs
from workbench.learn.batch import Batch
from workbench.learn.ops import filters
from workbench.learn.ops.loss import ESTIMATORS, ValueLoss, clipped_value_loss, kl_estimate
from workbench.learn.ops.normalize import METHODS, Change, normalization
from workbench.values.errors import ConfigError

ADVANTAGE_MASK = ("gae_over", "whiten_over", "kl_reward_over", "critic_over")
LOSS_MASK = ("loss_over", "entropy_over", "kl_loss_over")
SETS = ("actions", "response")
EITHER = one_of(*SETS)
PLACES = ("reward", "loss")
OVER = ("group", "batch", "tag")
BOOTSTRAP = ("context_full", "truncated", "never")
# keep -> the fields that it reads
READS = {
    "all": (),
    "top_share": ("share",),
    "top_p": ("p", "mass", "slack"),
    "top_k": ("groups",),
    "min_p": ("ratio",),
    "band": ("low", "high"),
    "within_group": ("attempts",),
}
MASSES = ("linear", "softmax")
ZERO_VARIANCE = ("drop", "keep")
SHARE = above(0, most=1, why="0.25 is a quarter")


@dataclass(frozen=True)
class Masks:
    """Seven switches, each set to the policy's actions (the default) or to the whole response: everything after the
    segment's first prompt, that is actions, replies and the template's literals.

        the advantage mask    gae_over · whiten_over · kl_reward_over · critic_over
        the loss mask         loss_over · entropy_over · kl_loss_over

    A single switch overrides what its group says (None: as the group). Agent-R1's paper (arXiv 2511.14460) switches the
    first group off, then both; its code never shipped the switches. Here each stands alone, because at gamma = lambda =
    1 the advantages of action tokens before whitening do not depend on what stands between them, so a gap between the
    two settings must come from one of the others.
    """

    advantage_mask: Annotated[
        bool, "false: the four below treat what the environment said as if it were actions"
    ] = True
    loss_mask: Annotated[bool, "false: gradients flow to those tokens, too"] = True
    gae_over: Annotated[str | None, EITHER, "the timeline that discounts and bootstraps"] = None
    whiten_over: Annotated[
        str | None, EITHER, "whose advantages the mean and deviation of whitening are taken over"
    ] = None
    kl_reward_over: Annotated[
        str | None, EITHER, "which tokens pay for leaving the reference (kl_in = reward)"
    ] = None
    critic_over: Annotated[str | None, EITHER, "where the critic is fitted"] = None
    loss_over: Annotated[str | None, EITHER, "the policy gradient"] = None
    entropy_over: Annotated[str | None, EITHER, "the entropy bonus"] = None
    kl_loss_over: Annotated[str | None, EITHER, "the pull towards the reference (kl_in = loss)"] = (
        None
    )

    def __post_init__(self) -> None:
        check_settings(self, "algorithm.masks")

    def over(self, switch: str) -> str:
        """ "actions" or "response": what a switch stands at, by itself or by its group."""
        group = self.advantage_mask if switch in ADVANTAGE_MASK else self.loss_mask
        return getattr(self, switch) or ("actions" if group else "response")

    def tokens(self, switch: str, batch: Batch) -> Tensor:
        """bool [T]: the tokens that a switch lets through, whatever the weight of their rows."""
        return batch.eligible_T if self.over(switch) == "actions" else batch.response_T

    def widened(self, switches: tuple[str, ...] = (*ADVANTAGE_MASK, *LOSS_MASK)) -> str | None:
        """The switches that stand at "response", in words, or None: invariant 1 wants an exception to name itself."""
        names = [switch for switch in switches if self.over(switch) == "response"]
        return f"masks: {', '.join(names)} = response" if names else None


@dataclass(frozen=True)
class ReferenceKL:
    """What a nat of divergence costs (in units of reward; of advantage, in the loss), by which estimate, where it is paid.

    In the *reward* every action token pays kl_coef times its KL estimate, from the logprobs of the policy that sampled
    and the reference, before credit is given: a number like any other reward, discounted and compared like one. In the
    *loss* the estimate is added to each token's loss and its gradient flows. kl_coef = 0: no reference is needed,
    nothing is done.
    """

    kl_coef: Annotated[float, at_least(0), "what a nat away from the reference policy costs"] = 0.0
    kl_estimator: Annotated[str, one_of(*ESTIMATORS), "which one: learn/ops/loss.py"] = "k3"
    kl_in: Annotated[str, one_of(*PLACES), "where it is paid"] = "loss"

    def __post_init__(self) -> None:
        check_settings(self, "algorithm.reference")

    @property
    def in_reward(self) -> bool:
        return bool(self.kl_coef) and self.kl_in == "reward"

    @property
    def in_loss(self) -> bool:
        return bool(self.kl_coef) and self.kl_in == "loss"

    @property
    def requires(self) -> tuple[str, ...]:
        """The later facts of the batch that are read. In the reward both logprobs must be known before any update."""
        return ("old_logp_T",) * self.in_reward + ("ref_logp_T",) * bool(self.kl_coef)

    def price(self, batch: Batch, at_A: Tensor) -> Tensor:
        """What each token pays in the reward [A], float64, by its index into T."""
        old_logp_A = batch.old_logp_T[at_A].double()
        ref_logp_A = batch.ref_logp_T[at_A].double()
        return self.kl_coef * kl_estimate(old_logp_A, ref_logp_A, self.kl_estimator)

    def loss(self, inputs: LossInputs) -> tuple[Tensor | None, Mapping[str, Tensor]]:
        """(the term of the loss per token, None where it is paid elsewhere; figures for the metrics). `kl_ref` is the
        k3 estimate of KL(policy || reference) in nats, whatever is trained on, so that runs can be compared."""
        if not self.kl_coef or inputs.ref_logp_M is None:
            return None, {}
        term_M = None
        if self.in_loss:
            term_M = self.kl_coef * kl_estimate(inputs.logp_M, inputs.ref_logp_M, self.kl_estimator)
        return term_M, {"kl_ref": kl_estimate(inputs.logp_M.detach(), inputs.ref_logp_M, "k3")}


@dataclass(frozen=True)
class Rewards:
    """How raw rewards are put on a common scale before credit is given; the raw ones stay as they are.

    `normalize`: none, mean, mean_std or asym_clip (see `learn/ops/normalize.py`); `over`: the trajectories at the same
    task, all trajectories of the step, or those whose tasks have the same tag (a task's `metadata["tag"]`, else its
    environment), which is what several environments in one step need.

    Turn rewards are multiplied by the scale of their trajectory, and what is added per trajectory is paid at its last
    token: at gamma = 1 every token then sees the normalised total of what is still to come, plus that constant.
    asym_clip holds the *total* within -1..3 deviations; the turns keep the proportions that they have under mean_std,
    and what the clamp takes away (or gives) is paid at the last token.
    """

    normalize: Annotated[str, one_of(*METHODS), "rewards put on a common scale"] = "none"
    over: Annotated[str, one_of(*OVER), "... over which trajectories"] = "group"

    def __post_init__(self) -> None:
        check_settings(self, "algorithm.rewards")

    def change(self, reward_N: Tensor, group_N: Tensor, tag_N: Tensor, include_N: Tensor) -> Change:
        """(scale_N, shift_N): R' = scale * R + shift, over the included trajectories only; zeros for the others, whose
        reward may be NaN. `tag_N` numbers the tags from 0."""
        set_N = {"group": group_N, "batch": torch.zeros_like(group_N), "tag": tag_N}[self.over]
        return normalization(reward_N, set_N, include_N, self.normalize)


@dataclass(frozen=True)
class CriticLoss:
    """`bootstrap` says where a trajectory that a limit cut short goes on being worth what the critic expects. A limit that
    the policy is told of is part of its task: after the last of "10 moves" nothing can be earned, and a critic that is
    asked nevertheless makes dawdling pay. The environments here state their limits and count the moves that are left,
    so the default bootstraps only where the context was full, of which no prompt speaks. For an environment with hidden
    limits, or a history that hides how many answers were given (`collect.history`): "truncated".
    Source: the two kinds of limits: Pardo et al. 2018 (arXiv 1712.00378).
    """

    bootstrap: Annotated[
        str,
        one_of(*BOOTSTRAP),
        "where the critic says what comes after the end; truncated: at every limit",
    ] = "context_full"
    value_clip: Annotated[
        float, at_least(0), "a step's updates move a value by at most this; 0: freely"
    ] = 0.5

    def __post_init__(self) -> None:
        check_settings(self, "algorithm.critic")

    @property
    def requires(self) -> tuple[str, ...]:
        """The later facts of the batch that are read."""
        return ("value_T",) if self.bootstrap == "never" else ("value_T", "final_value_N")

    def bootstraps_N(self, batch: Batch) -> Tensor:
        """bool [N]: trajectories that are taken to go on being worth what the critic expects after their last token."""
        where = {
            "truncated": batch.truncated_N,
            "context_full": batch.context_full_N,
            "never": torch.zeros_like(batch.truncated_N),
        }
        return where[self.bootstrap]

    def loss(self, value_M: Tensor, old_value_M: Tensor, target_M: Tensor) -> ValueLoss:
        """What the critic is fitted with, per token: half the squared error, clipped."""
        return clipped_value_loss(value_M, old_value_M, target_M, clip=self.value_clip)


@dataclass(frozen=True)
class Filter:
    """Which trajectories are learned from: a choice by the standard deviation of the *raw* rewards inside each group. One
    that is left out leaves baseline, whitening and loss, as if it had never been sampled.

    keep            all           every group
                    top_share     the `share` of the groups with the largest std (StarPO-S: 0.25)
                    top_p         the fewest groups, largest first, that hold the share `p` of all std (RAGEN-2)
                    top_k         the `groups` groups with the largest std
                    min_p         groups with at least `ratio` times the largest std
                    band          groups between the quantiles `low` and `high`; 0..0.25 is the least uncertain quarter
                    within_group  of every group the `attempts` trajectories whose rewards differ most
    zero_variance   "drop": a group in which all trajectories earned the same is left out before anything is chosen. "keep":
                    it is a group like others, the last in order. `top_share` and `top_k` count the same either way.
    equal_updates   a step with a filter makes as many updates as it would without one (smaller ones), so that what is
                    measured is the choice and not the number of updates

    Choosing by the very rewards that credit is made of bends the gradient: groups in which something rare paid much are
    chosen more often than they come up. `make bias` measures it.

    A group with fewer than two scored trajectories has no standard deviation and is left out, unless nothing is filtered
    at all (`acts` is false: `keep` is "all", or its share, p or band is the whole). A trajectory that is not scored is
    never kept. Nothing at all may be kept: the step is then skipped and counted.
    """

    keep: Annotated[str, one_of(*READS), "what is chosen"] = "all"
    share: Annotated[float, SHARE, "of all groups (top_share)"] = 0.25
    p: Annotated[float, SHARE, "of the total reward std (top_p)"] = 0.9
    mass: Annotated[
        str, one_of(*MASSES), "what is shared: the reward std, or its softmax (top_p)"
    ] = "linear"
    slack: Annotated[float, at_least(0), "of linear mass, in units of reward (top_p)"] = 0.01
    groups: Annotated[int, at_least(1, most=1_000_000), "with the largest reward std (top_k)"] = 4
    ratio: Annotated[float, at_least(0, most=1), "of the largest reward std (min_p)"] = 0.5
    low: Annotated[
        float, at_least(0, most=1), "quantile of reward std that a group is above (band)"
    ] = 0.0
    high: Annotated[float, at_least(0, most=1), "... and below (band)"] = 1.0
    attempts: Annotated[
        int,
        at_least(2, most=1_000_000, why="one trajectory alone has nothing to be compared with"),
        "of each group (within_group)",
    ] = 4
    zero_variance: Annotated[
        str,
        one_of(*ZERO_VARIANCE),
        "what becomes of zero-variance groups: all their rewards are equal",
    ] = "keep"
    equal_updates: Annotated[bool, "as many updates a step as without a filter"] = False

    def __post_init__(self) -> None:
        check_settings(self, "algorithm.filter")
        if not self.low < self.high:
            raise ConfigError(
                f"algorithm.filter.low and high are quantiles, 0 <= low < high <= 1; got {self.low!r}, "
                f"{self.high!r}"
            )

    @property
    def acts(self) -> bool:
        """Whether it can leave anything out."""
        whole = {
            "all": True,
            "top_share": self.share == 1,
            "top_p": self.p == 1,
            "band": (self.low, self.high) == (0, 1),
            "min_p": self.ratio == 0,
        }.get(self.keep, False)
        return not whole or self.zero_variance == "drop"

    def kept(self, reward_N: Tensor, group_N: Tensor, scored_N: Tensor) -> Tensor:
        """bool [N]: the trajectories to learn from, all of them scored. `reward_N` are the raw rewards, NaN where unscored;
        `group_N` numbers the groups from 0."""
        if not self.acts:
            return scored_N.clone()
        std_G = filters.reward_std(reward_N, group_N, scored_N)
        if self.zero_variance == "drop":
            std_G = torch.where(std_G == 0, torch.nan, std_G)
        kept_N = self._chosen(std_G)[group_N] & scored_N
        if self.keep == "within_group":
            kept_N = filters.widest_trajectories(reward_N, group_N, kept_N, self.attempts)
        return kept_N

    def _chosen(self, std_G: Tensor) -> Tensor:
        """bool [G]"""
        match self.keep:
            case "top_share":
                return filters.top_share(std_G, self.share)
            case "top_p" if self.mass == "linear":
                return filters.top_mass(std_G, self.p, self.slack)
            case "top_p":
                return filters.nucleus(std_G, self.p)
            case "top_k":
                return filters.top_k(std_G, self.groups)
            case "min_p":
                return filters.at_least(std_G, self.ratio)
            case "band":
                return filters.quantile_band(std_G, self.low, self.high)
        return ~std_G.isnan()

    def notes(
        self, reward_N: Tensor, group_N: Tensor, scored_N: Tensor, kept_N: Tensor
    ) -> dict[str, float]:
        """What a choice amounts to, for the metrics line: the share of scored trajectories and the number of groups that
        are kept, how many groups are flat, and the mean within-group std over all groups and over what is kept."""
        groups = int(group_N.max()) + 1
        groups_kept = len(group_N[kept_N].unique())
        every_G = filters.reward_std(reward_N, group_N, scored_N)
        kept_G = filters.reward_std(reward_N, group_N, kept_N)
        notes = {
            "filter_kept": float(kept_N.sum()) / max(int(scored_N.sum()), 1),
            "filter_groups_kept": float(groups_kept),
            "filter_groups_left_out": float(groups - groups_kept),
            "filter_groups_flat": float((every_G == 0).sum()),
        }
        for name, std_G in (("all", every_G), ("kept", kept_G)):
            known = std_G[~std_G.isnan()]
            if len(known):
                notes[f"filter_std_{name}"] = float(known.mean())
        return notes

    @property
    def label(self) -> str:
        """The rule in a few words: `top_share, share 0.25, zero-variance groups dropped`."""
        words = [self.keep, *(f"{name} {getattr(self, name)}" for name in READS[self.keep])]
        if self.zero_variance == "drop":
            words.append("zero-variance groups dropped")
        return ", ".join(words)
