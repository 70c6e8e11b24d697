"""The pull towards a reference policy, shared by the algorithms that have the fields kl_coef, kl_estimator and kl_in.

In the *reward* every action token pays kl_coef times its KL estimate, from the logprobs of the policy that sampled and
the reference, before credit is given: a number like any other reward, discounted and compared like one. In the *loss*
the estimate is added to each token's loss and its gradient flows. kl_coef = 0: no reference is needed, nothing is done.

Axis letters: T tokens of the whole batch (flat) · A action tokens · M trained tokens of a micro-batch.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from workbench.learn.algorithms.base import LossInputs
from workbench.learn.batch import Batch
from workbench.learn.ops.kl import ESTIMATORS, kl_estimate
from workbench.types.errors import ConfigError

PLACES = ("reward", "loss")


class HasReference(Protocol):
    """`kl_coef`: what a nat of divergence costs, in units of reward (or of advantage, in the loss)."""

    kl_coef: float
    kl_estimator: str
    kl_in: str


def check_reference(algorithm: HasReference) -> None:
    """Raises ConfigError for settings that have no meaning."""
    if not 0 <= algorithm.kl_coef < float("inf"):
        raise ConfigError(f"algorithm.kl_coef is finite and not negative, got {algorithm.kl_coef}")
    if algorithm.kl_estimator not in ESTIMATORS:
        raise ConfigError(f"algorithm.kl_estimator is one of {', '.join(ESTIMATORS)}, got {algorithm.kl_estimator!r}")
    if algorithm.kl_in not in PLACES:
        raise ConfigError(f"algorithm.kl_in is one of {', '.join(PLACES)}, got {algorithm.kl_in!r}")


def reference_facts(algorithm: HasReference) -> tuple[str, ...]:
    """Which later facts of the batch the term needs. In the reward it must know both logprobs before any update."""
    if not algorithm.kl_coef:
        return ()
    return ("old_logp_T", "ref_logp_T") if algorithm.kl_in == "reward" else ("ref_logp_T",)


def reward_penalty(algorithm: HasReference, batch: Batch, at_A: Tensor) -> Tensor:
    """What each token pays in the reward [A], float64, by its index into T."""
    old_logp_A, ref_logp_A = batch.old_logp_T[at_A].double(), batch.ref_logp_T[at_A].double()
    return algorithm.kl_coef * kl_estimate(old_logp_A, ref_logp_A, algorithm.kl_estimator)


def reference_loss(algorithm: HasReference, inputs: LossInputs) -> tuple[Tensor | None, Mapping[str, Tensor]]:
    """(the term of the loss per token, None where it is paid elsewhere; figures for the metrics). `kl_ref` is the k3
    estimate of KL(policy || reference) in nats, whatever is trained on, so that runs can be compared."""
    if not algorithm.kl_coef or inputs.ref_logp_M is None:
        return None, {}
    term_M = None
    if algorithm.kl_in == "loss":
        term_M = algorithm.kl_coef * kl_estimate(inputs.logp_M, inputs.ref_logp_M, algorithm.kl_estimator)
    return term_M, {"kl_ref": kl_estimate(inputs.logp_M.detach(), inputs.ref_logp_M, "k3")}
