"""The reference implementation of an algorithm: the same settings, put together from the reference implementations that its parts bring.

    recipe, missing = plain_recipe(algorithm)

`recipe` is what `plain.credit.credit_of` and `plain.train` run by. `missing` names the parts that bring no reference implementation: of what
they decide nothing can be said by a second implementation.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.parts import (
    ADVANTAGE_MASK,
    LOSS_MASK,
    CriticLoss,
    Filter,
    Masks,
    ReferenceKL,
    Rewards,
)
from workbench.plain.credit import Recipe
from workbench.plain.rewards import FilterRule

# Parts that have a reference implementation as they are, so that one of somebody's own, in another class, has none.
SHIPPED = {
    "critic": CriticLoss,
    "reference": ReferenceKL,
    "masks": Masks,
    "rewards": Rewards,
    "filter": Filter,
}
# What a class derived from Algorithm may do by itself: the part that is then its own.
METHODS = {
    "credit": "estimator",
    "loss": "objective",
    "reduction_of": "reduction",
    "value_loss": "critic",
}
PARTS = ("estimator", "objective", "reduction", *SHIPPED)


class PlainRecipe(NamedTuple):
    """`recipe` None: this is no composition of parts at all. `missing`: of `PARTS`, those without a reference implementation; the recipe's
    estimator or objective then raises."""

    recipe: Recipe | None
    missing: tuple[str, ...] = ()


def plain_recipe(algorithm: Any) -> PlainRecipe:
    """The same algorithm as a recipe of `plain`, and which of its parts bring no reference implementation."""
    if not isinstance(algorithm, Algorithm):
        return PlainRecipe(None, PARTS)
    rule = asdict(algorithm.filter)
    equal = rule.pop("equal_updates")
    masks = algorithm.masks
    critic = algorithm.critic or CriticLoss(bootstrap="never")
    pull = algorithm.reference
    switches = (*ADVANTAGE_MASK, *LOSS_MASK)
    recipe = Recipe(
        algorithm.estimator.plain or no_plain_form,
        algorithm.estimator.settings,
        getattr(algorithm.objective, "plain", None) or no_plain_form,
        reduction=algorithm.reduction,
        fixed_length=algorithm.fixed_length,
        sampler_cap=algorithm.sampler_cap,
        entropy_coef=algorithm.entropy_coef,
        kl_coef=pull.kl_coef,
        kl_estimator=pull.kl_estimator,
        kl_in=pull.kl_in,
        value_clip=critic.value_clip,
        bootstrap=critic.bootstrap,
        normalize=algorithm.rewards.normalize,
        over=algorithm.rewards.over,
        filter_rule=FilterRule(**rule),
        equal_updates=equal,
        widened=frozenset(switch for switch in switches if masks.over(switch) == "response"),
        epochs=algorithm.epochs,
        minibatches=algorithm.minibatches,
        minibatch_size=algorithm.minibatch_size,
    )
    without = _parts_without_twin(algorithm)
    return PlainRecipe(recipe, tuple(part for part in PARTS if part in without))


def _parts_without_twin(algorithm: Algorithm) -> set[str]:
    """Parts that somebody's own class decides, and those that bring no second implementation."""
    parts = set()
    for method, part in METHODS.items():
        if getattr(type(algorithm), method) is not getattr(Algorithm, method):
            parts.add(part)
    for part, kind in SHIPPED.items():
        if type(getattr(algorithm, part)) not in (kind, type(None)):
            parts.add(part)
    if algorithm.estimator.plain is None:
        parts.add("estimator")
    if getattr(algorithm.objective, "plain", None) is None:
        parts.add("objective")
    return parts


def no_plain_form(*args: Any, **settings: Any) -> Any:
    """Stands where a part brings no reference implementation."""
    raise NotImplementedError(
        "this part has no reference implementation: look at `missing` before the recipe is run"
    )
