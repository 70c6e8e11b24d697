"""The plain side: a loss written out from the papers, a segment at a time, sharing nothing with what the learner uses.

Written anew on purpose, however much it looks like what `ops`, `microbatch` and `packing` do: what is held against them
may not be made of them.

Axis letters: T tokens of the whole batch (flat) · L tokens of one segment · V vocabulary.
"""
from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from workbench.learn.algorithms.base import Algorithm, Credit, LossInputs
from workbench.learn.algorithms.policy_gradient import PolicyGradient
from workbench.learn.algorithms.ppo import PPO
from workbench.learn.batch import Batch


class Facts(NamedTuple):
    """What is known of the tokens of one segment [L]; `counts` says which the policy gradient is summed over."""

    logp: Tensor
    entropy: Tensor
    old: Tensor
    rollout: Tensor
    reference: Tensor | None
    advantage: Tensor
    counts: Tensor

    @classmethod
    def of(cls, batch: Batch, credit: Credit, here: slice, logp_L: Tensor, entropy_L: Tensor) -> Facts:
        # Where nothing is trained a fact need not be there, and even at weight zero a NaN would reach the gradient.
        idle_L = ~credit.trained_T[here]

        def known(values_T: Tensor) -> Tensor:
            return torch.where(idle_L, logp_L.detach(), values_T[here].float())

        old_L = logp_L.detach() if batch.old_logp_T is None else known(batch.old_logp_T)
        reference_L = None if batch.ref_logp_T is None else known(batch.ref_logp_T)
        return cls(logp_L, entropy_L, old_L, batch.rollout_logp_T[here].float(), reference_L,
                   credit.advantage_T[here].float(), credit.weight_T[here] != 0)


def has_own_loss(algorithm: Algorithm) -> bool:
    """Whether the formulas below do not apply: it says itself what its loss is."""
    kind = type(algorithm)
    return not isinstance(algorithm, PolicyGradient) or any(
        getattr(kind, name) is not getattr(PolicyGradient, name) for name in ("loss", "_objective"))


def plain_terms(algorithm: Algorithm, facts: Facts) -> dict[str, Tensor]:
    """Per token [L], before weighting. An algorithm with a loss of its own is asked for it: then only the way there is
    checked."""
    if has_own_loss(algorithm):
        segment_L = torch.zeros(len(facts.logp), dtype=torch.int64)
        said = algorithm.loss(LossInputs(facts.logp, facts.entropy, facts.old, facts.advantage, facts.rollout,
                                         segment_L, facts.reference, facts.counts))
        terms = {"policy": said.loss_M, "entropy": said.entropy_loss_M, "kl": said.kl_loss_M}
        return {name: term_L for name, term_L in terms.items() if term_L is not None}
    terms = {"policy": _policy_term(algorithm, facts)}
    if algorithm.entropy_coef:
        terms["entropy"] = -algorithm.entropy_coef * facts.entropy  # more entropy is less loss
    if algorithm.kl_coef and algorithm.kl_in == "loss":
        terms["kl"] = algorithm.kl_coef * _distance(facts.logp - facts.reference, algorithm.kl_estimator)
    return terms


def _policy_term(algorithm: PolicyGradient, facts: Facts) -> Tensor:
    """PPO eq. 7 with two bounds (DAPO eq. 10) and the dual clip (arXiv 1912.09729, eq. 3); GSPO-token (arXiv 2507.18071,
    eq. 14); CISPO (arXiv 2506.13585, eq. 4). A token that a bound holds has a constant for a loss."""
    advantage_L, low, high = facts.advantage, 1 - algorithm.clip_low, 1 + algorithm.clip_high
    change_L = (facts.logp - facts.old).clamp(-20.0, 20.0)  # as documented: an absurd token does not make infinity
    if algorithm.objective == "gspo":
        mean = (facts.logp - facts.old).detach()[facts.counts].mean() if bool(facts.counts.any()) else 0.0
        change_L = mean + facts.logp - facts.logp.detach()
    ratio_L = change_L.exp()
    if algorithm.objective == "cispo":
        weight_L = ratio_L.detach().clamp(low, high)
        loss_L = -weight_L * advantage_L * facts.logp
    else:
        above_L, below_L = (ratio_L > high) & (advantage_L > 0), (ratio_L < low) & (advantage_L < 0)
        gain_L = torch.where(below_L, low * advantage_L, ratio_L * advantage_L)
        gain_L = torch.where(above_L, high * advantage_L, gain_L)
        if algorithm.dual_clip:
            worst_L = (advantage_L < 0) & (ratio_L > algorithm.dual_clip)
            gain_L = torch.where(worst_L, algorithm.dual_clip * advantage_L, gain_L)
        loss_L = -gain_L
    if algorithm.sampler_cap:
        gap_L = (facts.old - facts.rollout).detach().clamp(-20.0, 20.0)
        loss_L = loss_L * torch.where(gap_L.isnan(), 1.0, gap_L.exp().clamp(max=algorithm.sampler_cap))
    return loss_L


def _distance(above_L: Tensor, estimator: str) -> Tensor:
    """From log pi - log reference: Schulman 2020 (joschu.net/blog/kl-approx.html)."""
    if estimator == "k1":
        return above_L
    if estimator == "k2":
        return above_L * above_L / 2
    if estimator == "abs":
        return torch.where(above_L < 0, -above_L, above_L)
    below_L = (-above_L).clamp(-20.0, 20.0)
    return (below_L.exp() - 1 - below_L).clamp(max=10.0)


def plain_value_loss(algorithm: Algorithm, value_L: Tensor, old_L: Tensor, target_L: Tensor) -> Tensor:
    """Half the squared error; where the value has come nearer by more than `value_clip`, what it was at the bound."""
    if type(algorithm).value_loss is not PPO.value_loss:
        return algorithm.value_loss(value_L, old_L, target_L).loss
    error_L = (value_L - target_L) ** 2 / 2
    if not algorithm.value_clip:
        return error_L
    held_L = torch.minimum(torch.maximum(value_L, old_L - algorithm.value_clip), old_L + algorithm.value_clip)
    held_L = (held_L - target_L) ** 2 / 2
    return torch.where(held_L > error_L, held_L, error_L)


def share_of(algorithm: Algorithm, batch: Batch, weight_T: Tensor, term: str) -> Tensor:
    """What the value of each token is multiplied with [T], denominator included. Sequences are whole trajectories."""
    counted_T = weight_T != 0
    total, share_T = int(counted_T.sum()), torch.zeros(len(weight_T), dtype=torch.float64)
    if not total:
        return share_T
    if term == "critic":
        return weight_T.double() / total
    if not isinstance(algorithm, PolicyGradient) or type(algorithm).reduction_of is not PolicyGradient.reduction_of:
        scale_T, denominator = algorithm.reduction_of(counted_T, batch)
        return weight_T.double() * scale_T / denominator
    sequences: dict[int, list[slice]] = {}
    for n, here in segments_of(batch):
        sequences.setdefault(n, []).append(here)
    lengths = {n: sum(int(counted_T[part].sum()) for part in parts) for n, parts in sequences.items()}
    rows = sum(length > 0 for length in lengths.values())
    for n, parts in sequences.items():
        divisor = {"token-mean": total, "seq-mean-token-mean": rows * lengths[n], "seq-mean-token-sum": rows,
                   "fixed-length": rows * algorithm.fixed_length}[algorithm.reduction]
        for part in parts if lengths[n] else ():
            share_T[part] = weight_T[part].double() / divisor
    return share_T


def segments_of(batch: Batch) -> list[tuple[int, slice]]:
    """(the trajectory it belongs to, where its tokens are) of every segment that has any."""
    offsets, rows = batch.segment_offsets.tolist(), batch.trajectory_of_segment_S.tolist()
    return [(row, slice(start, stop)) for row, start, stop in zip(rows, offsets, offsets[1:]) if stop > start]


def predictions(model: nn.Module, ids_L: Tensor) -> Tensor:
    """Row i: the log-probabilities of whatever may stand at i + 1 [L - 1, V], float32."""
    return model(input_ids=ids_L[None], use_cache=False).logits[0, :-1].float().log_softmax(-1)


def chosen(rows_LV: Tensor, ids_L: Tensor) -> Tensor:
    """Of each row, the token that did stand there [L - 1]."""
    return rows_LV[torch.arange(len(rows_LV)), ids_L[1:]]


def values_after(trunk: nn.Module, head: nn.Linear, ids_L: Tensor) -> Tensor:
    """What a critic expects after each token [L]."""
    return head(trunk(input_ids=ids_L[None], use_cache=False).last_hidden_state[0].float())[:, 0]


def gradient_of(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach().float().clone()
