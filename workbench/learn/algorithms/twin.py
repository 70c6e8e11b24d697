"""The plain twin of an algorithm: the same settings, put together from the twins that its parts bring.

    recipe, missing = plain_recipe(algorithm)

`recipe` is what `plain.credit.credit_of` and `plain.train` run by. `missing` names the parts that bring no twin: of what
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

# Parts that have a twin as they are, so that one of somebody's own, in another class, has none.
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


class PlainTwin(NamedTuple):
    """`recipe` None: this is no composition of parts at all. `missing`: of `PARTS`, those without a twin; the recipe's
    estimator or objective then raises."""

    recipe: Recipe | None
    missing: tuple[str, ...] = ()


def plain_recipe(algorithm: Any) -> PlainTwin:
    """The same algorithm as a recipe of `plain`, and which of its parts bring no twin."""
    if not isinstance(algorithm, Algorithm):
        return PlainTwin(None, PARTS)
    estimator, objective = algorithm.estimator.plain, getattr(algorithm.objective, "plain", None)
    own = {
        part
        for method, part in METHODS.items()
        if getattr(type(algorithm), method) is not getattr(Algorithm, method)
    }
    own |= {
        part
        for part, kind in SHIPPED.items()
        if type(getattr(algorithm, part)) not in (kind, type(None))
    }
    own |= {"estimator"} if estimator is None else set()
    own |= {"objective"} if objective is None else set()
    rule = asdict(algorithm.filter)
    equal = rule.pop("equal_updates")
    masks, critic, pull = (
        algorithm.masks,
        algorithm.critic or CriticLoss(bootstrap="never"),
        algorithm.reference,
    )
    return PlainTwin(
        Recipe(
            estimator or no_twin,
            vars(algorithm.estimator.settings),
            objective or no_twin,
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
            widened=frozenset(
                each for each in (*ADVANTAGE_MASK, *LOSS_MASK) if masks.over(each) == "response"
            ),
            epochs=algorithm.epochs,
            minibatches=algorithm.minibatches,
            minibatch_size=algorithm.minibatch_size,
        ),
        tuple(part for part in PARTS if part in own),
    )


def no_twin(*args: Any, **settings: Any) -> Any:
    """Stands where a part brings no twin."""
    raise NotImplementedError(
        "this part has no plain twin: look at `missing` before the recipe is run"
    )
