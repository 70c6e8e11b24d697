"""The loss of one update from the columns of its table, once more by another hand (see `updates`).

Axis letters: T tokens (flat) · U the tokens that this update used.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from workbench.linting.credit_oracle import MAX_LOG_RATIO, kl

MAX_SEQUENCE_LOG_RATIO = 10.0
SURE = 1e-6  # nats: a token that was certain has no gradient
EDGE = 1e-5  # a ratio as near as this to a bound may be on either side of it in float32

Columns = Mapping[str, np.ndarray]


class Figure(NamedTuple):
    """`size`: of the numbers that it was added up from, which rounding goes by."""

    value: float
    size: float
    doubtful: bool = False


@dataclass(frozen=True, eq=False)
class Surrogate:
    """`at`: indices into T of the tokens used; all arrays are aligned with it. `teaches`: tokens with a weight and an
    advantage that no bound holds."""

    at: np.ndarray
    ratio: np.ndarray
    state: np.ndarray
    at_an_edge: np.ndarray
    advantage: np.ndarray
    figures: Mapping[str, Figure]
    denominator: float
    tokens: int
    counted: int
    rows: int
    teaches: int


def owns_its_loss(algorithm: Any) -> bool:
    """Whether its loss is its own: then only its author can say what it is to be."""
    for cls in type(algorithm).__mro__:
        if cls.__module__ == "workbench.learn.algorithms.policy_gradient" and cls.__name__ == "PolicyGradient":
            return False
        if {"loss", "_objective", "reduction_of", "value_loss"} & vars(cls).keys() and not (
                cls.__module__ == "workbench.learn.algorithms.ppo" and cls.__name__ == "PPO"):
            return True
    return True


def recomputed(columns: Columns, algorithm: Any) -> Surrogate:
    """Everything that the columns and the settings say of an update."""
    at = np.flatnonzero(columns["used"])
    old, new = (columns[name][at].astype(np.float64) for name in ("old_logp", "new_logp"))
    weight, advantage = columns["weight"][at], columns["advantage"][at]
    ratio = _ratio(columns, at, new - old, weight != 0, algorithm)
    loss, state = _policy(ratio, new, advantage, algorithm)
    edge = _edges(ratio, algorithm)
    figures: dict[str, Figure] = {}
    acts = columns["eligible"][at]
    acts = acts if acts.any() else np.ones(len(at), bool)
    if algorithm.sampler_cap:
        rollout = columns["rollout_logp"][at].astype(np.float64)
        held = np.minimum(np.exp(np.clip(old - rollout, -MAX_LOG_RATIO, MAX_LOG_RATIO)), algorithm.sampler_cap)
        held = np.where(np.isnan(rollout), 1.0, held)
        loss = loss * held
        figures["sampler_weight"] = _mean(held[acts])
    row = columns["trajectory"][at]
    policy, denominator = _reduced(loss, weight, row, algorithm)
    total = policy
    if algorithm.entropy_coef:
        entropy = -algorithm.entropy_coef * columns["entropy"][at].astype(np.float64)
        own = columns.get("entropy_weight", columns["weight"])[at]
        total = _added(total, _reduced(entropy, own, row, algorithm)[0])
        figures["entropy_loss"] = _mean(entropy[acts])
    if algorithm.kl_coef and "ref_logp" in columns:
        ref = columns["ref_logp"][at].astype(np.float64)
        figures["kl_ref"] = _mean(kl(new, ref, "k3")[acts])
        if algorithm.kl_in == "loss":
            pull = algorithm.kl_coef * kl(new, ref, algorithm.kl_estimator)
            total = _added(total, _reduced(pull, columns.get("kl_weight", columns["weight"])[at], row, algorithm)[0])
            figures["kl_loss"] = _mean(pull[acts])
    log_ratio = (new - old)[acts]
    doubtful = bool(edge[acts].any())
    clipped = {"clip_fraction": state != 0, "clip_fraction_high": state == 1}
    if (state == 2).any():
        clipped["clip_fraction_dual"] = state == 2
    figures |= {"loss": total, "entropy": _mean(columns["entropy"][at][acts].astype(np.float64)),
                # float32 logprobs: the difference is exact, its square is what matters
                "approx_kl": _mean(np.expm1(log_ratio) - log_ratio), "ratio_max": _largest(ratio[acts]),
                "trained_tokens": Figure(float(len(at)), 0.0),
                "trained_share": Figure(len(at) / max(len(columns["used"]), 1), 1.0),
                "weight_mean": _mean(weight[acts])}
    figures |= {name: _mean(values[acts].astype(np.float64))._replace(doubtful=doubtful)
                for name, values in clipped.items()}
    figures |= _critic(columns, at, algorithm)
    free = (weight != 0) & (state == 0) & ~edge & (new < -SURE)
    return Surrogate(at, ratio, state, edge, advantage, figures, denominator, len(columns["used"]),
                     int((weight != 0).sum()), len(np.unique(row[weight != 0])),
                     _teaching(columns, at[free], (weight * advantage)[free]))


def _teaching(columns: Columns, at: np.ndarray, push: np.ndarray) -> int:
    """How many tokens push the policy somewhere. The same token at the same position may be the same choice in the same
    context, in attempts of opposite credit: only what is left of their sum is sure to push."""
    if not len(at):
        return 0
    _, which = np.unique(np.stack([columns["position"][at], columns["token_id"][at]]), axis=1, return_inverse=True)
    total, size = np.bincount(which.ravel(), push), np.bincount(which.ravel(), np.abs(push))
    return int((np.abs(total) > 1e-6 * size).sum())


def _ratio(columns: Columns, at: np.ndarray, change: np.ndarray, counts: np.ndarray, algorithm: Any) -> np.ndarray:
    if algorithm.objective != "gspo":
        return np.exp(np.clip(change, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    segment = columns["segment"][at]
    _, which = np.unique(segment, return_inverse=True)
    total, count = np.bincount(which, np.where(counts, change, 0.0)), np.bincount(which, counts.astype(np.float64))
    return np.exp(np.minimum((total / np.maximum(count, 1))[which], MAX_SEQUENCE_LOG_RATIO))


def _policy(ratio: np.ndarray, new: np.ndarray, advantage: np.ndarray, algorithm: Any) -> tuple[np.ndarray, np.ndarray]:
    """(loss per token, state)."""
    low, high = 1 - algorithm.clip_low, 1 + algorithm.clip_high
    state = np.zeros(len(ratio), np.int8)
    if algorithm.objective == "cispo":
        state[ratio < low], state[ratio > high] = -1, 1
        return -np.clip(ratio, low, high) * advantage * new, state
    loss = np.maximum(-ratio * advantage, -np.clip(ratio, low, high) * advantage)
    state[(ratio < low) & (advantage < 0)] = -1
    state[(ratio > high) & (advantage > 0)] = 1
    if algorithm.dual_clip and algorithm.objective == "clip":
        bad = advantage < 0
        loss = np.where(bad, np.minimum(loss, -algorithm.dual_clip * advantage), loss)
        state[bad & (ratio > algorithm.dual_clip)] = 2
    return loss, state


def _edges(ratio: np.ndarray, algorithm: Any) -> np.ndarray:
    bounds = [1 - algorithm.clip_low, 1 + algorithm.clip_high] + ([algorithm.dual_clip] if algorithm.dual_clip else [])
    return np.any([np.abs(ratio - bound) <= EDGE for bound in bounds], axis=0)


def _reduced(term: np.ndarray, weight: np.ndarray, row: np.ndarray, algorithm: Any) -> tuple[Figure, float]:
    """The sum of weight x term as `algorithm.reduction` names it, and what it was divided by."""
    counts = weight != 0
    if not counts.any():
        return Figure(0.0, 0.0), 1.0
    term, weight, row = term[counts], weight[counts], row[counts]
    rows, which, length = np.unique(row, return_inverse=True, return_counts=True)
    if algorithm.reduction == "token-mean":
        scale, denominator = 1.0, float(len(term))
    elif algorithm.reduction == "seq-mean-token-mean":
        scale, denominator = 1.0 / length[which], float(len(rows))
    elif algorithm.reduction == "seq-mean-token-sum":
        scale, denominator = 1.0, float(len(rows))
    else:
        scale, denominator = 1.0, float(len(rows) * algorithm.fixed_length)
    parts = term * weight * scale / denominator
    return Figure(float(parts.sum()), float(np.abs(parts).sum())), denominator


def _added(one: Figure, other: Figure) -> Figure:
    return Figure(one.value + other.value, one.size + other.size)


def _mean(values: np.ndarray) -> Figure:
    if not len(values):
        return Figure(0.0, 0.0, True)
    return Figure(float(values.mean()), float(np.abs(values).mean()))


def _largest(values: np.ndarray) -> Figure:
    return Figure(float(values.max()), float(values.max())) if len(values) else Figure(0.0, 0.0, True)


def _critic(columns: Columns, at: np.ndarray, algorithm: Any) -> dict[str, Figure]:
    """Half the squared error, by the clipped value if that is worse, over the tokens that the critic is fitted at."""
    if not {"new_value", "value", "return"} <= columns.keys() or not hasattr(algorithm, "value_clip"):
        return {}
    fitted = at[columns.get("critic_weight", columns["weight"])[at] != 0]
    if not len(fitted):
        return {}
    new, old, target = (columns[name][fitted].astype(np.float64) for name in ("new_value", "value", "return"))
    free = (new - target) ** 2
    if not algorithm.value_clip:
        return {"value_loss": _mean(free / 2)}
    held = (np.clip(new, old - algorithm.value_clip, old + algorithm.value_clip) - target) ** 2
    return {"value_loss": _mean(np.maximum(free, held) / 2)}
