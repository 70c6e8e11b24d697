"""What one update did: its per-token numbers, its credit table, its metrics, and what was wrong where it was skipped.

Axis letters: T tokens of the whole batch (flat) · M trained tokens of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from workbench.learn.algorithms.base import Credit
from workbench.learn.algorithms.objectives import HELD_BY_DUAL_CLIP
from workbench.learn.batch import Batch
from workbench.learn.distributed import whole
from workbench.learn.ops.loss import explained_variance
from workbench.values import CreditTable

# Figures of the critic, not of the policy.
CRITICS = ("new_value", "value_loss", "value_clip_fraction")


@dataclass(frozen=True, eq=False)
class UpdateReport:
    """`metrics`: finite numbers for the metrics line; a number that was not computed is absent.
    `table`: exactly what the update used, also where it was skipped (that is what to keep).
    `skipped`: None where the weights were moved, else why not, naming the first bad number and its trajectory.
    """

    metrics: Mapping[str, float]
    table: CreditTable
    skipped: str | None = None


class UpdateNumbers:
    """Notebook of one update in progress: per-token numbers [T], float32, written down as micro-batches pass.

    Private to the update and mutable, unlike everything else here. They stay on the device until the
    update is through: a copy per micro-batch would make it wait. Zero where nothing was written, only because the
    processes' shares are put together by a sum; whatever leaves this file is NaN there.
    """

    def __init__(self, num_tokens: int, device: torch.device | str = "cpu") -> None:
        self.logp_T = torch.zeros(num_tokens, device=device)
        self.old_logp_T = torch.zeros_like(self.logp_T)
        self.entropy_T = torch.zeros_like(self.logp_T)
        self.loss_T = torch.zeros_like(self.logp_T)
        self.ratio_T = torch.zeros_like(self.logp_T)
        self.clip_state_T = torch.zeros_like(self.logp_T)
        self.figures: dict[str, Tensor] = {}

    def record(self, at_M: Tensor, *, figures: Mapping[str, Tensor], **values: Tensor) -> None:
        """Write down a micro-batch's numbers: `logp=...` goes to `logp_T` at the places `at_M`."""
        for name, values_M in values.items():
            getattr(self, f"{name}_T")[at_M] = values_M.detach().float()
        for name, values_M in figures.items():
            if name not in self.figures:
                self.figures[name] = torch.zeros_like(self.logp_T)
            self.figures[name][at_M] = values_M.detach().float()

    def terms(self) -> list[tuple[str, Tensor]]:
        """The terms of the policy's loss that were written down, by name, before weighting [T], float64."""
        terms = [("policy", self.loss_T.double())]
        for name in ("entropy", "kl"):
            if f"{name}_loss" in self.figures:
                terms.append((name, self.figures[f"{name}_loss"].double()))
        return terms

    def share(self, summed: Callable[[Tensor], Tensor]) -> None:
        """Replace every column by its sum over the processes, on the CPU."""
        for name in ("logp_T", "old_logp_T", "entropy_T", "loss_T", "ratio_T", "clip_state_T"):
            setattr(self, name, summed(getattr(self, name)).cpu())
        self.figures = {name: summed(values_T).cpu() for name, values_T in self.figures.items()}


def credit_table(
    batch: Batch, credit: Credit, numbers: UpdateNumbers, used_T: Tensor, *, step: int, update: int
) -> CreditTable:
    """One row per token of the batch. `used` says which tokens this very update trained (a minibatch has a part of
    them); advantage and weight are those of the whole step."""

    columns = {
        "trajectory": batch.trajectory_of_token_T.to(torch.int32).numpy(),
        "segment": batch.segment_of_token_T.to(torch.int32).numpy(),
        "turn": batch.turn_T.numpy(),
        "position": batch.position_T.to(torch.int32).numpy(),
        "token_id": batch.token_ids_T.to(torch.int32).numpy(),
        "source": batch.source_T.numpy(),
        "eligible": batch.eligible_T.numpy(),
        "used": used_T.numpy(),
        "advantage": credit.advantage_T.numpy(),
        "weight": credit.weight_T.numpy(),
        "rollout_logp": batch.rollout_logp_T.numpy(),
        **_columns_of_update(batch, numbers, used_T),
        **_columns_of_facts(batch, credit),
    }
    if "new_value" in numbers.figures:
        columns["new_value"] = _where_used(numbers.figures["new_value"], used_T)
    if batch.final_value_N is not None:
        columns["final_value"] = _at_ends(batch, batch.final_value_N)
    # Copies: the table outlives the batch.
    frozen = {name: np.array(column) for name, column in columns.items()}
    for column in frozen.values():
        column.flags.writeable = False
    return CreditTable(step, update, frozen)


def _columns_of_update(
    batch: Batch, numbers: UpdateNumbers, used_T: Tensor
) -> dict[str, np.ndarray]:
    """What the models said of the tokens of this update."""
    if batch.old_logp_T is None:
        old_logp = _where_used(numbers.old_logp_T, used_T)
    else:  # known for the whole step where it was computed beforehand: credit may have been made of it
        old_logp = batch.old_logp_T.numpy()
    return {
        "old_logp": old_logp,
        "new_logp": _where_used(numbers.logp_T, used_T),
        "entropy": _where_used(numbers.entropy_T, used_T),
        "ratio": _where_used(numbers.ratio_T, used_T),
        "clip_state": numbers.clip_state_T.to(torch.int8).numpy(),
    }


def _columns_of_facts(batch: Batch, credit: Credit) -> dict[str, np.ndarray]:
    """Facts that only some algorithms have."""
    facts = {
        "ref_logp": batch.ref_logp_T,
        "value": batch.value_T,
        "return": credit.return_T,
        "entropy_weight": credit.entropy_weight_T,
        "kl_weight": credit.kl_weight_T,
        "critic_weight": credit.critic_weight_T,
    }
    return {name: values_T.numpy() for name, values_T in facts.items() if values_T is not None}


def _where_used(values_T: Tensor, used_T: Tensor) -> np.ndarray:
    return torch.where(used_T, values_T.float(), torch.nan).numpy()


def _at_ends(batch: Batch, value_N: Tensor) -> np.ndarray:
    """A number per trajectory at its last token, NaN elsewhere [T]."""
    has_end_N = batch.last_token_N >= 0
    return (
        torch.full((batch.num_tokens,), torch.nan)
        .index_copy(0, batch.last_token_N[has_end_N], value_N[has_end_N])
        .numpy()
    )


def figures(
    batch: Batch, credit: Credit, numbers: UpdateNumbers, used_T: Tensor, *, version: int | None
) -> dict[str, float]:
    """Means over the action tokens this update trained, whatever else a widened mask lets in; of the critic's, over the
    tokens it is fitted at. `approx_kl` estimates KL(old || new) in nats as r - 1 - log r (Schulman,
    joschu.net/blog/kl-approx.html); `explained_variance` is of the values that credit was made of, before this step's
    updates. With `version`, the one of the weights at a step's first update, also the gap between sampler
    and trainer (later updates have moved) and the share of tokens sampled by older weights."""
    trained_T = used_T
    used_T = used_T & batch.eligible_T
    if not bool(used_T.any()):
        used_T = trained_T
    fitted_T = trained_T & (credit.weights_of("critic") != 0)
    log_ratio = (numbers.logp_T - numbers.old_logp_T)[used_T].double()
    state = numbers.clip_state_T[used_T]
    result = {
        "entropy": float(numbers.entropy_T[used_T].double().mean()),
        "approx_kl": float((log_ratio.expm1() - log_ratio).mean()),
        "clip_fraction": float((state != 0).double().mean()),
        "clip_fraction_high": float((state == 1).double().mean()),
        "ratio_max": float(numbers.ratio_T[used_T].max()),
        "trained_tokens": int(trained_T.sum()),
        "trained_share": float(trained_T.double().mean()),
        "weight_mean": float(credit.weight_T[used_T].mean()),
    }
    for name, values_T in numbers.figures.items():
        over_T = fitted_T if name in CRITICS else used_T
        if bool(over_T.any()):
            result[name] = float(values_T[over_T].double().mean())
    held_T = state == HELD_BY_DUAL_CLIP
    if bool(held_T.any()):
        result["clip_fraction_dual"] = float(held_T.double().mean())
    if batch.value_T is not None and credit.return_T is not None:
        result |= _explained_variance(batch.value_T[fitted_T], credit.return_T[fitted_T])
    if version is not None:
        result |= _staleness(batch, used_T, version) | _gap(batch, numbers, used_T)
    return result


def _explained_variance(value_C: Tensor, return_C: Tensor) -> dict[str, float]:
    explained = explained_variance(value_C, return_C)
    return {} if explained is None else {"explained_variance": explained}


def _staleness(batch: Batch, used_T: Tensor, version: int) -> dict[str, float]:
    """The share of tokens sampled by other weights than those of this version; absent where no engine said."""
    versions = batch.policy_version_T[used_T]
    if not bool((versions >= 0).all()):
        return {}
    return {"stale_share": float((versions != version).double().mean())}


def _gap(batch: Batch, numbers: UpdateNumbers, used_T: Tensor) -> dict[str, float]:
    """|sampler's logprob - trainer's|, both of the model's own softmax, in nats; absent where no engine could say. And
    of the raw ratio trainer / sampler, before any mask, cap or clip: its mean, the share outside [0.9, 1.1], and
    mean(r - 1 - log r), which estimates KL(sampler || trainer) where the sampler drew from its own softmax. The alarm
    is the lint's (R23)."""
    comparable_T = used_T & ~batch.plain_logp_T.isnan()
    log_ratio = (numbers.logp_T - batch.plain_logp_T)[comparable_T].double()
    if not len(log_ratio):
        return {}
    gap = log_ratio.abs()
    ratio = log_ratio.exp()
    return {
        "logp_gap_mean": float(gap.mean()),
        "logp_gap_max": float(gap.max()),
        "raw_ratio_mean": float(ratio.mean()),
        "raw_ratio_outside": float(((ratio < 0.9) | (ratio > 1.1)).double().mean()),
        "mismatch_kl": float((log_ratio.expm1() - log_ratio).mean()),
    }


def first_bad(
    batch: Batch,
    credit: Credit,
    numbers: UpdateNumbers,
    used_T: Tensor,
    gradients: Mapping[str, Tensor],
) -> str:
    """Name the first number that is not finite, in the order in which numbers are made, and where it stands."""
    for name, values_T in _chain(batch, credit, numbers).items():
        bad = (used_T & ~values_T.isfinite()).nonzero()[:, 0]
        if len(bad):
            index = int(bad[0])
            where = f"{batch.describe_token(index)} ({len(bad)} in all)"
            return f"first bad number: {name} = {float(values_T[index])} at {where}"
    for name, gradient in gradients.items():
        if not bool(whole(gradient).isfinite().all()):
            return f"first bad number: gradient of {name}; every number per token is finite"
    return "the gradient's norm overflows; every single number is finite"


def _chain(batch: Batch, credit: Credit, numbers: UpdateNumbers) -> dict[str, Tensor]:
    """Every number per token [T] that an update is made of, in the order in which they are made."""
    chain = {}
    if batch.ref_logp_T is not None:
        chain["ref_logp"] = batch.ref_logp_T
    if batch.value_T is not None:
        chain["value"] = batch.value_T
    if credit.return_T is not None:  # NaN on purpose where the critic is not fitted
        chain["return"] = torch.where(credit.weights_of("critic") != 0, credit.return_T, 0.0)
    chain |= {
        "advantage": credit.advantage_T,
        "weight": credit.weight_T,
        "old_logp": numbers.old_logp_T,
        "new_logp": numbers.logp_T,
        "entropy": numbers.entropy_T,
        "ratio": numbers.ratio_T,
        "loss": numbers.loss_T,
    }
    for name in ("new_value", "value_loss"):
        if name in numbers.figures:
            chain[name] = numbers.figures[name]
    return chain
