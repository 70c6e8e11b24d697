"""The frame that all algorithms share: which tokens count, what was paid where, which objective, how it is summed up.

An algorithm derives from `PolicyGradient` and writes `advantages`: what each token is worth, from what was paid. The
rest is fields: overriding a default makes a preset (see gspo.py), and every field can be set in a config.
"""
from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from workbench.learn.algorithms.base import Advantages, Credit, CreditInputs, LossInputs, TokenLoss, demand_facts
from workbench.learn.algorithms.filtering import Filter
from workbench.learn.algorithms.masks import LOSS_MASK, Masks
from workbench.learn.algorithms.reference import check_reference, reference_facts, reference_loss, reward_penalty
from workbench.learn.algorithms.rewards import Rewards
from workbench.learn.batch import Batch
from workbench.learn.ops.clip import Clipped, clipped_surrogate, sampler_weight, sequence_surrogate, weighted_logprob
from workbench.learn.ops.gae import rewards_at_turn_ends
from workbench.learn.ops.reduce import REDUCTIONS, Reduction, reduction
from workbench.types.errors import ConfigError, DataError

OBJECTIVES = ("clip", "gspo", "cispo")


@dataclass(frozen=True)
class PolicyGradient(ABC):
    """What every algorithm can be told. The sources are in `workbench/ops`, where the arithmetic is."""

    objective: str = "clip"          # "clip": PPO's · "gspo": one ratio a sequence · "cispo": bounded weights, no clip
    clip_low: float = 0.2            # the ratio is held above 1 - clip_low
    clip_high: float = 0.2           # ... and below 1 + clip_high
    dual_clip: float = 0.0           # c > 1: a token with A < 0 costs at most -c A; 0: no such bound
    sampler_cap: float = 0.0         # weights for a sampler that differs from the trainer, held at this; 0: no weights
    reduction: str = "token-mean"    # or "seq-mean-token-mean", "seq-mean-token-sum", "fixed-length": see learn/ops/reduce.py
    fixed_length: int = 0            # tokens, of "fixed-length"
    entropy_coef: float = 0.0        # nats of entropy are worth this much loss
    kl_coef: float = 0.0             # what a nat away from the reference policy costs
    kl_estimator: str = "k3"         # k1, k2, k3, abs: see learn/ops/kl.py
    kl_in: str = "loss"              # or "reward"
    epochs: int = 1                  # passes over a step's trajectories
    minibatches: int = 1             # updates per pass
    minibatch_size: int = 0          # or: trajectories per update; then a filter removes updates, as in RAGEN
    masks: Masks = Masks()           # which tokens take part in what
    rewards: Rewards = Rewards()     # normalisation of rewards before credit is given
    filter: Filter = Filter()        # which groups or attempts are trained on, by the spread of their raw rewards

    name: ClassVar[str] = ""
    min_group_size: ClassVar[int] = 1
    has_timeline: ClassVar[bool] = False  # true: credit follows the order of tokens, on what `masks.gae_over` names

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ConfigError(f"algorithm.objective is one of {', '.join(OBJECTIVES)}, got {self.objective!r}")
        if not 0 <= self.clip_low <= 1 or not 0 <= self.clip_high < math.inf:
            raise ConfigError(f"clip_low lies in 0..1 and clip_high is not negative; got {self.clip_low}, "
                              f"{self.clip_high}")
        if self.dual_clip and not 1 < self.dual_clip < math.inf:
            raise ConfigError(f"algorithm.dual_clip is 0 (off) or above 1, got {self.dual_clip}")
        if self.dual_clip and self.objective != "clip":
            raise ConfigError(f"algorithm.dual_clip belongs to objective 'clip'; {self.objective!r} has no such bound")
        if not 0 <= self.sampler_cap < math.inf:
            raise ConfigError(f"algorithm.sampler_cap is 0 (off) or above 0, got {self.sampler_cap}")
        if not 0 <= self.entropy_coef < math.inf:
            raise ConfigError(f"algorithm.entropy_coef is finite and not negative, got {self.entropy_coef}")
        if self.reduction not in REDUCTIONS:
            raise ConfigError(f"algorithm.reduction is one of {', '.join(REDUCTIONS)}, got {self.reduction!r}")
        if (self.reduction == "fixed-length") != (self.fixed_length > 0):
            raise ConfigError("algorithm.reduction = 'fixed-length' and algorithm.fixed_length (tokens, at least 1) go "
                              f"together; got {self.reduction!r} and {self.fixed_length}")
        if self.epochs < 1 or self.minibatches < 1 or self.minibatch_size < 0:
            raise ConfigError("epochs and minibatches are at least 1, minibatch_size is 0 (as minibatches say) or more; "
                              f"got {self.epochs}, {self.minibatches}, {self.minibatch_size}")
        if self.minibatch_size and self.minibatches > 1:
            raise ConfigError("algorithm.minibatches (updates per pass) and algorithm.minibatch_size (trajectories per "
                              f"update) say the same thing twice; got {self.minibatches} and {self.minibatch_size}")
        if self.filter.equal_updates and not self.minibatch_size:
            raise ConfigError("algorithm.filter.equal_updates has no effect: with algorithm.minibatches a filter never "
                              "removes an update, only makes each smaller. Set algorithm.minibatch_size, or remove it")
        check_reference(self)

    # -------------------------------------------------------------------------------------------- what a subclass says

    @abstractmethod
    def advantages(self, inputs: CreditInputs) -> Advantages:
        """What each token of the timeline is worth. The one thing that an algorithm must say."""

    def bootstraps_N(self, batch: Batch) -> Tensor:
        """bool [N]: attempts that are taken to go on being worth what the critic expects after their last token."""
        return torch.zeros_like(batch.truncated_N)

    @property
    def ignores_shifts(self) -> bool:
        """Whether what is added to the rewards of all attempts at a task, at their ends, has no effect."""
        return False

    @property
    def whitens(self) -> bool:
        """Whether `advantages` takes statistics over tokens (`inputs.whitened`)."""
        return False

    # -------------------------------------------------------------------------------------------- facts

    @property
    def requires(self) -> tuple[str, ...]:
        """Later facts of the batch that credit or loss reads; a subclass puts those that its `advantages` reads before."""
        return reference_facts(self)

    @property
    def updates_per_step(self) -> int | None:
        """None: it depends on how many trajectories a step has."""
        return None if self.minibatch_size else self.epochs * self.minibatches

    def reads_T(self, batch: Batch) -> Tensor:
        """bool [T]: where the facts are needed: at sampled tokens of scored attempts; in a widened mask, at all that
        the response holds."""
        tokens_T = batch.response_T if self.masks.widened() else batch.eligible_T
        return tokens_T & batch.scored_N[batch.trajectory_of_token_T]

    # -------------------------------------------------------------------------------------------- credit

    def credit(self, batch: Batch) -> Credit:
        """What every token is worth [T]. Attempts that are unscored, or left out by the filter, weigh nothing anywhere:
        not in a baseline, not in a whitening, not in the loss. Raises DataError where no credit can be given at all (no
        task was attempted `min_group_size` times), and where a fact in `requires` was never computed."""
        group_N, scored_N = batch.group_of_trajectory_N, batch.scored_N
        if int(group_N.bincount().max()) < self.min_group_size:
            raise DataError(f"{self.name} compares attempts at the same task, but every group of this batch has one "
                            "attempt: collect at least 2 attempts per task, or use an algorithm without a group baseline")
        demand_facts(self, batch)
        kept_N = scored_N & self.filter.kept(batch.reward_N, group_N, scored_N)
        inputs = self._inputs(batch, kept_N)
        found = self.advantages(inputs)
        kept_T = kept_N[batch.trajectory_of_token_T]

        def weight(switch: str) -> Tensor:
            return (self.masks.tokens(switch, batch) & kept_T).double()

        weight_T = weight("loss_over")
        advantage_T = torch.zeros_like(weight_T).index_copy(0, inputs.token_A, found.advantage_A) * weight_T
        kl_in_loss = self.kl_coef and self.kl_in == "loss"
        others = {"entropy_weight_T": weight("entropy_over") if self.entropy_coef else None,
                  "kl_weight_T": weight("kl_loss_over") if kl_in_loss else None}
        return_T = None
        if found.target_A is not None:
            return_T = self._returns(inputs, found.target_A, weight("critic_over"))
            others["critic_weight_T"] = (~return_T.isnan()).double()
        others = {name: None if other is None or torch.equal(other, weight_T) else other
                  for name, other in others.items()}
        count, notes = self._updates(batch, kept_N)
        return Credit(advantage_T, weight_T, self._notes(inputs) | notes, return_T, self.masks.widened(LOSS_MASK),
                      minibatches=count, **others)

    def _inputs(self, batch: Batch, kept_N: Tensor) -> CreditInputs:
        row_T = batch.trajectory_of_token_T
        kept_T, group_N = kept_N[row_T], batch.group_of_trajectory_N
        whiten_T = self.masks.tokens("whiten_over", batch) & kept_T
        if self.has_timeline:
            timeline_T = self.masks.tokens("gae_over", batch) & kept_T
        else:
            timeline_T = (self.masks.tokens("loss_over", batch) & kept_T) | whiten_T
        at_A = timeline_T.nonzero()[:, 0]
        changed = None
        if self.rewards.normalize != "none":
            changed = self.rewards.change(batch.reward_N, group_N, batch.tag_N, kept_N)
        acted_E = (batch.eligible_T & kept_T).nonzero()[:, 0]
        paid_E = rewards_at_turn_ends(batch.turn_reward_K, batch.turn_offsets, batch.outcome_N, row_T[acted_E],
                                      batch.turn_T[acted_E])
        if changed is not None:
            paid_E = paid_E * changed.scale_N[row_T[acted_E]]
            last_E = torch.ones(len(acted_E), dtype=torch.bool)
            last_E[:-1] = row_T[acted_E].diff() != 0
            paid_E[last_E] += changed.shift_N[row_T[acted_E][last_E]]
        reward_A = _landed(paid_E, acted_E, at_A, row_T)
        reward_N = batch.reward_N if changed is None else batch.reward_N * changed.scale_N + changed.shift_N
        if self.kl_coef and self.kl_in == "reward":
            paying_P = (self.masks.tokens("kl_reward_over", batch) & kept_T).nonzero()[:, 0]
            penalty_P = reward_penalty(self, batch, paying_P)
            reward_A = reward_A - _landed(penalty_P, paying_P, at_A, row_T)
            reward_N = reward_N - torch.zeros_like(reward_N).index_add(0, row_T[paying_P], penalty_P)
        value_A = final_N = None
        if "value_T" in self.requires:
            value_A, final_N = batch.value_T[at_A].double(), torch.zeros(batch.num_trajectories, dtype=torch.float64)
            cut_N = self.bootstraps_N(batch) & kept_N
            if bool(cut_N.any()):
                final_N = torch.where(cut_N, batch.final_value_N.double(), final_N)
        return CreditInputs(batch, kept_N, group_N, torch.where(kept_N, reward_N, torch.nan), at_A, row_T[at_A],
                            batch.turn_T[at_A], reward_A, value_A, final_N, whiten_T)

    def _returns(self, inputs: CreditInputs, target_A: Tensor, critic_T: Tensor) -> Tensor:
        """What the critic is fitted to [T], NaN where it is not. Beside the timeline (`critic_over` is wider than
        `gae_over`) nothing happens that earns, so a token there is worth what the next one on it is."""
        batch, row_T = inputs.batch, inputs.batch.trajectory_of_token_T
        at_C = critic_T.nonzero()[:, 0]
        next_C = torch.searchsorted(inputs.token_A, at_C)
        inside_C = next_C < len(inputs.token_A)
        next_C = next_C.clamp(max=max(len(inputs.token_A) - 1, 0))
        same_C = inside_C & (inputs.row_A[next_C] == row_T[at_C]) if len(inputs.token_A) else inside_C
        after_C = inputs.final_value_N[row_T[at_C]] if inputs.final_value_N is not None else torch.zeros(len(at_C))
        target_C = torch.where(same_C, target_A[next_C], after_C.double()) if len(target_A) else after_C.double()
        return torch.full((batch.num_tokens,), torch.nan, dtype=torch.float64).index_copy(0, at_C, target_C)

    def _notes(self, inputs: CreditInputs) -> dict[str, float]:
        """Figures about the batch for the metrics line."""
        batch = inputs.batch
        notes = {"trajectories_unscored": float((~batch.scored_N).sum())}
        if self.filter.acts:
            notes |= self.filter.notes(batch.reward_N, inputs.group_N, batch.scored_N, inputs.kept_N)
        if inputs.value_A is not None and len(inputs.token_A):
            notes["value_mean"] = float(inputs.value_A.mean())
            notes["trajectories_bootstrapped"] = float((self.bootstraps_N(batch) & inputs.kept_N).sum())
        return notes

    def _updates(self, batch: Batch, kept_N: Tensor) -> tuple[int | None, dict[str, float]]:
        """(updates per epoch where they depend on the number of trajectories, how many the filter took of the step's).
        An update needs a trajectory, so a filter that keeps fewer than there would be updates takes some in any mode.
        """
        acted_N = torch.zeros_like(kept_N).index_fill(0, batch.trajectory_of_token_T[batch.eligible_T], True)
        scored, kept = int((acted_N & batch.scored_N).sum()), int((acted_N & kept_N).sum())
        whole = wanted = min(self.minibatches, scored)
        if self.minibatch_size:
            whole = math.ceil(scored / self.minibatch_size)
            wanted = whole if self.filter.equal_updates else math.ceil(kept / self.minibatch_size)
        made = min(wanted, kept)
        removed = {"updates_removed_by_filter": float(self.epochs * (whole - made))} if self.filter.acts else {}
        return (max(made, 1) if self.minibatch_size else None), removed

    # -------------------------------------------------------------------------------------------- loss

    def loss(self, inputs: LossInputs) -> TokenLoss:
        """The policy gradient by the objective, beside it -entropy_coef * H and the pull towards the reference."""
        held = self._objective(inputs)
        loss_M, figures = held.loss, {}
        if self.sampler_cap:
            weight_M = sampler_weight(inputs.old_logp_M, inputs.rollout_logp_M, cap=self.sampler_cap)
            loss_M = loss_M * weight_M
            figures = {"sampler_weight": weight_M, "sampler_weight_capped": (weight_M >= self.sampler_cap).float()}
        kl_loss_M, kl_figures = reference_loss(self, inputs)
        entropy_loss_M = -self.entropy_coef * inputs.entropy_M if self.entropy_coef else None
        return TokenLoss(loss_M, held.ratio.detach(), held.state, figures | kl_figures, entropy_loss_M, kl_loss_M)

    def _objective(self, inputs: LossInputs) -> Clipped:
        bounds = {"low": self.clip_low, "high": self.clip_high}
        tokens = inputs.logp_M, inputs.old_logp_M, inputs.advantage_M
        if self.objective == "gspo":
            counts_M = torch.ones_like(inputs.logp_M, dtype=torch.bool) if inputs.counts_M is None else inputs.counts_M
            return sequence_surrogate(*tokens, inputs.segment_M, counts_M, **bounds)
        if self.objective == "cispo":
            return weighted_logprob(*tokens, **bounds)
        return clipped_surrogate(*tokens, **bounds, dual=self.dual_clip)

    def reduction_of(self, counts_T: Tensor, batch: Batch) -> Reduction:
        """The scale per token and the denominator of one term of one update, over the tokens that it counts [T]."""
        return reduction(self.reduction, counts_T, batch.trajectory_of_token_T, fixed_length=self.fixed_length)


def _landed(amount_P: Tensor, at_P: Tensor, at_A: Tensor, row_T: Tensor) -> Tensor:
    """What falls to each token of the timeline [A] of amounts that belong to the tokens `at_P`: to that very token, else
    to the last one before it in its trajectory, else to the first one after. Nothing is lost where a trajectory has any.
    """
    landed_A = torch.zeros(len(at_A), dtype=torch.float64)
    if not len(at_A) or not len(at_P):
        return landed_A
    row_A = row_T[at_A]
    before_P = torch.searchsorted(at_A, at_P, right=True) - 1
    found_P = (before_P >= 0) & (row_A[before_P.clamp(min=0)] == row_T[at_P])
    after_P = (before_P + 1).clamp(max=len(at_A) - 1)
    target_P = torch.where(found_P, before_P, after_P)
    valid_P = row_A[target_P] == row_T[at_P]
    return landed_A.index_add(0, target_P[valid_P], amount_P[valid_P].double())
