"""Credit and loss once more, by the reference implementation that an algorithm brings (`workbench.plain`).

    expected_credit(trajectories, recipe, facts)  what each token is worth
    expected_update(columns, recipe)           what an update makes of the columns of its credit table

Nothing here knows an algorithm: the recipe says it all. Every formula is in `workbench/plain/`.

Axis letters: T tokens (flat) · U the tokens that an update used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.basics.tensors import Tensor, torch
from workbench.learn.algorithms.base import LossInputs
from workbench.linting.plain_trajectories import TrajectoryTable
from workbench.plain.credit import Recipe, TrajectoryCredit, credit_of, updates_per_epoch
from workbench.plain.loss import ObjectiveValue, kl, sampler_weight, shares, value_loss
from workbench.plain.rewards import TrajectoryTokens

Columns = Mapping[str, np.ndarray]

WEIGHT_COLUMNS = {
    "policy": "weight",
    "entropy": "entropy_weight",
    "kl": "kl_weight",
    "critic": "critic_weight",
}
LOSS_PARTS = {"objective", "reduction", "reference"}  # of an algorithm: they make its loss
SHAKEN = 1e-13  # relative: how far rewards are moved to see what their rounding can do
EDGE = 1e-5  # a ratio as near as this to a bound may be on either side of it in float32
SURE = 1e-6  # nats: a token that was certain has no gradient


def declares(algorithm: Any, fact: str) -> bool:
    """Whether an algorithm, its estimator or its objective says so of itself, by an attribute of this name."""
    parts = [
        algorithm,
        getattr(algorithm, "estimator", None),
        getattr(algorithm, "objective", None),
    ]
    parts += [getattr(part, "function", None) for part in parts]
    return any(bool(getattr(part, fact, False)) for part in parts)


# ------------------------------------------------------------------------------------------------ credit


@dataclass(frozen=True, eq=False)
class ExpectedCredit:
    """`columns`: by the names of a credit table [T]. `minibatches`: updates per epoch."""

    columns: Columns
    minibatches: int


def expected_credit(
    trajectories: TrajectoryTable, recipe: Recipe, facts: Columns
) -> ExpectedCredit:
    """The credit of every token. `facts`: numbers of models, by the names of `TrajectoryTokens`."""
    given = trajectories.with_facts(facts)
    return ExpectedCredit(_columns(credit_of(given, recipe)), updates_per_epoch(given, recipe))


def rounding_of_credit(trajectories: TrajectoryTable, recipe: Recipe, facts: Columns) -> Columns:
    """By column [T], how far rounding of the rewards moves it: rewards that are all but equal, divided by their
    deviation, magnify their last digits."""
    given = trajectories.with_facts(facts)
    exact = _columns(credit_of(given, recipe))
    near = {name: np.zeros(trajectories.num_tokens) for name in exact}
    for sign in (1, -1):
        shaken = _columns(
            credit_of(
                [
                    _with_moved_rewards(trajectory, sign * (-1) ** n)
                    for n, trajectory in enumerate(given)
                ],
                recipe,
            )
        )
        for name, values_T in exact.items():
            gap_T = np.where(
                np.isnan(values_T) & np.isnan(shaken[name]), 0.0, np.abs(shaken[name] - values_T)
            )
            near[name] = np.maximum(near[name], np.nan_to_num(gap_T, nan=np.inf))
    return near


def _with_moved_rewards(trajectory: TrajectoryTokens, sign: int) -> TrajectoryTokens:
    def moved(reward: float | None) -> float | None:
        return None if reward is None else reward * (1 + sign * SHAKEN)

    return replace(
        trajectory,
        rewards=[moved(reward) for reward in trajectory.rewards],
        outcome=moved(trajectory.outcome),
    )


def _columns(credits: list[TrajectoryCredit]) -> dict[str, np.ndarray]:
    def joined(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([np.zeros(0), *parts])

    columns = {"advantage": joined([own.advantage for own in credits])}
    for term, column in WEIGHT_COLUMNS.items():
        if credits and term in credits[0].weights:
            columns[column] = joined([own.weights[term] for own in credits])
    if "critic_weight" in columns:
        columns["return"] = joined([own.target for own in credits])
    return columns


def credits_of(
    trajectories: TrajectoryTable, credit: Any, recipe: Recipe
) -> list[TrajectoryCredit]:
    """A `Credit` of production as `plain` has it, trajectory by trajectory, with those terms that the recipe has."""
    has = {
        "policy": True,
        "entropy": recipe.entropy_coef,
        "kl": recipe.kl_coef and recipe.kl_in == "loss",
        "critic": credit.return_T is not None,
    }
    terms = [term for term in has if has[term]]
    weights = {term: trajectories.split(credit.weights_of(term).double().numpy()) for term in terms}
    advantages = trajectories.split(credit.advantage_T.double().numpy())
    target_T = np.full(trajectories.num_tokens, np.nan)
    if credit.return_T is not None:
        target_T = credit.return_T.double().numpy()
    targets = trajectories.split(target_T)
    credits = []
    for n in range(trajectories.num_trajectories):
        own = {term: parts[n] for term, parts in weights.items()}
        credits.append(TrajectoryCredit(advantages[n], own, targets[n]))
    return credits


# ------------------------------------------------------------------------------------------------ an update


@dataclass(frozen=True)
class Figure:
    """A number of the metrics. `size`: of the numbers that it was added up from, which rounding goes by."""

    value: float
    size: float


@dataclass(frozen=True, eq=False)
class ExpectedUpdate:
    """`used_U`: indices into T of the tokens that were used; all arrays are aligned with it. `at_edge_U`: rounding may
    put them on either side of a bound."""

    used_U: np.ndarray
    ratio_U: np.ndarray
    state_U: np.ndarray
    at_edge_U: np.ndarray
    figures: Mapping[str, Figure]

    def teaches(self, columns: Columns) -> int:
        """How many tokens push the policy somewhere: those with credit that no bound holds. The same token at the same
        position may be the same choice in the same context, in trajectories of opposite credit: only what is left of their
        sum is sure to push."""
        weight = columns["weight"][self.used_U]
        new = columns["new_logp"][self.used_U]
        free = (weight != 0) & (self.state_U == 0) & ~self.at_edge_U & (new < -SURE)
        if not free.any():
            return 0
        at = self.used_U[free]
        push = (weight * columns["advantage"][self.used_U])[free]
        _, which = np.unique(
            np.stack([columns["position"][at], columns["token_id"][at]]),
            axis=1,
            return_inverse=True,
        )
        total = np.bincount(which.ravel(), push)
        size = np.bincount(which.ravel(), np.abs(push))
        return int((np.abs(total) > 1e-6 * size).sum())


def expected_update(columns: Columns, recipe: Recipe) -> ExpectedUpdate:
    """Everything that the columns and the recipe say of an update."""
    used = np.flatnonzero(columns["used"])
    floats = [name for name, values in columns.items() if values.dtype.kind == "f"]
    known = {name: torch.from_numpy(columns[name][used].astype(np.float64)) for name in floats}
    surrogate, at_edge = _objective(recipe, known, columns["segment"][used])
    acts = columns["eligible"][used]
    if not acts.any():
        acts = np.ones(len(used), bool)
    terms, figures = _terms(recipe, known, surrogate.loss, acts)
    change = known["new_logp"] - known["old_logp"]
    state = surrogate.state.numpy()
    largest = float(surrogate.ratio[acts].max())
    figures |= {
        "loss": _total(terms, known, columns["trajectory"][used], recipe),
        "entropy": _mean(known["entropy"], acts),
        "approx_kl": _mean(change.expm1() - change, acts),
        "ratio_max": Figure(largest, largest),
        "trained_tokens": Figure(float(len(used)), 0.0),
        "weight_mean": _mean(known["weight"], acts),
        "trained_share": Figure(len(used) / len(columns["used"]), 1.0),
    }
    figures |= _critic(known, recipe)
    if not at_edge[acts].any():
        figures |= _shares_held(state, acts)
    return ExpectedUpdate(used, surrogate.ratio.numpy(), state, at_edge, figures)


def _terms(
    recipe: Recipe, known: Mapping[str, Tensor], loss: Tensor, acts: np.ndarray
) -> tuple[dict[str, Tensor], dict[str, Figure]]:
    """(the terms of the loss by token, what the metrics say of them). `loss`: of the objective; `acts`: the tokens that
    means are taken over."""
    figures: dict[str, Figure] = {}
    if recipe.sampler_cap:
        held = sampler_weight(known["old_logp"], known["rollout_logp"], recipe.sampler_cap)
        loss = loss * held
        figures["sampler_weight"] = _mean(held, acts)
    terms = {"policy": loss}
    if recipe.entropy_coef:
        terms["entropy"] = -recipe.entropy_coef * known["entropy"]
        figures["entropy_loss"] = _mean(terms["entropy"], acts)
    if recipe.kl_coef and "ref_logp" in known:
        new = known["new_logp"]
        reference = known["ref_logp"]
        figures["kl_ref"] = _mean(kl(new, reference, "k3"), acts)
        if recipe.kl_in == "loss":
            terms["kl"] = recipe.kl_coef * kl(new, reference, recipe.kl_estimator)
            figures["kl_loss"] = _mean(terms["kl"], acts)
    return terms, figures


def _shares_held(state: np.ndarray, acts: np.ndarray) -> dict[str, Figure]:
    """The shares of tokens that a bound holds."""
    held = {"clip_fraction": state != 0, "clip_fraction_high": state == 1}
    if (state == 2).any():
        held["clip_fraction_dual"] = state == 2
    return {
        name: _mean(torch.from_numpy(which.astype(np.float64)), acts)
        for name, which in held.items()
    }


def _objective(
    recipe: Recipe, known: Mapping[str, Tensor], segment_U: np.ndarray
) -> tuple[ObjectiveValue, np.ndarray]:
    """(the objective of every token, which of them are at the edge of a bound), a segment at a time."""
    cuts = (
        np.zeros(0, int)
        if is_by_token(recipe.objective)
        else np.flatnonzero(np.diff(segment_U)) + 1
    )
    pieces = []
    edges = []
    for first, after in zip([0, *cuts.tolist()], [*cuts.tolist(), len(segment_U)]):
        here = slice(first, after)
        new, old, advantage = (known[name][here] for name in ("new_logp", "old_logp", "advantage"))
        value, low, high = (
            recipe.objective(new + off, old, advantage, known["weight"][here] != 0, **recipe.bounds)
            for off in (0.0, -EDGE, EDGE)
        )
        pieces.append(value)
        edges.append((low.state != high.state).numpy())
    return ObjectiveValue(*map(torch.cat, zip(*pieces))), np.concatenate(edges)


def _total(
    terms: Mapping[str, Tensor], known: Mapping[str, Tensor], row_U: np.ndarray, recipe: Recipe
) -> Figure:
    """The loss: each term by its own weights, over its own denominator."""
    value = size = 0.0
    for name, term in terms.items():
        weight = known.get(WEIGHT_COLUMNS[name], known["weight"]).numpy()
        parts = np.split(weight, np.flatnonzero(np.diff(row_U)) + 1)
        share = np.concatenate(shares(parts, recipe.reduction, recipe.fixed_length))
        part = np.where(share != 0, term.numpy() * share, 0.0)
        value = value + float(part.sum())
        size = size + float(np.abs(part).sum())
    return Figure(value, size)


def _mean(values: Tensor, of: np.ndarray) -> Figure:
    return Figure(float(values[of].mean()), float(values[of].abs().mean()))


def _critic(known: Mapping[str, Tensor], recipe: Recipe) -> dict[str, Figure]:
    """The critic's loss over the tokens that it is fitted at."""
    if not {"new_value", "value", "return"} <= known.keys():
        return {}
    fitted = (known.get("critic_weight", known["weight"]) != 0).numpy()
    if not fitted.any():
        return {}
    new, old, target = (known[name][fitted] for name in ("new_value", "value", "return"))
    return {
        "value_loss": _mean(
            value_loss(new, old, target, recipe.value_clip), np.ones(int(fitted.sum()), bool)
        )
    }


# ------------------------------------------------------------------------------------------------ an objective alone


def is_by_token(objective: Callable) -> bool:
    """Whether the loss of a token depends on no other token of its segment."""
    return getattr(getattr(objective, "func", objective), "by_token", False)


def own_objective(algorithm: Any) -> Any:
    """The algorithm's own loss in the form of `plain.loss.clip`: where it brings no reference implementation, only the way from its loss to
    the gradient can be compared with anything."""

    def objective(
        logp: Tensor, old_logp: Tensor, advantage: Tensor, counts: Tensor, **bounds: float
    ) -> ObjectiveValue:
        nothing = torch.full_like(old_logp, torch.nan)
        terms = algorithm.loss(
            LossInputs(
                logp,
                torch.zeros_like(old_logp),
                old_logp,
                advantage,
                nothing,
                torch.zeros(len(logp), dtype=torch.int64),
                logp.detach(),
                counts,
            )
        )
        return ObjectiveValue(terms.loss_M, terms.ratio_M, terms.clip_state_M)

    return objective
