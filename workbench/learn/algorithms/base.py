"""What goes into an algorithm and what comes out: credit, once per step for the whole batch; a loss per token, once per
micro-batch. An algorithm (algorithm.py) never sees a model or an optimizer.

Axis letters: N trajectories · K turns (flat) · T tokens of the whole batch (flat) · A tokens that get credit, in the
order of time (the timeline) · P turns with at least one of them · M trained tokens of one micro-batch (flat).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from workbench.basics.tensors import Tensor, torch
from workbench.learn.batch import Batch
from workbench.learn.ops.gae import whiten
from workbench.learn.ops.turns import TurnSpans, sum_over_turns, turn_spans
from workbench.values.errors import DataError
from workbench.values.view import Shown


@dataclass(frozen=True, eq=False, repr=False)
class Credit(Shown):
    """What each token is worth: computed once a step, for the whole batch, on the CPU, in float64 [T].

    `advantage_T` is zero where nothing is trained. `weight_T` is eligibility times the weight of the token's row
    (invariant 1): what the policy gradient is summed over; the denominator is counted over the same tokens (invariant 4).
    `entropy_weight_T`, `kl_weight_T`, `critic_weight_T` say the same of the other terms; None: the same tokens.
    `return_T` is what a critic is fitted to, NaN where it is not. `minibatches`: updates per epoch (None: as the
    algorithm says). `notes` are figures about the batch for the metrics line.
    `widened` names the reason where tokens that were not sampled are trained on purpose (supervised fine-tuning, the
    loss-mask ablation); without it such a weight is an error.
    """

    advantage_T: Tensor
    weight_T: Tensor
    notes: Mapping[str, float] = field(default_factory=dict)
    return_T: Tensor | None = None
    widened: str | None = None
    entropy_weight_T: Tensor | None = None
    kl_weight_T: Tensor | None = None
    critic_weight_T: Tensor | None = None
    minibatches: int | None = None

    def weights_of(self, term: str) -> Tensor:
        """[T]: the weights of a term, "policy", "entropy", "kl" or "critic"."""
        own = None if term == "policy" else getattr(self, f"{term}_weight_T")
        return self.weight_T if own is None else own

    @property
    def trained_T(self) -> Tensor:
        """bool [T]: tokens with a weight in any term."""
        return torch.stack([self.weights_of(term) != 0 for term in TERMS]).any(0)


TERMS = ("policy", "entropy", "kl", "critic")  # of which a loss is made


class Advantages(NamedTuple):
    """Per token of the timeline [A], float64. `target_A`: what a critic is fitted to there; NaN: not at all."""

    advantage_A: Tensor
    target_A: Tensor | None = None


@dataclass(frozen=True, eq=False)
class CreditInputs:
    """What an estimator may look at: the trajectories that count (scored, and kept by the filter), and nothing else.

    `reward_A` is what was paid at each token: a turn's reward on the last action token of that turn, the outcome on the
    trajectory's last, both normalised as the algorithm says, minus what the token pays for leaving the reference.
    `reward_N` is its sum (NaN where `kept_N` is false), rounded as the raw reward is. `value_A`, `final_value_N` are
    None without a critic; `final_value_N` is 0 where a trajectory ended for good.
    """

    batch: Batch
    kept_N: Tensor  # bool
    group_N: Tensor  # int64
    reward_N: Tensor
    token_A: Tensor  # int64, indices into T, ascending
    row_A: Tensor  # int64, the trajectory of each; does not decrease
    turn_A: Tensor  # int64
    reward_A: Tensor
    value_A: Tensor | None
    final_value_N: Tensor | None
    whiten_T: Tensor  # bool [T]: the tokens that statistics of whitening are taken over
    greedy_N: Tensor | None = (
        None  # what the greedy trajectory earned, on the same scale; NaN: unscored, or none made
    )

    @cached_property
    def turns(self) -> TurnSpans:
        """The turns on the timeline [P]: where each begins and ends, and which token belongs to which."""
        return turn_spans(self.row_A, self.turn_A)

    @cached_property
    def reward_P(self) -> Tensor:
        """What was paid in each turn."""
        return sum_over_turns(self.reward_A, self.turns)

    @cached_property
    def state_P(self) -> Tensor:
        """int64 [P]: which turns stood in the same state of the same task, by number; -1: the environment did not say."""
        turns, batch = self.turns, self.batch
        return batch.state_of_turn_K[batch.turn_offsets[:-1][turns.row_P] + turns.turn_P]

    def of_rows(self, advantage_N: Tensor) -> Tensor:
        """Every token of a trajectory gets what its trajectory gets [A]."""
        return advantage_N[self.row_A]

    def whitened(self, advantage_A: Tensor) -> Tensor:
        """To mean 0 and deviation 1 over the tokens that `masks.whiten_over` names; those of them that are not on the
        timeline count as 0."""
        over_A = self.whiten_T[self.token_A]
        strangers = int(self.whiten_T.sum()) - int(over_A.sum())
        return whiten(
            advantage_A, over=torch.cat([advantage_A[over_A], advantage_A.new_zeros(strangers)])
        )


@dataclass(frozen=True, eq=False)
class LossInputs:
    """The trained tokens of one micro-batch, aligned [M]. A micro-batch holds whole segments, never parts of one.

    `logp_M` carries the gradient; `entropy_M` does if the algorithm's `entropy_coef` is not zero. `old_logp_M` is the
    trainer's own, never a sampler's; `rollout_logp_M` is the sampler's, of the distribution that it sampled from (NaN
    for a token that was not sampled here). `segment_M` numbers the segments; `counts_M` says which tokens the policy
    gradient is summed over (handed in as None: all), so that a ratio over a sequence is one over those.
    """

    logp_M: Tensor
    entropy_M: Tensor
    old_logp_M: Tensor
    advantage_M: Tensor
    rollout_logp_M: Tensor
    segment_M: Tensor
    ref_logp_M: Tensor | None = None
    counts_M: Tensor | None = None

    def __post_init__(self) -> None:
        if self.counts_M is None:
            object.__setattr__(self, "counts_M", torch.ones_like(self.logp_M, dtype=torch.bool))


@dataclass(frozen=True, eq=False)
class TokenLoss:
    """Per token [M]: each term of the loss before weighting, and what happened to the token. Only the learner sums up.

    `loss_M` is the policy gradient's; `entropy_loss_M`, `kl_loss_M` None: the algorithm has no such term.
    `clip_state_M`: 0 free, -1 and +1 held at a bound of the ratio, 2 held by the dual clip. `figures` are further
    per-token numbers to be averaged over the trained tokens into the metrics line.
    """

    loss_M: Tensor
    ratio_M: Tensor
    clip_state_M: Tensor
    figures: Mapping[str, Tensor] = field(default_factory=dict)
    entropy_loss_M: Tensor | None = None
    kl_loss_M: Tensor | None = None


class CreditAlgorithm(Protocol):
    """An `Algorithm`, as credit and the checks of a batch read it.

    Its parts are defined by what stands above, so they are typed where they are put together (algorithm.py).
    """

    name: str
    estimator: Any
    objective: Any
    critic: Any
    reference: Any
    masks: Any
    rewards: Any
    filter: Any
    epochs: int
    minibatches: int
    minibatch_size: int
    min_group_size: int
    has_timeline: bool
    requires: tuple[str, ...]

    def reduction_of(self, counts_T: Tensor, batch: Batch) -> tuple[Tensor, float]: ...


def needs_critic(algorithm: CreditAlgorithm) -> bool:
    """Whether a critic must be trained beside the policy."""
    return "value_T" in algorithm.requires


def needs_greedy(algorithm: CreditAlgorithm) -> bool:
    """Whether a greedy trajectory of each task must be collected beside the group."""
    return algorithm.estimator.greedy


def missing_facts(algorithm: CreditAlgorithm, batch: Batch) -> list[str]:
    """What the algorithm requires and the batch does not have."""
    return [name for name in algorithm.requires if getattr(batch, name) is None]


def demand_facts(algorithm: CreditAlgorithm, batch: Batch) -> None:
    """Raises DataError naming what the algorithm requires and the batch does not have."""
    if missing := missing_facts(algorithm, batch):
        raise DataError(
            f"{algorithm.name} needs {', '.join(missing)}, which this batch does not have: "
            "Learner.facts(batch) makes one that does"
        )


def demand_greedy(algorithm: CreditAlgorithm, batch: Batch) -> None:
    """Raises DataError where the algorithm compares with a greedy trajectory of each task, and no task has one."""
    if needs_greedy(algorithm) and batch.greedy_N is None:
        raise DataError(
            f"{algorithm.name} compares with what the greedy trajectory of a task earned, and no group of this batch "
            "has one: collect(..., greedy=True) makes them, and rollout(session) does where the session's "
            f"algorithm is {algorithm.name}"
        )


def demand_trajectories(algorithm: CreditAlgorithm, batch: Batch) -> None:
    """Raises DataError where no task was attempted `min_group_size` times."""
    if int(batch.group_of_trajectory_N.bincount().max()) < algorithm.min_group_size:
        if algorithm.estimator.says("compares"):
            does = "compares"
            cure = "an algorithm without a group baseline"
        else:
            does = f"filters ({algorithm.filter.label}) by the std of"
            cure = "no filter"
        raise DataError(
            f"{algorithm.name} {does} trajectories of the same task, but every group of this batch has one "
            f"trajectory: collect at least 2 trajectories per task, or use {cure}"
        )


class Share(NamedTuple):
    """How the tokens [T] of one term are summed up in one update: weight (float64, 0: not at all), denominator."""

    weight_T: Tensor
    denominator: float


def shares_of(
    algorithm: CreditAlgorithm, batch: Batch, credit: Credit, used_T: Tensor
) -> dict[str, Share]:
    """The share of each term ("policy", "entropy", "kl", "critic") in one update, counted over the whole of it (invariant 4).

    A term without a token in this update is left out. A critic is fitted to a mean over tokens whatever the policy's
    reduction: which tokens it is wrong about has nothing to do with how trajectories are compared.
    """
    shares = {}
    for term in TERMS:
        weight_T = torch.where(used_T, credit.weights_of(term), 0.0)
        counts_T = weight_T != 0
        if not bool(counts_T.any()):
            continue
        if term == "critic":
            shares[term] = Share(weight_T, float(counts_T.sum()))
        else:
            scale_T, denominator = algorithm.reduction_of(counts_T, batch)
            shares[term] = Share(weight_T * scale_T, denominator)
    return shares
