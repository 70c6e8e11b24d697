"""An algorithm is a composition: an estimator (what each token is worth), an objective (what is minimised), how tokens
are summed up, which of them take part, which trajectories are learned from, and the pull towards a reference.

    mine = Algorithm("mine", RLOO, objective=GSPOObjective())          of parts
    milder = GRPO(epochs=2, objective={"clip_high": 0.28})              of another one: settings of its own and of parts

A setting's name says which part owns it: `algorithm.objective.clip_high` in a configuration, `GRPO.objective.clip_high`
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from functools import cached_property
from typing import Annotated, Any

from workbench.basics.settings import Declared, at_least, check_settings, declared_fields, one_of
from workbench.basics.tensors import Tensor, torch
from workbench.learn.algorithms.base import (
    Credit,
    LossInputs,
    TokenLoss,
    demand_facts,
    demand_greedy,
    demand_trajectories,
)
from workbench.learn.algorithms.credit import (
    credit_inputs,
    critic_targets,
    notes_of,
    updates_of_a_pass,
)
from workbench.learn.algorithms.estimators import Estimator
from workbench.learn.algorithms.objectives import ClipObjective, Objective, sampler_weight
from workbench.learn.algorithms.parts import (
    LOSS_MASK,
    CriticLoss,
    Filter,
    Masks,
    ReferenceKL,
    Rewards,
)
from workbench.learn.algorithms.settings import declared_by_name, with_settings
from workbench.learn.batch import Batch
from workbench.learn.ops.loss import REDUCTIONS, Reduction, ValueLoss, reduction
from workbench.values.errors import ConfigError

PARTS = ("estimator", "critic", "objective", "reference", "masks", "rewards", "filter")


@dataclass(frozen=True)
class Algorithm:
    """`credit` says what every token is worth, once a step; `loss` what is minimised, for each micro-batch.

    `name` is its `algorithm.kind`. `critic`: how the critic of an estimator that has one is used (None: as by default).
    Called with settings, it is the same algorithm with other values: `GRPO(epochs=2, objective={"clip_high": 0.28})`.
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
    fixed_length: Annotated[
        int, at_least(0, most=1_000_000_000), "tokens, of the reduction 'fixed-length'"
    ] = 0
    entropy_coef: Annotated[float, at_least(0), "nats of entropy are worth this much loss"] = 0.0
    reference: ReferenceKL = ReferenceKL()
    epochs: Annotated[int, at_least(1, most=10_000), "passes over a step's trajectories"] = 1
    minibatches: Annotated[int, at_least(1, most=1_000_000), "updates per pass"] = 1
    minibatch_size: Annotated[
        int,
        at_least(0, most=1_000_000_000),
        "or: trajectories per update, of which a filter then leaves fewer",
    ] = 0
    masks: Annotated[Masks, "which tokens take part in what"] = Masks()
    rewards: Annotated[Rewards, "normalisation of rewards before credit is given"] = Rewards()
    filter: Annotated[
        Filter, "which groups or trajectories are trained on, by the std of their raw rewards"
    ] = Filter()

    def __post_init__(self) -> None:
        check_settings(self, "algorithm")
        if is_dataclass(self.objective):
            check_settings(self.objective, "algorithm.objective")
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
                "algorithm.reference.kl_in = 'reward' with algorithm.estimator.normalize_std divides the pull by "
                "its own std wherever the rewards of a group are equal, so that kl_coef loses its meaning and "
                "rounding is trained on; set algorithm.estimator.normalize_std=false, or "
                "algorithm.reference.kl_in='loss'"
            )

    # -------------------------------------------------------------------------------------------- settings

    def declared_settings(self) -> tuple[Declared, ...]:
        """Its settings and parts, with what they are set to; `name` is none, nor is a critic that it has not."""
        return tuple(
            own
            for own in declared_fields(self)
            if own.name != "name" and (own.name, own.default) != ("critic", None)
        )

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Every setting by its name, the part that owns it first: `objective.clip_high`."""
        return {name: setting.default for name, setting in declared_by_name(self).items()}

    def __call__(self, **settings: Any) -> Algorithm:
        """The same algorithm with other settings, and whole parts. Raises ConfigError for one that it does not have.

        A part of the composition is given whole; a mapping changes some of its settings.
        """
        flat: dict[str, Any] = {}
        whole: dict[str, Any] = {}
        for name, value in settings.items():
            if isinstance(value, Mapping):
                flat |= {f"{name}.{inner}": setting for inner, setting in value.items()}
            elif isinstance(value, str) and name in PARTS:
                raise ConfigError(
                    f"algorithm.{name} is a part of the composition, got {value!r}: give a part, or some of its "
                    "settings by name (objective={'kind': 'gspo'})"
                )
            elif name in PARTS:
                whole[name] = value
            else:
                flat[name] = value
        return with_settings(self, flat, whole)

    # -------------------------------------------------------------------------------------------- facts

    @property
    def min_group_size(self) -> int:
        """The least number of trajectories per task that credit can be given for: to compare, and to filter by spread, it
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
        """Whether what is added to the rewards of all trajectories of a task, at their ends, has no effect."""
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
        """bool [T]: where the facts are needed: at sampled tokens of scored trajectories; in a widened mask, at all that
        the response holds."""
        tokens_T = batch.response_T if self.masks.widened() else batch.eligible_T
        return tokens_T & batch.scored_N[batch.trajectory_of_token_T]

    # -------------------------------------------------------------------------------------------- credit

    def credit(self, batch: Batch) -> Credit:
        """What every token is worth [T]. Trajectories that are unscored, or left out by the filter, weigh nothing anywhere:
        not in a baseline, not in a whitening, not in the loss. Raises DataError where no credit can be given at all (no
        task was attempted `min_group_size` times), and where a fact in `requires` was never computed."""
        group_N = batch.group_of_trajectory_N
        scored_N = batch.scored_N
        demand_trajectories(self, batch)
        demand_greedy(self, batch)
        demand_facts(self, batch)
        kept_N = scored_N & self.filter.kept(batch.reward_N, group_N, scored_N)
        inputs = credit_inputs(self, batch, kept_N)
        given = self.estimator(inputs)
        kept_T = kept_N[batch.trajectory_of_token_T]

        def weight(switch: str) -> Tensor:
            return (self.masks.tokens(switch, batch) & kept_T).double()

        weight_T = weight("loss_over")
        advantage_T = torch.zeros_like(weight_T)
        advantage_T = advantage_T.index_copy(0, inputs.token_A, given.advantage_A) * weight_T
        others = {
            "entropy_weight_T": weight("entropy_over") if self.entropy_coef else None,
            "kl_weight_T": weight("kl_loss_over") if self.reference.in_loss else None,
        }
        return_T = None
        if given.target_A is not None:
            return_T = critic_targets(inputs, given.target_A, weight("critic_over"))
            others["critic_weight_T"] = (~return_T.isnan()).double()
        for name, other_T in others.items():
            if other_T is not None and torch.equal(other_T, weight_T):
                others[name] = None
        notes = notes_of(self, inputs)
        count = None  # of updates per epoch: as the algorithm says
        if self.minibatch_size or self.filter.acts:
            count, removed = updates_of_a_pass(self, batch, kept_N)
            notes |= removed
        return Credit(
            advantage_T,
            weight_T,
            notes,
            return_T,
            self.masks.widened(LOSS_MASK),
            minibatches=count,
            **others,
        )

    # -------------------------------------------------------------------------------------------- loss

    def loss(self, inputs: LossInputs) -> TokenLoss:
        """The policy gradient by the objective, beside it -entropy_coef * H and the pull towards the reference."""
        held = self.objective.loss(inputs)
        loss_M = held.loss
        figures = {}
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
