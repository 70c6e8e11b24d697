"""What an algorithm is: a frozen dataclass with two functions, `credit` once per step and `loss` per micro-batch.

To add one: a new file with such a dataclass, and one line in the table of `workbench/algorithms/__init__.py`. Its
fields are its only configuration; its arithmetic lives in `workbench/ops`; it never sees a model or an optimizer.

Axis letters: T tokens of the whole batch (flat) · M trained tokens of one micro-batch (flat).
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from workbench.batch import Batch
from workbench.errors import DataError
from workbench.ops.value import ValueLoss


@dataclass(frozen=True, eq=False)
class Credit:
    """What each token is worth: computed once a step, for the whole batch, on the CPU, in float64 [T].

    `advantage_T` is zero where nothing is trained. `weight_T` is eligibility times the weight of the token's row
    (law 1); the tokens with a weight are the trained ones, and the loss is divided by their number (law 4).
    `notes` are figures about the batch for the metrics line. `return_T` is what a critic is fitted to, NaN where
    nothing is trained.
    `widened` names the reason where tokens that were not sampled are trained on purpose (supervised fine-tuning, the
    loss-mask ablation); without it such a weight is an error.
    """

    advantage_T: Tensor
    weight_T: Tensor
    notes: Mapping[str, float] = field(default_factory=dict)
    return_T: Tensor | None = None
    widened: str | None = None


@dataclass(frozen=True, eq=False)
class LossInputs:
    """The trained tokens of one micro-batch, aligned [M]. A micro-batch holds whole segments, never parts of one.

    `logp_M` carries the gradient; `entropy_M` does if the algorithm's `entropy_coef` is not zero. `old_logp_M` is the
    trainer's own, never a sampler's. `segment_M` numbers the segments (for ratios over a sequence).
    """

    logp_M: Tensor
    entropy_M: Tensor
    old_logp_M: Tensor
    advantage_M: Tensor
    rollout_logp_M: Tensor
    segment_M: Tensor
    ref_logp_M: Tensor | None = None


@dataclass(frozen=True, eq=False)
class TokenLoss:
    """Per token [M]: the loss before weighting, and what happened to the token. Only the learner sums it up.

    `figures` are further per-token numbers to be averaged over the trained tokens into the metrics line.
    """

    loss_M: Tensor
    ratio_M: Tensor
    clip_state_M: Tensor
    figures: Mapping[str, Tensor] = field(default_factory=dict)


class Algorithm(Protocol):
    """`requires` names the later facts of the Batch (such as "ref_logp_T") that must be there before `credit`. One that
    names "value_T" needs a critic: see `CriticAlgorithm`.

    A step makes `updates_per_step = epochs * minibatches` updates: in each epoch the trajectories are shuffled and
    dealt into `minibatches`. `min_group_size` is the least number of attempts per task that credit can be given for.
    """

    name: str
    min_group_size: int
    requires: tuple[str, ...]
    entropy_coef: float
    epochs: int
    minibatches: int

    @property
    def updates_per_step(self) -> int: ...

    def credit(self, batch: Batch) -> Credit: ...

    def loss(self, inputs: LossInputs) -> TokenLoss: ...


class CriticAlgorithm(Algorithm, Protocol):
    """An algorithm whose credit has a `return_T`, and that says how a critic is fitted to it."""

    def value_loss(self, value_M: Tensor, old_value_M: Tensor, target_M: Tensor) -> ValueLoss: ...


def needs_critic(algorithm: Algorithm) -> bool:
    return "value_T" in algorithm.requires


def demand_facts(algorithm: Algorithm, batch: Batch) -> None:
    """Raises DataError naming what the algorithm requires and the batch does not have."""
    missing = [name for name in algorithm.requires if getattr(batch, name) is None]
    if missing:
        raise DataError(f"{algorithm.name} needs {', '.join(missing)}, which this batch does not have: "
                        "Learner.facts(batch) makes one that does")
