"""An algorithm is a composition: an estimator (what each token is worth), an objective (what is minimised), how tokens
are summed up, which of them take part, which attempts are learned from, and the pull towards a reference.

    mine = Algorithm("mine", RLOO, objective=GSPOObjective())          of parts
    milder = GRPO(clip_high=0.28, kl_coef=0.01)                         of another one, by the names of settings

Every setting has one name, whichever part holds it: `algorithm.clip_high` in a configuration, `GRPO.clip_high` here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from typing import Annotated, Any

from workbench.learn.algorithms.base import (
    Credit,
    LossInputs,
    TokenLoss,
    demand_attempts,
    demand_facts,
    demand_greedy,
)
from workbench.learn.algorithms.credit import (
    credit_inputs,
    critic_targets,
    notes_of,
    updates_of_a_pass,
)
from workbench.learn.algorithms.parts import (
    LOSS_MASK,
    CriticLoss,
    Filter,
    Masks,
    ReferenceKL,
    Rewards,
)
from workbench.learn.algorithms.estimators import Estimator
from workbench.learn.algorithms.objectives import ClipObjective, Objective, sampler_weight
from workbench.learn.algorithms.settings import declared_settings, with_settings
from workbench.learn.batch import Batch
from workbench.learn.ops.loss import REDUCTIONS, Reduction, ValueLoss, reduction
from workbench.types.errors import ConfigError
from workbench.types.settings import at_least, check_settings, one_of
from workbench.types.tensors import Tensor, torch


@dataclass(frozen=True)
class Algorithm:
    """`credit` says what every token is worth, once a step; `loss` what is minimised, for each micro-batch.

    `name` is its `algorithm.kind`. `critic`: how the critic of an estimator that has one is used (None: as by default).
    Called with settings by name, it is the same algorithm with other values: `GRPO(clip_high=0.28)`.
    """

    name: str
    estimator: Estimator
    critic: CriticLoss | None = None
    objective: Objective = ClipObjective()
    sampler_cap: Annotated[
        float, at_least(0), "most that a token weighs for a sampler unlike the trainer; 0: off"
    ] = 0.0
    reduction: Annotated[
        str, one_of(*REDUCTIONS), "how losses of tokens are summed up: learn/ops/loss.py"
    ] = "token-mean"
    fixed_length: Annotated[int, at_least(0), "tokens, of the reduction 'fixed-length'"] = 0
    entropy_coef: Annotated[float, at_least(0), "nats of entropy are worth this much loss"] = 0.0
    reference: ReferenceKL = ReferenceKL()
    epochs: Annotated[int, at_least(1), "passes over a step's trajectories"] = 1
    minibatches: Annotated[int, at_least(1), "updates per pass"] = 1
    minibatch_size: Annotated[
        int, at_least(0), "or: trajectories per update, of which a filter then leaves fewer"
    ] = 0
    masks: Annotated[Masks, "which tokens take part in what"] = Masks()
    rewards: Annotated[Rewards, "normalisation of rewards before credit is given"] = Rewards()
    filter: Annotated[
        Filter, "which groups or attempts are trained on, by the spread of their raw rewards"
    ] = Filter()

    def __post_init__(self) -> None:
        check_settings(self, "algorithm")
        if is_dataclass(self.objective):
            check_settings(self.objective, "algorithm")
        if self.estimator.critic and self.critic is None:
            object.__setattr__(self, "critic", CriticLoss())
        if self.critic is not None and not self.estimator.critic:
            raise ConfigError(
                f"algorithm {self.name!r} has settings of a critic, but its estimator reads no values"
            )
        if (self.reduction == "fixed-length") != (self.fixed_length > 0):
            raise ConfigError(
                "algorithm.reduction = 'fixed-length' and algorithm.fixed_length (tokens, at least 1) go "
                f"together; got {self.reduction!r} and {self.fixed_length}"
            )
        if self.minibatch_size and self.minibatches > 1:
            raise ConfigError(
                "algorithm.minibatches (updates per pass) and algorithm.minibatch_size (trajectories per "
                f"update) say the same thing twice; got {self.minibatches} and {self.minibatch_size}"
            )
        if self.filter.equal_updates and not self.minibatch_size:
            raise ConfigError(
                "algorithm.filter.equal_updates has no effect: with algorithm.minibatches a filter never "
                "removes an update, only makes each smaller. Set algorithm.minibatch_size, or remove it"
            )
        if self.reference.in_reward and self.estimator.says("divides"):
            raise ConfigError(
                "algorithm.kl_in = 'reward' with algorithm.normalize_std divides the pull by its own "
                "spread wherever the rewards of a group are equal, so that kl_coef loses its meaning and "
                "rounding is trained on; set algorithm.normalize_std=false, or algorithm.kl_in='loss'"
            )

    # -------------------------------------------------------------------------------------------- settings

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Every setting by its name; those of masks, rewards and filter are in one value each."""
        return {name: value for name, (_, value) in declared_settings(self).items()}

    def __getattr__(self, name: str) -> Any:
        """A setting, whichever part holds it."""
        if name.startswith("_") or "estimator" not in vars(self) or name not in self.settings:
            raise AttributeError(
                f"algorithm {vars(self).get('name')!r} has no setting or attribute {name!r}",
                name=name,
            )
        return self.settings[name]

    def __call__(self, **settings: Any) -> Algorithm:
        """The same algorithm with other settings. Raises ConfigError for one that it does not have."""
        return with_settings(self, settings)

    # -------------------------------------------------------------------------------------------- facts

    @property
    def min_group_size(self) -> int:
        """The least number of attempts per task that credit can be given for: to compare, and to filter by spread, it
        takes two."""
        return 2 if self.estimator.says("compares") or self.filter.acts else 1

    @property
    def has_timeline(self) -> bool:
        """Whether credit follows the order of tokens, on what `masks.gae_over` names."""
        return self.estimator.per == "token"

    @property
    def whitens(self) -> bool:
        """Whether statistics are taken over tokens."""
        return self.estimator.says("whitens")

    @property
    def ignores_shifts(self) -> bool:
        """Whether what is added to the rewards of all attempts at a task, at their ends, has no effect."""
        return self.estimator.says("ignores_shifts")

    @property
    def requires(self) -> tuple[str, ...]:
        """Later facts of the batch that credit or loss reads, at the tokens that `reads_T` names; "value_T" among them
        says that a critic is trained beside the policy."""
        return (*(() if self.critic is None else self.critic.requires), *self.reference.requires)

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
        demand_attempts(self, batch)
        demand_greedy(self, batch)
        demand_facts(self, batch)
        kept_N = scored_N & self.filter.kept(batch.reward_N, group_N, scored_N)
        inputs = credit_inputs(self, batch, kept_N)
        found = self.estimator(inputs)
        kept_T = kept_N[batch.trajectory_of_token_T]

        def weight(switch: str) -> Tensor:
            return (self.masks.tokens(switch, batch) & kept_T).double()

        weight_T = weight("loss_over")
        advantage_T = (
            torch.zeros_like(weight_T).index_copy(0, inputs.token_A, found.advantage_A) * weight_T
        )
        others = {
            "entropy_weight_T": weight("entropy_over") if self.entropy_coef else None,
            "kl_weight_T": weight("kl_loss_over") if self.reference.in_loss else None,
        }
        return_T = None
        if found.target_A is not None:
            return_T = critic_targets(inputs, found.target_A, weight("critic_over"))
            others["critic_weight_T"] = (~return_T.isnan()).double()
        others = {
            name: None if other is None or torch.equal(other, weight_T) else other
            for name, other in others.items()
        }
        count, notes = updates_of_a_pass(self, batch, kept_N)
        return Credit(
            advantage_T,
            weight_T,
            notes_of(self, inputs) | notes,
            return_T,
            self.masks.widened(LOSS_MASK),
            minibatches=count,
            **others,
        )

    # -------------------------------------------------------------------------------------------- loss

    def loss(self, inputs: LossInputs) -> TokenLoss:
        """The policy gradient by the objective, beside it -entropy_coef * H and the pull towards the reference."""
        held = self.objective.loss(inputs)
        loss_M, figures = held.loss, {}
        if self.sampler_cap:
            weight_M = sampler_weight(
                inputs.old_logp_M, inputs.rollout_logp_M, cap=self.sampler_cap
            )
            loss_M = loss_M * weight_M
            figures = {
                "sampler_weight": weight_M,
                "sampler_weight_capped": (weight_M >= self.sampler_cap).float(),
            }
        kl_loss_M, kl_figures = self.reference.loss(inputs)
        entropy_loss_M = -self.entropy_coef * inputs.entropy_M if self.entropy_coef else None
        return TokenLoss(
            loss_M, held.ratio.detach(), held.state, figures | kl_figures, entropy_loss_M, kl_loss_M
        )

    def value_loss(self, value_M: Tensor, old_value_M: Tensor, target_M: Tensor) -> ValueLoss:
        """What the critic is fitted with, per token."""
        return self.critic.loss(value_M, old_value_M, target_M)

    def reduction_of(self, counts_T: Tensor, batch: Batch) -> Reduction:
        """The scale per token and the denominator of one term of one update, over the tokens that it counts [T]."""
        return reduction(
            self.reduction, counts_T, batch.trajectory_of_token_T, fixed_length=self.fixed_length
        )
