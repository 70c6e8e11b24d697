"""The pull towards a reference policy: what a nat of divergence costs, by which estimate, and where it is paid.

In the *reward* every action token pays kl_coef times its KL estimate, from the logprobs of the policy that sampled and
the reference, before credit is given: a number like any other reward, discounted and compared like one. In the *loss*
the estimate is added to each token's loss and its gradient flows. kl_coef = 0: no reference is needed, nothing is done.

Axis letters: T tokens of the whole batch (flat) · A action tokens · M trained tokens of a micro-batch.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from workbench.learn.algorithms.base import LossInputs
from workbench.learn.batch import Batch
from workbench.learn.ops.loss import ESTIMATORS, kl_estimate
from workbench.types.settings import at_least, check_settings, one_of
from workbench.types.tensors import Tensor

PLACES = ("reward", "loss")


@dataclass(frozen=True)
class ReferenceKL:
    """`kl_coef` is in units of reward (or of advantage, in the loss)."""

    kl_coef: Annotated[float, at_least(0), "what a nat away from the reference policy costs"] = 0.0
    kl_estimator: Annotated[str, one_of(*ESTIMATORS), "which one: learn/ops/loss.py"] = "k3"
    kl_in: Annotated[str, one_of(*PLACES), "where it is paid"] = "loss"

    def __post_init__(self) -> None:
        check_settings(self, "algorithm")

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
        old_logp_A, ref_logp_A = batch.old_logp_T[at_A].double(), batch.ref_logp_T[at_A].double()
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
